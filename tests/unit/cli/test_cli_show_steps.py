"""`aligner show --step` on a real training."""

from __future__ import annotations

import json
import re

import pytest

import aligner
from aligner.cli import main
from aligner.compare.training import updates
from aligner.record import Key, Phase
from aligner.report import lines

torch = pytest.importorskip("torch", reason="the trainings are torch's")
TASKS = "tests.unit.training.small_tasks"


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("show") / "ref.h5"
    assert main(["capture", f"{TASKS}:grouped", "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture
def show(capsys):
    def call(*words, language="en", code=0):
        assert main(["show", *map(str, words), "--lang", language]) == code
        told = capsys.readouterr()
        assert "--json" in words or max(map(lines.width, told.out.splitlines()), default=0) <= 100
        return told.out or told.err

    return call


def test_a_dump_says_what_training_it_holds(dump, show):
    assert "training  3 updates by SGD (torch.optim.sgd.SGD)\n" in show(dump)
    assert "由 SGD (torch.optim.sgd.SGD) 更新 3 次" in show(dump, language="zh")
    (one,) = json.loads(show(dump, "--json"))["training"]
    assert (one["kind"], one["updates"]) == ("SGD", 3)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_step_as_a_whole(dump, show, language):
    told = show(dump, "--step", "1", language=language)
    with aligner.open(dump) as opened:
        (update,) = [one for one in updates(opened) if one.step == 1]
        loss = float(opened.find(Key(1, Phase.FORWARD, "(loss)", 0, "output.0")).load())
    assert f"{loss:.6g}" in told
    assert f"{update.norm:.6g}" in told
    assert {"en": "group 2", "zh": "第 2 组"}[language] in told
    assert "lr=0.1" in told
    assert "weight_decay=0.1" in told
    assert re.search(r"conv weight +\d\.\de", told)
    assert re.search(r"bn running_mean +- ", told)
    assert "momentum  " not in told  # what the optimizer keeps is no parameter


def test_norms_are_those_of_the_arrays(dump, show):
    (one,) = (
        r
        for r in json.loads(show(dump, "--step", "2", "--json"))["parameters"]
        if r["layer"] == "fc" and r["slot"] == "weight"
    )
    with aligner.open(dump) as opened:
        gradient, before, after = (
            torch.from_numpy(opened.find(Key(step, phase, "fc", 0, "weight")).load())
            for step, phase in ((2, Phase.GRADIENT), (1, Phase.UPDATE), (2, Phase.UPDATE))
        )
    wanted = [float(torch.linalg.norm(array)) for array in (gradient, before, after - before)]
    assert [one[name] for name in ("gradient", "before", "change")] == pytest.approx(wanted, rel=1e-5)


def test_a_layer_in_one_step(dump, show):
    told = show(dump, "--step", "1", "fc")
    titles = [line for line in told.splitlines() if re.match("step|parameters", line)]
    assert [title[:24] for title in titles] == [
        "parameters as step 1 beg",
        "step 1, forward, call 0",
        "step 1, backward, call 0",
        "step 1, gradient: what t",
        "step 1, update: what it ",
    ]
    assert "weight.momentum" in told
    assert told.count("moved by") == 2
    assert "step 0" not in told
    assert "step 2" not in told
    (first, *_) = json.loads(show(dump, "--step", "1", "fc", "--json"))["records"]
    assert (first["step"], first["phase"], first["slot"]) == (0, "update", "weight")


def test_the_first_step_begins_with_the_parameters_of_the_net(dump, show):
    (first, *_) = json.loads(show(dump, "--step", "0", "fc", "--json"))["records"]
    assert (first["step"], first["phase"]) == (0, "parameter")


def test_the_loss_is_a_layer_too(dump, show):
    assert "step 2, backward" in show(dump, "--step", "2", "(loss)")


def test_one_step_of_both_sides(dump, show):
    told = show(dump, "--step", "2", "fc", "--against", dump)
    assert "step 2, update" in told
    assert "step 1" not in told


def test_a_step_that_is_not_there(dump, show):
    assert "has no step 3; its last one is 2" in show(dump, "--step", "3", code=2)
    assert "--step" in show(dump, "--step", "-1", code=2)


def test_a_step_without_a_training(tmp_path, show):
    net = torch.nn.Linear(2, 2)
    with aligner.capture(net, tmp_path / "plain.h5"):
        net(torch.ones(1, 2))
    told = show(tmp_path / "plain.h5", "--step", "0")
    assert "none: no optimizer has updated in this step" in told
    assert "training  " not in show(tmp_path / "plain.h5")
    assert "parameters as step 0 begins" in show(tmp_path / "plain.h5", "--step", "0", "")

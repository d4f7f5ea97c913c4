"""Where a resumed run begins in the whole one, and single things that it loses, by runs of one small net."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import aligner
from aligner import registry
from aligner.capture.options import Options
from aligner.capture.session import Capture
from aligner.compare.beginning import found
from aligner.compare.shifted import shifted
from aligner.record import Key, Phase

torch = pytest.importorskip("torch", reason="the trainings are torch's")

ROWS = np.random.default_rng(0).random((10, 4, 6), np.float32)
OTHERS = np.random.default_rng(1).random((10, 4, 6), np.float32)
STEPS, STOP = 8, 3


class Run:
    """A training that can be saved, loaded and captured."""

    def __init__(self, optimizer=torch.optim.SGD, rate=0.1, **options):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        self.optimizer = optimizer(self.net.parameters(), rate, **options)
        self.at = 0

    def go(self, steps, data=ROWS, skip=()):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.net(torch.from_numpy(data[self.at])).square().mean().backward()
            if self.at not in skip:
                self.optimizer.step()
            self.at += 1
        return self

    def captured(self, path, steps, data=ROWS):
        adapter = registry.of(self.net)
        with Capture(adapter, self.net, path, Options(steps=steps, gradients=True, force=True)):
            self.go(steps, data)
        return path

    def resumed(self, lose=(), at=None, **options):
        """Another process that loads what this one has saved."""
        other = Run(type(self.optimizer), **options)
        other.net.load_state_dict(copy.deepcopy(self.net.state_dict()))
        if "optimizer" not in lose:
            state = copy.deepcopy(self.optimizer.state_dict())
            for group, own in zip(state["param_groups"], other.optimizer.state_dict()["param_groups"]):
                group.update({name: own[name] for name in options if name in own})
            other.optimizer.load_state_dict(state)
        other.at = self.at if at is None else at
        return other


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def told(comparison):
    return [(origin.step, origin.causes[0].id) for origin in comparison.origins]


MOMENTUM = {"momentum": 0.9}


@pytest.fixture
def whole():
    Run(**MOMENTUM).captured("whole.h5", STEPS)
    return Run(**MOMENTUM).go(STOP)


CASES = {
    "right": ({}, {}, []),
    "moments": ({"lose": ("optimizer",)}, {}, ["resume-moments"]),
    "setting": ({"weight_decay": 0.1}, {}, ["resume-setting"]),
    "rate": ({"rate": 0.1, "lr": 0.05}, {}, ["resume-learning-rate"]),
    "other": ({"at": 1}, {}, ["resume-data-other"]),
    "nowhere": ({}, {"data": OTHERS}, ["resume-data-nowhere"]),
}


@pytest.mark.parametrize("name", CASES)
def test_single_things(whole, name):
    lost, run, wanted = CASES[name]
    other = whole.resumed(**{"momentum": 0.9, **{n: v for n, v in lost.items() if n != "lr"}})
    for group in other.optimizer.param_groups:
        group["lr"] = lost.get("lr", group["lr"])
    other.captured("resumed.h5", STEPS - STOP, **run)
    comparison = aligner.compare("whole.h5", "resumed.h5")
    assert told(comparison) == [(STOP, cause) for cause in wanted]
    assert comparison.outcome == ("diverged" if wanted else "aligned")
    assert comparison.resumed.step == STOP


def test_a_small_rate_hides_nothing():
    """What is lost changes the parameters by less than any tolerance."""
    Run(rate=1e-6, **MOMENTUM).captured("whole.h5", STEPS)
    stopped = Run(rate=1e-6, **MOMENTUM).go(STOP)
    stopped.resumed(rate=1e-6, **MOMENTUM).captured("resumed.h5", 4)
    assert aligner.compare("whole.h5", "resumed.h5").aligned
    stopped.resumed(("optimizer",), rate=1e-6, **MOMENTUM).captured("resumed.h5", 4)
    assert told(aligner.compare("whole.h5", "resumed.h5")) == [(STOP, "resume-moments")]


def test_parameters_that_were_rounded_tell_where_they_are(whole):
    other = whole.resumed(**MOMENTUM)
    for parameter in other.net.parameters():
        parameter.data += 1e-5 * torch.randn(parameter.shape)
    other.captured("resumed.h5", 4)
    comparison = aligner.compare("whole.h5", "resumed.h5")
    assert (comparison.resumed.step, comparison.resumed.by) == (STOP, "rounding")
    assert comparison.aligned


def test_steps_that_begin_with_the_same_are_told():
    """A loss scaler skips an update: two steps have the same parameters."""
    run = Run()
    with Capture(registry.of(run.net), run.net, "whole.h5", Options(steps=STEPS, gradients=True)):
        for step in range(STEPS):
            for group in run.optimizer.param_groups:
                group["lr"] = 0.0 if step == 3 else 0.1
            run.go(1, np.repeat(ROWS[:1], 10, 0))
    stopped = Run()
    stopped.go(STOP, np.repeat(ROWS[:1], 10, 0))
    stopped.resumed().captured("resumed.h5", 2, np.repeat(ROWS[:1], 10, 0))
    comparison = aligner.compare("whole.h5", "resumed.h5")
    assert (comparison.resumed.step, comparison.resumed.others) == (3, (4,))
    assert ("resumed-several", {"step": 3, "others": "4"}) in comparison.warnings
    assert aligner.compare("whole.h5", "resumed.h5", from_step=4).aligned


def test_a_run_of_its_own_is_no_resumed_one(whole):
    Run(**MOMENTUM).captured("again.h5", 4)
    with aligner.open("whole.h5") as one, aligner.open("again.h5") as other:
        assert found(one, other, None) is None


def test_a_view_begins_with_what_the_step_before_has_left(whole):
    with aligner.open("whole.h5") as dump:
        view = shifted(dump, STOP, STEPS)
        assert view.steps == list(range(STEPS - STOP))
        for key in (Key(0, Phase.PARAMETER, "0", 0, "weight"), Key(0, Phase.GRADIENT, "0", 0, "weight.momentum")):
            before = key._replace(step=STOP - 1, phase=Phase.UPDATE)
            assert view.addresses[key] == before
            assert np.array_equal(view.find(key).load(), dump.find(before).load())
        assert {call.step for call in view.calls} == set(view.steps)
        view.close()
        assert dump.entries[0].load().size
        kinds = [facts["step"] for kind, facts in view.findings if kind == "training"]
        assert kinds == list(view.steps)


@pytest.mark.parametrize(("step", "message"), [(STEPS, "has no step 8"), (2, "not two trainings")])
def test_a_step_that_cannot_be_meant(whole, step, message):
    whole.captured("resumed.h5", 2)
    port = "resumed.h5"
    if step < STEPS:
        with aligner.capture(whole.net, "plain.h5"):
            whole.net(torch.from_numpy(ROWS[0]))
        port = "plain.h5"
    with pytest.raises(aligner.AlignerError, match=message):
        aligner.compare("whole.h5", port, from_step=step)

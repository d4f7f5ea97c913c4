"""Dumps that were mixed up on the way to the command line: said first, in every report, and no layer is blamed."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import aligner as api
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.notebook.html import comparison_html
from aligner.report import json_
from aligner.report.terminal import Terminal
from aligner.report.text import report_lines
from aligner.report.words import told as told_in

pytest.importorskip("torch", reason="one framework is enough to mix dumps up")

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, slope=0.0):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.slope = slope

    def forward(self, x):
        x = self.norm(self.fc1(x))
        return self.fc2(torch.where(x > 0, x, self.slope * x))

def made(seed, slope=0.0, inputs=7):
    torch.manual_seed(seed)
    net = Net(slope)
    return net, (torch.randn(2, 6, generator=torch.Generator().manual_seed(inputs)),)

def ref(): return made(1)
def other(): return made(2)
def leaky(): return made(1, 0.1)
def port(): return made(3)
def fed(): return made(1, inputs=8)
"""


def captured(run, name, output, *options):
    found = run("capture", f"nets.py:{name}", "-o", output, "--force", *options)
    assert found.returncode == 0, found.stderr


@pytest.fixture(scope="module")
def pair(torch_at_hand, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "nets.py").write_text(NETS)
    captured(partial(torch_at_hand.run, folder), "ref", "ref.h5")
    captured(partial(torch_at_hand.run, folder), "port", "port.h5", "--from", "ref.h5")
    return folder


@pytest.fixture
def nets(pair, tmp_path, warm):
    """A folder with a reference and its port; captures more."""
    shutil.copytree(pair, tmp_path, dirs_exist_ok=True)
    return partial(captured, warm)


@pytest.fixture
def told(nets, warm, tmp_path):
    """Compare; the exit code and the answer, once the three reports have been seen to begin with the mix-up."""

    def run(reference, port, message, *options):
        plain = warm("compare", reference, port, *options)
        found = api.compare(tmp_path / reference, tmp_path / port)
        document = json_.document(found)
        answer = " ".join(plain.stdout.split("\n\n")[0].split()).replace(f"{tmp_path}/", "")
        if message is None:
            assert document["mixup"] is None
            assert not [w for w in document["warnings"] if w["id"].startswith("mixup")]
            return plain.returncode, answer, document
        assert document["mixup"]["id"] == message == document["warnings"][0]["id"]
        sentence = document["mixup"]["text"].replace(f"{tmp_path}/", "").split(". ")[0]
        assert answer.split(" ", 1)[1].startswith(sentence[:60])
        assert document["mixup"]["text"][:60] in html.unescape(comparison_html(found)).split("pairs")[0]
        spoken = told_in(document["mixup"]["id"], document["mixup"]["facts"], "zh")
        chinese = "".join(report_lines(found, Terminal(100, False, "zh"))).replace(" ", "")
        assert spoken.split("。")[0].replace(" ", "") in chinese
        if document["mixup"]["void"]:
            assert plain.returncode == 3
            assert document["outcome"] == "incomparable"
            assert [document["origins"], document["suspects"], document["first_divergence"]] == [[], [], None]
            assert "wrong by itself" not in plain.stdout
            assert "records over the tolerance" not in plain.stdout
        return plain.returncode, answer, document

    return run


def test_what_belongs_together_is_not_called_mixed_up(told):
    assert told("ref.h5", "port.h5", None)[0] == 0


@pytest.mark.parametrize("way", ["the same", "a hard link", "a symbolic link", "a copy"])
def test_a_dump_with_itself(told, tmp_path, way):
    if way == "a hard link":
        os.link(tmp_path / "ref.h5", tmp_path / "again.h5")
    elif way == "a symbolic link":
        (tmp_path / "again.h5").symlink_to("ref.h5")
    elif way == "a copy":
        shutil.copy(tmp_path / "ref.h5", tmp_path / "again.h5")
    told("ref.h5", "ref.h5" if way == "the same" else "again.h5", "mixup-self")


def test_swapped_says_what_to_type(told, warm):
    told("port.h5", "ref.h5", "mixup-swapped")
    assert warm("compare", "port.h5", "ref.h5").stdout.splitlines()[-1] == "next: aligner compare ref.h5 port.h5"


def test_a_port_of_another_reference(told, nets):
    nets("other", "other.h5")
    code, answer, _ = told("other.h5", "port.h5", "mixup-other-reference")
    assert "port.h5 was captured from another reference, ref.h5" in answer
    assert code == 3


def test_another_reference_on_the_same_weights_and_inputs_is_still_judged(told, nets):
    nets("leaky", "leaky.h5")
    code, answer, document = told("leaky.h5", "port.h5", "mixup-other-capture")
    assert (code, document["checked"]) == (1, 0)
    assert "first layer over" in answer
    assert document["origins"]
    assert "forced-other-reference" in [warning["id"] for warning in document["warnings"]]


def test_the_reference_made_anew(told, nets):
    nets("ref", "ref.h5")
    code, _, document = told("ref.h5", "port.h5", None)  # it came out the same
    assert (code, document["checked"] > 0) == (0, True)
    nets("leaky", "ref.h5")
    code, answer, _ = told("ref.h5", "port.h5", "mixup-renewed")
    assert code == 1
    assert answer.startswith("DIVERGED ref.h5 was captured anew after port.h5 was captured from it")
    nets("other", "ref.h5")
    assert told("ref.h5", "port.h5", "mixup-renewed-basis")[0] == 3
    nets("fed", "ref.h5")
    assert told("ref.h5", "port.h5", "mixup-renewed-basis")[0] == 3


def test_two_ports(told, nets):
    nets("port", "port2.h5", "--from", "ref.h5")
    assert told("port.h5", "port2.h5", "mixup-two-ports")[0] == 0
    assert told("port.h5", "port2.h5", "mixup-two-ports", "--strict")[0] == 1
    nets("other", "other.h5")
    nets("port", "port3.h5", "--from", "other.h5")
    assert told("port.h5", "port3.h5", "mixup-two-ports-apart")[0] == 3


def test_two_references(told, nets, warm):
    nets("ref", "ref.h5")
    nets("ref", "ref2.h5")
    code, answer, _ = told("ref.h5", "ref2.h5", "mixup-two-references")
    assert code == 0
    assert "two captures of one program, nets.py:ref" in answer
    nets("leaky", "leaky.h5")  # another factory: it may well be the port
    assert told("ref.h5", "leaky.h5", None)[0] == 1
    nets("ref", "train.h5", "--train")  # one net in two ways is set side by side on purpose
    told("ref.h5", "train.h5", None)


def test_a_chain_of_ports_is_no_mixup(told, nets):
    nets("port", "second.h5", "--from", "port.h5")
    assert told("port.h5", "second.h5", None)[0] == 0
    code, _, document = told("ref.h5", "second.h5", None)
    assert (code, document["checked"]) == (0, 0)  # the forced pass was made on another dump's values
    assert told("second.h5", "ref.h5", "mixup-swapped")[0] == 3


def test_a_port_run_on_inputs_of_its_own(told, nets, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x)
    nets("port", "own.h5", "--from", "ref.h5", "--inputs", "own.npz")
    code, answer, _ = told("ref.h5", "own.h5", "mixup-inputs")
    assert code == 3
    assert "own.h5 was run with --inputs own.npz" in answer
    with open_dump(tmp_path / "ref.h5") as dump:
        np.savez(tmp_path / "own.npz", dump[""].input.array)
    nets("port", "own.h5", "--from", "ref.h5", "--inputs", "own.npz")
    assert told("ref.h5", "own.h5", None)[0] == 0


def test_a_killed_reference_is_the_same_one_before_and_after_its_recovery(told, nets, tmp_path, warm):
    code = """
import os, aligner, nets
net, args = nets.ref()
capture = aligner.capture(net.eval(), "ref.h5", force=True).__enter__()
net(*args)
os.kill(os.getpid(), 9)
"""
    (tmp_path / "killed.py").write_text(code)
    child = subprocess.run([sys.executable, "killed.py"], cwd=tmp_path, check=False).returncode
    assert child != 0
    nets("port", "port.h5", "--from", "ref.h5")
    assert told("ref.h5", "port.h5", None)[0] == 0
    recover(tmp_path / "ref.h5")
    assert told("ref.h5", "port.h5", None)[0] == 0


def test_an_older_dump_says_no_more_than_it_knows(told, nets, tmp_path, monkeypatch):
    monkeypatch.setattr("aligner.replay.replay.descended", lambda reference: None)
    spec = importlib.util.spec_from_file_location("old_nets", tmp_path / "nets.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["old_nets"] = module
    spec.loader.exec_module(module)
    for forced in (True, False):
        replay = api.replay(tmp_path / "ref.h5", module.port()[0])
        with replay.capture(tmp_path / "old.h5", forced=forced, force=True):
            replay.model(*replay.inputs(step=0))
        assert told("ref.h5", "old.h5", None)[0] == 0
        nets("other", "other.h5")
        if forced:  # it knows which capture it was made from, and that this is none
            assert told("other.h5", "old.h5", "mixup-other-reference")[0] == 3
            assert told("old.h5", "ref.h5", "mixup-swapped")[0] == 3
        else:
            assert told("other.h5", "old.h5", None)[0] == 1


def test_layers_set_side_by_side(nets, warm):
    said = " ".join(warm("show", "port.h5", "fc1", "--against", "ref.h5").stdout.split())
    assert said.startswith("The dumps are swapped: port.h5 was captured from ref.h5")
    document = json.loads(warm("show", "port.h5", "fc1", "--against", "ref.h5", "--json").stdout)
    assert document["mixup"]["id"] == "mixup-swapped"
    assert json.loads(warm("show", "ref.h5", "fc1", "--against", "port.h5", "--json").stdout)["mixup"] is None


def test_in_python(nets, tmp_path):
    found = api.compare(tmp_path / "port.h5", tmp_path / "ref.h5")
    assert found.mixup.message == "mixup-swapped"
    assert found.exit_code == 3
    assert not found.origins
    with pytest.raises(AssertionError, match="The dumps are swapped"):
        found.check()
    assert "The dumps are swapped" in repr(found)

"""A net that stopped with an exception: said first, with its layer, error and line; what ran before is judged."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

import aligner as package  # noqa: E402 - only after torch is known to be there

NET = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.fc = nn.Linear(width, width)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(self.fc(x))

    class Net(nn.Module):
        def __init__(self, where="", eps=1e-5, step=0):
            super().__init__()
            self.norm = nn.LayerNorm(12, eps=eps)
            self.one, self.two, self.three = Block(12), Block(12), Block(12)
            self.head = nn.Linear(12, 3)
            self.where, self.step = where, step

        def forward(self, x):
            at = self.where if round(float(x[0, 0])) == self.step else ""
            x = self.one(self.norm(x))
            if at == "between":
                raise ValueError("not this way")
            if at == "leaf":
                x = x[:, :6]
            x = self.three(self.two(x))
            if at == "last":
                x = torch.cat((x, x), 1)
            return self.head(x)

    def inputs():
        rows = [0.1 * torch.randn(4, 12) for _ in range(3)]
        for step, x in enumerate(rows):
            x[0, 0] = step
        return [(x,) for x in rows]

    def build():
        torch.manual_seed(0)
        return Net(), inputs()

    def stopping(where, **settings):
        torch.manual_seed(0)
        return lambda: (Net(where, **settings), inputs())

    leaf, between, last = stopping("leaf"), stopping("between"), stopping("last")
    late = stopping("leaf", step=1)
    wrong_leaf = stopping("leaf", eps=1e-2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, torch_at_hand):
    place = tmp_path_factory.mktemp("stopped")
    (place / "net.py").write_text(dedent(NET))
    done = torch_at_hand.run(place, "capture", "net.py:build", "-o", "ref.h5")
    assert done.returncode == 0, done.stderr
    return place


def compared(warm, folder, port, reference="ref.h5"):
    """The report, the same in Chinese, the document; the exit codes are the same."""
    said = warm("compare", reference, port, cwd=folder)
    chinese = warm("compare", reference, port, "--lang", "zh", cwd=folder)
    told = warm("compare", reference, port, "--json", cwd=folder)
    assert said.returncode == told.returncode == chinese.returncode, said.stderr
    return said.returncode, " ".join(said.stdout.split()), chinese.stdout, json.loads(told.stdout)


def captured(warm, folder, name, *options, out=None):
    out = out or f"{name}.h5"
    done = warm("capture", f"net.py:{name}", *options, "-o", out, "-f", cwd=folder)
    assert "model-raised" not in done.stderr
    assert done.returncode == 2, "the net's own error ends the capture"
    return out


@pytest.mark.parametrize(
    ("name", "layer", "error", "text", "before"),
    [
        ("leaf", "two.fc", "RuntimeError", "return self.act(self.fc(x))", False),
        ("between", "", "ValueError: not this way", 'raise ValueError("not this way")', True),
        ("last", "head", "RuntimeError", "return self.head(x)", False),
    ],
)
def test_a_port_that_stopped(warm, folder, name, layer, error, text, before):
    port = captured(warm, folder, name, "--from", "ref.h5")
    code, said, chinese, told = compared(warm, folder, port)
    assert code == 1
    assert said.startswith(f"DIVERGED the port stopped in {layer or '(net)'} (")
    (stop,) = told["stopped"]
    assert (stop["side"], stop["layer"], stop["step"], stop["text"]) == ("port", layer, 0, text)
    first = said.split(" what ran before ")[0]
    assert error in first
    assert f"net.py:{stop['line']}" in first
    assert "停止" in chinese.splitlines()[0]
    assert not told["counts"]["unmatched"]
    assert told["counts"]["not_run"]
    assert "without a counterpart" not in said.split("compared reference")[1].split("origins")[1]
    assert "not run" in said
    assert "did not end well" not in said
    assert bool(told["origins"]) is not before
    if not before:
        (origin,) = told["origins"]
        assert origin["where"] == "glue"


def test_show_names_the_stop(warm, folder):
    port = captured(warm, folder, "between", "--from", "ref.h5", out="shown.h5")
    said = " ".join(warm("show", port, cwd=folder).stdout.split())
    assert "stopped in (net) (Net): ValueError: not this way at net.py:" in said
    chinese = " ".join(warm("show", port, "--lang", "zh", cwd=folder).stdout.split())
    assert "已停止 在 (net) (Net) 中：ValueError: not this way，位于 net.py:" in chinese


def test_a_wrong_layer_before_the_stop_is_the_origin(warm, folder):
    port = captured(warm, folder, "wrong_leaf", "--from", "ref.h5")
    code, said, _, told = compared(warm, folder, port)
    assert code == 1
    assert said.startswith("DIVERGED the port stopped in two.fc (Linear)")
    assert [origin["layer"] for origin in told["origins"]] == ["norm", ""]
    assert told["origins"][0]["causes"][0]["confirmed"], "the forced pass has judged what ran"
    assert told["first_divergence"]["layer"] == "norm"


def test_a_net_that_stopped_in_its_second_step(warm, folder):
    port = captured(warm, folder, "late", "--from", "ref.h5")
    code, said, _, told = compared(warm, folder, port)
    assert code == 1
    assert told["stopped"][0]["step"] == 1
    assert "in step 1" in said.split(" what ran before ")[0]
    assert not told["counts"]["unmatched"]
    assert {p["step"] for p in told["pairs"] if p["outcome"] == "not_run"} == {1, 2}
    assert all(p["outcome"] == "aligned" for p in told["pairs"] if p["step"] == 0)
    assert "steps-differ" not in [warning["id"] for warning in told["warnings"]]


def test_the_reference_that_stopped(warm, folder):
    reference = captured(warm, folder, "between", out="stopped.h5")
    assert warm("capture", "net.py:build", "-o", "whole.h5", cwd=folder).returncode == 0
    code, said, _, told = compared(warm, folder, "whole.h5", reference)
    assert code == 1
    assert said.startswith("DIVERGED the reference stopped in (net) (Net)")
    assert [stop["side"] for stop in told["stopped"]] == ["reference"]
    assert not told["counts"]["unmatched"]
    assert not told["origins"]


def test_both_that_stopped_at_the_same_place(warm, folder):
    reference = captured(warm, folder, "between", out="one.h5")
    port = captured(warm, folder, "between", "--from", "one.h5", out="two.h5")
    code, said, chinese, told = compared(warm, folder, port, reference)
    assert code == 1
    assert said.startswith("DIVERGED both nets stopped in (net) (Net)")
    assert [stop["side"] for stop in told["stopped"]] == ["reference", "port"]
    assert not told["counts"]["not_run"]
    assert not told["origins"]
    assert "两个网络都" in chinese.splitlines()[0]


def test_a_script_and_a_block_that_stopped(warm, folder, tmp_path):
    (folder / "script.py").write_text("import net, torch\ntorch.manual_seed(0)\nnet.Net('last')(*net.inputs()[0])\n")
    done = warm("capture", "-o", "script.h5", "-f", "script.py", cwd=folder)
    assert done.returncode == 1
    told = compared(warm, folder, "script.h5")[3]
    assert told["stopped"][0]["layer"] == "head"
    assert told["stopped"][0]["error"] == "RuntimeError"
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(3, 4))
    block = tmp_path / "block.h5"
    with pytest.raises(RuntimeError), package.capture(model, block):
        model(torch.randn(2, 3))
    (stop,) = package.compare(block, block).stops[1:]
    assert (stop.layer, stop.error) == ("1", "RuntimeError")
    assert stop.file.endswith("test_stopped.py"), "no line of the framework's, nor of ours"


def test_an_exception_that_the_program_caught(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))

    def run(path, again):
        with package.capture(model, path):
            try:
                model(torch.randn(2, 5))
            except RuntimeError:
                if again:
                    model(torch.randn(2, 3))
        return package.compare(path, path).stops

    assert [(stop.layer, stop.error) for stop in run(tmp_path / "caught.h5", False)] == [("0", "")] * 2
    assert not run(tmp_path / "again.h5", True), "the net went on"


def test_a_program_that_raised_behind_the_net_did_not_stop_it(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4))
    path = tmp_path / "net.h5"

    def run():
        with package.capture(model, path):
            model(torch.randn(2, 3))
            raise ValueError("afterwards")

    with pytest.raises(ValueError, match="afterwards"):
        run()
    assert not package.compare(path, path).stops

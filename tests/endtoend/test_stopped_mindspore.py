"""A port of MindSpore that stopped: shapes fail at once, kernels when a value is read, and no error is swallowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")

import aligner as package  # noqa: E402 - only after the frameworks are known to be there

TORCH = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc, self.act, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.act(self.fc(self.norm(x))))

    def build():
        torch.manual_seed(0)
        return Net(), (0.1 * torch.randn(4, 8),)
"""
MINDSPORE = """
    import mindspore
    from mindspore import Tensor, nn, ops

    class Net(nn.Cell):
        def __init__(self, where="", eps=1e-5):
            super().__init__()
            self.norm = nn.LayerNorm((8,), epsilon=eps)
            self.fc, self.act, self.head = nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 3)
            self.where = where

        def construct(self, x):
            x = self.fc(self.norm(x))
            if self.where == "between":
                x = x.reshape(3, 7)
            if self.where == "kernel":
                x = ops.gather(x, Tensor([9]), 0) + x
            x = self.act(x)
            if self.where == "last":
                x = ops.concat((x, x), 1)
            return self.head(x)

    def between(): return Net("between")
    def last(): return Net("last")
    def kernel(): return Net("kernel")
    def wrong(): return Net("kernel", eps=1e-2)

    def building():
        ops.gather(Tensor([1.0]), Tensor([9]), 0)
        return Net()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("stopped")
    (place / "ref.py").write_text(dedent(TORCH))
    (place / "port.py").write_text(dedent(MINDSPORE))
    assert run(place, "capture", "ref.py:build", "-o", "ref.h5").returncode == 0
    return place


def run(folder, *arguments):
    command = [sys.executable, "-m", "aligner", *arguments]
    environ = {**os.environ, "ALIGNER_LANG": "en"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=environ)


@pytest.mark.parametrize(
    ("name", "layer", "said", "text", "origins"),
    [
        ("between", "", "ValueError: proposed_shape", "x = x.reshape(3, 7)", []),
        ("last", "head", "ValueError: For 'MatMul'", "return self.head(x)", [""]),
        ("kernel", "act", "RuntimeError: For 'Gather'", "x = self.act(x)", []),
        ("wrong", "act", "RuntimeError: For 'Gather'", "x = self.act(x)", ["norm"]),
    ],
)
def test_a_port_that_stopped(folder, name, layer, said, text, origins):
    done = run(folder, "capture", f"port.py:{name}", "--from", "ref.h5", "-o", f"{name}.h5")
    assert done.returncode == 2
    assert said in done.stderr, "the net's own error"
    assert "could not be read" not in done.stderr
    told = run(folder, "compare", "ref.h5", f"{name}.h5")
    assert told.returncode == 1
    first = " ".join(told.stdout.split())
    assert first.startswith("DIVERGED the port stopped in ")
    assert "or in a line before it: kernels report late" in first
    found = json.loads(run(folder, "compare", "ref.h5", f"{name}.h5", "--json").stdout)
    (stop,) = found["stopped"]
    assert stop["late"]
    if "Gather" in said:  # by the kernel's own time: it may be told of by the next operation already
        assert stop["layer"] in ("", layer)
    else:
        assert (stop["layer"], stop["text"]) == (layer, text)
    assert f"{stop['error']}: {stop['said']}".startswith(said)
    assert [origin["layer"] for origin in found["origins"]] == origins
    assert not found["counts"]["unmatched"]


def test_a_kernel_that_fails_late_while_the_net_is_built_is_the_factorys(folder):
    done = run(folder, "capture", "port.py:building", "--from", "ref.h5", "-o", "building.h5")
    assert done.returncode == 2
    assert "port.py:building raised RuntimeError" in done.stderr
    assert "aligner itself failed" not in done.stderr


def test_a_compiled_port_that_stopped(folder):
    """It is not even compiled: its layers and its line are known from another run, layer by layer."""
    done = run(folder, "capture", "port.py:last", "--mode", "graph", "--from", "ref.h5", "-o", "graph.h5")
    assert done.returncode == 2
    (stop,) = json.loads(run(folder, "compare", "ref.h5", "graph.h5", "--json").stdout)["stopped"]
    assert (stop["layer"], stop["text"]) == ("head", "return self.head(x)")


def test_a_kernel_that_fails_is_the_nets_own_error(tmp_path):
    """MindSpore tells whoever reads a value next, and once: the capture's reading took it for its own, and the net ran
    on with zeros."""
    from mindspore import Tensor, nn, ops

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.pick, self.act = nn.Embedding(4, 3), nn.ReLU()

        def construct(self, x):
            return self.act(self.pick(x))

    net, path = Net(), tmp_path / "net.h5"
    outside = Tensor(np.array([99]), mindspore.int32)
    with pytest.raises(RuntimeError, match="Gather"):
        net(outside).asnumpy()
    with pytest.raises(RuntimeError, match="Gather"), package.capture(net, path):
        net(outside)
    stop = package.compare(path, path).stops[0]
    assert (stop.layer, stop.error) == ("pick", "RuntimeError")
    dump = package.open(path)
    assert not dump.complete
    assert not [note for note in dump.notes if note.message == "value-unreadable"]
    assert ops.relu(Tensor([1.0])).asnumpy() == 1.0, "the error is told once"

"""A forced pass that does not get to its end: interrupted, out of disk, left by the net. The free run is kept."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import aligner as api
from aligner.compare.comparison import compare

pytest.importorskip("mindspore", reason="the ports are MindSpore's")
pytest.importorskip("torch", reason="the reference is PyTorch's")

REFERENCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.norm = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)]), nn.LayerNorm(64)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)

def build():
    torch.manual_seed(0)
    return Net(), torch.randn(1024, 64)
"""
PORT = """
import os, resource, signal, sys
from mindspore import nn, ops

class Net(nn.Cell):
    def __init__(self, end):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(64, 64) for _ in range(6)])
        self.norm, self.end, self.runs = nn.LayerNorm((64,), epsilon=1e-2), end, 0

    def construct(self, x):
        self.runs += 1
        for number, layer in enumerate(self.layers):
            x = ops.softmax(layer(x)) if number < 4 else ops.tanh(layer(x))  # wrong between layers, and much of it
            if self.runs >= 2 and number == 1:
                self.end()
        return self.norm(x)

def interrupt():
    return Net(lambda: os.kill(os.getpid(), signal.SIGINT))

def leave():
    return Net(lambda: sys.exit(5))

def fail():
    def end():
        raise RuntimeError("not twice")
    return Net(end)

def fill():
    def end():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
            size = os.path.getsize("port.h5")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return Net(end)
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    (folder / "ref.py").write_text(textwrap.dedent(REFERENCE))
    (folder / "port.py").write_text(textwrap.dedent(PORT))
    assert capture(folder, "ref.py:build", "-o", "ref.h5").returncode == 0
    return folder


def capture(folder, *arguments):
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in the background
    start += "import sys; from aligner.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, "--lang", "en", "capture", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("port", "code", "said", "told"),
    [
        ("interrupt", 130, "Interrupted", "KeyboardInterrupt"),
        ("leave", 0, "did not get through", "SystemExit: 5"),
        ("fail", 0, "did not get through", "RuntimeError: not twice"),
        ("fill", 3, "The disk is full", None),
    ],
)
def test_the_free_run_is_kept(nets, port, code, said, told):
    done = capture(nets, f"port.py:{port}", "--from", "ref.h5", "-f", "-o", "port.h5")
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    with api.open(nets / "port.h5") as dump:
        dump.verify()
        assert dump[""].output.shape == (1024, 64)
    assert not (nets / "port.h5.journal").exists()
    result = compare(nets / "ref.h5", nets / "port.h5")
    assert result.outcome == "diverged"
    assert not result.checked
    assert result.origins[0].where == "glue"
    if told is not None:
        assert ("forced-failed", told) in [(message, facts.get("error")) for message, facts in result.warnings]

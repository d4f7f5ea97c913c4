"""To capture a training changes no bit of it: losses, gradients and weights, eager and compiled.

The scripts print what they compute, bit by bit; one process runs them as they are, others under a capture.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

import aligner as api
from aligner.record import Phase

pytest.importorskip("torch", reason="one of the trainings is torch's")

TOLD = """
import hashlib, sys
import numpy as np
rng = np.random.default_rng(0)
images, labels = rng.random((4, 6, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, (4, 6)).astype(np.int32)
def tell(mode, loss, gradients, weights):
    bits = [hashlib.sha256(b"".join(one.tobytes() for one in many)).hexdigest()[:16] for many in (gradients, weights)]
    print(mode, loss.tobytes().hex(), *bits, flush=True)
"""

TORCH = f"""{TOLD}
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(216, 4))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for x, y in zip(images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y).long())
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    tell("torch", loss.detach().numpy(), [p.grad.numpy() for p in net.parameters()],
         [value.numpy() for value in net.state_dict().values()])
"""

MINDSPORE = f"""{TOLD}
import mindspore
from mindspore import nn, ops, Tensor

def trained(mode):
    mindspore.set_context(mode=mindspore.GRAPH_MODE if mode == "graph" else mindspore.PYNATIVE_MODE)
    mindspore.set_seed(0)
    np.random.seed(0)
    net = nn.SequentialCell(nn.Conv2d(3, 6, 3, pad_mode="pad", has_bias=True), nn.BatchNorm2d(6), nn.ReLU(),
                            nn.Flatten(), nn.Dense(216, 4))
    net.set_train()
    loss_fn, optimizer = nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.01)

    def forward(x, y):
        return loss_fn(net(x), y)

    grad = mindspore.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        loss, gradients = grad(x, y)
        gradients = ops.clip_by_global_norm(gradients, 0.5)
        return ops.depend(loss, optimizer(gradients)), gradients

    if mode == "jit":
        step = mindspore.jit(step)
    for x, y in zip(images, labels):
        loss, gradients = step(Tensor(x), Tensor(y))
        tell(mode, loss.asnumpy(), [one.asnumpy() for one in gradients], [p.asnumpy() for p in net.get_parameters()])

for mode in sys.argv[1:]:
    trained(mode)
"""

MODES = ("pynative", "jit", "graph")


def plainly(folder, *words):
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=200)
    return done.stdout.splitlines()


def recorded(path):
    """The phases of the dump, and the bits of the gradients that optimizers were given in each step."""
    with api.open(path) as dump:
        assert dump.complete
        entries = [entry for entry in dump.entries if entry.key.slot in ("weight", "bias")]
        given = [[e.load() for e in entries if e.key[:2] == (step, Phase.GRADIENT)] for step in dump.steps]
        found = [hashlib.sha256(b"".join(one.tobytes() for one in many)).hexdigest()[:16] for many in given if many]
        return {entry.key.phase for entry in dump.entries}, found


def test_torch(tmp_path, warm):
    (tmp_path / "train.py").write_text(TORCH)
    wanted = plainly(tmp_path, "train.py")
    assert len({*wanted}) == 4
    for layers in ("*", ""):
        done = warm("capture", "-f", "-o", "x.h5", "--gradients", "--steps", 4, "--layers", layers, "train.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == wanted
        phases, given = recorded(tmp_path / "x.h5")
        assert {Phase.BACKWARD, Phase.GRADIENT, Phase.UPDATE} <= phases
        assert given == [line.split()[2] for line in wanted]


@pytest.fixture(scope="module")
def mindspore_alone(tmp_path_factory):
    """What the script prints without a capture, by mode."""
    pytest.importorskip("mindspore", reason="the other trainings are MindSpore's")
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(MINDSPORE)
    lines = plainly(folder, "train.py", *MODES)
    return {mode: [line for line in lines if line.startswith(mode)] for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_mindspore(tmp_path, aligner, mindspore_alone, mode):
    """Where the whole step is compiled (jit), the update is not seen, and there is nothing that it was given."""
    (tmp_path / "train.py").write_text(MINDSPORE)
    kept = {} if mode == "pynative" else {"MS_JIT": "1"}
    done = aligner("capture", "-o", "x.h5", "--gradients", "--steps", 4, "train.py", mode, env=kept)
    assert done.returncode == 0, done.stderr
    wanted = mindspore_alone[mode]
    assert len({*wanted}) == 4
    assert [line for line in done.stdout.splitlines() if line.startswith(mode)] == wanted
    phases, given = recorded(tmp_path / "x.h5")
    assert Phase.FORWARD in phases
    assert given == ([] if mode == "jit" else [line.split()[2] for line in wanted])

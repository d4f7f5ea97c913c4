"""A gradient inside of the loss, one step after the other: the loss is the outer function's value, and the inner
backward run is a part of it, however it is written."""

from __future__ import annotations

import json

import pytest

import aligner as api
from aligner.record import Phase

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

TORCH = """
import numpy as np, torch
from torch import nn
from torch.autograd import grad
rng = np.random.default_rng(0)
real, fake = rng.random((2, 12, 5)).astype(np.float32)
torch.manual_seed(1)
critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(critic.parameters(), 0.1, momentum=0.5)
for start in range(0, 12, 4):
    a, b = (torch.from_numpy(one[start:start + 4]) for one in (real, fake))
    middle = ((a + b) / 2).requires_grad_()
    score = critic(middle)
    (slope,) = grad(score.sum(), middle, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    loss = critic(b).mean() - critic(a).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
"""
HEAD = """
import mindspore as ms, numpy as np
from mindspore import nn, ops
rng = np.random.default_rng(0)
real, fake = rng.random((2, 12, 5)).astype(np.float32)
critic = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1)).set_train()
optimizer = nn.Momentum(critic.trainable_params(), 0.1, 0.5)

def batches():
    for start in range(0, 12, 4):
        yield ms.Tensor(real[start:start + 4]), ms.Tensor(fake[start:start + 4])

def penalty(slope):
    return ops.square(slope.norm(dim=1) - 1).mean()
"""
NESTED = """
slope = ms.grad(lambda x: critic(x).sum())

def forward(a, b):
    found = penalty(slope((a + b) / 2))
    return critic(b).mean() - critic(a).mean() + 10 * found

grad = ms.value_and_grad(forward, None, optimizer.parameters)
for a, b in batches():
    loss, gradients = grad(a, b)
    optimizer(gradients)
    print(f"{float(loss):.5f}")
"""
COMPILED = NESTED.replace("for a, b", "grad = ms.jit(grad)\nfor a, b")
VALUE = NESTED.replace("ms.grad(", "ms.value_and_grad(").replace("slope((a + b) / 2)", "slope((a + b) / 2)[1]")
OF_THE_NET = NESTED.replace("ms.grad(lambda x: critic(x).sum())", "ops.GradOperation()(critic)")
CELL = """
class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.critic, self.slope = critic, ops.GradOperation()

    def construct(self, a, b):
        found = penalty(self.slope(self.critic)((a + b) / 2))
        return self.critic(b).mean() - self.critic(a).mean() + 10 * found

step = nn.TrainOneStepCell(Loss(), optimizer).set_train()
for a, b in batches():
    print(f"{float(step(a, b)):.5f}")
"""
WEAK, SLOW = ("10 * found", "2 * found"), ("0.1, 0.5", "0.05, 0.5")
CASES = {
    "nested": (NESTED, [], []),
    "weaker": (NESTED, [WEAK], [("loss", False)]),
    "slower": (NESTED, [SLOW], [("update", True)]),
    "of the net": (OF_THE_NET, [], []),
    "compiled": (COMPILED, [], []),
    "with its value": (VALUE, [], []),
    "cell": (CELL, [], []),
    "cell slower": (CELL, [SLOW], [("update", True)]),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, torch_at_hand):
    folder = tmp_path_factory.mktemp("reference")
    (folder / "train.py").write_text(TORCH)
    done = torch_at_hand.run(folder, "capture", "-o", "ref.h5", "--gradients", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stderr
    return folder / "ref.h5"


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_in_the_loss(aligner, reference, tmp_path, name):
    step, edits, told = CASES[name]
    text = HEAD + step
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "port.py").write_text(text)
    done = aligner("capture", "-o", "port.h5", "--gradients", "--from", reference, "port.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(aligner("compare", reference, "port.h5", "--json").stdout)
    origins = [(one["where"], any(cause["confirmed"] for cause in one["causes"])) for one in found["origins"]]
    if name == "weaker":  # what the penalty does to the weights' gradients passes no value that is held: told beside it
        origins = origins[:1]
    assert origins == told
    assert found["outcome"] == ("diverged" if told else "aligned")
    assert [row["step"] for row in found["steps"]] == [0, 1, 2]
    if not told:
        assert found["counts"]["unmatched"] == 0
        losses = [row["loss"] for row in found["steps"]]
        assert [one["port"] for one in losses] == pytest.approx([one["reference"] for one in losses], rel=1e-5)


def test_the_inner_run_is_no_backward_run_of_the_step(reference):
    """The gradient of the net's output for the penalty's batch goes into the penalty alone: it is 1 in that run."""
    with api.open(reference) as dump:
        back = [entry.key for entry in dump.entries if entry.key.phase is Phase.BACKWARD and entry.key.step == 0]
        assert len(back) == len({*back}), "a gradient was recorded twice"
        assert {key.call for key in back if (key.layer, key.slot) == ("", "output.0")} == {1, 2}
        assert {key.call for key in back if (key.layer, key.slot) == ("1", "output.0")} == {0, 1, 2}

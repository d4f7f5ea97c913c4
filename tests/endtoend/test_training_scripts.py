"""Two unchanged training scripts, one held to the other: data, gradients and updates of each step."""

from __future__ import annotations

import pytest

from tests.endtoend.trainings import compared, edited

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

TORCH = """
import numpy as np, torch
from torch import nn
rng = np.random.default_rng(0)
images, labels = rng.random((24, 3, 6, 6)).astype(np.float32), rng.integers(0, 4, 24)
torch.manual_seed(1)
net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
for start in range(0, 24, 6):
    optimizer.zero_grad()
    x, y = torch.from_numpy(images[start:start + 6]), torch.from_numpy(labels[start:start + 6])
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
"""

MINDSPORE = """
import mindspore, numpy as np
from mindspore import nn, Tensor
rng = np.random.default_rng(0)
images, labels = rng.random((24, 3, 6, 6)).astype(np.float32), rng.integers(0, 4, 24).astype(np.int32)
net = nn.SequentialCell(nn.Conv2d(3, 6, 3, pad_mode="pad", has_bias=True), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                        nn.Dense(96, 4))
net.set_train()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Momentum([{"params": net.trainable_params(), "weight_decay": 0.01}], 0.05, 0.9)

def forward(x, y):
    return loss_fn(net(x), y)

grad = mindspore.value_and_grad(forward, None, optimizer.parameters)

@mindspore.jit
def step(x, y):
    loss, gradients = grad(x, y)
    return mindspore.ops.depend(loss, optimizer(gradients))

for start in range(0, 24, 6):
    loss = step(Tensor(images[start:start + 6]), Tensor(labels[start:start + 6]))
print(f"{float(loss):.5f}")
"""

SLOWER = ("0.05, 0.9", "0.02, 0.9")
BRIGHTER = ("Tensor(images", "Tensor(2 * images")
UNGROUPED = (
    '[{"params": net.trainable_params(), "weight_decay": 0.01}], 0.05, 0.9',
    "net.trainable_params(), 0.05, 0.9, 0.01",
)
BACKWARDS = ("net = nn", "images, labels = images[::-1].copy(), labels[::-1].copy()\nnet = nn")
DOUBLED = ("(loss, optimizer(gradients))", "(loss, optimizer(tuple(2 * one for one in gradients)))")
MISSING = ("net.trainable_params()", "net.trainable_params()[:-1]")
LATER = ('nn.Momentum([{"params": net.trainable_params(), "weight_decay": 0.01}], 0.05, 0.9)',)
LATER = (*LATER, LATER[0].replace("Momentum", "SGD").replace(" 0.05,", " [0.05, 0.05, 0.02, 0.02],"))
EVAL = ("net.set_train()\n", "")

CASES = {
    "right": ([], []),
    "rate": ([SLOWER], [("update", "optimizer-learning-rate", True)]),
    "normalised": ([BRIGHTER], [("data", "data-scaled", True)]),
    "filtered": ([UNGROUPED], [("update", "weight-decay-gamma-beta-filter", True)]),
    "order": ([BACKWARDS], [("data", "data-order", True)]),
    "both": ([BRIGHTER, SLOWER], [("data", "data-scaled", True), ("update", "optimizer-learning-rate", True)]),
    "missing": ([MISSING], [("update", "parameter-not-optimized", True)]),
    "later": ([LATER], [("update", "optimizer-learning-rate", True)]),
    "evaluating": ([EVAL], [("layer", "bn-train-flag-default", True)]),
    "doubled": ([DOUBLED], [("clip", "gradient-scaled", True)]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_named_stage_by_stage(aligner, tmp_path, name):
    edits, told = CASES[name]
    found = compared(aligner, tmp_path, TORCH, edited(MINDSPORE, edits), 4)
    origins = [(one["where"], one["causes"][0]["id"], one["causes"][0]["confirmed"]) for one in found["origins"]]
    assert origins == told
    assert [row["step"] for row in found["steps"]] == [0, 1, 2, 3]
    assert found["outcome"] == ("diverged" if told else "aligned")


@pytest.mark.parametrize(
    ("edits", "told"), [([], []), ([SLOWER], [("update", "optimizer-learning-rate", 0)])], ids=["right", "rate"]
)
def test_a_port_that_runs_on_from_its_own_steps(aligner, tmp_path, edits, told):
    """Its losses are others from the second step on, for its weights are; a gradient that is truly zero is rounding."""
    found = compared(aligner, tmp_path, TORCH, edited(MINDSPORE, edits), 4, "--free-only")
    assert [(one["where"], one["causes"][0]["id"], one["step"]) for one in found["origins"]] == told
    assert [row["first"] is None for row in found["steps"]] == [not told, True, True, True]


EVALUATED = [
    ("    optimizer.step()\n", "    optimizer.step()\n    rates.step()\n    check(start)\n"),
    (
        "for start in",
        """rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
def check(start):
    if start == 6:
        net.eval()
        with torch.no_grad():
            print(net(torch.from_numpy(images[:3])).sum().item())
        net.train()
for start in""",
    ),
]
WITH_LOSS = """
class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, nn.CrossEntropyLoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y)

class Step(nn.TrainOneStepCell):
    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.grad(self.network, self.weights)(x, y, mindspore.Tensor(1.0))
        self.optimizer(gradients)
        return loss

step = Step(WithLoss(net), optimizer)
for start in range(0, 24, 6):
    step.set_train()
    loss = step(Tensor(images[start:start + 6]), Tensor(labels[start:start + 6]))
    if start == 6:
        net.set_train(False)
        print(net(Tensor(images[:3])).sum())
"""
FORGOTTEN = ("    step.set_train()\n", "")
WHOLE = {
    "right": ([], []),
    "evaluating": ([FORGOTTEN], [("layer", "forward", [2, 3], False)]),
    "momentum": ([("nn.BatchNorm2d(6)", "nn.BatchNorm2d(6, momentum=0.1)")], [("layer", "update", [0, 1, 2, 3], True)]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_net_in_a_cell_with_its_loss_that_is_evaluated_in_between(aligner, tmp_path, name):
    """The list of rates ends with the training, and the net is left in eval mode."""
    reference, edits = TORCH, WHOLE[name][0]
    for old, new in EVALUATED:
        reference = reference.replace(old, new)
    port = MINDSPORE[: MINDSPORE.index("loss_fn =")]
    port += MINDSPORE[MINDSPORE.index("optimizer =") : MINDSPORE.index("def forward")]
    port = port.replace("0.05, 0.9)", "[0.05, 0.025, 0.0125, 0.00625], 0.9)") + WITH_LOSS
    found = compared(aligner, tmp_path, reference, edited(port, edits), 4)
    told = [
        (one["where"], one["phase"], one["steps"], any(cause["confirmed"] for cause in one["causes"]))
        for one in found["origins"]
    ]
    assert told == WHOLE[name][1]
    assert found["outcome"] == ("diverged" if edits else "aligned")


SHORT_TORCH = [
    ("for start in", 'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, backoff_factor=1 / 64)\nfor start in'),
    ("    loss = nn", '    with torch.autocast("cpu", dtype=torch.float16):\n        loss = nn'),
    (
        "    loss.backward()\n    optimizer.step()",
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
    ),
]
SHORT_MINDSPORE = """
net = mindspore.amp.auto_mixed_precision(net, "O2")
scaler = mindspore.amp.DynamicLossScaler(2.0**22, 64, 1000)

def forward(x, y):
    return scaler.scale(loss_fn(net(x), y))

grad = mindspore.value_and_grad(forward, None, optimizer.parameters)

for start in range(0, 24, 6):
    loss, gradients = grad(Tensor(images[start:start + 6]), Tensor(labels[start:start + 6]))
    finite = mindspore.amp.all_finite(gradients)
    scaler.adjust(finite)
    if finite:
        optimizer(scaler.unscale(gradients))
"""
UPDATED = ("    if finite:\n        optimizer", "    if True:\n        optimizer")
SCALED_TWICE = ("optimizer(scaler.unscale(gradients))", "optimizer(gradients)")
SHORT = {
    "right": ([], [], [True, False, False, False]),
    "not skipped": ([UPDATED], [("update", "update-not-skipped", [0])], [False, False, False, False]),
    "not unscaled": ([SCALED_TWICE], [("clip", "loss-scale-not-removed", [1, 2, 3])], [True, False, False, False]),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_types_with_a_loss_scale_that_overflows(aligner, tmp_path, name):
    """float16 rounds values, gradients and kinks far beyond float32's tolerance, and the first update is skipped."""
    edits, told, skipped = SHORT[name]
    reference = edited(TORCH, SHORT_TORCH)
    port = MINDSPORE[: MINDSPORE.index("def forward")] + SHORT_MINDSPORE
    found = compared(aligner, tmp_path, reference, edited(port, edits), 4)
    origins = [(one["where"], one["causes"][0]["id"], one["steps"]) for one in found["origins"]]
    assert origins == told
    assert [row["skipped"]["port"] for row in found["steps"]] == skipped
    assert [row["skipped"]["reference"] for row in found["steps"]] == [True, False, False, False]
    assert found["outcome"] == ("diverged" if edits else "aligned")


TWO_NETS = """
import torch
from torch import nn
class Maker(nn.Linear): pass
class Judge(nn.Linear): pass
torch.manual_seed(0)
maker = Maker(4, 6)
torch.manual_seed(SEED)
judge = Judge(6, 1)
optimizer = torch.optim.SGD(maker.parameters(), 0.1)
torch.manual_seed(2)
for step in range(2):
    optimizer.zero_grad()
    judge(maker(torch.randn(5, 4))).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("seed", [1, 3])
def test_a_loss_that_another_net_takes_part_in_is_judged_where_it_agrees_and_told_where_not(aligner, tmp_path, seed):
    found = compared(aligner, tmp_path, *(TWO_NETS.replace("SEED", str(one)) for one in (1, seed)), 2)
    told = aligner("compare", "ref.h5", "port.h5").stdout
    assert (found["outcome"], found["origins"]) == ("aligned", [])
    assert ("the loss is off and was not judged" in " ".join(told.split())) == (seed != 1)

"""Steps that people write as cells of their own: whatever has an optimizer is a loop, and the net is inside of it."""

from __future__ import annotations

import json

import pytest

import aligner as api

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

TORCH = """
import numpy as np, torch
from torch import nn
rng = np.random.default_rng(0)
images, labels = rng.random((24, 6)).astype(np.float32), rng.integers(0, 4, 24)
torch.manual_seed(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for number in range(6):
    rows = slice(4 * number, 4 * number + 4)
    loss = nn.functional.cross_entropy(net(torch.from_numpy(images[rows])), torch.from_numpy(labels[rows]))
    (loss / 2).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
NET = """
import mindspore as ms, numpy as np
from mindspore import nn, ops
rng = np.random.default_rng(0)
images, labels = rng.random((24, 6)).astype(np.float32), rng.integers(0, 4, 24).astype(np.int32)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(6, 8), nn.Dense(8, 4)

    def construct(self, x):
        return self.fc2(ops.relu(self.fc1(x)))
"""
CELLS = """
add, clear = ops.MultitypeFuncGraph("add"), ops.MultitypeFuncGraph("clear")

@add.register("Tensor", "Tensor")
def _add(total, gradient):
    return ops.AssignAdd()(total, gradient)

@clear.register("Tensor", "Tensor")
def _clear(total, zero):
    return ops.Assign()(total, zero)

class TrainForwardBackward(nn.Cell):
    def __init__(self, network, optimizer, grad_sum, sens):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.weights = network, optimizer, optimizer.parameters
        self.network.set_grad()
        self.grad_sum, self.sens, self.hyper_map = grad_sum, sens, ops.HyperMap()
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad(self.network, self.weights)(*inputs, ops.fill(loss.dtype, loss.shape, self.sens))
        return ops.depend(loss, self.hyper_map(ops.partial(add), self.grad_sum, gradients))

class TrainOptim(nn.Cell):
    def __init__(self, optimizer, grad_sum):
        super().__init__(auto_prefix=False)
        self.optimizer, self.grad_sum = optimizer, grad_sum

    def construct(self):
        return self.optimizer(self.grad_sum)

class TrainClear(nn.Cell):
    def __init__(self, grad_sum, zeros):
        super().__init__(auto_prefix=False)
        self.grad_sum, self.zeros, self.hyper_map = grad_sum, zeros, ops.HyperMap()

    def construct(self):
        return self.hyper_map(ops.partial(clear), self.grad_sum, self.zeros)

net = Net()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
zeros = optimizer.parameters.clone(prefix="zeros", init="zeros")
step = TrainForwardBackward(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer, grad_sum, 0.5).set_train()
update, cleared = TrainOptim(optimizer, grad_sum), TrainClear(grad_sum, zeros)
for number in range(6):
    rows = slice(4 * number, 4 * number + 4)
    step(ms.Tensor(images[rows]), ms.Tensor(labels[rows]))
    if number % 2:
        update()
        cleared()
"""
CASES = {
    "right": ([], []),
    "not divided": ([("grad_sum, 0.5)", "grad_sum, 1.0)")], ["clip"]),
    "not cleared": ([("        cleared()\n", "")], ["clip"]),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, torch_at_hand):
    folder = tmp_path_factory.mktemp("reference")
    (folder / "train.py").write_text(TORCH)
    done = torch_at_hand.run(folder, "capture", "-o", "ref.h5", "--gradients", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stderr
    return folder / "ref.h5"


@pytest.mark.parametrize("name", CASES)
def test_gradients_that_are_added_up_in_a_cell(aligner, reference, tmp_path, name):
    """The cells of MindSpore's tutorial: one has the net and the sums, one the optimizer, one sets the sums to zero."""
    edits, told = CASES[name]
    text = NET + CELLS
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "port.py").write_text(text)
    done = aligner("capture", "-o", "port.h5", "--gradients", "--from", reference, "port.py")
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    with api.open(tmp_path / "port.h5") as dump:
        assert dump.header["model"] == "Net"
    found = json.loads(aligner("compare", reference, "port.h5", "--json").stdout)
    assert [one["where"] for one in found["origins"]] == told
    assert found["outcome"] == ("diverged" if told else "aligned")
    assert [row["step"] for row in found["steps"]] == [0, 1, 2]


SIMPLE = """
from mindspore.experimental import optim
net, loss_fn = Net(), nn.CrossEntropyLoss()
optimizer = optim.AdamW(net.trainable_params(), 0.1)
grad = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, tuple(net.trainable_params()))
for number in range(2):
    rows = slice(4 * number, 4 * number + 4)
    optimizer(grad(ms.Tensor(images[rows]), ms.Tensor(labels[rows]))[1])
"""


def test_an_optimizer_of_mindspore_experimental_is_not_told_as_a_model(aligner, tmp_path):
    (tmp_path / "port.py").write_text(NET + SIMPLE)
    done = aligner("capture", "-o", "port.h5", "--gradients", "--steps", 2, "port.py")
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr


LOOP = """
class Step(nn.Cell):
    def __init__(self, body, optimizer):
        super().__init__(auto_prefix=False)
        self.body, self.loss, self.optimizer = body, nn.CrossEntropyLoss(), optimizer
        self.grad = ms.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x, y):
        return self.loss(self.body(x), y)

    def construct(self, x, y):
        loss, gradients = self.grad(x, y)
        return ops.depend(loss, self.optimizer(gradients))

net = Net()
step = Step(net, nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
for number in range(3):
    rows = slice(4 * number, 4 * number + 4)
    step(ms.Tensor(images[rows]), ms.Tensor(labels[rows]))
"""


@pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])
def test_the_net_in_a_step_of_the_users_own_is_captured_without_gradients_too(aligner, tmp_path, mode):
    (tmp_path / "port.py").write_text(NET + f"ms.set_context(mode=ms.{mode})\n" + LOOP)
    done = aligner("capture", "-o", "port.h5", "--steps", 3, "port.py")
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    with api.open(tmp_path / "port.h5") as dump:
        assert dump.header["model"] == "Net"
        assert [call.layer for call in dump.calls] == ["", "fc1", "fc2"] * 3


WRAPPED = """
class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, label):
        return nn.functional.cross_entropy(self.net(x), label)

step = WithLoss(net)
for number in range(2):
    rows = slice(4 * number, 4 * number + 4)
    optimizer.zero_grad()
    step(torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])).backward()
    optimizer.step()
with torch.no_grad():
    net(torch.from_numpy(images))
    OTHER
"""


@pytest.mark.parametrize(("other", "told"), [("pass", None), ("nn.Linear(6, 2)(torch.from_numpy(images))", ["Linear"])])
def test_a_part_of_the_net_that_runs_alone_is_no_other_net(torch_at_hand, tmp_path, other, told):
    """As in a validation behind the training of a cell that has the loss inside."""
    (tmp_path / "train.py").write_text(TORCH.partition("for number")[0] + WRAPPED.replace("OTHER", other))
    done = torch_at_hand.run(tmp_path, "capture", "-o", "ref.h5", "--gradients", "--steps", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert ("were left out: Linear" in done.stderr) is bool(told)
    with api.open(tmp_path / "ref.h5") as dump:
        assert (dump.header["model"], dump.header.get("others")) == ("WithLoss", told)

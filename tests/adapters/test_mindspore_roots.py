"""Which of the cells that run by themselves is the net: not what an optimizer is in, nor what helps a training."""

from __future__ import annotations

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from aligner_hooks.mindspore_ import MindSporeAdapter  # noqa: E402 - only where MindSpore is installed
from mindspore import Parameter, ParameterTuple, Tensor, nn  # noqa: E402 - likewise
from mindspore.experimental import optim  # noqa: E402 - likewise

X = Tensor(np.ones((3, 2), np.float32))


def roots(run):
    """The types of the nets that a run tells of."""
    told = []
    handle = MindSporeAdapter().watch_roots(lambda net: told.append(type(net).__name__))
    try:
        run()
    finally:
        handle.remove()
    return told


class Trainer(nn.Cell):
    """An epoch of steps: the optimizer is a level further in."""

    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.step = Step(net)

    def construct(self, x):
        return self.step(x)


class Step(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net
        self.optimizer = nn.SGD(net.trainable_params(), 0.1)
        self.grad = mindspore.value_and_grad(lambda x: self.net(x).sum(), None, self.optimizer.parameters)

    def construct(self, x):
        loss, gradients = self.grad(x)
        self.optimizer(gradients)
        return loss


@pytest.mark.parametrize("kind", [Step, Trainer])
def test_a_cell_with_an_optimizer_is_a_loop(kind):
    cell = kind(nn.Dense(2, 2))
    assert roots(lambda: cell(X)) == ["Dense"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_an_optimizer_with_groups_is_no_net(name):
    """Those of mindspore.experimental are plain cells."""
    net = nn.Dense(2, 2)
    optimizer = getattr(optim, name)(net.trainable_params(), lr=0.1)
    grad = mindspore.value_and_grad(lambda x: net(x).sum(), None, tuple(net.trainable_params()))
    assert roots(lambda: optimizer(grad(X)[1])) == ["Dense"]
    assert not MindSporeAdapter().is_model(optimizer)


class Raw(nn.Cell):
    """A net without layers, which keeps its parameters in a tuple besides."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(2, np.float32)))
        self.all = ParameterTuple([self.weight])

    def construct(self, x):
        return x * self.weight


class Sums(nn.Cell):
    """Gradients that are added up."""

    def __init__(self, parameters):
        super().__init__(auto_prefix=False)
        self.sums = ParameterTuple(parameters).clone(prefix="sums", init="zeros")

    def construct(self, x):
        return x + self.sums[0].sum()


def test_a_net_without_layers_is_one_and_what_keeps_sums_is_none():
    net = Raw()
    sums = Sums(net.trainable_params())
    assert roots(lambda: sums(net(X))) == ["Raw"]

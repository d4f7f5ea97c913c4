"""A backward run inside of what is differentiated itself: nobody is told of it, and the loss is the outer value."""

from __future__ import annotations

import pytest


def test_torch_tells_of_the_runs_of_a_step_alone():
    torch = pytest.importorskip("torch", reason="it is torch's adapter")
    from aligner_hooks.torch_ import training

    x = torch.ones(3, requires_grad=True)
    told, lost = [], []

    def square():
        y = x * 2
        training.on_gradient(y, lambda gradient: told.append(gradient.tolist()))
        return (y**2).sum()

    handle = training.losses(lambda loss: lost.append(loss.item()))
    try:
        value = square()
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        assert (told, lost) == ([], [])
        slope.sum().backward()  # 8 x, so that what comes to y is 4
        assert (told.pop(), lost.pop()) == ([4.0] * 3, 24.0)
        torch.autograd.grad(square(), x)  # as a loop of a functional style has it
        with pytest.warns(UserWarning, match="create_graph"):
            square().backward(create_graph=True)
        assert (told, lost) == ([[4.0] * 3] * 2, [12.0])
    finally:
        handle.remove()
        x.grad = None


@pytest.fixture
def mindspore():
    return pytest.importorskip("mindspore", reason="it is MindSpore's adapter")


@pytest.fixture
def told(mindspore):
    from aligner_hooks.mindspore_ import training

    lost = []
    handle = training.losses(lambda loss: lost.append(float(loss)))
    yield lost
    handle.remove()


def test_mindspore_tells_of_the_outermost_value(mindspore, told):
    from aligner_hooks.mindspore_ import training

    x, gradients = mindspore.Tensor([1.0, 1.0, 1.0]), []

    def inner(x):
        y = x * 2
        training.on_gradient(y, lambda gradient: gradients.append(gradient.asnumpy().tolist()))
        return (y**2).sum()

    def outer(x):
        return mindspore.grad(inner)(x).sum()

    assert mindspore.grad(outer)(x).asnumpy().tolist() == [8.0] * 3
    assert (told, gradients) == ([24.0], [[4.0] * 3])
    mindspore.grad(lambda x: mindspore.grad(outer)(x).sum() + x.sum())(x)
    assert told == [24.0, 27.0]


def test_mindspore_goes_on_after_a_function_that_raised(mindspore, told):
    from aligner_hooks.mindsporelike.compiler import graph_api

    x = mindspore.Tensor([1.0])

    def broken(x):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        mindspore.grad(lambda x: mindspore.grad(broken)(x).sum())(x)
    mindspore.grad(lambda x: (x * 3).sum())(x)
    assert told == [3.0]
    graph_api("_pynative_executor").clear_res()  # MindSpore would go on as if it were inside, and index no tensor


def test_mindspore_looks_into_a_cell_that_is_differentiated(mindspore, told):
    """TrainOneStepCell has its network told of as one before it asks for the gradient."""
    nn = mindspore.nn

    class Slope(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, 1)

        def construct(self, x):
            return mindspore.grad(lambda x: self.dense(x).sum() * 2)(x).sum() + 1

    net = Slope()
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.0))
    loss = float(step(mindspore.Tensor([[1.0, 2.0]])))
    assert told == [loss]

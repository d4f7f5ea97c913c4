"""Layers of another kind than the reference's: the reference's kind is run in their place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from aligner.registry import load  # noqa: E402 - as above
from aligner.replay.built import built  # noqa: E402 - as above
from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above


class Across(nn.Linear):
    """Multiplies by the weight as it lies."""

    def forward(self, x):
        return x @ self.weight + self.bias


class Sideways(nn.Conv2d):
    """Takes height for width."""

    def forward(self, x):
        return self._conv_forward(x, self.weight.transpose(2, 3), self.bias)


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(3, 6, 1), layer, nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.last(self.layer(self.first(x)))


def image():
    torch.manual_seed(3)
    return torch.randn(2, 3, 6, 6) * 2


def confirmed(result):
    return [cause.id for origin in result.origins for cause in origin.causes if cause.confirmed]


@pytest.mark.parametrize(
    ("right", "wrong", "causes"),
    [
        (nn.ReLU, nn.Tanh, {"activation-other", "kind-differs"}),
        (lambda: nn.AvgPool2d(3, 1, 1), lambda: nn.MaxPool2d(3, 1, 1), {"pool-mean-or-max", "kind-differs"}),
        (lambda: nn.GroupNorm(2, 6), lambda: nn.InstanceNorm2d(6, affine=True), {"kind-differs"}),
        (lambda: nn.Linear(6, 6), lambda: Across(6, 6), {"dense-weight-transposed-square", "kind-differs"}),
        (lambda: nn.Conv2d(6, 6, 3), lambda: Sideways(6, 6, 3), {"conv-weight-hw-transposed", "kind-differs"}),
    ],
    ids=["activation", "pool", "norm", "dense", "kernel"],
)
def test_the_reference_kind_of_layer_comes_out_right(tmp_path, right, wrong, causes):
    result = compared(tmp_path, telling(Net(right())), Net(wrong()), image())
    assert places(result) == [("layer", "layer", None)]
    assert causes <= {*confirmed(result)} or {"code-edit", "kind-differs"} <= {*confirmed(result)}


def test_wrong_weights_are_not_the_kind_of_layer(tmp_path):
    class Own(nn.Linear):
        pass

    def spoil(port):
        port.layer.weight.mul_(1.5)

    result = compared(tmp_path, telling(Net(nn.Linear(6, 6))), Net(Own(6, 6)), image(), spoil=spoil)
    assert places(result)[0][0] == "layer"
    assert "kind-differs" not in confirmed(result)


def test_a_layer_that_is_built_draws_no_random_numbers():

    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    made = built(load("torch"), "nn.Linear(in_features=64, out_features=64, bias=True)")
    assert torch.equal(torch.rand(3), wanted)
    assert made.weight.shape == (64, 64)


@pytest.mark.parametrize("text", ["__import__('os').getcwd()", "nn.Linear(3, print(1))", "torch.load('x')", "nn"])
def test_what_is_no_layer_is_not_built(text):

    with pytest.raises(ValueError, match="is no layer"):
        built(load("torch"), text)

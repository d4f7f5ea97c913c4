"""A layer of one side is a line, or several layers, of the other: right ports are right, and a mistake is one place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above


class Swish(nn.Module):
    """SiLU around a Sigmoid, which is no counterpart of the reference's SiLU."""

    def __init__(self, beta=1.0):
        super().__init__()
        self.sigmoid, self.beta = nn.Sigmoid(), beta

    def forward(self, x):
        return x * self.sigmoid(self.beta * x)


class Active(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), act

    def forward(self, x):
        return x + self.act(self.bn(self.conv(x)))


class Pooled(nn.Module):
    """What is made larger, the mean and dropout are layers, or lines and nothing."""

    def __init__(self, layers, mode="nearest"):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)
        self.layers, self.mode = layers, mode
        if layers:
            self.up, self.pool, self.drop = nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.Dropout(0.1)

    def forward(self, x):
        x = self.a(x)
        x = self.up(x) if self.layers else F.interpolate(x, scale_factor=2, mode=self.mode)
        x = torch.relu(self.b(x))
        return self.fc(self.drop(self.pool(x).flatten(1)) if self.layers else x.mean((2, 3)))


class Cut(nn.Module):
    """A block in one piece, or in two with an activation that is a layer."""

    def __init__(self, cut, residual=True):
        super().__init__()
        self.cut, self.residual = cut, residual
        a, b, c = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        if cut:
            self.first, self.second = nn.Sequential(a, b), nn.Sequential(nn.GELU(), c)
        else:
            self.a, self.b, self.c = a, b, c

    def forward(self, x):
        y = self.second(self.first(x)) if self.cut else self.c(F.gelu(self.b(self.a(x))))
        return x + y if self.residual else y


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.gamma


class Scaled(nn.Module):
    """The layer scale is a layer, or a parameter of the block."""

    def __init__(self, layer, by=1.0):
        super().__init__()
        self.lin, self.by = nn.Linear(6, 6), by
        if layer:
            self.ls = Scale()
        else:
            self.gamma = nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = torch.tanh(self.lin(x))
        return x + self.by * (y * self.gamma if hasattr(self, "gamma") else self.ls(y))


def row(make, wrong=None):
    return nn.Sequential(*(make() if n != 1 or wrong is None else wrong() for n in range(3)))


IMAGE, TOKENS = (2, 4, 6, 6), (2, 5, 6)
SIDES = {
    "activation": (lambda: row(lambda: Active(nn.SiLU())), lambda: row(lambda: Active(Swish())), IMAGE),
    "pool": (lambda: Pooled(True), lambda: Pooled(False), IMAGE),
    "cut": (lambda: row(lambda: Cut(False)), lambda: row(lambda: Cut(True)), TOKENS),
    "scale": (lambda: row(lambda: Scaled(True)), lambda: row(lambda: Scaled(False)), TOKENS),
}


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize("name", SIDES)
def test_a_right_port_is_aligned_and_nothing_is_blamed(tmp_path, name, back):
    one, other, shape = SIDES[name]
    one, other = (other, one) if back else (one, other)
    result = compared(tmp_path, telling(one()), other(), torch.randn(*shape))
    assert result.aligned
    assert not result.origins
    assert not result.suspects
    assert result.counts["unmatched"] == 0


WRONG = {
    "activation": (lambda: row(lambda: Active(Swish()), lambda: Active(Swish(1.5))), ("1.act", "layer", None)),
    "pool": (lambda: Pooled(False, "bilinear"), ("", "glue", ("a", "b"))),
    "cut": (lambda: row(lambda: Cut(True), lambda: Cut(True, False)), ("1", "glue", ("1.c", ""))),
    "scale": (lambda: row(lambda: Scaled(False), lambda: Scaled(False, 0.9)), ("1", "glue", ("1.lin", ""))),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_in_it_is_the_one_origin(tmp_path, name):
    net, _, shape = SIDES[name]
    port, place = WRONG[name]
    result = compared(tmp_path, telling(net()), port(), torch.randn(*shape))
    assert places(result) == [place]
    assert result.origins[0].edit is not None or not any(cause.confirmed for cause in result.origins[0].causes)

"""A layer that ends elsewhere than its counterpart is not blamed for what is wrong beside it, or long after it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Waves(nn.Module):
    """Sines of a distance, without what lets them fade."""

    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.linspace(1.0, 3.0, 5))

    def forward(self, distance):
        return torch.sin(self.frequency * distance[:, None])


class Fading(Waves):
    """The same, faded, and how much they are."""

    def forward(self, distance, fade):
        return torch.exp(-distance), super().forward(distance) * fade[:, None]


class Head(nn.Module):
    """Takes the mean off what it makes."""

    def __init__(self, turned=False):
        super().__init__()
        self.inner, self.turned = nn.Linear(6, 3), turned

    def forward(self, x):
        x = self.inner(x)
        return x - x.mean(-1 if self.turned else 0, keepdim=True)


class Angles(nn.Module):
    """Works on two values that are made beside each other."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 6)

    def forward(self, cosine, waves):
        return self.inner(waves * (1.0 + cosine[:, None]))


class Crystal(nn.Module):
    """The reference fades the waves outside, the port in the layer."""

    def __init__(self, inside=False, sign=-1.0, turned=False):
        super().__init__()
        self.waves = Fading() if inside else Waves()
        self.edges, self.angles, self.inside = nn.Linear(6, 6), Angles(), inside
        self.energy, self.head, self.sign = nn.Linear(6, 1), Head(turned), sign

    def forward(self, vectors):
        distance = vectors.norm(dim=-1)
        fade, cosine = torch.exp(-0.1 * distance**2), self.sign * vectors[:, 0] / distance
        if self.inside:
            decay, waves = self.waves(distance, fade)
        else:
            decay, waves = torch.exp(-distance), self.waves(distance) * fade[:, None]
        x = torch.tanh(self.edges(torch.cat([decay[:, None], waves], -1)))
        x = x + torch.tanh(self.angles(cosine, waves.flip(0)))
        return self.energy(x).sum(), self.head(x)


RIGHT = {"inside": True}


@pytest.mark.parametrize(("wrong", "place"), [({"sign": 1.0}, ""), ({"turned": True}, "head")], ids=["beside", "after"])
def test_what_is_wrong_and_not_made_of_it_says_nothing_of_it(tmp_path, wrong, place):
    torch.manual_seed(1)
    x = torch.randn(9, 3)
    reference = telling(Crystal())
    result = compared(tmp_path, reference, Crystal(**RIGHT, **wrong), x)
    assert [(origin.layer, origin.where) for origin in result.origins] == [(place, "glue")]
    assert result.origins[0].causes[0].confirmed


def test_the_right_port_is_aligned(tmp_path):
    torch.manual_seed(1)
    assert compared(tmp_path, telling(Crystal()), Crystal(**RIGHT), torch.randn(9, 3)).exit_code == 0


class Fade(nn.Module):
    """Has no weights: nothing but its name tells of it where it is not called."""

    def forward(self, x):
        return torch.sin(1.7 * x)


class Level(nn.Module):
    """Adds what it makes to what the level before handed on."""

    def __init__(self, plain=False):
        super().__init__()
        self.inner, self.fade, self.plain = nn.Linear(6, 4), Fade(), plain

    def forward(self, x, skip):
        if self.plain:
            return self.inner(x) + 0.7 * skip.abs()
        return self.inner(x) + self.fade(skip)


class Pyramid(nn.Module):
    """Beside the levels something right is made all the time."""

    def __init__(self, plain=False):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.levels = nn.ModuleList(Level(plain) for _ in range(3))

    def forward(self, x):
        skip = x[:, :4] * 0.5
        for layer, level in zip(self.body, self.levels):
            x = torch.tanh(layer(x))
            skip = level(x, skip)
        return skip


def test_what_is_wrong_at_every_level_is_told_at_each_and_the_layer_that_is_not_called_is_called(tmp_path):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Pyramid()), Pyramid(plain=True), torch.randn(9, 6))
    assert {origin.layer for origin in result.origins} == {f"levels.{n}" for n in range(3)}
    assert all(origin.causes[0].confirmed for origin in result.origins)
    assert "self.fade(skip)" in result.origins[0].edit.hunks[0].after

"""Small mistakes in code between layers of a port that computes in a short type: its rounding does not hide them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")
from mindspore import amp, ops  # noqa: E402 - only after it is known to be there
from mindspore import nn as cells  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above

from tests.endtoend.test_precision_places import answer  # noqa: E402 - as above

LEVELS = ("O2", "O3", "auto", "to_float")


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def lowered(port, level):
    return port.to_float(mindspore.float16) if level == "to_float" else amp.auto_mixed_precision(port, level)


class Block(nn.Module):
    """A norm and a GELU, both written by hand between the layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        y = self.first(x) * 0.125
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5)
        return self.third(nn.functional.gelu(self.second(y)))


class BlockPort(cells.Cell):
    def __init__(self, scale=0.125, eps=1e-5, gelu="none"):
        super().__init__()
        self.first, self.second, self.third = cells.Dense(32, 32), cells.Dense(32, 64), cells.Dense(64, 8)
        self.scale, self.eps, self.gelu = scale, eps, gelu

    def construct(self, x):
        y = self.first(x) * self.scale
        y = y * ops.rsqrt(ops.mean(y * y, -1, True) + self.eps)
        return self.third(ops.gelu(self.second(y), approximate=self.gelu))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("mistake", "layers"),
    [
        ({"eps": 1e-6}, ("first", "second")),
        ({"gelu": "tanh"}, ("second", "third")),
    ],
    ids=["eps", "gelu"],
)
def test_a_mistake_below_the_rounding_of_a_short_type_is_a_warning(tmp_path, level, mistake, layers):
    found = answer(tmp_path, Block(), lowered(BlockPort(**mistake), level), numbers(16, 32))
    assert (found.aligned, found.origins) == (True, ())
    (place,) = found.suspects
    assert (place.layer, place.where, place.between) == ("", "glue", layers)
    assert place.own_error < 1e-3
    assert "below-tolerance" in dict(found.warnings)


@pytest.mark.parametrize("level", LEVELS)
def test_code_that_is_right_is_quiet(tmp_path, level):
    found = answer(tmp_path, Block(), lowered(BlockPort(), level), numbers(16, 32))
    assert (found.aligned, found.origins, found.suspects) == (True, (), ())


class Casting(BlockPort):
    """Rounds to float16 by itself, as ports for NPUs do before they multiply, and computes in float32 again."""

    def construct(self, x):
        y = self.first(x) * self.scale
        y = y * ops.rsqrt(ops.mean(y * y, -1, True) + self.eps)
        y = ops.gelu(self.second(y)).astype(mindspore.float16).astype(mindspore.float32)
        return self.third(y * 1.0)


def test_code_that_casts_to_a_short_type_is_judged_by_that_type(tmp_path):
    found = answer(tmp_path, Block(), lowered(Casting(), "O2"), numbers(16, 32))
    assert (found.aligned, found.origins, found.suspects) == (True, (), ())


class Own(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


class OwnPort(cells.Cell):
    """A layer of the user's own that rounds to float16 on its way."""

    def construct(self, x):
        root = ops.rsqrt(ops.mean(x * x, -1, True) + 1e-5)
        return x * root.astype(mindspore.float16).astype(x.dtype)


def test_a_layer_that_casts_by_itself_is_judged_by_that_type(tmp_path):
    net = nn.Sequential(nn.Linear(32, 32), Own(), nn.Linear(32, 8))
    port = cells.SequentialCell(cells.Dense(32, 32), OwnPort(), cells.Dense(32, 8))
    found = answer(tmp_path, net, lowered(port, "O2"), numbers(16, 32))
    assert (found.aligned, found.origins, found.suspects) == (True, (), ())


class Counting(BlockPort):
    """Makes floats of whole numbers, which rounds nothing."""

    def construct(self, x):
        y = self.first(x) * self.scale
        y = y * ops.rsqrt(ops.sum(y * y, -1, True) / ops.arange(33)[-1].astype(y.dtype) + self.eps)
        return self.third(ops.gelu(self.second(y)))


def test_code_that_casts_whole_numbers_is_looked_into(tmp_path):
    assert answer(tmp_path, Block(), lowered(Counting(), "O2"), numbers(16, 32)).suspects == ()
    found = answer(tmp_path, Block(), lowered(Counting(eps=1e-6), "O2"), numbers(16, 32))
    assert [place.between for place in found.suspects] == [("first", "second")]


class Mixed(nn.Module):
    def forward(self, one, other):
        return one @ (one.T @ other) / 16


class MixedPort(cells.Cell):
    def construct(self, one, other):
        return ops.matmul(one, ops.matmul(one.T, other)) / 16


class Twice(nn.Module):
    """Hands one value to a layer twice, as self-attention does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.mixed, self.out = nn.LayerNorm(32), Mixed(), nn.Linear(32, 8)

    def forward(self, x):
        y = self.norm(x)
        return self.out(x + self.mixed(y, y))


class TwicePort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.mixed, self.out = cells.LayerNorm((32,), epsilon=1e-5), MixedPort(), cells.Dense(32, 8)

    def construct(self, x):
        y = self.norm(x)
        return self.out(x + self.mixed(y * 1.0004, y * 1.0004))


def test_a_small_mistake_that_is_handed_on_twice_is_not_blamed_for_what_the_short_type_rounds(tmp_path):
    found = answer(tmp_path, Twice(), lowered(TwicePort(), "O2"), numbers(16, 32))
    assert max(verdict.error or 0.0 for verdict in found.verdicts) > 1e-3  # by rounding
    assert (found.aligned, found.origins) == (True, ())
    assert [(place.layer, place.between) for place in found.suspects] == [("", ("norm", "mixed"))]


class Kept(nn.Module):
    """The largest of those that are kept; of a row without any, zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, keep):
        top = self.first(x).masked_fill(~keep.unsqueeze(-1), -1e30).amax(1)
        return self.second(torch.where(top < -1e29, torch.zeros_like(top), top))


class KeptPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = cells.Dense(8, 8), cells.Dense(8, 4)

    def construct(self, x, keep):
        top = ops.amax(ops.masked_fill(self.first(x), ops.logical_not(keep).expand_dims(-1), -1e30), 1)
        return self.second(ops.where(top < -1e29, ops.zeros_like(top), top))


@pytest.mark.parametrize("level", ["O2", "O3", "to_float"])  # "auto" computes this in float32
def test_no_other_code_is_asked_for_where_it_is_right_in_float32(tmp_path, level):
    """-inf is not less than -inf, but than any number between the values: only the reference says which is meant."""
    keep = torch.ones(6, 5, dtype=torch.bool)
    keep[2] = False
    found = answer(tmp_path, Kept(), lowered(KeptPort(), level), numbers(6, 5, 8), keep)
    (origin,) = found.origins
    assert (origin.edit, origin.line) == (None, None)
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("short-float-operations", True)

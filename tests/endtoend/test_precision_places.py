"""Code between layers under mixed precision: what a short type is blamed for, and what an own rounding explains."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")
from mindspore import amp, ops  # noqa: E402 - only after it is known to be there
from mindspore import nn as cells  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner import registry  # noqa: E402 - as above
from aligner.capture.session import Capture, Options  # noqa: E402 - as above


def answer(folder, net, port, *inputs):
    net.eval()
    port.set_train(False)
    with torch.no_grad(), Capture(registry.of(net), net, folder / "ref.h5", Options(force=True, operations=True)):
        net(*inputs)
    replay = aligner.replay(folder / "ref.h5", port)
    with replay.capture(folder / "port.h5", Options(force=True, operations=True)):
        port(*replay.inputs(0))
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        q, k = self.query(x), self.key(x)
        return self.out(torch.einsum("bij,bjc->bic", (torch.einsum("bic,bjc->bij", q, k) / 4.0).softmax(-1), x))


class AttentionPort(cells.Cell):
    """`scale` stands before the softmax, which an AMP level runs in float16."""

    def __init__(self, scale):
        super().__init__()
        self.query, self.key, self.out = cells.Dense(16, 16), cells.Dense(16, 16), cells.Dense(16, 4)
        self.scale = scale

    def construct(self, x):
        q, k = self.query(x), self.key(x)
        scores = ops.matmul(q, k.swapaxes(1, 2)) * self.scale
        return self.out(ops.matmul(ops.softmax(scores, -1), x))


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_mistake_in_short_code_is_not_put_down_to_the_short_type(tmp_path, level):
    """The same code in float32 is as wrong: casting would not help."""
    port = amp.auto_mixed_precision(AttentionPort(2.5), level)
    (origin,) = answer(tmp_path, Attention(), port, 2 * numbers(2, 6, 16)).origins
    assert (origin.layer, origin.where) == ("", "glue")
    assert "short-float-operations" not in [cause.id for cause in origin.causes if not cause.refuted][:1]


def test_the_right_code_beside_it_is_quiet(tmp_path):
    found = answer(tmp_path, Attention(), amp.auto_mixed_precision(AttentionPort(0.25), "O2"), numbers(2, 6, 16))
    assert (found.aligned, found.origins, found.suspects) == (True, (), ())


class Gated(nn.Module):
    """tanh(f) * sigmoid(g), as gated convolutions have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.f, self.g, self.out = nn.Linear(16, 64), nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.f(x)) * torch.sigmoid(self.g(x)))


class Coarse(cells.Cell):
    """The same, with a tanh that is off by what `kernel` adds in its own rounding, and by `mistake`."""

    def __init__(self, mistake=0.0):
        super().__init__()
        self.f, self.g, self.out = cells.Dense(16, 64), cells.Dense(16, 64), cells.Dense(64, 4)
        self.mistake = mistake

    def construct(self, x):
        f = self.f(x)
        tanh = 1000.0 + ops.tanh(f) - 1000.0  # loses digits as a kernel that approximates does
        return self.out((tanh + self.mistake * f) * ops.sigmoid(self.g(x)))


def test_what_code_loses_by_its_own_rounding_is_no_mistake(tmp_path):
    found = answer(tmp_path, Gated(), Coarse(), numbers(8, 16))
    assert (found.aligned, found.origins, found.suspects) == (True, (), ())


def test_a_mistake_beyond_its_own_rounding_is_one(tmp_path):
    found = answer(tmp_path, Gated(), Coarse(mistake=1e-3), numbers(8, 16))
    assert [place.where for place in (*found.origins, *found.suspects)] == ["glue"]


class Summed(nn.Module):
    """A loss that is halved, and a parameter that happens to be near the port's loss without one."""

    def __init__(self, x):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.scale = nn.Linear(8, 8), nn.Parameter(torch.tensor(1.0))
        with torch.no_grad():
            self.scale.copy_(2 * self(x)[0] - 1 + 4e-4)

    def forward(self, x):
        scores = self.first(x)
        return nn.functional.cross_entropy(scores, torch.arange(4)) / 2, scores * self.scale


class SummedPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first = cells.Dense(8, 8)
        self.scale = mindspore.Parameter(mindspore.Tensor(0.0, mindspore.float32), name="scale")

    def construct(self, x):
        scores = self.first(x).astype(mindspore.float32)
        return ops.cross_entropy(scores, ops.arange(4).astype(mindspore.int32)), scores * self.scale


def test_a_single_number_proves_no_formula(tmp_path):
    """A loss of one number is many sums and products of what was in hand, by chance; in float16 all the more."""
    x = numbers(4, 8)
    (origin,) = answer(tmp_path, Summed(x), amp.auto_mixed_precision(SummedPort(), "O2"), x).origins
    assert (origin.layer, origin.where, origin.slot) == ("", "glue", "output.0")
    assert [cause.id for cause in origin.causes if cause.confirmed and "scale" in str(cause.facts)] == []


class Normed(nn.Module):
    """Divided by the root of a mean of squares, in code of the user's own, behind an embedding of large numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.emb, self.norm, self.out = nn.Embedding(12, 16), Root(), nn.Linear(16, 4)
        with torch.no_grad():
            self.emb.weight.mul_(400)

    def forward(self, ids):
        return self.out(self.norm(self.emb(ids)))


class Root(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class RootPort(cells.Cell):
    def __init__(self, dtype=mindspore.float32):
        super().__init__()
        self.dtype = dtype

    def construct(self, x):
        x = x.astype(self.dtype)
        return (x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + 1e-6)).astype(mindspore.float32)


class Handing(RootPort):
    """Computes in the type that it is given."""

    def construct(self, x):
        return (x * ops.rsqrt(ops.mean(x * x, -1, keep_dims=True) + 1e-6)).astype(mindspore.float32)


class NormedPort(cells.Cell):
    def __init__(self, norm):
        super().__init__()
        self.emb, self.norm, self.out = cells.Embedding(12, 16), norm, cells.Dense(16, 4)

    def construct(self, ids):
        return self.out(self.norm(self.emb(ids)))


def test_zeros_that_an_overflow_made_are_put_down_to_the_short_type(tmp_path):
    """1 / inf is a number again: nothing in the port's values is infinite."""
    found = answer(tmp_path, Normed(), NormedPort(RootPort(mindspore.float16)), torch.arange(6).reshape(2, 3))
    (origin,) = found.origins
    assert origin.layer == "norm"
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("code-edit", True)
    assert "float16" not in origin.edit.hunks[0].after


def test_the_type_that_a_layer_is_handed_is_said_where_it_alone_goes_wrong(tmp_path):
    port = NormedPort(Handing())
    port.emb.to_float(mindspore.float16)
    found = answer(tmp_path, Normed(), port, torch.arange(6).reshape(2, 3))
    assert [origin.layer for origin in found.origins] == ["norm"]
    told = dict(found.warnings)
    assert (told["right-when-long"]["layer"], told["right-when-long"]["type"]) == ("norm", "float16")
    assert "right-when-held" not in told


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x, pad):
        return self.second(torch.softmax(self.first(x) * 3 + pad * -1e9, -1))


class MaskedPort(cells.Cell):
    """The mask's large number is infinite in float16, and 0 * -inf is NaN."""

    def __init__(self):
        super().__init__()
        self.first, self.second = cells.Dense(16, 16), cells.Dense(16, 4)

    def construct(self, x, pad):
        mask = pad.astype(mindspore.float16) * mindspore.Tensor(-1e9, mindspore.float16)
        return self.second(ops.softmax(self.first(x) * 3 + mask, -1))


def test_a_constant_that_is_short_itself_speaks_for_no_other_cause(tmp_path):
    pad = torch.zeros(16)
    pad[12:] = 1
    (origin,) = answer(tmp_path, Masked(), MaskedPort(), numbers(3, 16), pad).origins
    assert (origin.layer, origin.where) == ("", "glue")
    assert (origin.causes[0].id, origin.causes[0].confirmed) == ("code-edit", True)


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.factor = factor

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.third(self.second(self.first(x * self.factor)))


class ScaledPort(cells.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = cells.Dense(16, 32), cells.Dense(32, 32), cells.Dense(32, 4)

    def construct(self, x):
        return self.third(self.second(self.first(x * 2.0)))


def test_a_small_mistake_is_not_blamed_for_what_the_references_short_type_rounds(tmp_path):
    """It is told of, as it is in float32; what is red behind it is red by bfloat16."""
    found = answer(tmp_path, Scaled(2.0002), ScaledPort(), numbers(6, 16))
    assert (found.aligned, found.origins) == (True, ())
    assert [(place.layer, place.where) for place in found.suspects] == [("", "glue")]
    (origin,) = answer(tmp_path, Scaled(2.5), ScaledPort(), numbers(6, 16)).origins
    assert (origin.layer, origin.where) == ("", "glue")

"""Right ports whose convolutions get what is padded already, and whose tables come as halves in a tuple."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, LONG, KERNEL = 8, 9, 4


class Padding(nn.Module):
    """Pads by itself on both sides, and the end is cut off."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDE, WIDE, KERNEL, padding=KERNEL - 1, groups=WIDE, bias=False)

    def forward(self, x):
        return F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))


class Padded(nn.Module):
    """Is given what is padded in front, or, `behind`, where it must not be."""

    def __init__(self, behind=False, scale=1.0):
        super().__init__()
        self.conv = nn.Conv1d(WIDE, WIDE, KERNEL, groups=WIDE, bias=False)
        self.behind, self.scale = behind, scale

    def forward(self, x):
        pad = (0, KERNEL - 1) if self.behind else (KERNEL - 1, 0)
        return F.silu(self.conv(F.pad(x.transpose(1, 2), pad)).transpose(1, 2)) * self.scale


class Turned(nn.Module):
    """Turns its input by tables of sines, which stand in a row for both halves, or once in a tuple."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.q, self.o, self.scale = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), scale

    def forward(self, x, *tables):
        q, (cos, sin) = self.q(x), tables[0] if len(tables) == 1 else tables
        one, other = q.chunk(2, -1)
        if cos.shape[-1] == WIDE:
            q = q * cos + torch.cat((-other, one), -1) * sin
        else:
            q = torch.cat((one * cos - other * sin, other * cos + one * sin), -1)
        return self.o(q) * self.scale


class Block(nn.Module):
    def __init__(self, conv, halves, scale=1.0):
        super().__init__()
        self.conv, self.turned, self.halves = conv, Turned(scale), halves

    def forward(self, x, *tables):
        return self.turned(x + self.conv(x), *tables)


class Net(nn.Module):
    def __init__(self, conv, halves, scale=1.0, early=1.0):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(WIDE, WIDE), Block(conv, halves, scale), nn.Linear(WIDE, 3)
        self.halves, self.early = halves, early

    def forward(self, x):
        angles = torch.arange(LONG)[:, None] * 0.5 ** torch.arange(WIDE // 2)
        cos, sin = angles.cos(), angles.sin()
        tables = ((cos, sin),) if self.halves else (torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
        return self.last(self.block(self.first(x) * self.early, *tables))


def found(tmp_path, port):
    torch.manual_seed(1)
    return compared(tmp_path, telling(Net(Padding(), False)), port, torch.randn(2, LONG, WIDE))


def test_the_right_port_is_aligned_and_nothing_is_blamed(tmp_path):
    said = found(tmp_path, Net(Padded(), True))
    assert said.aligned
    assert (said.origins, said.suspects) == ((), ())


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"early": 1.5}, ("", "glue", ("first", "block"))),
        ({"scale": 1.5}, ("block.turned", "glue", ("block.turned.o", ""))),
    ],
)
def test_what_is_wrong_beside_them_is_the_only_origin(tmp_path, wrong, place):
    assert places(found(tmp_path, Net(Padded(), True, **wrong))) == [place]


@pytest.mark.parametrize("conv", [Padded(scale=1.5), Padded(behind=True)], ids=["scaled", "padded behind"])
def test_a_mistake_around_such_a_convolution_is_found(tmp_path, conv):
    assert {origin.layer for origin in found(tmp_path, Net(conv, True)).origins} == {"block.conv"}


class Mirrored(nn.Module):
    """Pads by what lies inside, in the layer, or by a layer before it."""

    def __init__(self, outside=False, mode="reflect"):
        super().__init__()
        self.outside, self.mode = outside, mode
        self.conv = nn.Conv1d(
            WIDE, WIDE, 3, padding=0 if outside else 1, padding_mode="zeros" if outside else "reflect"
        )

    def forward(self, x):
        x = x.transpose(1, 2)
        return F.silu(self.conv(F.pad(x, (1, 1), self.mode) if self.outside else x).transpose(1, 2))


def mirrored(tmp_path, port):
    torch.manual_seed(1)
    return compared(tmp_path, telling(Net(Mirrored(), False)), Net(port, True), torch.randn(2, LONG, WIDE))


def test_what_a_layer_pads_by_values_of_its_own_the_port_s_is_given(tmp_path):
    said = mirrored(tmp_path, Mirrored(outside=True))
    assert said.aligned
    assert (said.origins, said.suspects) == ((), ())
    assert any(key.slot == "input.0[padded]" for key in (verdict.key for verdict in said.verdicts))


@pytest.mark.parametrize("mode", ["constant", "replicate"])
def test_other_values_around_it_are_told(tmp_path, mode):
    assert places(mirrored(tmp_path, Mirrored(outside=True, mode=mode))) == [
        ("block.conv", "glue", ("", "block.conv.conv"))
    ]

"""Layers that are given one dict of masks, places and tables, where the reference's are given them one by one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, LONG, WORDS = 8, 6, 11
PAIRED, BEHIND = ("half", "turns")


def angles(positions, base):
    return positions.float()[..., None] * base ** -(torch.arange(WIDE // 2) / (WIDE // 2))


def turned(x, cos, sin, way):
    one, other = (x.chunk(2, -1)) if way == PAIRED else (x[..., ::2], x[..., 1::2])
    parts = one * cos - other * sin, other * cos + one * sin
    return torch.cat(parts, -1) if way == PAIRED else torch.stack(parts, -1).flatten(-2)


class Attention(nn.Module):
    """`table` is (cos, sin) once for the port, and for both parts of what is turned for the reference."""

    def __init__(self, far, way, once, scale=1.0):
        super().__init__()
        self.q, self.k, self.o = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.far, self.way, self.once, self.scale = far, way, once, scale

    def forward(self, x, table, mask, positions):
        cos, sin = table
        if not self.once:
            cos, sin = (t[..., : WIDE // 2] if self.way == PAIRED else t[..., ::2] for t in (cos, sin))
        q, k = (turned(one, cos, sin, self.way) for one in (self.q(x), self.k(x)))
        if self.far:
            q = q * torch.log1p(positions.float())[..., None]
        scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~mask, -1e9)
        return self.o(scores.softmax(-1) @ x)


class Block(nn.Module):
    def __init__(self, far, way, once, scale=1.0):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDE), Attention(far, way, once, scale)
        self.far, self.once = far, once

    def forward(self, x, *given):
        if self.once:
            (context,) = given
            table = context["table" if self.far else "near_table"]
            mask, positions = context["mask"], context["positions"]
        else:
            tables, mask, positions, _ = given
            table = tables[0 if self.far else 1]
        return x + self.attn(self.norm(x), table, mask, positions)


class Net(nn.Module):
    """The first block uses the near table alone and no positions, the second the far one."""

    def __init__(self, way=PAIRED, once=False, base=100.0, counted=True, ahead=0, scale=1.0):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDE), nn.Linear(WIDE, 3)
        self.blocks = nn.ModuleList(Block(far, way, once, scale) for far in (False, True))
        self.way, self.once, self.base, self.counted, self.ahead = way, once, base, counted, ahead

    def forward(self, words, valid):
        positions = (valid.cumsum(-1) - 1).clamp(min=0) if self.counted else torch.arange(LONG).expand_as(valid)
        mask = (torch.ones(LONG, LONG).tril(self.ahead) > 0) & (valid > 0)[:, None] | torch.eye(LONG, dtype=bool)
        tables = []
        for base in (self.base, 7.0):
            angle = angles((valid.cumsum(-1) - 1).clamp(min=0), base)
            if not self.once:
                angle = torch.cat((angle, angle), -1) if self.way == PAIRED else angle.repeat_interleave(2, -1)
            tables.append((angle.cos(), angle.sin()))
        given = (tables, mask, positions, valid)
        if self.once:
            names = "valid", "positions", "table", "near_table", "mask"
            given = (dict(zip(names, (valid, positions, *tables, mask))),)
        x = self.embed(words)
        for block in self.blocks:
            x = block(x, *given)
        return self.head(x)


@pytest.mark.parametrize("way", [PAIRED, BEHIND])
@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({}, set()),
        ({"scale": 0.5}, {"blocks.0.attn", "blocks.1.attn"}),
        ({"base": 10.0}, {""}),
        ({"counted": False}, {""}),
        ({"ahead": 1}, {""}),
    ],
    ids=["right", "a scale", "a base of the far table", "places from the left", "a mask"],
)
def test_the_place_is_whose_code_is_wrong(tmp_path, way, how, wanted):
    torch.manual_seed(2)
    words = torch.randint(0, WORDS, (2, LONG))
    valid = (torch.arange(LONG) >= torch.tensor([[0], [2]])).long()
    found = compared(tmp_path, telling(Net(way)), Net(way, once=True, **how), words, valid)
    assert {layer for layer, _, _ in places(found)} == wanted
    assert found.aligned is not bool(wanted)

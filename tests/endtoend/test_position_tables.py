"""Tables of relative positions, as different authors lay them out: carried, compared, and named where wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend import pairs  # noqa: E402 - as above

WINDOW, HEADS, SHARE = 4, 3, 4
SIDE, WIDE = 2 * WINDOW - 1, HEADS * SHARE

LAYOUTS = {
    "rows": ((SIDE * SIDE, HEADS), lambda table: table),
    "heads_first": ((HEADS, SIDE, SIDE), lambda table: table.flatten(1).T),
    "heads_first_flat": ((HEADS, SIDE * SIDE), lambda table: table.T),
    "one_in_front": ((1, HEADS, SIDE, SIDE), lambda table: table[0].flatten(1).T),
    "one_in_front_flat": ((1, SIDE * SIDE, HEADS), lambda table: table[0]),
    "heads_last": ((SIDE, SIDE, HEADS), lambda table: table.flatten(0, 1)),
}


class Attention(nn.Module):
    """A window's attention; the table is a parameter of this shape, or an Embedding."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        if layout == "embedding":
            self.relative_attention_bias = nn.Embedding(SIDE * SIDE, HEADS)
        else:
            self.relative_position_bias_table = nn.Parameter(torch.zeros(LAYOUTS[layout][0]))
        self.qkv, self.proj = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        place = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + WINDOW - 1
        self.register_buffer("relative_position_index", apart[0] * SIDE + apart[1])

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, SHARE).permute(2, 0, 3, 1, 4)
        if self.layout == "embedding":
            bias = self.relative_attention_bias(self.relative_position_index)
        else:
            bias = LAYOUTS[self.layout][1](self.relative_position_bias_table)[self.relative_position_index]
        mixed = (q @ k.transpose(-1, -2) / SHARE**0.5 + bias.permute(2, 0, 1)).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, layout, name="blocks"):
        super().__init__()
        self.name = name
        setattr(self, name, nn.ModuleList(Attention(layout) for _ in range(2)))
        self.head = nn.Linear(WIDE, 4)

    def forward(self, x):
        for block in getattr(self, self.name):
            x = x + block(x)
        return self.head(x)


def compared(tmp_path, one, other, name="blocks", spoil=None):
    torch.manual_seed(0)
    net, port = Net(one), Net(other, name)
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.0, 0.4)
    return pairs.compared(tmp_path, net, port, torch.randn(2, WINDOW * WINDOW, WIDE), spoil=spoil)


@pytest.mark.parametrize("name", ["blocks", "layers"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("rows", other) for other in LAYOUTS if other != "rows"],
        *[(other, "rows") for other in LAYOUTS if other != "rows"],
        ("heads_first", "heads_last"),
        ("heads_last", "one_in_front"),
        ("embedding", "rows"),
        ("rows", "embedding"),
        ("embedding", "heads_first"),
        ("one_in_front", "embedding"),
    ],
)
def test_a_table_is_the_same_however_it_is_laid_out(tmp_path, one, other, name):
    result = compared(tmp_path, one, other, name)
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


def without_one_head(port):
    port.blocks[1].relative_position_bias_table[1] = 0


@pytest.mark.parametrize("one", ["rows", "heads_last"])
def test_a_head_that_is_missing_from_a_table_is_named(tmp_path, one):
    result = compared(tmp_path, one, "heads_first", spoil=without_one_head)
    found = [(o.layer, o.slot, o.where, o.causes[0].facts["port_parameter"]) for o in result.origins]
    there = "blocks.1.relative_position_bias_table"
    assert found == [("blocks.1", "relative_position_bias_table.T", "parameters", there)]

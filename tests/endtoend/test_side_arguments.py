"""Tables and masks that blocks are given beside the values they work on, in another form in the port."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from aligner.compare.layers import pair_layers  # noqa: E402 - as above
from aligner.compare.net import survey  # noqa: E402 - as above
from aligner.compare.pairing import pair_records  # noqa: E402 - as above
from aligner.dump.reader import open_dump  # noqa: E402 - as above
from tests.endtoend import pairs  # noqa: E402 - as above

WIDTH, LENGTH = 8, 6


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    if cos.shape[-1] < x.shape[-1]:
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, cos, sin, mask):
        q, k = rotated(self.q(x), cos, sin), rotated(self.k(x), cos, sin)
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5
        scores = scores.masked_fill(mask, -1e9) if mask.dtype is torch.bool else scores + mask
        return self.out(scores.softmax(-1) @ self.v(x))


class Mlp(nn.Module):
    def __init__(self, swapped):
        super().__init__()
        self.gate, self.up, self.down, self.swapped = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8), swapped

    def forward(self, x):
        gate, up = self.gate(x), self.up(x)
        return self.down(gate * F.silu(up) if self.swapped else up * F.silu(gate))


class Block(nn.Module):
    def __init__(self, swapped, factor):
        super().__init__()
        self.norm, self.attn, self.mlp, self.factor = nn.LayerNorm(8), Attention(), Mlp(swapped), factor

    def forward(self, x, cos, sin, mask):
        x = x + self.attn(self.norm(x) * self.factor, cos, sin, mask)
        return x + self.mlp(x)


class Net(nn.Module):
    """A port hands on half of the tables, the rest being the same, and a mask of truth values."""

    def __init__(self, port, swapped=False, factor=1.0, shift=1):
        super().__init__()
        self.stem, self.blocks = nn.Linear(5, 8), nn.ModuleList(Block(swapped, factor) for _ in range(2))
        self.port, self.shift = port, shift

    def forward(self, x):
        angle = torch.outer(torch.arange(LENGTH).float(), 10.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        angle = angle if self.port else torch.cat([angle, angle], -1)
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(self.shift)
        mask = hidden if self.port else torch.zeros(LENGTH, LENGTH).masked_fill(hidden, float("-inf"))
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin(), mask)
        return x


def telling(net):
    torch.manual_seed(0)
    for name, value in net.state_dict().items():
        value.normal_(1.0 if "norm.weight" in name else 0.0, 0.4)
    return net.eval()


def compared(tmp_path, net, port):
    return pairs.compared(tmp_path, net, port, torch.randn(2, LENGTH, 5))


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ({}, []),
        ({"swapped": True}, [("blocks.0.mlp", "glue", ("blocks.0.mlp.up", "blocks.0.mlp.down"))]),
        ({"factor": 1.5}, [("blocks.0", "glue", ("blocks.0.norm", "blocks.0.attn"))]),
        ({"shift": 0}, [("", "glue", ("stem", "blocks.0"))]),
    ],
    ids=["right", "inside", "before", "mask"],
)
def test_of_such_arguments_those_that_are_wrong_are_named_and_no_others(tmp_path, wrong, wanted):
    net, port = telling(Net(False)), Net(True, **wrong).eval()
    result = compared(tmp_path, net, port)
    places = [(o.layer, o.where, o.between) for o in result.origins]
    assert [place for place in places if not place[0].startswith("blocks.1")] == wanted
    assert result.aligned is not bool(wanted)
    if "shift" in wrong:
        assert [(o.seen, o.slot) for o in result.origins] == [("blocks.0", "input.3")]


class Three(nn.Module):
    """Attention that takes query, key and value, or the one value that all are made of."""

    def __init__(self, one, scale=1.0):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.one, self.scale = one, scale

    def forward(self, query, key=None, value=None):
        key, value = (query, query) if self.one else (key, value)
        scores = self.q(query) @ self.k(key).transpose(-1, -2) * self.scale
        return self.out(scores.softmax(-1) @ self.v(value))


class Encoder(nn.Module):
    def __init__(self, one, scale=1.0):
        super().__init__()
        self.stem, self.attn, self.one = nn.Linear(5, 8), Three(one, scale), one

    def forward(self, x):
        x = self.stem(x)
        return x + (self.attn(x) if self.one else self.attn(x, x, x))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_value_that_is_given_once_in_place_of_three_times_is_not_missing(tmp_path, scale):
    net, port = telling(Encoder(False)), Encoder(True, scale).eval()
    result = compared(tmp_path, net, port)
    wanted = [("attn", "glue", ("attn.v", "attn.out"))] if scale != 1.0 else []
    assert [(o.layer, o.where, o.between) for o in result.origins] == wanted


class Output(nn.Module):
    def __init__(self, behind):
        super().__init__()
        self.dense, self.norm, self.behind = nn.Linear(8, 8), nn.LayerNorm(8), behind

    def forward(self, x, residual):
        x = self.dense(x)
        return self.norm(x) + residual if self.behind else self.norm(x + residual)


class Flat(nn.Module):
    """Blocks of (rows, columns) for blocks of (batch, rows, columns)."""

    def __init__(self, flat, behind=False):
        super().__init__()
        self.stem, self.blocks, self.flat = nn.Linear(5, 8), nn.ModuleList(Output(behind) for _ in range(2)), flat

    def forward(self, x):
        x = self.stem(x)
        shape = x.shape
        x = x.reshape(-1, shape[-1]) if self.flat else x
        for block in self.blocks:
            x = block(x, x)
        return x.reshape(shape)


def test_a_norm_of_flat_rows_is_not_blamed_for_the_sum_that_stands_behind_it(tmp_path):
    net, port = telling(Flat(False)), Flat(True, behind=True).eval()
    result = compared(tmp_path, net, port)
    assert {(o.layer, o.where) for o in result.origins} == {("blocks.0", "glue"), ("blocks.1", "glue")}


class Kept:
    """What a reference hands on in an object that nobody looks into."""

    def __init__(self):
        self.rows = None


class Reader(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.q, self.k, self.out, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), scale

    def forward(self, x, kept):
        known = kept.rows if isinstance(kept, Kept) else kept
        rows = self.k(x) if known is None else torch.cat([known, self.k(x)], 1)
        if isinstance(kept, Kept):
            kept.rows = rows
        read = self.out((self.q(x) @ rows.transpose(1, 2) * self.scale).softmax(-1) @ rows)
        return read if isinstance(kept, Kept) else (read, rows)


class Around(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm, self.read = nn.LayerNorm(8), Reader(scale)

    def forward(self, x, kept):
        made = self.read(self.norm(x), kept)
        return (x + made[0], made[1]) if isinstance(made, tuple) else x + made


class Twice(nn.Module):
    def __init__(self, port, scale):
        super().__init__()
        self.stem, self.read, self.port = nn.Linear(5, 8), Around(scale), port

    def forward(self, x):
        x = self.stem(x)
        if self.port:
            first, rows = self.read(x[:, :4], torch.zeros(2, 0, 8))
            return first, self.read(x[:, 4:], rows)[0]
        kept = Kept()
        return self.read(x[:, :4], kept), self.read(x[:, 4:], kept)


@pytest.mark.parametrize(
    ("scale", "wanted"), [(0.4, []), (1.4, [("read.read", "glue", ("read.read.q", "read.read.out"))])]
)
def test_what_a_port_alone_is_given_is_not_blamed_for_what_is_wrong_inside(tmp_path, scale, wanted):
    net, port = telling(Twice(False, 0.4)), telling(Twice(True, scale))
    assert pairs.places(compared(tmp_path, net, port)) == wanted


class Head(nn.Module):
    """Given counts as well, or not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x, *more):
        return self.linear(x) / more[-1][:, None]


class Counted(nn.Module):
    """The head's last argument is the volume."""

    def __init__(self, counted):
        super().__init__()
        self.first, self.head, self.counted = nn.Linear(8, 8), Head(), counted

    def forward(self, x, counts, volume):
        return self.head(self.first(x), *((counts, volume) if self.counted else (volume,)))


def test_an_argument_behind_one_that_the_port_leaves_out_is_known_by_what_it_holds(tmp_path):
    given = torch.randn(4, 8), torch.tensor([3.0, 5.0, 2.0, 4.0]), torch.tensor([11.0, 17.5, 12.25, 14.0])
    found = pairs.compared(tmp_path, pairs.telling(Counted(True)), Counted(False), *given)
    assert found.aligned
    with open_dump(tmp_path / "ref.h5") as one, open_dump(tmp_path / "port.h5") as other:
        plain = pair_records(one, other, pair_layers(survey(one), survey(other), {}, None))
    slots = {pair.key.slot: pair.port and pair.port.key.slot for pair in plain if pair.key.layer == "head"}
    assert slots == {"input.0": "input.0", "input.1": None, "input.2": "input.1", "output.0": "output.0"}

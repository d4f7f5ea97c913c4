"""Right ports of which a layer hands on more than its counterpart, or its rows in another order, until the code around
has cut them or put them back.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, SENTENCES, LONG = 6, 5, 7


class Spread(nn.Module):
    """Twice the resolution, with a row and a column at the end that nobody reads, or without them."""

    def __init__(self, more, scale):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(WIDE, WIDE, 2, 3)), nn.Parameter(torch.zeros(WIDE))
        self.more, self.scale = more, scale

    def forward(self, x):
        return F.conv_transpose2d(x, self.weight * self.scale, self.bias, stride=2, output_padding=self.more)


class Up(nn.Module):
    def __init__(self, more, scale=1.0, left=1):
        super().__init__()
        self.spread, self.left = Spread(more, scale), left

    def forward(self, x):
        rows, columns = 2 * x.shape[2], 2 * x.shape[3]
        return self.spread(x)[:, :, :rows, self.left : self.left + columns]


class Image(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.first, self.up, self.last = nn.Conv2d(3, WIDE, 1), Up(**given), nn.Conv2d(WIDE, 2, 1)

    def forward(self, x):
        return self.last(self.up(self.first(x)))


class Reader(nn.Module):
    """Reads the longest sentence first, and puts the others back where they were; or `back` somewhere else."""

    def __init__(self, sorts, back=True, scale=1.0):
        super().__init__()
        self.turns, self.norm = nn.GRU(WIDE, WIDE, batch_first=True), nn.LayerNorm(WIDE)
        self.sorts, self.back, self.scale = sorts, back, scale

    def forward(self, x, lengths):
        order = lengths.argsort(descending=True) if self.sorts else torch.arange(len(x))
        states, last = self.turns(x[order])
        states = self.norm(states) * self.scale
        order = order.argsort() if self.back else order
        return states[order], last[0][order]


class Text(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.words, self.reader, self.head = nn.Linear(3, WIDE), Reader(**given), nn.Linear(WIDE, 2)

    def forward(self, x, lengths):
        states, last = self.reader(self.words(x), lengths)
        return self.head(states), self.head(last)


def found(tmp_path, one, other):
    torch.manual_seed(1)
    image = isinstance(one, Image)
    given = (torch.randn(2, 3, 4, 5),) if image else (torch.randn(SENTENCES, LONG, 3), torch.tensor([3, 7, 4, 6, 5]))
    return compared(tmp_path, telling(one), other, *given)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Image(more=1), Image(more=0)),
        (Image(more=0), Image(more=1)),
        (Text(sorts=True), Text(sorts=False)),
        (Text(sorts=False), Text(sorts=True)),
    ],
    ids=["cut sooner", "cut later", "not sorted", "sorted"],
)
def test_the_right_port_is_aligned_and_nothing_is_blamed(tmp_path, one, other):
    said = found(tmp_path, one, other)
    assert said.aligned
    assert (said.origins, said.suspects) == ((), ())


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        (Image(more=1), Image(more=0, left=0), "up"),
        (Image(more=1), Image(more=0, scale=1.1), "up.spread"),
        (Text(sorts=True), Text(sorts=False, scale=1.1), "reader"),
        (Text(sorts=False), Text(sorts=True, back=False), "reader"),
        (Text(sorts=True), Text(sorts=True, back=False), "reader"),
    ],
    ids=["cut elsewhere", "scaled inside", "scaled", "put back elsewhere", "put back elsewhere, both sort"],
)
def test_a_mistake_beside_it_is_the_only_origin(tmp_path, one, other, place):
    assert {layer for layer, *_ in places(found(tmp_path, one, other))} == {place}

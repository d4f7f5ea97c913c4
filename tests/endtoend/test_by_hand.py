"""Layers that one side has written by hand, calls in a loop or at once, or defines in another order than they run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from aligner.report import text  # noqa: E402 - as above
from aligner.report.terminal import Terminal  # noqa: E402 - as above
from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, HEADS = 8, 2


class Cell(nn.Module):
    """A GRU's step; what comes from the state is defined first."""

    def __init__(self, inputs, hidden, inverted=False):
        super().__init__()
        self.state, self.given = nn.Linear(hidden, 3 * hidden), nn.Linear(inputs, 3 * hidden)
        self.inverted = inverted

    def forward(self, x, h):
        one, other = self.given(x).chunk(3, 1), self.state(h).chunk(3, 1)
        reset, update = torch.sigmoid(one[0] + other[0]), torch.sigmoid(one[1] + other[1])
        new = torch.tanh(one[2] + reset * other[2])
        return h + update * (new - h) if self.inverted else new + update * (h - new)


class Words(nn.Module):
    """Words to states to words; the layers around the step are called in each turn, or once."""

    def __init__(self, cell, at_once, axis=1, lost=False):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(9, 6), cell, nn.Linear(WIDE, 7)
        self.at_once, self.axis, self.lost = at_once, axis, lost

    def forward(self, ids):
        h, made = torch.zeros(len(ids), WIDE), []
        words = self.embed(ids) if self.at_once else None
        for turn in range(ids.shape[1]):
            h = self.cell(words[:, turn] if self.at_once else self.embed(ids[:, turn]), h)
            made.append(h if self.at_once else self.out(h))
        states = torch.stack(made[::-1] if self.lost else made, self.axis)
        return self.out(states) if self.at_once else states


def ids():
    torch.manual_seed(2)
    return torch.randint(0, 9, (3, 5))


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize("axis", [0, 1])
def test_layers_that_are_called_in_a_loop_or_at_once(tmp_path, axis, back):
    sides = Words(nn.GRUCell(6, WIDE), False, axis), Words(nn.GRUCell(6, WIDE), True, axis)
    net, port = sides[::-1] if back else sides
    result = compared(tmp_path, telling(net), port, ids())
    assert result.aligned
    assert not result.origins
    assert not result.suspects
    assert result.counts["unmatched"] == 0


def test_states_in_the_wrong_order_are_wrong_where_they_are_used(tmp_path):
    net, port = Words(nn.GRUCell(6, WIDE), False), Words(nn.GRUCell(6, WIDE), True, lost=True)
    result = compared(tmp_path, telling(net), port, ids())
    assert places(result) == [("", "glue", ("cell", "out"))]


def test_a_step_that_is_written_by_hand_is_the_layers_counterpart(tmp_path):
    result = compared(tmp_path, telling(Words(nn.GRUCell(6, WIDE), False)), Words(Cell(6, WIDE), True), ids())
    assert result.aligned
    assert not result.origins
    assert ("cell", "cell") in {(pair.reference, pair.port) for pair in result.layers}


def test_a_mistake_in_it_is_named(tmp_path):
    net, port = Words(nn.GRUCell(6, WIDE), False), Words(Cell(6, WIDE, inverted=True), True)
    result = compared(tmp_path, telling(net), port, ids())
    assert [origin.layer for origin in result.origins] == ["cell"]
    told = [(cause.id, cause.confirmed) for cause in result.origins[0].causes]
    assert told[:2] == [("code-edit", True), ("kind-differs", True)], "the line, and the layer in its place"


class Attention(nn.Module):
    """One projection for all three."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
        weights = (query @ key.transpose(-1, -2) * (WIDE // HEADS) ** -0.5).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


class Itself(nn.Module):
    """The framework's, of one value."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDE, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """Its first projection has the shape of all three of the attention's."""

    def __init__(self, attention):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDE), attention, nn.LayerNorm(WIDE)
        self.fc1, self.fc2 = nn.Linear(WIDE, 3 * WIDE), nn.Linear(3 * WIDE, WIDE)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(torch.tanh(self.fc1(self.norm2(x))))


class Encoder(nn.Module):
    """Blocks between a stem and a norm; the port's norm is defined before them."""

    def __init__(self, attention, norm_first=False, doubled=False):
        super().__init__()
        if norm_first:
            self.last = nn.LayerNorm(WIDE)
        self.stem = nn.Linear(5, WIDE)
        self.blocks = nn.Sequential(*(Block(attention()) for _ in range(2)))
        if not norm_first:
            self.ln = nn.LayerNorm(WIDE)
        self.doubled = doubled

    def forward(self, x):
        x = self.blocks(2 * self.stem(x) if self.doubled else self.stem(x))
        return (self.last if hasattr(self, "last") else self.ln)(x)


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
def test_an_attention_of_the_framework_and_one_by_hand(tmp_path, back):
    kinds = (Attention, Itself) if back else (Itself, Attention)
    result = compared(tmp_path, telling(Encoder(kinds[0])), Encoder(kinds[1], True), torch.randn(2, 4, 5))
    assert result.aligned
    assert not result.origins
    assert not result.suspects


def test_behind_a_mistake_layers_are_matched_in_the_order_in_which_more_is_right(tmp_path):
    port = Encoder(Attention, norm_first=True, doubled=True)
    result = compared(tmp_path, telling(Encoder(Itself)), port, torch.randn(2, 4, 5))
    assert [(origin.layer, origin.where) for origin in result.origins] == [("", "glue")]


class Marked(nn.Module):
    """Given a mask behind the values, or something else before the mask."""

    def __init__(self, more):
        super().__init__()
        self.one, self.two, self.more = nn.Linear(6, 6), nn.Linear(6, 6), more

    def forward(self, x, *others):
        made = self.two(x) if not self.more else others[0]
        return (self.one(x) + made).masked_fill(others[-1], 0.0).cumsum(1)


class Marking(nn.Module):
    def __init__(self, more, axis=0):
        super().__init__()
        self.block, self.more, self.axis, self.head = Marked(more), more, axis, nn.Linear(6, 4)

    def forward(self, x):
        mask = (x > 0).roll(1, self.axis)
        more = (self.block.two(x).unsqueeze(0)[0],) if self.more else ()
        return self.head(self.block(x, *more, mask))


def test_an_argument_more_does_not_push_the_others_along(tmp_path):
    torch.manual_seed(3)
    result = compared(tmp_path, telling(Marking(False)), Marking(True), torch.randn(3, 5, 6))
    assert result.aligned
    assert not result.origins


class Table(nn.Module):
    """Scores and boxes of two levels: four values, or one table with a row for each place."""

    def __init__(self, whole, scale=1.0):
        super().__init__()
        self.scores, self.boxes = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 4, 1)
        self.whole, self.scale = whole, scale

    def forward(self, x):
        levels = [x, x[..., ::2, ::2]]
        made = [(self.scores(level), self.scale * self.boxes(level).exp()) for level in levels]
        if self.whole:
            return torch.cat([torch.cat(level, 1).flatten(2).transpose(1, 2) for level in made], 1)
        return [level[0] for level in made], [level[1] for level in made]


@pytest.mark.parametrize("whole", [False, True])
def test_outputs_in_another_arrangement_are_compared_without_their_places(tmp_path, whole):
    torch.manual_seed(5)
    result = compared(tmp_path, telling(Table(not whole)), Table(whole), torch.randn(2, 3, 4, 4))
    assert result.aligned
    assert not result.origins
    assert "outputs-arranged" in dict(result.warnings)
    for language, words in (("en", "another arrangement"), ("zh", "排列方式")):
        assert words in text.report_lines(result, Terminal(200, language=language))[0]


def test_other_numbers_in_another_arrangement_are_wrong_where_they_are_made(tmp_path):
    torch.manual_seed(5)
    result = compared(tmp_path, telling(Table(False)), Table(True, scale=1.5), torch.randn(2, 3, 4, 4))
    assert [(origin.layer, origin.where) for origin in result.origins] == [("", "glue")]
    assert not any(cause.confirmed for cause in result.origins[0].causes)

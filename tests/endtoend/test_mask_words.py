"""A mask in other words, or said once for all queries, is none of the mistakes; who reads it the other way round is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, HEADS = 8, 2
HIDES = -1e9

WORDS = {
    "hides": lambda keep: ~keep,
    "keeps": lambda keep: keep,
    "added": lambda keep: ((1.0 - keep.float()) * HIDES)[:, None, None, :],
    "each": lambda keep: ((1.0 - keep.float()) * HIDES)[:, None, :].expand(-1, keep.shape[1], -1),
}


def hidden(mask, words, wrong):
    """Where it hides, as (batch, heads, queries, keys)."""
    found = {"hides": lambda: mask, "keeps": lambda: ~mask}.get(words, lambda: mask < HIDES / 2)()
    found = ~found if wrong else found
    return found.reshape(len(found), 1, *found.squeeze(1).shape[1:] if found.ndim == 3 else (1, found.shape[-1]))


class Core(nn.Module):
    """Nothing but lines."""

    def __init__(self, words, wrong):
        super().__init__()
        self.words, self.wrong = words, wrong

    def forward(self, query, key, value, mask):
        scores = (query @ key.transpose(-2, -1)).masked_fill(hidden(mask, self.words, self.wrong), HIDES)
        return scores.softmax(-1) @ value


class Attention(nn.Module):
    """Its lines are its own, or those of a layer inside."""

    def __init__(self, words, inside, wrong=False):
        super().__init__()
        self.qkv, self.proj, core = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE), Core(words, wrong)
        if inside:
            self.core = core
        else:
            self.lines = core.forward

    def forward(self, x, mask):
        parts = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, WIDE // HEADS).permute(2, 0, 3, 1, 4)
        made = (self.core if hasattr(self, "core") else self.lines)(*parts, mask)
        return self.proj(made.transpose(1, 2).reshape(x.shape))


class Net(nn.Module):
    """Three attentions, that of `at` wrong; or all."""

    def __init__(self, words, inside, at=(), unmade=False):
        super().__init__()
        self.embed, self.head, self.words, self.unmade = nn.Embedding(20, WIDE), nn.Linear(WIDE, 4), words, unmade
        self.layers = nn.ModuleList(Attention(words, inside, n in at) for n in range(3))

    def forward(self, ids):
        keep, x = ids != 0, self.embed(ids)
        mask = WORDS[self.words](~keep if self.unmade else keep)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x)


def result(tmp_path, one, other, inside, **wrong):
    torch.manual_seed(1)
    ids = torch.randint(1, 20, (3, 7))
    ids[0, 5:] = ids[1, 3:] = 0
    return compared(tmp_path, telling(Net(one, inside)), Net(other, inside, **wrong), ids)


PAIRS = [(one, other) for one in WORDS for other in WORDS if one != other]


@pytest.mark.parametrize("inside", [False, True], ids=["lines", "layer"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_right_port_is_aligned_and_nothing_is_blamed(tmp_path, one, other, inside):
    found = result(tmp_path, one, other, inside)
    assert found.aligned
    assert not found.origins


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("inside", [False, True], ids=["lines", "layer"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_who_reads_it_the_other_way_round_is_wrong(tmp_path, one, other, inside, at):
    layer = f"layers.{at}"
    place = (f"{layer}.core", "layer", None) if inside else (layer, "glue", (f"{layer}.qkv", f"{layer}.proj"))
    assert places(result(tmp_path, one, other, inside, at=[at])) == [place]


@pytest.mark.parametrize("inside", [False, True], ids=["lines", "layer"])
@pytest.mark.parametrize(("one", "other"), [("hides", "added"), ("added", "keeps"), ("keeps", "each")])
def test_all_who_read_it_so_are_wrong_where_its_words_are_known(tmp_path, one, other, inside):
    found = result(tmp_path, one, other, inside, at=range(3))
    assert {layer.partition(".core")[0] for layer, _, _ in places(found)} == {f"layers.{n}" for n in range(3)}


@pytest.mark.parametrize(("one", "other"), [("hides", "added"), ("added", "each"), ("keeps", "each")])
def test_a_mask_that_hides_what_is_to_be_seen_is_who_made_its(tmp_path, one, other):
    found = result(tmp_path, one, other, True, unmade=True)
    assert places(found) == [("", "glue", ("embed", "layers.0"))]


class Scores(nn.Module):
    """The scores of one query go into a layer; what is not to be seen is filled, or has a number added."""

    def __init__(self, added, by=-1e4):
        super().__init__()
        self.query, self.key, self.softmax = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Softmax(-1)
        self.added, self.by = added, by

    def forward(self, x, keep):
        scores = 3 * self.query(x) @ self.key(x).transpose(1, 2)
        hides = ~keep[:, None, :]
        scores = scores + self.by * hides if self.added else scores.masked_fill(hides, HIDES)
        return self.softmax(scores) @ x


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize(("by", "right"), [(-1e4, True), (-1e1, False)], ids=["far enough", "too near"])
def test_scores_that_have_a_number_added_are_hidden_where_it_is_far_below(tmp_path, by, right, back):
    torch.manual_seed(2)
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[0, 4:] = keep[1, 2:] = False
    sides = Scores(False), Scores(True, by)
    net, port = sides[::-1] if back else sides
    found = compared(tmp_path, telling(net), port, 2 * torch.randn(2, 6, WIDE), keep)
    assert found.aligned is right
    assert bool(found.origins) is not right


class Adding(nn.Module):
    """Adds its mask as it is, in front of a Softmax layer."""

    def __init__(self):
        super().__init__()
        self.qkv, self.softmax = nn.Linear(WIDE, 3 * WIDE), nn.Softmax(-1)

    def forward(self, x, mask):
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
        return (self.softmax(query @ key.transpose(-2, -1) + mask) @ value).transpose(1, 2).flatten(2)


class Passing(nn.Module):
    """A layer that hands its mask on to the attention inside."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDE), Adding()

    def forward(self, x, mask):
        return x + self.attention(self.norm(x), mask)


class Passed(nn.Module):
    """The words stand on the axis of the keys, or by mistake on that of the queries."""

    def __init__(self, keys=True):
        super().__init__()
        self.embed, self.layers, self.keys = nn.Embedding(20, WIDE), nn.ModuleList(Passing() for _ in range(2)), keys

    def forward(self, ids):
        hides, x = (ids == 0).float() * HIDES, self.embed(ids)
        mask = hides[:, None, None, :] if self.keys else hides[:, None, :, None]
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_a_mask_on_another_axis_is_who_made_its_however_far_it_is_handed_on(tmp_path):
    torch.manual_seed(1)
    ids = torch.randint(1, 20, (3, 7))
    ids[0, 5:] = ids[1, 3:] = 0
    found = compared(tmp_path, telling(Passed()), Passed(keys=False), ids)
    assert [(layer, where) for layer, where, _ in places(found)] == [("", "glue")]


class Front(nn.Module):
    """Makes the mask itself, of lengths, and hands it on in its words."""

    def __init__(self, words, late=0):
        super().__init__()
        self.embed, self.words, self.late = nn.Linear(3, WIDE), words, late

    def forward(self, x, count):
        keep = torch.arange(x.shape[1]) < count[:, None] + self.late
        return self.embed(x), WORDS[self.words](keep)


class Fronted(nn.Module):
    def __init__(self, words, late=0, least=0.0):
        super().__init__()
        self.front, self.attention, self.head = Front(words, late), Attention(words, False), nn.Linear(WIDE, 4)
        self.least = least

    def forward(self, x, count):
        x, mask = self.front(x, count)
        return torch.where(self.head(x + self.attention(x, mask)) > self.least, 1.5, x[..., :4])


@pytest.mark.parametrize("one", ["keeps", "added"])
@pytest.mark.parametrize(
    ("wrong", "where"), [({}, []), ({"least": 0.4}, [("", "glue")]), ({"late": 1}, [("front", "glue")])]
)
def test_of_a_mask_that_a_layer_hands_on_the_mistake_is_told_and_no_reader_of_it(tmp_path, one, wrong, where):
    torch.manual_seed(1)
    inputs = torch.randn(3, 7, 3), torch.tensor([5, 3, 7])
    found = compared(tmp_path, telling(Fronted(one)), Fronted("hides", **wrong), *inputs)
    assert [place[:2] for place in places(found)] == where

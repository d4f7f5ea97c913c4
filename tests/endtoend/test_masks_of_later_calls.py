"""A mask in other words: the first call tells what true means, and a later one may hide nothing, or all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Attention(nn.Module):
    """Adds the mask to its scores, or hides what it says is not seen."""

    def __init__(self, adds):
        super().__init__()
        self.q, self.k, self.out, self.adds = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), adds

    def forward(self, x, memory, mask):
        scores = self.q(x) @ self.k(memory).transpose(1, 2)
        scores = scores + mask if self.adds else scores.masked_fill(~mask, -1e9)
        return self.out(scores.softmax(-1) @ memory)


class Decoder(nn.Module):
    """Works on a prompt, and then on one token after the other."""

    def __init__(self, adds=True, late=0):
        super().__init__()
        self.attention, self.adds, self.late = Attention(adds), adds, late

    def seen(self, first, last, late):
        places = torch.arange(first, last)[:, None]
        return (torch.arange(late, last + late) <= places)[None]

    def forward(self, x):
        found = []
        for first, last in ((0, 4), (4, 5), (5, 6)):
            seen = self.seen(first, last, self.late if first else 0)
            mask = torch.where(seen, 0.0, -1e9) if self.adds else seen
            found.append(self.attention(x[:, first:last], x[:, :last], mask))
        return torch.cat(found, 1)


@pytest.mark.parametrize("late", [9, 2])
def test_a_wrong_mask_of_a_later_call_is_wrong_where_it_is_made(tmp_path, late):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Decoder()), Decoder(adds=False, late=late), torch.randn(2, 6, 8))
    assert [(origin.layer, origin.where) for origin in result.origins] == [("", "glue")]


def test_a_right_one_that_hides_nothing_is_right(tmp_path):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Decoder()), Decoder(adds=False), torch.randn(2, 6, 8))
    assert (result.exit_code, result.origins) == (0, ())


class Opposite(Decoder):
    """Says the opposite in the second call."""

    def seen(self, first, last, late):
        seen = super().seen(first, last, late)
        return ~seen if first == 4 else seen


def test_the_opposite_of_one_call_is_mended_for_all(tmp_path):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Decoder()), Opposite(adds=False), torch.randn(2, 6, 8))
    (origin,) = result.origins
    assert origin.causes[0].confirmed
    assert origin.edit.hunks[0].after.strip() == "return seen if first == 4 else seen"


class Scaled(Attention):
    def forward(self, x, memory, mask):
        return super().forward(x, memory, mask) * 1.3


def test_a_layer_that_is_wrong_as_well_is_mended_as_if_its_mask_were_right(tmp_path):
    torch.manual_seed(1)
    port = Decoder(adds=False, late=9)
    port.attention = Scaled(adds=False)
    result = compared(tmp_path, telling(Decoder()), port, torch.randn(2, 6, 8))
    assert [origin.layer for origin in result.origins] == ["attention", ""]
    assert result.origins[0].edit.hunks[0].after.strip() == "return super().forward(x, memory, mask)"

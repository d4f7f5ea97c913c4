"""What is written into an item by a mask is told as what other code says in one step."""

from __future__ import annotations

import pytest

from aligner.mending.events import Event, as_filled
from aligner.words.calls import Constant

SHAPES = [(4,), (4,), (4,), (4,), (4,), (2,)]
MASK = Event("lt", (0, Constant(0.5)), (1,))


def written(value, before=(MASK,), index=("tensor",), shapes=SHAPES):
    event = Event("setitem", (2, 1, value), (3,), {"index": index})
    as_filled(event, [*before, event], len(before), shapes)
    return event


def test_a_number_under_a_mask_is_a_masked_fill():
    event = written(Constant(-2.0))
    assert (event.word, event.operands, event.arguments) == ("masked_fill", (2, 1), {"value": -2.0})


def test_a_mask_of_the_first_axes_is_one_for_whole_rows():
    event = written(Constant(-2.0), shapes=[(4,), (4,), (4, 3), (4, 3), (4,), (2,)])
    assert (event.word, event.operands, event.arguments) == ("masked_fill", (2, 1), {"value": -2.0, "rest": 1})


def test_what_another_value_has_under_the_same_mask_is_a_choice():
    event = written(5, (MASK, Event("getitem", (4, 1), (5,), {"index": ("tensor",)})))
    assert (event.word, event.operands) == ("where", (1, 4, 2))


@pytest.mark.parametrize(
    "other",
    [
        {"before": (Event("topk", (0,), (1,)),)},  # rows
        {"before": ()},
        {"index": (0,)},
        {"shapes": [(3,), (3,), (4, 3), (4, 3), (4,), (2,)]},
    ],
)
def test_indices_and_other_items_stay(other):
    assert written(Constant(-2.0), **other).word == "setitem"


def test_another_value_stays_if_it_is_not_taken_by_that_mask():
    assert written(5, (MASK, Event("getitem", (4, 0), (5,), {"index": ("tensor",)}))).word == "setitem"

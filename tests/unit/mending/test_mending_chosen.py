"""Rows that the reference takes out: what says which, and how its story is told where the port works on all of them."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.fingerprint import apart, fingerprint
from aligner.mending import chosen
from aligner.mending.events import Event, Story

RNG = np.random.default_rng(3)
X = RNG.standard_normal((3, 10, 6))
MASK = RNG.random((3, 10)) > 0.6
FEW = int(MASK.sum())
INDEX = np.array([4, 1, 8])


def story(values, events):
    return Story([fingerprint(value) for value in values], events, [value.shape for value in values])


def taken(by, index, made, source=X):
    return story([source, by, made], [Event("getitem", (0, 1), (2,), {"index": index})])


def test_a_mask_says_of_each_row_whether_it_is_taken():
    (found,) = chosen.choices(taken(MASK, ("tensor",), X[MASK]))
    assert (found.among, found.many, found.masks) == ((3, 10), FEW, True)
    assert [*found.rows(MASK.astype(np.float32)[..., None])] == [*np.flatnonzero(MASK)]


def test_indices_say_which_are():
    (found,) = chosen.choices(taken(INDEX, (0, "tensor"), X[0, INDEX]))
    assert (found.among, found.many, found.masks) == ((10,), 3, False)
    assert found.rows(INDEX[::-1]) is None
    assert [*found.rows(INDEX)] == [4, 1, 8]


@pytest.mark.parametrize("other", [~MASK, MASK * 0.5, MASK[:, :9], np.where(MASK, np.nan, 0.0)])
def test_another_value_is_none_that_says_it(other):
    (found,) = chosen.choices(taken(MASK, ("tensor",), X[MASK]))
    assert found.rows(other) is None or other.sum() == FEW


def test_all_rows_one_row_and_a_lookup_in_a_table_are_no_choice():
    assert not chosen.choices(taken(MASK | True, ("tensor",), X[MASK | True]))
    assert not chosen.choices(taken(INDEX[:1], (0, "tensor"), X[0, INDEX[:1]]))
    words = RNG.integers(0, 3, (2, 7))
    assert not chosen.choices(taken(words, ("tensor",), X[words]))


def test_the_rows_of_a_value_are_told_wherever_its_axes_are_those():
    (mask,) = chosen.choices(taken(MASK, ("tensor",), X[MASK]))
    (index,) = chosen.choices(taken(INDEX, (0, "tensor"), X[0, INDEX]))
    rows = {mask: np.flatnonzero(MASK), index: INDEX}
    found = [*chosen.parts(X, rows)]
    assert [part.shape for part in found] == [(FEW, 6), (3, 3, 6)]
    assert apart(found[0], fingerprint(X[MASK])) < 1e-9
    assert apart(found[1], fingerprint(X[:, INDEX])) < 1e-9
    assert not [*chosen.parts(X[:, :9], rows)]


def test_the_story_is_told_as_of_all_rows():
    some = X[MASK]
    half, best, total = some[:, 3:], some.max(axis=1), some.sum()
    events = [
        Event("getitem", (0, 1), (2,), {"index": ("tensor",)}),
        Event("getitem", (2,), (3,), {"index": ((None, None, 1), (3, None, 1))}),
        Event("max", (2,), (4,), {"axis": 1}),
        Event("sum", (2,), (5,), {"axis": None}),
    ]
    told = story([X, MASK, some, half, best, total], events)
    (choice,) = chosen.choices(told)
    chosen._tell(told, {choice: np.flatnonzero(MASK)})
    assert told.shapes == [(3, 10, 6), (3, 10), (3, 10, 6), (3, 10, 3), (3, 10), ()]
    assert told.events[1].arguments["index"] == ((None, None, 1), (None, None, 1), (3, None, 1))
    assert [event.arguments["axis"] for event in told.events[2:]] == [2, None]


def test_a_story_is_left_as_it_is_where_the_rows_are_not_known():
    told = taken(MASK, ("tensor",), X[MASK])
    chosen._tell(told, {})
    assert told.shapes[2] == (FEW, 6)

"""Values that are wrong in a part that nothing is made of."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.formed import due
from aligner.compare.unread import Unread, part_of
from aligner.record import Key, Phase

KEY = Key(0, Phase.FORWARD, "drop", 0, "input.0")
X = np.random.default_rng(4).standard_normal((4, 6)).astype(np.float32)


class Kept:
    """A record in memory."""

    def __init__(self, array):
        self.array, self.key, self.order = array, KEY, 3
        self.shape, self.dtype, self.content = array.shape, str(array.dtype), (str(array.dtype), array.tobytes())

    def raw(self):
        return self.array

    load = raw


def other(rows, by=1.0):
    found = X.copy()
    found[rows] += by
    return found


@pytest.mark.parametrize(
    ("found", "rows"),
    [(other([1]), [1]), (other([0, 3]), [0, 3]), (other([2], np.nan), [2]), (other([2], np.inf), [2])],
)
def test_rows_that_are_wrong_where_the_others_are_right_are_a_part(found, rows):
    part = part_of(Kept(X), Kept(found))
    assert sorted({int(row) for row in np.nonzero(part)[0]}) == rows
    assert part.sum() == 6 * len(rows)


@pytest.mark.parametrize(
    "found",
    [X.copy(), X * (1 + 1e-7), other([0, 1, 2]), X * 1.01, X[:3], X.T.copy()],
    ids=["nothing", "rounding", "most", "all", "fewer", "turned"],
)
def test_nothing_is_none_and_so_is_most_of_it(found):
    assert part_of(Kept(X), Kept(found)) is None


def test_zeros_do_not_count_as_right():
    ours = np.where(X > 0.5, X, 0.0)
    assert part_of(Kept(ours), Kept(ours * 1.01)) is None


def test_not_a_number_on_both_sides_is_no_difference():
    ours = other([1], np.nan)
    assert part_of(Kept(ours), Kept(ours.copy())) is None


def test_the_part_is_the_ports_own_affair():
    found, later = other([1]), other([1], 7.0)
    entry = Unread(Kept(X), part_of(Kept(X), Kept(found)))
    assert np.array_equal(due(entry, later), later)
    assert np.array_equal(due(entry, other([1, 2])), other([1]))
    assert due(entry, later[:2]) is None
    assert np.array_equal(entry.load(), X)


def test_a_mask_that_is_added_hides_nothing_that_is_wrong_beside_it():
    hidden = np.zeros(X.shape, bool)
    hidden[:, 4:] = True
    ours, theirs = np.where(hidden, np.float32(-1e9), X), np.where(hidden, -np.inf, X * np.float32(1.0005))
    assert part_of(Kept(ours), Kept(theirs)) is None
    assert part_of(Kept(ours), Kept(np.where(hidden, -np.inf, X))).sum() == hidden.sum()

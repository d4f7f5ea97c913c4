"""Rows that one side takes out of a value: which of the other's they are, and what its value is to be."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.formed import due
from aligner.compare.selected import Selected, Selections
from aligner.dtypes import encode
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

ALL = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
ROWS = (0, 2, 3, 5)


def entry(array, dtype="float32", layer="block.part", slot="input.0"):
    return MemoryEntry(Record(Key(0, Phase.FORWARD, layer, 0, slot), 0, dtype, encode(array, dtype)))


def test_the_rows_are_told_by_their_numbers_and_kept_for_what_is_made_of_them():
    known = Selections()
    assert known.of(entry(ALL[list(ROWS)]), entry(ALL)) == ROWS
    assert known.of(entry(ALL[:4] + 9, slot="output.0"), entry(ALL, slot="output.0")) == ROWS  # wrong by then
    assert known.of(entry(ALL[:4] + 9, layer="other.part"), entry(ALL, layer="other.part")) is None


def test_rows_that_are_there_twice_are_a_mistake():
    assert Selections().of(entry(ALL[:3]), entry(np.concatenate([ALL[:3], ALL[1:2]]))) is None


def test_rows_of_a_value_with_more_axes_are_counted_through_all_of_them():
    assert Selections().of(entry(ALL[list(ROWS)]), entry(ALL.reshape(2, 3, 4))) == ROWS


def test_one_turn_of_a_loop_is_no_selection():
    assert Selections().of(entry(ALL[:3]), entry(ALL.reshape(2, 3, 4))) is None


def test_behind_a_mistake_a_mask_tells_the_rows_and_else_nothing_does():
    mask = np.isin(np.arange(6), (1, 2, 4, 5)).reshape(2, 3)
    ours, theirs = entry(ALL[list(ROWS)] * 1.1), entry(ALL.reshape(2, 3, 4))
    assert Selections([entry(mask, "bool")]).of(ours, theirs) == (1, 2, 4, 5)
    assert Selections([entry(mask[:1], "bool"), entry(mask * 2.0)]).of(ours, theirs) is None


def test_the_rows_of_more_axes_are_put_where_the_port_has_them():
    found = due(Selected(entry(np.ones((4, 4), np.float32)), ROWS, (2, 3, 4)), ALL.reshape(2, 3, 4))
    assert (found.reshape(6, 4)[list(ROWS)] == 1).all()
    assert (found.reshape(6, 4)[[1, 4]] == ALL[[1, 4]]).all()


def test_what_the_port_makes_of_the_others_is_its_own_affair():
    wanted = Selected(entry(np.ones((4, 4), np.float32)), ROWS, (6, 4))
    found = due(wanted, ALL)
    assert (found[list(ROWS)] == 1).all()
    assert (found[[1, 4]] == ALL[[1, 4]]).all()


@pytest.mark.parametrize(("shape", "fits"), [((4, 4), True), ((5, 4), False)])
def test_with_an_edit_the_port_may_take_them_out_too(shape, fits):
    wanted = Selected(entry(np.ones((4, 4), np.float32)), ROWS, (6, 4))
    found = due(wanted, np.zeros(shape, np.float32))
    assert (found is not None) == fits
    assert not fits or (found == 1).all()

"""Tables that one side keeps twice, or as complex numbers, are set against the other's in its form."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.tables import tables
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

ANGLES = np.random.default_rng(0).uniform(-3, 3, (5, 4)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def entries(*arrays):
    keys = [Key(0, Phase.FORWARD, "layer", 0, f"input.{n}") for n in range(len(arrays))]
    return [MemoryEntry(Record(key, n, str(a.dtype), a)) for n, (key, a) in enumerate(zip(keys, arrays))]


def halves(table):
    return np.concatenate([table, table], -1)


def turns(table):
    return table.repeat(2, -1)


@pytest.mark.parametrize("twice", [halves, turns])
@pytest.mark.parametrize("order", [(COS, SIN), (SIN, COS)], ids=["in order", "the other way round"])
def test_what_is_kept_twice_is_set_against_what_is_kept_once_and_back(twice, order):
    once = [table[:, None] for table in order]  # with an axis of one
    for ours, theirs in (([twice(COS), twice(SIN)], once), ([COS, SIN], [twice(table) for table in once])):
        found = tables(entries(*ours), entries(*theirs))
        assert len(found) == 2
        for form, entry in found:
            assert form.shape == form.raw().shape
            assert np.array_equal(form.raw().reshape(entry.shape), entry.raw())
            assert form.key.slot.startswith(form.entry.key.slot + "[")


def test_wrong_ones_are_paired_in_their_order():
    wrong = [np.cos(ANGLES / 4), np.sin(ANGLES / 4)]
    found = tables(entries(halves(COS), halves(SIN)), entries(*wrong))
    assert [(form.entry.key.slot, entry.key.slot) for form, entry in found] == [
        ("input.0", "input.0"),
        ("input.1", "input.1"),
    ]


def test_complex_numbers_are_set_against_their_two_parts():
    found = tables(entries(COS + 1j * SIN), entries(SIN, COS))
    assert {(form.key.slot, form.dtype, entry.key.slot) for form, entry in found} == {
        ("input.0.real", "float32", "input.1"),
        ("input.0.imag", "float32", "input.0"),
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([np.concatenate([COS, SIN], -1)], [COS]),  # not twice the same
        ([np.ones((5, 8), np.float32)], [np.ones((5, 4), np.float32)]),  # nothing tells how it is kept
        ([halves(COS)], [COS[:4]]),
        ([COS], [np.ones((5, 8), np.float32)]),
        ([COS + 1j * SIN], [COS]),  # its other part would be lost
    ],
)
def test_what_is_not_so_is_left_alone(ours, theirs):
    assert tables(entries(*ours), entries(*theirs)) == []

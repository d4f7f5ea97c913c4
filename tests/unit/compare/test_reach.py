"""A gradient that moves no parameter otherwise and is handed to nobody is no mistake."""

from __future__ import annotations

import numpy as np

from aligner.compare.deviation import measure
from aligner.compare.pairing import Pair
from aligner.compare.reach import excuse_unreached
from aligner.compare.reading import Reading
from aligner.compare.tolerance import Tolerance
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

RULE = Tolerance()
GRADIENT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
DROPPED = np.where(np.arange(6)[:, None] < 2, 0, GRADIENT).astype(np.float32)


def read(layer, slot, theirs=GRADIENT, step=0):
    key = Key(step, Phase.BACKWARD, layer, 0, slot)
    one, other = (MemoryEntry(Record(key, 0, "float32", values)) for values in (GRADIENT, theirs))
    found = measure(one, other, RULE)
    return Reading(Pair(one, other), found, error=RULE.error(found), over=RULE.over(found))


def left(*readings):
    excuse_unreached(readings)
    return [(one.pair.key.layer, one.pair.key.slot) for one in readings if one.over]


def test_rows_that_a_table_drops():
    first = read("words", "output.0", DROPPED)
    assert left(first, read("words", "weight")) == []
    assert (first.covered, first.reason) == (True, "covered-unreached")


def test_it_is_a_mistake_where_a_parameter_is_moved_otherwise():
    assert left(read("words", "output.0", DROPPED), read("words", "weight", DROPPED)) == [
        ("words", "output.0"),
        ("words", "weight"),
    ]


def test_and_where_it_is_handed_on():
    assert left(read("fc", "output.0", DROPPED), read("fc", "weight"), read("fc", "input.0")) == [("fc", "output.0")]


def test_and_where_nothing_tells_what_it_moves():
    assert left(read("words", "output.0", DROPPED), read("words", "weight", step=1)) == [("words", "output.0")]


def test_of_a_layer_around_it_the_parameters_inside_tell():
    def inside():
        return (
            read("front", "output.0", DROPPED),
            read("front.words", "output.0", DROPPED),
            read("front.words", "weight"),
        )

    assert left(*inside()) == []
    assert left(*inside(), read("front.fc", "bias", DROPPED)) == [("front", "output.0"), ("front.fc", "bias")]

"""Each pair of arrays is measured once, however many records show it, and in proportion to what there is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aligner.compare import measuring
from aligner.compare.comparison import compare
from aligner.compare.tolerance import Tolerance
from aligner.errors import IncomparableError
from aligner.record import Key, Phase


def entry(place, layer="fc", slot="output.0", nbytes=4):
    return SimpleNamespace(
        place=place,
        key=Key(0, Phase.FORWARD, layer, 0, slot),
        nbytes=nbytes,
        shape=(1,),
        dtype="float32",
        imported=False,
    )


def pair(one, other):
    return SimpleNamespace(reference=one, port=other, key=(one or other).key)


@pytest.fixture
def read(monkeypatch):
    """What was really measured."""
    done = []

    def spy(given, tolerance):
        done.append(given)
        return measuring.Reading(given, error=float(len(done)))

    monkeypatch.setattr(measuring, "read", spy)
    return done


def measured(pairs):
    return measuring.measured(pairs, Tolerance(1e-3, "scaled"), None, None)


def test_the_same_arrays_are_measured_once(read):
    pairs = [pair(entry(one), entry(other)) for one, other in ((1, 1), (2, 1), (1, 1), (1, 2), (2, 1))]
    readings = measured(pairs)
    assert read == [pairs[0], pairs[1], pairs[3]]
    assert [reading.pair for reading in readings] == pairs
    assert [reading.error for reading in readings] == [1, 2, 1, 3, 2]
    assert len(set(map(id, readings))) == 5  # each goes its own way from here


def test_what_is_read_in_another_way_is_measured_again(read):
    """An input may be repeated along axes, and what the net itself hands out has its shape for others to see."""
    measured([pair(entry(1, **where), entry(1, **where)) for where in ({}, {"layer": ""}, {"slot": "input.0"}, {})])
    assert len(read) == 3


def test_records_on_one_side_only_are_each_their_own(read):
    assert len(measured([pair(entry(1), None), pair(entry(1), None), pair(None, entry(1))])) == 3


def test_arrays_that_are_each_set_against_a_thousand_others_are_refused(read):
    """Forged: a thousand arrays of a megabyte on each side, in all combinations, would be two terabytes to read."""
    sides = [[entry(place, nbytes=1 << 24) for place in range(300)] for _ in range(2)]
    with pytest.raises(IncomparableError, match="more than 100 others"):
        measured([pair(one, other) for one in sides[0] for other in sides[1]])
    assert not read
    constant = entry("mask", nbytes=1 << 24)
    assert measured([pair(constant, other) for other in sides[1]])


def test_there_is_an_end_to_the_number_of_pairs(monkeypatch, read):
    monkeypatch.setattr(measuring, "MOST_PAIRS", 2)
    assert measured([pair(entry(1), entry(1))] * 2)
    with pytest.raises(IncomparableError, match="fewer steps"):
        measured([pair(entry(1), entry(1))] * 3)


def test_nothing_changes_for_a_comparison(tmp_path):
    import numpy as np

    from tests.unit.dump.dumps import make, record

    values = [np.full(3, value, "<f4") for value in (1, 2, 2, 1)]
    for name, plus in (("ref", 0), ("port", 1)):
        make(tmp_path / f"{name}.h5", [record(order, value + np.float32(plus)) for order, value in enumerate(values)])
    result = compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert [verdict.deviation.max_abs for verdict in result.verdicts] == [1.0] * 4

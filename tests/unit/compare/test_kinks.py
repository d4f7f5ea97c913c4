"""A gradient that a kink lets through on one side alone is rounding; more than that is a mistake."""

import numpy as np
import pytest

from aligner.compare.deviation import measure
from aligner.compare.kinks import excuse_kinks
from aligner.compare.pairing import Pair
from aligner.compare.reading import Reading
from aligner.compare.tolerance import Tolerance
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

RULE = Tolerance()


def read(layer, order, ours, theirs, step=0):
    one, other = (
        MemoryEntry(Record(Key(step, Phase.BACKWARD, layer, 0, "output.0"), order, "float32", np.asarray(values)))
        for values in (ours, theirs)
    )
    found = measure(one, other, RULE)
    return Reading(Pair(one, other), found, error=RULE.error(found), over=RULE.over(found))


@pytest.fixture
def gradient():
    return np.random.default_rng(0).normal(size=(16, 8, 8, 8)).astype(np.float32)


def test_one_element_with_nothing_on_one_side_is_a_kink_and_what_comes_of_it_is_excused(gradient):
    flipped = gradient.copy()
    flipped[3, 2, 1, 0] = 0
    spread = gradient + np.float32(2e-3) * (np.arange(8) == 2).astype(np.float32)
    readings = [read("relu", 5, gradient, flipped), read("conv", 7, gradient, spread)]
    excuse_kinks(readings)
    assert [(one.over, one.rounded) for one in readings] == [(False, True)] * 2


@pytest.mark.parametrize("order", [3, 9])
def test_what_is_off_by_more_or_before_it_is_no_kink(gradient, order):
    flipped = gradient.copy()
    flipped[3, 2, 1, 0] = 0
    readings = [read("relu", 5, gradient, flipped), read("other", order, gradient, 1.05 * gradient)]
    excuse_kinks(readings)
    assert [one.over for one in readings] == [False, True]


def test_another_step_and_other_values_are_no_kink(gradient):
    off = gradient.copy()
    off[3, 2, 1, 0] += 1
    flipped = np.where(np.arange(8) == 3, 0, gradient)
    readings = [read("relu", 5, gradient, off), read("relu", 6, gradient, flipped, step=1)]
    excuse_kinks(readings)
    assert [one.over for one in readings] == [True, True]

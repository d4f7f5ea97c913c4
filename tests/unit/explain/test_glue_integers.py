"""Whole numbers made otherwise, and what only looks so."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.glue import integers
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Pair
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(9)
IDS = RANDOM.integers(0, 40, (6, 8))
ANGLES = RANDOM.uniform(0, 2 * np.pi, (6, 8))


def told(reference, port, *held):
    known = tuple(value(array, f"input.{number}", "net") for number, array in enumerate(held))
    place = case(where="glue", layer="net", expected=value(reference), actual=value(port), known=known)
    return [suspect.cause for suspect in integers.suspects(Pair.of(place), Hand.of(place))]


@pytest.mark.parametrize("divisor", [2, 5, 7])
def test_a_quotient_is_read_back_with_its_divisor(divisor):
    moved = IDS - 20
    cut, down = np.trunc(moved / divisor).astype(int), moved // divisor
    assert told(cut, down, IDS) == ["int-floor-div-negative"]
    assert told(down, cut, IDS) == ["int-floor-div-negative"]
    assert told(cut + 4, down + 4, IDS) == ["int-floor-div-negative"]


def test_a_quotient_of_two_values_is_read_back():
    by = RANDOM.integers(2, 6, (6, 8))
    assert told(np.trunc((IDS - 20) / by), (IDS - 20) // by, IDS - 20, by) == ["int-floor-div-negative"]


def test_what_was_not_divided_is_no_quotient():
    assert not told(IDS // 3, IDS // 3 - (IDS == 7), IDS)
    assert not told(np.zeros_like(IDS), -(IDS < 7).astype(int), IDS)


@pytest.mark.parametrize(("cycle", "added"), [(4, 0), (4, 5), (7, -3)])
def test_a_remainder_with_the_other_sign_is_told(cycle, added):
    moved = IDS - 20
    assert told(moved % cycle + added, np.fmod(moved, cycle) + added) == ["remainder-vs-fmod"]
    assert told(np.fmod(moved, cycle) + added, moved % cycle + added) == ["remainder-vs-fmod"]


def test_angles_that_were_cut_elsewhere_have_no_other_sign():
    assert not told(ANGLES, np.where(np.pi < ANGLES, ANGLES - 2 * np.pi, ANGLES))


def test_an_additive_mask_is_no_remainder():
    scores = RANDOM.standard_normal((6, 8))
    assert not told(scores, np.where(RANDOM.random((6, 8)) < 0.3, scores - 1e4, scores))


def test_a_set_in_the_order_it_came_in_and_its_indices():
    kept, first, where = np.unique(IDS, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.argsort(order)[where.reshape(IDS.shape)]
    assert told(kept, kept[order], IDS) == ["unique-sorted"]
    assert told(where.reshape(IDS.shape), places, IDS) == ["unique-sorted"]
    assert not told(kept, RANDOM.permutation(kept), IDS)

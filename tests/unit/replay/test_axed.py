"""Which masks of the port's are the reference's with their axes in another order."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.net import CallId
from aligner.compare.pairing import Pair
from aligner.record import Key, Phase, Record
from aligner.replay.axed import axed
from tests.unit.compare.memory_dump import MemoryEntry

HIDDEN = np.random.default_rng(5).random((7, 4, 3)) > 0.6
"""Queries, keys, batch."""


def entry(slot, array):
    return MemoryEntry(Record(Key(0, Phase.FORWARD, "layer", 0, slot), 0, str(array.dtype), array))


def found(ours, theirs):
    """What stands for the port's mask, which has no counterpart by its slot."""
    pairs = [Pair(entry("input.2", ours), None), Pair(None, entry("input.2.1", theirs))]
    (mask,) = axed(pairs, {CallId("layer", 0): CallId("layer", 0)}).values() or (None,)
    return mask


@pytest.mark.parametrize("turn", [lambda mask: mask, np.logical_not], ids=["hidden", "seen"])
@pytest.mark.parametrize("wrong", [0, 5])
def test_a_mask_is_known_in_the_ports_form_though_a_part_of_it_be_wrong(turn, wrong):
    right = turn(HIDDEN.transpose(2, 0, 1))[:, None]
    port = right.copy()
    port.reshape(-1)[:wrong] ^= True
    mask = found(HIDDEN.astype(np.float32), port)
    assert mask.shape == port.shape
    assert np.array_equal(mask.raw(), right)


def test_queries_stay_before_keys_where_both_are_as_many():
    early = np.tril(np.ones((6, 6), bool))[:, :, None] & np.ones(3, bool)
    right = early.transpose(2, 0, 1)
    port = right.copy()
    port[:, np.arange(6), np.arange(6)] = False  # what is strict says, turned and negated, the same as what is not
    assert np.array_equal(found(early.astype(np.float32), port).raw(), right)


def test_others_are_none():
    other = np.random.default_rng(6).random((3, 1, 7, 4)) > 0.5
    assert found(HIDDEN.astype(np.float32), other) is None
    assert found(HIDDEN.astype(np.float32), HIDDEN) is None  # in the same order: by its slot, or none
    assert found(np.random.default_rng(6).random((7, 4, 3)), HIDDEN.transpose(2, 0, 1)) is None

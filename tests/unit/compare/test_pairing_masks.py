"""Which arguments of a call are set against each other, where both sides give them in places of their own."""

from __future__ import annotations

import numpy as np

from aligner.compare.pairing import _by_side
from tests.unit.compare.test_tables import entries, halves

ANGLES = np.random.default_rng(0).uniform(-3, 3, (4, 8, 8)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
X = np.random.default_rng(1).standard_normal((4, 8, 6)).astype(np.float32)
FULL = np.broadcast_to(np.tri(8, dtype=bool), (4, 1, 8, 8))
NEAR = FULL & ~np.tri(8, k=-3, dtype=bool)


def test_no_mask_is_set_against_angles_of_its_size():
    ours = entries(X, halves(COS), halves(SIN), np.ascontiguousarray(FULL), NEAR)
    wrong = (np.cos(ANGLES * 0.9)[:, None], np.sin(ANGLES * 0.9)[:, None])
    found, _, left = _by_side(ours, entries(X, *wrong, NEAR), {}, {})
    told = {pair.port.key.slot: pair.reference.key.slot for pair in found}
    assert told == {"input.0": "input.0", "input.1": "input.1", "input.2": "input.2", "input.3": "input.4"}
    assert not left


def test_a_mask_that_is_added_stands_for_one_of_true_and_false():
    added = np.where(FULL, np.float32(0), np.float32(-1e9))
    found, *left = _by_side(entries(X, np.ascontiguousarray(FULL)), entries(X, added), {}, {})
    assert {(pair.reference.key.slot, pair.port.key.slot) for pair in found} == {(f"input.{n}",) * 2 for n in (0, 1)}
    assert left == [[], []]

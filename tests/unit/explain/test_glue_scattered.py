"""Values that meet at one place: added up, written over each other, or their mean."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(41)
NODES = RANDOM.standard_normal((12, 8)).astype(np.float32)
BATCH = np.repeat(np.arange(3), (5, 4, 3))
SUMS = np.stack([NODES[graph == BATCH].sum(0) for graph in range(3)])
COUNTS = np.array([[5.0], [4.0], [3.0]])
LAST = np.stack([NODES[graph == BATCH][-1] for graph in range(3)])


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (SUMS / COUNTS, SUMS, "scatter-reduce-other"),
        (SUMS, SUMS / COUNTS, "scatter-reduce-other"),
        (SUMS, LAST, "scatter-add-duplicates"),
    ],
)
def test_the_way_in_which_values_meet_is_told(reference, port, cause):
    sides = [value(np.asarray(side, np.float32), "input.0", "net.fc") for side in (reference, port)]
    wrong = case(
        where="glue",
        layer="net",
        between=("net.g", "net.fc"),
        expected=sides[0],
        actual=sides[1],
        known=(value(BATCH, "input.1", "net"), value(NODES, layer="net.g")),
        rounding=1e-7,
    )
    assert next(suspect for suspect in glue.suspects(wrong) if suspect.error is not None).cause == cause

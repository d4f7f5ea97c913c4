"""Under "aligned" no origin stands, and no record goes back to one, whatever a forced pass and the values say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.compare import comparison
from aligner.compare.checks import ROUNDING, Check
from aligner.compare.deviation import Deviation
from aligner.compare.net import is_input
from aligner.record import Phase
from tests.unit.compare.nets import dump

LEAST = Deviation(1.0, 0.5, 0.4, 0.3, 0.9, 3, 10, (0, 0), (0, 0), 0, 1.0, (0,), (0.5, 1.5))


SEEDS = range(24)


@pytest.fixture(scope="module")
def results():
    """Comparisons with a forced pass that finds anything anywhere, and free values that are off by little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "found_by_force", checks)
        return [compared(seed) for seed in SEEDS]


def compared(seed):
    chance = np.random.default_rng(seed)
    reference, port = dump(blocks=1), dump(blocks=1, noise=[0.0, 1e-7, 2e-4, 5e-3][seed % 4])
    port.chance = chance
    return comparison.compare(reference, port)


def checks(reference, port, expectations):
    found = {}
    for entry in reference.entries:
        if entry.key.phase is not Phase.FORWARD or port.chance.random() > 0.3 or not entry.key.layer:
            continue
        error = float(10 ** port.chance.uniform(-7, -1))
        where = "layer" if entry.key.layer.count(".") == 2 and not is_input(entry.key.slot) else "glue"
        owner = entry.key.layer if where == "layer" else entry.key.layer.rpartition(".")[0]
        between = None if where == "layer" else ("", entry.key.layer)
        deviation = replace(LEAST, scaled=error, rel_l2=error)
        check = Check(entry.key, entry.key, where, owner, between, error, ROUNDING, deviation)
        found[entry.key] = replace(check, follows=bool(port.chance.random() < 0.1))
    return found


def test_no_origin_stands_under_aligned(results):
    aligned = [result for result in results if result.aligned]
    assert len(aligned) > 5
    for result in aligned:
        assert not result.origins
        assert not [verdict for verdict in result.verdicts if verdict.origin is not None]


def test_what_is_no_origin_is_told_as_a_suspicion(results):
    assert any(result.suspects for result in results if result.aligned)
    assert any(result.origins for result in results if not result.aligned)

"""Losses that one side alone has as a single number."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.formed import due, likewise
from aligner.compare.reduced import reduced
from aligner.record import Key, LayerSpec, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

LOSSES = np.random.default_rng(4).random((4, 3)).astype(np.float32)


def entry(values):
    return MemoryEntry(Record(Key(0, Phase.FORWARD, "loss", 0, "output.0"), 0, "float32", np.asarray(values)))


def spec(reduction, kind="MSELoss"):
    return LayerSpec(kind, {"reduction": reduction})


@pytest.mark.parametrize(("way", "number"), [("mean", LOSSES.mean()), ("sum", LOSSES.sum())])
def test_single_losses_are_what_the_port_makes_of_them(way, number):
    found = reduced(entry(LOSSES), entry(np.float32(number)), (spec("none"), spec(way)))
    assert found.load() == pytest.approx(number)
    assert likewise(found, entry(2 * LOSSES)).load() == pytest.approx(2 * number)


def test_the_port_s_single_losses_are_right_if_their_mean_is_and_else_all_by_as_much():
    found = reduced(entry(np.float32(LOSSES.mean())), entry(LOSSES), (spec("mean"), spec("none")))
    assert due(found, LOSSES) is LOSSES
    assert due(found, 2 * LOSSES) == pytest.approx(LOSSES)


@pytest.mark.parametrize(
    "specs", [(spec("none"), spec("none")), (spec("mean"), spec("sum")), (spec("none"), spec("mean", "L1Loss"))]
)
def test_others_are_none(specs):
    assert reduced(entry(LOSSES), entry(np.float32(1)), specs) is None

"""Tables of angles: what they were made of is read back from their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.catalogue import sentences
from aligner.explain.patterns import angles
from aligner.explain.patterns.pair import Pair


def table(function=np.cos, base=10000.0, halves=True, places=32, width=16):
    frequencies = base ** (-np.arange(0, width, 2) / width)
    values = function(np.arange(places)[:, None] * frequencies)
    return (np.tile(values, 2) if halves else np.repeat(values, 2, axis=1)).astype(np.float32)


def found(reference, port):
    return list(angles.suspects(Pair(reference, port, 1e-5)))


@pytest.mark.parametrize(
    ("reference", "port", "told"),
    [
        (table(), table(base=500000.0), "cos(base=500000, layout=halves)"),
        (table(np.sin), table(np.sin, base=1000.0), "sin(base=1000, layout=halves)"),
        (table(), table(halves=False), "cos(base=10000, layout=pairs)"),
        (table(), table(np.sin), "sin(base=10000, layout=halves)"),
        (table()[None, None], table(base=100.0)[None, None], "cos(base=100, layout=halves)"),
    ],
)
def test_what_the_port_made_its_table_of_is_read_back(reference, port, told):
    (suspect,) = found(reference, port)
    assert suspect.facts["port_value"] == told
    assert suspect.error < 1e-5
    assert "<" not in "".join(sentences(suspect.cause, {**suspect.facts, "layer": "", "port_layer": ""}, "zh"))


@pytest.mark.parametrize("seed", range(4))
def test_other_numbers_are_no_table(seed):
    random = np.random.default_rng(seed)
    assert found(table(), random.uniform(-1, 1, (32, 16)).astype(np.float32)) == []
    assert found(random.uniform(-1, 1, (32, 16)).astype(np.float32), table()) == []
    assert found(table(), table() + 0.01) == []
    assert found(table(), table()) == []

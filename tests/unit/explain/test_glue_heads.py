"""Mistakes in how a detector decodes the predictions of its levels."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(7)
ANCHORS, OUTPUTS = 3, 6
MAPS = [RANDOM.standard_normal((2, ANCHORS * OUTPUTS, size, size)).astype(np.float32) for size in (6, 4)]
KNOWN = tuple(value(array, layer=f"head.m.{number}") for number, array in enumerate(MAPS))


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def short(x):
    return sigmoid(x.astype(np.float16).astype(np.float32)).astype(np.float16)


def decoded(flip=False, size=lambda x: (2 * sigmoid(x)) ** 2, score=sigmoid):
    levels = []
    for level, array in enumerate(MAPS):
        batch, _, high, wide = array.shape
        x = array.reshape(batch, ANCHORS, OUTPUTS, high, wide).transpose(0, 1, 3, 4, 2)
        rows, columns = np.meshgrid(np.arange(high), np.arange(wide), indexing="ij")
        grid = np.stack((rows, columns) if flip else (columns, rows), 2)
        centre = (sigmoid(x[..., :2]) * 2.0 - 0.5 + grid) * (4, 8)[level]
        sides = size(x[..., 2:4]) * np.arange(1, 7).reshape(1, 3, 1, 1, 2) * (1 + level)
        levels.append(np.concatenate([centre, sides, score(x[..., 4:])], -1).reshape(batch, -1, OUTPUTS))
    return np.concatenate(levels, 1).astype(np.float32)


def found(port):
    sides = [value(side, "output.0", "head") for side in (decoded(), port)]
    wrong = case(
        where="glue",
        layer="head",
        between=("head.m.1", ""),
        expected=sides[0],
        actual=sides[1],
        known=KNOWN,
        rounding=1e-7,
    )
    return list(glue.suspects(wrong))


@pytest.mark.parametrize(
    ("port", "cause"),
    [
        (decoded(flip=True), "meshgrid-indexing-default"),
        (decoded(size=np.exp), "activation-other"),
        (decoded(score=np.tanh), "activation-other"),
        (decoded(score=short), "part-rounded"),
    ],
)
def test_a_mistake_of_a_head_is_named_and_proved(port, cause):
    first = next(suspect for suspect in found(port) if suspect.error is not None and suspect.weight >= 0.7)
    assert first.cause == cause
    assert first.error < 1e-5
    for language in ("en", "zh"):
        assert "<" not in "".join(sentences(cause, first.facts, language))


@pytest.mark.parametrize("seed", range(4))
def test_noise_proves_nothing(seed):
    random = np.random.default_rng(seed)
    right = decoded()
    noisy = right.copy()
    noisy[..., :2] *= 1 + 0.01 * random.standard_normal(noisy[..., :2].shape)
    assert [suspect for suspect in found(noisy) if suspect.error is not None] == []
    assert [suspect for suspect in found(random.standard_normal(right.shape)) if suspect.error is not None] == []

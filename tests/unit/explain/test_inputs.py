"""Why two nets were not run on the same data, told from the two inputs."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.catalogue import sentences
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(5)
IMAGE = RANDOM.random((4, 3, 12, 10)).astype(np.float32)
SMOOTH = np.cumsum(np.cumsum(RANDOM.standard_normal((2, 3, 16, 14)), 2), 3)
MEAN, STD = (np.array(numbers).reshape(1, 3, 1, 1) for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
READY = (IMAGE - MEAN) / STD
TOKENS = RANDOM.integers(5, 100, (4, 9))
LENGTHS = (9, 5, 7, 3)
RIGHT = np.stack([np.concatenate([row[:n], np.zeros(9 - n, int)]) for row, n in zip(TOKENS, LENGTHS)])
LEFT = np.stack([np.concatenate([np.zeros(9 - n, int), row[:n]]) for row, n in zip(TOKENS, LENGTHS)])


def found(reference, port, others=()):
    one = value(np.asarray(reference), "input.0", "")
    two = value(np.asarray(port), "input.0", "")
    return suspects(
        case("Net", where="inputs", layer="", slot="input.0", expected=one, actual=two, inputs=(one, *others))
    )


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (IMAGE, IMAGE * 255, "totensor-scale-missing"),
        (IMAGE * 255, IMAGE, "totensor-scale-missing"),
        (READY, IMAGE, "normalized-otherwise"),
        (READY, (IMAGE * 255 - MEAN) / STD, "normalized-otherwise"),
        (READY, (IMAGE - 0.5) / 0.5, "normalized-otherwise"),
        (IMAGE, IMAGE * 2 - 1, "normalized-otherwise"),
        (IMAGE, IMAGE.transpose(0, 2, 3, 1), "hwc-chw-not-transposed"),
        (IMAGE, IMAGE.transpose(0, 2, 3, 1).reshape(IMAGE.shape), "hwc-chw-not-transposed"),
        (IMAGE[0], IMAGE[0].transpose(1, 2, 0), "hwc-chw-not-transposed"),
        (IMAGE, IMAGE.transpose(0, 1, 3, 2), "axes-permuted"),
        (IMAGE, IMAGE[:, ::-1], "rgb-bgr"),
        (READY, (IMAGE[:, ::-1] - MEAN) / STD, "rgb-bgr"),
        (IMAGE, IMAGE[..., ::-1], "axis-flipped"),
        (IMAGE[:, :, 1:, 1:], IMAGE[:, :, :-1, :-1], "centercrop-rounding"),
        (IMAGE, IMAGE[:, :, 1:-1, 1:-1], "part-missing"),
        (IMAGE, IMAGE[[2, 0, 3, 1]], "dataset-shuffle-default"),
        (IMAGE, IMAGE[:3], "batch-drop-remainder"),
        (TOKENS, np.concatenate([np.ones((4, 1), int), TOKENS[:, :-1]], 1), "tokens-shifted"),
        (TOKENS, np.concatenate([np.ones((4, 1), int), TOKENS], 1), "special-tokens"),
        (RIGHT, LEFT, "tokens-padding-side"),
        (LEFT, RIGHT, "tokens-padding-side"),
    ],
)
def test_what_one_pipeline_did_otherwise_is_told_and_proved(reference, port, cause):
    first = found(reference, port)[0]
    assert first.cause == cause
    assert first.error is not None
    assert first.error < 1e-5
    for language in ("en", "zh"):
        assert not any("<" in text for text in sentences(first.cause, first.facts, language))


def test_an_input_in_the_place_of_another_is_told():
    other = value(RIGHT, "input.1", "")
    (first,) = found(TOKENS, RIGHT, (other,))
    assert (first.cause, first.facts["instead"]) == ("inputs-exchanged", "input.1")


def test_the_numbers_of_a_normalisation_are_told_for_each_channel():
    facts = found(READY, IMAGE)[0].facts
    assert facts["factors"] == "(0.229, 0.224, 0.225)"
    assert facts["addends"] == "(0.485, 0.456, 0.406)"


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (
            SMOOTH,
            np.swapaxes(SMOOTH, 2, 3)[:, :, ::-1] * 1.5 + 0.1 * np.roll(np.swapaxes(SMOOTH, 2, 3), 1, 3),
            "resize-wh-order",
        ),
        (SMOOTH, SMOOTH + 0.02 * np.roll(SMOOTH, 1, 3), "picture-made-otherwise"),
        (IMAGE, RANDOM.random(IMAGE.shape), "inputs-unrelated"),
    ],
)
def test_what_only_looks_so_is_a_guess(reference, port, cause):
    first = found(reference, port)[0]
    assert first.cause == cause
    assert first.error is None


def test_inputs_that_are_half_alike_are_not_called_unrelated():
    assert not found(IMAGE, np.where(RANDOM.random(IMAGE.shape) < 0.5, IMAGE, RANDOM.random(IMAGE.shape)))

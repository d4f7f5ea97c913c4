"""Mistakes in how a value is read: its range, a type too short for it."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue, operations
from aligner.explain.catalogue import sentences, spoken
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(11)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def per_channel(*numbers):
    return np.array(numbers, np.float32).reshape(1, -1, 1, 1)


IMAGE = RANDOM.random((2, 3, 12, 12)).astype(np.float32)
MEAN, STD = per_channel(0.485, 0.456, 0.406), per_channel(0.229, 0.224, 0.225)
X, A, SCALE = drawn(2, 8, 16), drawn(2, 8, 16), drawn(16)
KNOWN = (
    value(X, "input.0", "net"),
    value(SCALE, "scale", "net"),
    value(A, "output.0", "net.branch"),
)
READ = (value(IMAGE, "input.0", "net"),)


def told(reference, port, known, rounding=1e-7):
    sides = [value(np.asarray(side, np.float32), "input.0", "net.next") for side in (reference, port)]
    found = list(
        glue.suspects(
            case(
                where="glue",
                layer="net",
                between=("net.branch", "net.next"),
                expected=sides[0],
                actual=sides[1],
                known=known,
                rounding=rounding,
            )
        )
    )
    return [suspect for suspect in found if suspect.error is not None and suspect.weight >= 0.6]


NORMALISED = (IMAGE - MEAN) / STD


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (IMAGE * 2 - 1, IMAGE, "normalize-0-255-vs-0-1"),
        (NORMALISED, (IMAGE[:, ::-1] - MEAN) / STD, "rgb-bgr"),
        ((IMAGE[:, ::-1] - MEAN) / STD, NORMALISED, "rgb-bgr"),
        (NORMALISED, IMAGE - MEAN, "normalize-0-255-vs-0-1"),
        (NORMALISED, (IMAGE - 0.5) / 0.5, "normalize-0-255-vs-0-1"),
        (NORMALISED, (IMAGE - MEAN[:, ::-1]) / STD[:, ::-1], "normalize-constants-reversed"),
        (NORMALISED, (NORMALISED - MEAN) / STD, "normalized-twice"),
    ],
)
def test_another_range_of_an_image_is_told_with_its_numbers(reference, port, cause):
    found = told(reference, port, READ)[0]
    assert found.cause == cause
    assert found.error < 1e-5
    assert all("<" not in text for language in ("en", "zh") for text in sentences(cause, found.facts, language))


def test_a_mere_factor_of_an_image_is_no_other_range():
    assert told(IMAGE / 255.0, IMAGE, READ)[0].cause == "scale-missing"


def test_a_mean_with_the_other_sign_is_an_addend():
    known = (*READ, value(MEAN, "mean", "net"))
    assert told(IMAGE - MEAN, IMAGE + MEAN, known)[0].cause == "addend-sign"


def half(x):
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("reference", "port", "cause", "dtype"),
    [
        (X + SCALE * A, X + SCALE * half(A), "input-rounded", "float16"),
        (X + SCALE * A, half(X) + SCALE * A, "input-rounded", "float16"),
        (X, half(X), "rounding-grid", "float16"),
        (X + A, half(half(X) + half(A)), "residual-add-precision", "float16"),
        (X + A, half(X + A), "rounding-grid", "float16"),
        (X + SCALE * A, half(half(X) + half(SCALE * A)), "rounding-grid", "float16"),
    ],
)
def test_a_value_that_was_rounded_on_its_way_is_named(reference, port, cause, dtype):
    found = told(reference, port, KNOWN)[0]
    assert (found.cause, found.facts["dtype"]) == (cause, dtype)
    assert all("<" not in text for language in ("en", "zh") for text in sentences(cause, found.facts, language))


def test_an_image_that_passed_through_eight_bits_is_named():
    port = (np.floor(IMAGE * 255.0) / 255.0) * 2 - 1
    found = told(IMAGE * 2 - 1, port, READ)[0]
    assert (found.cause, found.facts["dtype"]) == ("input-rounded", "uint8")


@pytest.mark.parametrize("seed", range(5))
def test_noise_proves_nothing(seed):
    random = np.random.default_rng(seed)
    for right, known in ((X + SCALE * A, KNOWN), (NORMALISED, READ)):
        noisy = right + 3e-4 * random.standard_normal(right.shape) * np.abs(right)
        other = random.standard_normal(right.shape)
        assert told(right, noisy, known) == []
        assert told(right, other, known) == []


BOXES = RANDOM.random((2, 96, 7)).astype(np.float32) + 1.0


def changed(part, function):
    made = BOXES.copy()
    made[:, :, part] = function(made[:, :, part])
    return made


STRIDES = np.repeat([4.0, 8.0], [64, 32]).reshape(1, 96, 1)
ANCHORS = np.repeat([[3.0, 4.0], [0.5, 7.0], [2.0, 0.3]], 32, axis=0).reshape(1, 96, 2)


@pytest.mark.parametrize(
    ("port", "cause", "numbers"),
    [
        (changed(slice(0, 2), lambda y: y / STRIDES), "part-ratio", "0.25 at 0-63; 0.125 at 64-95"),
        (changed(slice(0, 2), lambda y: y + STRIDES / 2), "part-shift", "2 at 0-63; 4 at 64-95"),
        (
            changed(slice(2, 4), lambda y: y * ANCHORS),
            "part-ratio",
            "3, 4 at 0-31; 0.5, 7 at 32-63; 2, 0.3 at 64-95",
        ),
    ],
)
def test_parts_of_a_head_with_numbers_of_their_own_are_told(port, cause, numbers):
    found = told(BOXES, port, ())[0]
    assert (found.cause, spoken(found.facts, "en")["numbers"]) == (cause, numbers)
    assert "<" not in "".join(sentences(cause, found.facts, "en"))


def test_numbers_for_every_place_are_no_parts():
    each = RANDOM.random((1, 96, 1)).astype(np.float32)
    assert not any("part-" in found.cause for found in told(BOXES, changed(slice(0, 2), lambda y: y * each), ()))


MAPS, GAIN, BESIDE = drawn(2, 16, 16, 16), drawn(16), drawn(2, 16, 16, 16)
LAST = (value(GAIN, "gain", "net"), value(BESIDE, "input.0", "net"), value(MAPS, layer="net.fc"))


def test_a_reshape_for_a_transpose_is_told_in_a_sum_of_products():
    reference = BESIDE + (MAPS * GAIN).transpose(0, 3, 1, 2)
    found = told(reference, BESIDE + (MAPS * GAIN).reshape(BESIDE.shape), LAST)[0]
    assert found.cause == "view-vs-transpose"


def test_pixels_shuffled_by_a_function_are_told():
    n, c, h, w = 2, 24, 5, 6
    x = drawn(n, c, h, w)
    right = x.reshape(n, 6, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, 6, 2 * h, 2 * w)
    blocks = x.reshape(n, 2, 2, 6, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, 6, 2 * h, 2 * w)
    assert told(right, blocks, (value(x, layer="net.conv"),))[0].cause == "pixel-shuffle-vs-depth-to-space"


def test_padding_that_is_left_out_is_told():
    x = drawn(2, 4, 12)
    found = told(np.pad(x, ((0, 0), (0, 0), (3, 0))), x, (value(x, "input.0", "net"),))[0]
    assert found.cause == "pad-differs"


@pytest.mark.parametrize(
    ("reference", "port", "training", "named"),
    [
        (("softmax",), ("softmax", "dropout"), False, True),
        (("softmax", "dropout"), ("softmax", "dropout"), False, False),
        (("softmax",), ("softmax", "dropout"), True, False),
        (("softmax",), ("softmax",), False, False),
    ],
)
def test_a_dropout_that_only_the_port_runs_is_a_hint(reference, port, training, named):
    wrong = case(where="glue", operations=(reference, port), training=training)
    assert any(found.cause == "dropout-active" for found in operations.suspects(wrong, {})) is named

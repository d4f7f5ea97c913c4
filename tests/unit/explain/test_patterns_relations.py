"""How the wrong value follows from the right one: each relation is found, its proof holds, and noise has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.explain.catalogue import relations as words
from aligner.explain.patterns.functions import erf
from aligner.explain.patterns.limits import grid
from aligner.explain.patterns.pair import Pair, limit
from aligner.explain.patterns.relations import relations

IDS = {entry.id: entry for entry in words.ENTRIES}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def found(expected, actual, noise=1e-7):
    """All suspects; the port's float32 rounds in its own way."""
    rough = actual * (1 + noise * np.random.default_rng(9).standard_normal(actual.shape)) if noise else actual
    pair = Pair(expected, np.asarray(rough, np.float32), limit(2e-7), {"layer": "a", "port_layer": "b"})
    return list(relations(pair))


def first(expected, actual, noise=1e-7):
    suspects = found(expected, actual, noise)
    assert suspects
    return suspects[0]


R = draw(2, 8, 20, 20)
S = draw(2, 6, 10, 8)

PROVED = {
    "constant-ratio": (R, R * 0.125),
    "constant-shift": (R, R + 0.25),
    "ratio-and-shift": (R, R * 2 + 1),
    "sign-flipped": (R, -R),
    "std-ddof": (R, R * np.sqrt(4 / 5)),
    "channel-shift": (R, R + draw(1, 8, 1, 1, seed=1)),
    "channel-ratio": (R, R * draw(1, 8, 1, 1, seed=1)),
    "channel-ratio-and-shift": (R, R * draw(1, 8, 1, 1, seed=1) + draw(1, 8, 1, 1, seed=2)),
    "axis-flipped": (R, R[..., ::-1]),
    "axis-rolled": (R, np.roll(R, (-3, -3), (2, 3))),
    "picture-shifted": (R, np.concatenate([R[:, :, 1:], draw(2, 8, 1, 20, seed=2)], 2)),
    "concat-order": (S, np.concatenate([S[..., 6:], S[..., 2:6], S[..., :2]], -1)),
    "axis-interleaved": (S, S.reshape(2, 6, 10, 2, 4).swapaxes(3, 4).reshape(S.shape)),
    "axis-order": (R, R[:, [0, 5, 3, 1, 7, 2, 6, 4]]),
    "axes-permuted": (R, R.swapaxes(2, 3)),
    "reshape-order": (S, S.swapaxes(1, 2).reshape(S.shape)),
    "activation-missing": (np.maximum(R, 0), R),
    "dropout-functional-train-flag": (R, np.where(np.random.default_rng(3).random(R.shape) < 0.2, 0, R / 0.8)),
}


@pytest.mark.parametrize("cause", PROVED)
def test_a_relation_is_proved(cause):
    expected, actual = PROVED[cause]
    suspect = first(expected, np.asarray(actual, np.float32))
    assert suspect.cause == cause
    assert suspect.error is not None
    assert suspect.error < 1e-6


@pytest.mark.parametrize(
    ("ratio", "told"), [(8**0.5, "sqrt(8)"), (1 / 8**0.5, "1/sqrt(8)"), (1 / 400, "1/400"), (0.3, "0.3")]
)
def test_a_ratio_made_of_sizes_is_named(ratio, told):
    assert first(R, R * np.float32(ratio)).facts["ratio"].endswith(told)


@pytest.mark.parametrize("gain", [2**0.5, 0.5**0.5, 2.0])
def test_a_forgotten_gain_is_no_standard_deviation(gain):
    assert first(R, np.asarray(R * gain, np.float32), 1e-7).cause == "constant-ratio"


def test_an_attention_scale_by_head_size_is_named():
    assert first(draw(2, 5, 64), draw(2, 5, 64) * np.float32(0.25)).facts["ratio"] == "0.25 = 1/sqrt(16) = 1/4"


def test_two_names_of_one_order_are_both_told():
    suspects = found(S, np.roll(S, 3, 3))
    assert [s.cause for s in suspects] == ["concat-order", "axis-rolled"]
    assert [s.cause for s in found(R, np.roll(R, 3, 3))] == ["axis-rolled", "concat-order"]


def test_channels_that_are_off_are_listed():
    scale = np.ones((1, 8, 1, 1), np.float32)
    scale[0, [1, 4, 5]] = 2
    facts = first(R, R * scale).facts
    assert (facts["axis"], facts["off"], facts["which"], facts["highest"]) == ("1", 3, "1, 4-5", "2")


def test_windows_in_another_order_are_followed_back():
    moved = R.reshape(2, 8, 4, 5, 4, 5).transpose(0, 1, 2, 4, 3, 5).reshape(R.shape)
    suspect = first(R, moved)
    assert (suspect.cause, suspect.facts["factors"]) == ("reshape-order", "(2, 8, 4, 5, 4, 5)")


@pytest.mark.parametrize("channels", [3, 8, 32])
def test_a_vector_seen_as_a_picture_in_another_order(channels):
    vector = draw(2, channels * 16)
    ours = vector.reshape(2, channels, 4, 4)
    theirs = vector.reshape(2, 4, 4, channels).transpose(0, 3, 1, 2)
    suspect = first(ours, theirs)
    assert (suspect.cause, suspect.facts["factors"]) == ("reshape-order", f"(2, 4, 4, {channels})")


def test_pixel_shuffle_in_the_other_order():
    x = draw(2, 12, 5, 7)
    ours = x.reshape(2, 3, 2, 2, 5, 7).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 10, 14)
    theirs = x.reshape(2, 2, 2, 3, 5, 7).transpose(0, 3, 4, 1, 5, 2).reshape(2, 3, 10, 14)
    assert first(ours, theirs).cause in {"values-permuted", "reshape-order"}


def test_another_shape_by_a_transpose():
    suspect = first(S, S.transpose(0, 2, 1, 3))
    assert (suspect.cause, suspect.facts["axes"]) == ("axes-permuted", "(0, 2, 1, 3)")


def test_any_other_permutation_is_evidence_without_proof():
    moved = np.random.default_rng(0).permutation(R.reshape(-1)).reshape(R.shape)
    suspect = first(R, moved)
    assert (suspect.cause, suspect.error) == ("values-permuted", None)


@pytest.mark.parametrize("word", ["float16", "bfloat16", "tf32"])
def test_a_rounded_output_tells_its_dtype(word):
    values = R * np.float32(1e-6 if word == "tf32" else 1)
    suspect = first(values, grid(values, word), noise=0)
    cause = "bf16-output-rounding" if word == "bfloat16" else "rounding-grid"
    assert (suspect.cause, suspect.facts["dtype"], suspect.error) == (cause, word, 0.0)


def test_a_computation_in_a_short_float_is_evidence():
    suspects = found(R, grid(R * (1 + 2e-4 * draw(*R.shape, seed=5)), "float16"), noise=0)
    assert [(s.cause, s.error) for s in suspects] == [("rounding-grid", None)]


def test_nan_and_overflow_are_told_by_place():
    nan, big = R.copy(), R.copy()
    nan[1, 2, 3, 4] = np.nan
    big[0, 0, 0, 0] = 7e4
    lost = np.where(np.abs(big) > 65504, np.inf, big)
    held = np.where(np.abs(big) > 65504, 65504, big)
    assert first(R, nan, 0).facts["first"] == "(1, 2, 3, 4)"
    assert first(nan, R, 0).cause == "nan-hidden"
    assert first(big, lost, 0).cause == "overflow"
    assert first(big, held, 0).cause == "ascend-overflow-saturation-mode"


def test_equal_values_have_no_relation():
    assert found(R, R) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(0, 2**31),
    st.sampled_from(["unrelated", 1e-2, 1e-4, 2e-5, 1e-7]),
    st.sampled_from(["plain", "relu", "softmax"]),
)
def test_noise_is_no_relation(shape, seed, noise, form):
    rng = np.random.default_rng(seed)
    expected, other = rng.standard_normal((2, 3, *shape)).astype(np.float32)
    if form == "relu":
        expected, other = np.maximum(expected, 0), np.maximum(other, 0)
    if form == "softmax":
        expected, other = (np.exp(v) / np.exp(v).sum(-1, keepdims=True) for v in (expected, other))
    if noise != "unrelated":
        other = (expected + noise * rng.standard_normal(expected.shape)).astype(np.float32)
    pair = Pair(expected, other, limit(2e-7))
    assert [s for s in relations(pair) if s.error is not None] == []


def test_facts_fill_the_sentences():
    for expected, actual in PROVED.values():
        for suspect in found(expected, np.asarray(actual, np.float32)):
            entry = IDS[suspect.cause]
            for text in (*entry.title, *entry.evidence, *entry.fix):
                assert "{" not in text.format_map(dict(suspect.facts))


def test_the_error_function_is_exact_enough():
    import math

    x = np.linspace(-8, 8, 999)
    assert np.abs(erf(x) - [math.erf(v) for v in x]).max() < 1e-11

"""Mistakes that look like others: where a mask ends, what stands on which side, values that stand more often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain import glue, operations
from aligner.explain.catalogue import sentences
from aligner.explain.patterns import slices
from aligner.explain.patterns.pair import Pair
from aligner.explain.patterns.steps import suspects as steps
from aligner.record import LayerSpec
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((4, 6, 8))
MAP = RANDOM.standard_normal((2, 8, 10, 10))
LENGTHS = np.array([3, 6, 2, 5])
PLACES = np.arange(6)


def kept(lengths):
    return (lengths[:, None] > PLACES).astype(np.float32)


def told(reference, port, known=(), **more):
    sides = [value(np.asarray(side), "input.0", "net.next") for side in (reference, port)]
    place = case(
        where="glue", layer="net", between=("net.a", "net.next"), expected=sides[0], actual=sides[1], known=known
    )
    return [suspect for suspect in glue.suspects(replace(place, **more)) if suspect.error is not None]


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (kept(LENGTHS), kept(LENGTHS + 1), "mask-off-by-one"),
        (kept(LENGTHS + 1), kept(LENGTHS), "mask-off-by-one"),
        (kept(LENGTHS) * 1e4 - 1e4, kept(LENGTHS - 1) * 1e4 - 1e4, "mask-off-by-one"),
        (kept(LENGTHS), 1 - kept(LENGTHS), "mask-inverted"),
        (np.tril(np.ones((6, 6))), np.tril(np.ones((6, 6)), -1), "causal-mask-diagonal"),
        (np.triu(np.ones((6, 6)), 1), np.triu(np.ones((6, 6))), "causal-mask-diagonal"),
        (np.triu(np.ones((2, 1, 6, 6)), 1), np.triu(np.ones((2, 1, 6, 6)), 2), "causal-mask-diagonal"),
        (np.triu(np.ones((6, 6)), 1), np.tril(np.ones((6, 6)), -1), "axes-permuted"),
    ],
)
def test_a_mask_that_ends_elsewhere_is_no_other_order(reference, port, cause):
    found = told(reference, port)
    assert [suspect.cause for suspect in found] == [cause]
    for language in ("en", "zh"):
        assert not any(
            "<" in text.replace("< ", "").replace("<=", "") for text in sentences(cause, found[0].facts, language)
        )


LATER = np.triu(np.ones((6, 6)), 1)


def added(hidden):
    """As it is added to the scores."""
    return np.where(hidden == 1, -np.inf, 0.0)


@pytest.mark.parametrize("says_seen", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_mask_that_is_added_is_set_against_one_that_says_what_to_do(says_seen, back):
    """All of it hides something: a flag for each place is no mask that hides nothing."""
    own = np.triu(np.ones((6, 6)), 0)
    flags = 1 - own if says_seen else own
    sides = (flags, added(LATER)) if back else (added(LATER), flags)
    found = [suspect for suspect in told(*sides) if suspect.cause.startswith(("causal", "mask"))]
    assert [suspect.cause for suspect in found] == ["causal-mask-diagonal"]
    values = [f"triu(diagonal={diagonal})" for diagonal in ((0, 1) if back else (1, 0))]
    assert [found[0].facts[f"{side}_value"] for side in ("reference", "port")] == values


@pytest.mark.parametrize("flags", [LATER, 1 - LATER])
def test_a_mask_in_other_words_that_says_the_same_is_no_mistake(flags):
    assert not [suspect for suspect in told(added(LATER), flags) if suspect.cause.startswith(("causal", "mask"))]


MASKED = X * kept(LENGTHS)[:, :, None]
HELD = (value(LENGTHS, "input.1", "net"), value(X, "output.0", "net.a"))


@pytest.mark.parametrize(
    ("port", "cause"),
    [
        (MASKED.sum(1) / LENGTHS[:, None], None),
        ((X * kept(LENGTHS + 1)[:, :, None]).sum(1) / np.minimum(LENGTHS + 1, 6)[:, None], "mask-boundary"),
        (X.mean(1), "mask-missing"),
        (X.max(1), "reduction-other"),
    ],
)
def test_a_mean_up_to_a_length_is_told_from_the_lengths(port, cause):
    found = told(MASKED.sum(1) / LENGTHS[:, None], port, HELD)
    assert [suspect.cause for suspect in found][:1] == ([cause] if cause else [])


def test_a_value_times_a_mask_with_one_more_is_told():
    (found,) = told(MASKED, X * kept(LENGTHS + 1)[:, :, None], HELD)
    assert found.cause == "mask-boundary"
    assert found.facts["other"] == "[net input.1 > arange]"


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [
        (X - X.max(1, keepdims=True), X - X.mean(1, keepdims=True), "reduction-other"),
        (X + X.mean(1, keepdims=True), X + X.mean(2, keepdims=True), "reduction-axis"),
        (X * X.max(1, keepdims=True), X * X.min(1, keepdims=True), "reduction-other"),
        (MAP + MAP.mean((2, 3), keepdims=True), MAP + 2 * MAP.mean((2, 3), keepdims=True), "scale-missing"),
    ],
)
def test_what_is_added_to_each_slice_is_told(reference, port, cause):
    known = (value(X, "output.0", "net.a"), value(MAP, "output.0", "net.b"))
    found = [suspect.cause for suspect in told(reference, port, known) if suspect.weight >= 0.6]
    assert found[:1] == ([cause] if cause else [])


def test_a_mask_for_the_rows_instead_of_the_columns_has_its_axes_elsewhere():
    mask = (kept(LENGTHS) - 1)[:, None, None, :] * 1e4
    (found,) = told(mask, mask.swapaxes(2, 3))
    assert (found.cause, found.facts["axes"]) == ("axes-permuted", "(0, 1, 3, 2)")


def test_lengths_that_are_off_by_more_are_told_without_a_proof():
    (found,) = steps(Pair(kept(LENGTHS), kept((LENGTHS + 1) // 2), 1e-5))
    assert (found.cause, found.error) == ("mask-length", None)


def test_values_that_are_no_mask_are_left_alone():
    assert not list(steps(Pair(X, X + 1, 1e-5)))
    assert not list(steps(Pair(np.array([0.0, 1, 0, 1, 1]), np.array([1.0, 1, 0, 0, 1]), 1e-5)))


def test_a_slice_that_stands_twice_is_another_value_and_no_other_order():
    assert not list(slices.suspects(Pair(X, X[:, [0, 0, 2, 3, 4, 5]], 1e-5)))


def test_slices_that_are_equal_may_stand_in_each_others_place():
    rows = X.copy()
    rows[:, 4] = rows[:, 1]
    (found,) = slices.suspects(Pair(rows, rows[:, [3, 1, 2, 4, 0, 5]], 1e-5))
    assert found.cause == "axis-order"
    assert found.error == 0


def test_two_slices_in_reverse_are_parts_in_another_order():
    found = [suspect.cause for suspect in slices.suspects(Pair(MAP[:, :2], MAP[:, 1::-1], 1e-5))]
    assert found == ["concat-order", "axis-flipped"]


ZEROS = np.zeros_like(MAP)
SIDES = np.concatenate([MAP, ZEROS], 1), np.concatenate([ZEROS, MAP], 1)


@pytest.mark.parametrize(
    ("ran", "cause"),
    [(None, "concat-order"), ((("cat",), ("Concat",)), "concat-order"), ((("pad",), ("PadV3",)), "pad-differs")],
)
def test_zeros_on_the_other_side_are_padding_only_where_something_pads(ran, cause):
    known = (value(MAP, "output.0", "net.a"),)
    assert told(*SIDES, known, operations=ran)[0].cause == cause


def test_a_row_of_zeros_behind_instead_of_in_front_is_no_causal_convolution_padded_on_both_sides():
    row = np.zeros((4, 1, 8))
    found = told(np.concatenate([row, X], 1), np.concatenate([X, row], 1), (value(X, "output.0", "net.a"),))
    assert found[0].cause == "pad-differs"


def test_a_mean_for_a_maximum_is_told_although_the_mean_is_a_layer_of_its_own():
    known = (value(MAP, "input.0", "net.pool"), value(MAP.mean((2, 3), keepdims=True), "output.0", "net.pool"))
    (found,) = told(MAP.mean((2, 3)), MAP.max((2, 3)), known)
    assert found.cause == "reduction-other"


CONV = {"kernel_size": (3, 3), "stride": (1, 1)}
TAKER = (
    LayerSpec("Conv2d", {**CONV, "padding": ((1, 1), (1, 1)), "padding_mode": "reflect"}),
    LayerSpec("Conv2d", {**CONV, "padding": ((0, 0), (0, 0)), "padding_mode": "zeros"}),
)
AROUND = ((0, 0), (0, 0), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("port", "cause"),
    [
        (np.pad(MAP, AROUND), "conv2d-padding-mode-reflect"),
        (np.pad(MAP, AROUND, mode="edge"), "conv2d-padding-mode-reflect"),
        (np.pad(MAP, ((0, 0), (0, 0), (2, 0), (2, 0)), mode="reflect"), "pad-differs"),
    ],
)
def test_padding_by_hand_before_a_convolution_is_held_against_what_the_reference_pads(port, cause):
    (found,) = told(MAP, port, taker=TAKER)
    assert found.cause == cause
    assert not any("<" in text for text in sentences(cause, found.facts, "en"))


def test_maps_of_a_size_the_wrong_way_round_are_a_guess():
    one, other = RANDOM.standard_normal((2, 2, 3, 8, 6))[0], RANDOM.standard_normal((2, 3, 6, 8))
    place = case(where="glue", layer="net", expected=value(one), actual=value(other))
    assert [(s.cause, s.error) for s in glue.suspects(place)] == [("resize-wh-order", None)]


def test_padding_by_hand_as_the_reference_pads_is_right():
    causes = [suspect.cause for suspect in told(MAP, np.pad(MAP, AROUND, mode="reflect"), taker=TAKER)]
    assert "conv2d-padding-mode-reflect" not in causes


def test_a_split_of_another_size_would_show_in_the_shape():
    ran = (("split",), ("Split",))
    sides = value(X), value(X + 1)
    same = case(where="glue", expected=sides[0], actual=sides[1], operations=ran)
    other = case(where="glue", expected=sides[0], actual=value(X[:, :2]), operations=ran)
    assert [s.cause for s in operations.suspects(other, {})] == ["split-size-vs-num"]
    assert not list(operations.suspects(same, {}))

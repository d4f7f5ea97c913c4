"""What is told of a part, and of too few numbers: a lone number is many sums and products."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import spoken
from aligner.explain.patterns.pair import distinct
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(23)
X, SCALE, WEIGHTS = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((3, 7, 12), (1,), (3,)))


def found(reference, port):
    known = (value(SCALE, "alpha", "net"), value(WEIGHTS, "weights", "net"), value(X, layer="net.norm"))
    return told(reference, port, known)


def told(reference, port, known):
    sides = [value(np.asarray(side, np.float32), "output.0", "net") for side in (reference, port)]
    wrong = case(
        where="glue",
        layer="net",
        between=("net.norm", ""),
        expected=sides[0],
        actual=sides[1],
        known=known,
        rounding=1e-7,
    )
    return [suspect for suspect in glue.suspects(wrong) if suspect.error is not None]


@pytest.mark.parametrize(("reference", "port"), [(1.2345, 1.0871), (-0.7713, 0.2229), ([0.31, 0.42], [0.53, -0.64])])
def test_nothing_is_proved_of_one_number_or_two(reference, port):
    assert found(reference, port) == []


def test_another_reduction_is_told_of_one_number():
    first = found([X.mean()], [X.max()])[0]
    assert first.cause == "reduction-other"


def test_a_number_that_was_spread_over_a_channel_proves_no_ratio_or_shift():
    spread = np.broadcast_to(np.float32(0.2345), (3, 1, 12))
    assert found(np.concatenate([X, spread], 1), np.concatenate([X, 0.41 * spread], 1)) == []


def test_zeros_are_told_as_zeros_and_not_as_a_function_that_gives_them():
    first = found(np.zeros_like(X), X)[0]
    assert (first.cause, first.facts["other"]) == ("wrong-tensor", "full(0)")


def test_what_was_spread_counts_once_and_zero_not_at_all():
    assert distinct(np.array([0.0, 0.5, 0.5, 0.5, np.nan])) == 1
    assert distinct(np.zeros(4)) == 0


def interleaved(one, other):
    return np.stack([one, other], 2).reshape(3, -1)


def test_every_other_slice_is_looked_at_by_itself():
    wide = RANDOM.standard_normal((3, 16)).astype(np.float32)
    known = (value(wide, "input.0", "net"), value(X[:, 0, :8], layer="net.act"))
    sides = [interleaved(wide[:, part], X[:, 0, :8]) for part in (slice(8), slice(8, 16))]
    first = told(*sides, known)[0]
    assert first.cause == "chunk-order"


def test_parts_that_were_summed_up_are_each_told():
    maps = [RANDOM.standard_normal((3, 5, n)).astype(np.float32) for n in (9, 8, 7)]
    known = tuple(value(x, layer=f"net.{n}") for n, x in enumerate(maps))
    last = X[:, 0, :5]
    sides = [
        np.concatenate([*(function(np.maximum(x, 0), axis=2) for x in maps), last], 1) for function in (np.max, np.mean)
    ]
    assert told(*sides, known)[0].facts["part"] == "[:, 0:5]"


def test_what_was_spread_over_places_is_looked_at_once():
    pooled = [np.broadcast_to(function(X, axis=2)[..., None], X.shape) for function in (np.max, np.mean)]
    known = (value(X, layer="net.norm"),)
    first = told(*(np.concatenate([part, X], 1) for part in pooled), known)[0]
    assert first.cause == "reduction-other"


def test_rows_of_length_one_are_said_to_be_normalised():
    rows = X[:, 0]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert [suspect.cause for suspect in told(unit, rows, ())][:1] == ["normalize-missing"]
    assert [suspect.cause for suspect in told(rows, unit, ())][:1] == ["normalize-extra"]


@pytest.mark.parametrize(
    ("port", "cause"),
    [
        (lambda g, h, x: (1 - g) * np.maximum(h, 0) + g * x, "gate-inverted"),
        (lambda g, h, x: g * np.maximum(h, 0) + x, "gate-missing"),
    ],
)
def test_a_gate_between_a_function_and_a_value_is_known(port, cause):
    score, hidden, x = (RANDOM.standard_normal((5, 24)).astype(np.float32) for _ in range(3))
    gate = 1 / (1 + np.exp(-score))
    known = (value(x, "input.0", "net"), value(score, layer="net.t"), value(hidden, layer="net.h"))
    first = told(gate * np.maximum(hidden, 0) + (1 - gate) * x, port(gate, hidden, x), known)[0]
    assert first.cause == cause


def test_a_number_by_which_two_values_happen_to_differ_is_a_shift():
    places = np.arange(12, dtype=np.float32)
    known = (value(np.float32([0.6]), "alpha", "net"), value(X, layer="net.norm"))
    assert told(places, places + 1, known)[0].cause == "constant-shift"


def test_a_layer_that_is_called_in_the_place_of_another_is_told():
    known = (value(X, layer="net.k"),)
    wanted = value(np.asarray(X[::-1] * 1.7 + 0.3, np.float32), "output.0", "net.v")
    wrong = case(where="glue", layer="net", between=("net.k", "net.v"), expected=wanted, actual=X, known=known)
    first = next(suspect for suspect in glue.suspects(wrong) if suspect.error is not None)
    assert (first.cause, first.facts["other"], first.facts["instead"]) == (
        "wrong-tensor",
        "[net.v output.0]",
        "[net.k output.0]",
    )


def test_a_shift_that_is_a_row_of_a_table_is_that_row_forgotten():
    table = RANDOM.standard_normal((9, 12)).astype(np.float32)
    made = RANDOM.standard_normal((6, 12)).astype(np.float32)
    first = told(made + table[4], made, (value(table, layer="net.pos"),))[0]
    assert (first.cause, first.facts["other"]) == ("addend-missing", "[net.pos output.0][4]")
    first = told(made, made + table[4], (value(table, layer="net.pos"),))[0]
    assert first.cause == "addend-extra"


def test_a_mean_over_all_places_instead_of_those_that_count_is_told():
    rows, counts = X[:, 0], np.array([[12.0], [7.0], [3.0]])
    known = (value(X, layer="net.norm"),)
    first = told(rows / counts, rows / 12, known)[0]
    assert (first.cause, first.facts["counts"], first.facts["total"]) == ("mean-over-other-count", "3, 7, 12", 12)
    first = told(rows / counts, rows, known)[0]
    assert (first.cause, first.facts["total"]) == ("mean-over-other-count", 1)
    assert told(rows, rows * np.repeat([1, 2], 6), known)[0].cause != "mean-over-other-count"


def test_weights_that_are_exchanged_are_no_forgotten_residual():
    one, other = X, RANDOM.standard_normal(X.shape).astype(np.float32)
    unknown = RANDOM.standard_normal(X.shape).astype(np.float32)
    known = (value(one, "input.0", "net"), value(other, layer="net.b"))
    first = told(unknown + 0.3 * one + 0.2 * other, unknown + 0.2 * one + 0.3 * other, known)[0]
    assert first.cause == "expression-differs"


def test_a_formula_is_known_under_a_mask():
    a, b = (RANDOM.standard_normal((3, 7, 12)).astype(np.float32) for _ in range(2))
    mask = np.repeat(np.arange(12) < np.array([[12], [7], [3]]), 7, 0).reshape(3, 7, 12)[:, :1]
    known = (value(mask, "input.1", "net"), value(a, layer="net.a"), value(b, layer="net.b"))
    gate = [1 / (1 + np.exp(-x)) for x in (a, b)]
    first = told(a * gate[1] * mask, gate[0] * b * mask, known)[0]
    assert first.cause == "wrong-tensor"
    assert "[net input.1]" in str(first.facts["reference_code"])


def test_another_norm_is_told():
    wide = RANDOM.standard_normal((8, 12)).astype(np.float32)
    first = told(np.linalg.norm(wide, axis=1), np.abs(wide).sum(1), (value(wide, layer="net.caps"),))[0]
    assert first.cause == "norm-order"


def test_a_function_of_a_layers_output_is_known_of_few_numbers():
    scores = np.float32([0.24894026, 0.24914485, 0.2500063, 0.25005934])
    known = (value(scores.reshape(4, 1, 1, 1), layer="net.head"),)
    first = told(1 / (1 + np.exp(-scores)), scores, known)[0]
    assert (first.cause, first.facts["function"]) == ("activation-missing", "Sigmoid")


def test_a_slope_for_each_channel_is_told():
    slopes = np.linspace(0.1, 0.4, 7, dtype=np.float32)[:, None]
    first = told(X, np.where(X < 0, slopes * X, X), ())[0]
    assert first.cause == "negative-side-scaled"
    assert spoken(first.facts, "en")["ratio"].startswith("0.1 to 0.4")


def test_a_deviation_of_the_batch_with_another_divisor_is_known_of_one_number():
    batch, n = RANDOM.standard_normal((7, 3, 6)).astype(np.float32), 7
    spread = np.broadcast_to(np.float32(0.2345), (n, 1, 6))
    biased, unbiased = (np.concatenate([batch, k * spread], 1) for k in (1.0, np.sqrt(n / (n - 1))))
    assert told(biased, unbiased, ())[0].cause == "std-ddof"

"""Attention in a short type, rows that see nothing, and masks that a fused operation reads its own way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences, spoken
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.limits import grid
from tests.unit.explain.cases import case, value

BATCH, LENGTH, HEADS, WIDTH = 3, 6, 4, 32
RANDOM = np.random.default_rng(3)
Q, K, V = (RANDOM.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32) for _ in range(3))
SEEN = np.arange(LENGTH)[None] < np.array([[4], [LENGTH], [0]])
SOME = np.arange(LENGTH)[None] < np.array([[4], [LENGTH], [2]])


def heads(x):
    return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)


def merged(x):
    return x.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH)


def scores(short=lambda x: x):
    return short(short(short(heads(Q)) @ short(heads(K)).swapaxes(-1, -2)) * 8**-0.5)


def mixed(seen=None, fill=-np.inf, dead=None, short=lambda x: x):
    made = scores(short)
    made = made if seen is None else np.where(seen[:, None, None], made, fill)
    shares = softmax(made, -1)
    if dead is not None:
        shares = np.where(seen.any(-1)[:, None, None, None], shares, dead)
    return merged(shares @ heads(V))


def place(reference, port, seen, operations=None):
    known = [value(x, "output.0", f"at.{name}") for name, x in (("q", Q), ("k", K), ("v", V))]
    known = [value(seen, "input.1", "at"), *known]
    sides = [value(np.asarray(side, np.float32), "input.0", "at.out") for side in (reference, port)]
    return case(
        where="glue", layer="at", expected=sides[0], actual=sides[1], known=known, rounding=1e-6, operations=operations
    )


def first(*arguments):
    found = next(iter(glue.suspects(place(*arguments))))
    for language in ("en", "zh"):
        assert "<" not in "".join(sentences(found.cause, found.facts, language))
    return found


@pytest.mark.parametrize(
    ("reference", "port", "told"),
    [
        (mixed(SEEN, -1e9), mixed(SEEN, dead=0.0), ("what the softmax gives", "zeros")),
        (mixed(SEEN), mixed(SEEN, dead=0.0), ("NaN", "zeros")),
        (mixed(SEEN, dead=0.0), mixed(SEEN), ("zeros", "NaN")),
        (mixed(SEEN, dead=0.0), mixed(SEEN, dead=1 / LENGTH), ("zeros", "the mean")),
    ],
)
def test_what_a_query_gets_that_sees_nothing(reference, port, told):
    found = first(reference, port, SEEN)
    assert found.cause == "flash-attention-fully-masked-row"
    said = spoken(found.facts, "en")
    assert (said["reference_value"], said["port_value"]) == told
    assert found.error < 1e-5


@pytest.mark.parametrize("word", ["float16", "bfloat16"])
def test_scores_in_a_short_type(word):
    found = first(mixed(SOME), mixed(SOME, short=lambda x: np.asarray(grid(x, word), np.float64)), SOME)
    assert (found.cause, found.facts["dtype"]) == ("attention-in-short-float", word)


def test_a_fused_operation_hides_where_the_mask_is_true():
    sides = mixed(SOME), mixed(~SOME, -1e9)
    assert first(*sides, SOME).cause == "mha-mask-inverted"
    operations = (("scaled_dot_product_attention",), ("FlashAttentionScore",))
    assert first(*sides, SOME, operations).cause == "flash-attention-mask-one-discards"


def test_a_fill_that_float16_cannot_hold():
    found = place(mixed(SEEN, -1e9), mixed(SEEN), SEEN)
    assert next(iter(glue.suspects(found))).cause == "attention-mask-fill-1e4"
    assert found.actual is not None
    half = replace(found, actual=replace(found.actual, dtype="float16"))
    assert next(iter(glue.suspects(half))).cause == "attention-fill-fp16-overflow"


def test_noise_is_no_short_type():
    right = mixed(SOME)
    noisy = right * (1.0 + 3e-4 * RANDOM.standard_normal(right.shape))
    assert not [s for s in glue.suspects(place(right, noisy, SOME)) if s.error is not None]

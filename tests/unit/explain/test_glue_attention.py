"""Attention in a parent's own code: the one choice that differs is found by computing it again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from aligner.explain.glue.attention_plan import Kept, Plan, made
from aligner.explain.glue.hand import Piece
from aligner.explain.patterns.functions import softmax
from tests.unit.explain.cases import case, value

BATCH, LENGTH, HEADS, GROUPS, SIZE = 2, 10, 4, 2, 8
WIDTH = HEADS * SIZE
RANDOM = np.random.default_rng(7)


def drawn(width):
    return RANDOM.standard_normal((BATCH, LENGTH, width)).astype(np.float32)


X, Q, K, V = (drawn(WIDTH) for _ in range(4))
FEW_K, FEW_V = drawn(GROUPS * SIZE), drawn(GROUPS * SIZE)
FUSED, KEY_VALUE = drawn(3 * WIDTH), drawn(2 * WIDTH)
PRESENT = np.arange(LENGTH)[None] < np.array([[6], [LENGTH]])
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
STRICT = np.tril(np.ones((LENGTH, LENGTH), bool), -1)


def split(x, heads=HEADS):
    return x.reshape(BATCH, LENGTH, heads, -1).transpose(0, 2, 1, 3)


def viewed(x, heads=HEADS):
    return x.reshape(BATCH, heads, LENGTH, -1)


def merged(x):
    return x.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, -1)


def scored(q, k, scale=None, mask=None, fill=-1e9):
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores if mask is None else np.where(mask, scores, np.float32(fill))


def attended(q, k, v, scale=None, mask=None, fill=-1e9, axis=-1):
    return softmax(scored(q, k, scale, mask, fill), axis) @ v


def turned(x, kind):
    angle = np.arange(LENGTH)[:, None] * 1e4 ** (-np.arange(0, SIZE, 2) / SIZE)
    if kind == "half":
        both = np.concatenate([angle, angle], -1)
        half = np.concatenate([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)
        return x * np.cos(both) + half * np.sin(both)
    if kind == "mixture":
        both = np.concatenate([angle, angle], -1)
        return x * np.cos(both) + np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) * np.sin(both)
    out = np.empty_like(x)
    out[..., ::2] = x[..., ::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
    out[..., 1::2] = x[..., 1::2] * np.cos(angle) + x[..., ::2] * np.sin(angle)
    return out


APART = tuple(
    value(array, slot, layer)
    for array, slot, layer in (
        (X, "input.0", "at"),
        (PRESENT, "input.1", "at"),
        (Q, "output.0", "at.q"),
        (K, "output.0", "at.k"),
        (V, "output.0", "at.v"),
    )
)
SHARED = (*APART[:3], value(FEW_K, "output.0", "at.k"), value(FEW_V, "output.0", "at.v"))
ONE = (*APART[:2], value(FUSED, "output.0", "at.qkv"))
TWO = (*APART[:3], value(KEY_VALUE, "output.0", "at.kv"))
q, k, v = split(Q), split(K), split(V)
weights = softmax(scored(q, k), -1).astype(np.float32)
GIVEN = (*APART, value(weights, "output.0", "at.softmax"))
padded = PRESENT[:, None, None]
parts = FUSED.reshape(BATCH, LENGTH, 3, HEADS, SIZE).transpose(2, 0, 3, 1, 4)
by_head = FUSED.reshape(BATCH, LENGTH, HEADS, 3, SIZE).transpose(3, 0, 2, 1, 4)
few_k, few_v = split(FEW_K, GROUPS), split(FEW_V, GROUPS)
spread = [np.repeat(x, HEADS // GROUPS, 1) for x in (few_k, few_v)]
tiled = [np.tile(x, (1, HEADS // GROUPS, 1, 1)) for x in (few_k, few_v)]
first, second = split(KEY_VALUE[..., :WIDTH]), split(KEY_VALUE[..., WIDTH:])
right = attended(q, k, v)
half = attended(turned(q, "half"), turned(k, "half"), v, mask=CAUSAL)
woven = attended(turned(q, "woven"), turned(k, "woven"), v, mask=CAUSAL)

mixture = attended(turned(q, "mixture"), turned(k, "mixture"), v, mask=CAUSAL)

MISTAKES = {
    "no scale": (merged(right), merged(attended(q, k, v, 1.0)), APART, "attention-scale-missing"),
    "scale of the width": (merged(right), merged(attended(q, k, v, WIDTH**-0.5)), APART, "scale-other"),
    "no causal mask": (merged(attended(q, k, v, mask=CAUSAL)), merged(right), APART, "causal-mask-missing"),
    "the diagonal": (
        merged(attended(q, k, v, mask=CAUSAL)),
        merged(attended(q, k, v, mask=STRICT)),
        APART,
        "causal-mask-diagonal",
    ),
    "a mask inverted": (
        merged(attended(q, k, v, mask=padded)),
        merged(attended(q, k, v, mask=~padded)),
        APART,
        "mha-mask-inverted",
    ),
    "no mask": (merged(attended(q, k, v, mask=padded)), merged(right), APART, "attention-mask-missing"),
    "one of two masks": (
        merged(attended(q, k, v, mask=padded & CAUSAL)),
        merged(attended(q, k, v, mask=CAUSAL)),
        APART,
        "attention-mask-missing",
    ),
    "masked by zeros": (
        merged(attended(q, k, v, mask=padded)),
        merged(attended(q, k, v, mask=padded, fill=0.0)),
        APART,
        "mask-fill-other",
    ),
    "masked too late": (
        merged(attended(q, k, v, mask=CAUSAL)),
        merged(np.where(CAUSAL, softmax(scored(q, k), -1), 0) @ v),
        APART,
        "mask-after-softmax",
    ),
    "softmax over queries": (merged(right), merged(attended(q, k, v, axis=-2)), APART, "softmax-axis"),
    "heads split by a reshape": (
        merged(right),
        merged(attended(viewed(Q), viewed(K), viewed(V))),
        APART,
        "head-split-order",
    ),
    "heads merged by a reshape": (merged(right), right.reshape(BATCH, LENGTH, WIDTH), APART, "head-merge-order"),
    "twice the heads": (
        merged(right),
        merged(attended(split(Q, 8), split(K, 8), split(V, 8))),
        APART,
        "head-count",
    ),
    "query and key exchanged": (merged(right), merged(attended(k, q, v)), APART, "wrong-tensor"),
    "the key for the value": (merged(right), merged(attended(q, k, k)), APART, "wrong-tensor"),
    "another layout": (merged(attended(*parts)), merged(attended(*by_head)), ONE, "qkv-interleaved-layout"),
    "key before query": (merged(attended(*parts)), merged(attended(parts[1], parts[0], parts[2])), ONE, "chunk-order"),
    "value before key": (merged(attended(q, first, second)), merged(attended(q, second, first)), TWO, "chunk-order"),
    "tiled heads": (merged(attended(q, *spread)), merged(attended(q, *tiled)), SHARED, "gqa-repeat-vs-tile"),
    "another pairing": (merged(half), merged(woven), APART, "rope-interleaved-vs-half"),
    "angles of one, pairs of the other": (merged(half), merged(mixture), APART, "rope-interleaved-vs-half"),
    "softmax over heads": (merged(right), merged(attended(q, k, v, axis=1)), APART, "softmax-axis"),
    "a key too many": (
        merged(attended(q, k, v, mask=CAUSAL)),
        merged(attended(q, k, v, mask=np.tril(np.ones((LENGTH, LENGTH), bool), 1))),
        APART,
        "causal-mask-diagonal",
    ),
    "scores unscaled": (scored(q, k), scored(q, k, 1.0), APART, "attention-scale-missing"),
    "scores unmasked": (scored(q, k, mask=CAUSAL), scored(q, k), APART, "causal-mask-missing"),
    "weights unscaled": (weights, softmax(scored(q, k, 1.0), -1), APART, "attention-scale-missing"),
    "the key mixed": (merged(weights @ v), merged(weights @ k), GIVEN, "wrong-tensor"),
    "mixed by a reshape": (merged(weights @ v), (weights @ v).reshape(BATCH, LENGTH, WIDTH), GIVEN, "head-merge-order"),
}


def place(reference, port, known):
    made = [value(np.asarray(side, np.float32), "input.0", "at.out") for side in (reference, port)]
    return case(where="glue", layer="at", expected=made[0], actual=made[1], known=known, rounding=3e-7)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_choice_that_differs_is_named(name):
    reference, port, known, cause = MISTAKES[name]
    found = list(glue.suspects(place(reference, port, known)))
    assert found, "nothing was suspected"
    assert found[0].cause == cause
    assert found[0].error < 2e-6
    for language in ("en", "zh"):
        for text in sentences(cause, found[0].facts, language):
            assert text
            assert "<" not in text


def test_a_length_that_comes_first_is_seen():
    turned_round = [value(x.swapaxes(0, 1), "output.0", f"at.{n}") for n, x in (("q", Q), ("k", K), ("v", V))]
    sides = [merged(x).swapaxes(0, 1) for x in (right, attended(q, k, v, 1.0))]
    found = list(glue.suspects(place(*sides, turned_round)))
    assert found[0].cause == "attention-scale-missing"


def test_unrelated_values_prove_nothing():
    assert not [s for s in glue.suspects(place(drawn(WIDTH), drawn(WIDTH), GIVEN)) if s.error is not None]


TABLE = RANDOM.standard_normal((LENGTH, LENGTH, HEADS)).astype(np.float32)  # as an embedding of distances gives it
BIAS = TABLE.transpose(2, 0, 1)[None]
HIDDEN = np.where(PRESENT, 0.0, -1e9).astype(np.float32)[:, None, None, :]
MASKED = (value(HIDDEN, "input.1", "at"), *APART)
WITH_TABLE = (*MASKED, value(TABLE, "output.0", "at.distances"))
HANDED = (value(BIAS, "input.2", "at"), *MASKED)
NORMED = (
    value(HIDDEN, "input.1", "at"),
    value(5 * Q.reshape(BATCH, LENGTH, HEADS, SIZE), "output.0", "at.q_norm"),
    value(5 * FEW_K.reshape(BATCH, LENGTH, GROUPS, SIZE), "output.0", "at.k_norm"),
    value(FEW_V, "output.0", "at.v"),
)


def biased(bias=BIAS, scale=None):
    return merged(softmax(scored(q, k, scale) + bias + HIDDEN, -1) @ v)


def bounded(bound=20.0, spread=np.repeat):
    keys, values = (
        spread(split(x, GROUPS), 2, axis=1) if spread is np.repeat else spread(split(x, GROUPS), (1, 2, 1, 1))
        for x in (5 * FEW_K, FEW_V)
    )
    scores = scored(5 * q, keys)
    return merged(softmax((bound * np.tanh(scores / bound) if bound else scores) + HIDDEN, -1) @ values)


BENEATH = {
    "a table's bias left out under a mask": (biased(), biased(0.0), WITH_TABLE, "addend-missing"),
    "a bias that is handed in left out": (biased(), biased(0.0), HANDED, "addend-missing"),
    "scaled beside a bias": (biased(scale=1.0), biased(), WITH_TABLE, "scale-other"),
    "the bound left out": (bounded(), bounded(0.0), NORMED, "function-missing"),
    "heads shared in another order within a bound": (bounded(), bounded(spread=np.tile), NORMED, "gqa-repeat-vs-tile"),
}


@pytest.mark.parametrize("name", BENEATH)
def test_what_lies_between_scores_and_mask_is_known(name):
    reference, port, known, cause = BENEATH[name]
    wrong = replace(place(reference, port, known), operations=(("matmul", "tanh", "add"), ()))
    found = next(iter(glue.suspects(wrong)))
    assert (found.cause, found.error is not None) == (cause, True)
    for language in ("en", "zh"):
        assert not any("<" in text for text in sentences(cause, found.facts, language))


def test_values_of_another_batch_are_no_query_or_key():
    """The code had them in hand; that they do not fit must not end the search."""
    pieces = [Piece(value(array), array.astype(np.float64), 0) for array in (Q, K[:1], V)]
    plan = Plan(tuple(pieces), "mixed", HEADS, HEADS, SIZE**-0.5)
    assert made(plan, np.arange(BATCH), Kept()) is None

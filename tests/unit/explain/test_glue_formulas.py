"""Mistakes between layers that a formula of the values in hand shows: sums, products, functions, means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import catalogue, sentences
from aligner.explain.patterns.functions import FUNCTIONS, softmax
from tests.unit.explain.cases import case, value

BATCH, LENGTH, WIDTH = 2, 12, 32
RANDOM = np.random.default_rng(3)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, A, N, G = (drawn(BATCH, LENGTH, WIDTH) for _ in range(4))
BIAS, POSITIONS, UP = drawn(WIDTH), drawn(LENGTH, WIDTH), drawn(BATCH, LENGTH, 2 * WIDTH)
IMAGE, OTHER, SQUEEZED = drawn(BATCH, 16, 8, 8), drawn(BATCH, 16, 8, 8), drawn(BATCH, 16)
PRESENT = (np.arange(LENGTH)[None] < np.array([[7], [12]])).astype(np.float32)

SEQUENCE = (
    value(drawn(BATCH, LENGTH, 4 * WIDTH), "output.0", "elsewhere"),
    value(X, "input.0", "blk"),
    value(BIAS, "scale", "blk"),
    value(POSITIONS, "pos", "blk"),
    value(X, "input.0", "blk.norm"),
    value(N, "output.0", "blk.norm"),
    value(UP, "output.0", "blk.up"),
    value(G, "output.0", "blk.gate"),
    value(A, "output.0", "blk.attn"),
)
SCORES = drawn(BATCH, LENGTH)
MASKED = (value(PRESENT, "input.1", "blk"), *SEQUENCE)
PICTURES = (
    value(IMAGE, "input.0", "blk"),
    value(OTHER, "output.0", "blk.bn2"),
    value(SQUEEZED, "output.0", "blk.se"),
)


def place(reference, port, known=SEQUENCE, rounding=2e-7):
    made = [value(np.asarray(side, np.float32), "input.0", "blk.next") for side in (reference, port)]
    return case(
        where="glue",
        layer="blk",
        between=("blk.attn", "blk.next"),
        expected=made[0],
        actual=made[1],
        known=known,
        rounding=rounding,
    )


GELU, TANH_GELU = FUNCTIONS["GELU"], FUNCTIONS["GELU(tanh)"]
TOKENS = IMAGE.reshape(BATCH, 16, 64).transpose(0, 2, 1)


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return FUNCTIONS["Sigmoid"](x)


def silu(x):
    return FUNCTIONS["SiLU"](x)


def unit(x, axis):
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def by_hand(x, ddof):
    return BIAS * (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=ddof, keepdims=True) + 1e-6)


def masked_mean(x, mask):
    return (x * mask[..., None]).sum(1) / np.maximum(mask.sum(1, keepdims=True), 1e-9)


GATE = sigmoid(SQUEEZED)[:, :, None, None]
FIRST, SECOND = UP[..., :WIDTH], UP[..., WIDTH:]

MISTAKES = {
    "a residual": (X + A, A, SEQUENCE, "residual-missing", "[blk input.0]"),
    "a residual inside a ReLU": (relu(IMAGE + OTHER), relu(OTHER), PICTURES, "residual-missing", "[blk input.0]"),
    "one of three addends": (X + A + N, X + N, SEQUENCE, "addend-missing", "[blk.attn output.0]"),
    "a position embedding": (X + POSITIONS, X, SEQUENCE, "addend-missing", "[blk pos]"),
    "a bias": (A + BIAS, A, SEQUENCE, "addend-missing", "[blk scale]"),
    "an addend twice": (X + A, X + 2 * A, SEQUENCE, "addend-extra", "[blk.attn output.0]"),
    "subtracted": (X + A, X - A, SEQUENCE, "addend-sign", "[blk.attn output.0]"),
    "half an addend": (X + 0.5 * A, X + A, SEQUENCE, "scale-missing", "[blk.attn output.0]"),
    "the residual from behind the norm": (X + A, N + A, SEQUENCE, "wrong-tensor", "[blk input.0]"),
    "another value": (N, A, SEQUENCE, "wrong-tensor", "[blk.norm output.0]"),
    "padding zeroed in one addend": (
        X + A,
        X * (PRESENT != 0)[..., None] + A,
        MASKED,
        "mask-extra",
        "[blk input.1]",
    ),
    "the norm passed over": (N, X, SEQUENCE, "layer-skipped", "blk.norm"),
    "ReLU before the sum": (relu(IMAGE + OTHER), IMAGE + relu(OTHER), PICTURES, "activation-before-sum", "ReLU"),
    "no ReLU": (relu(IMAGE + OTHER), IMAGE + OTHER, PICTURES, "activation-missing", None),
    "GELU twice": (GELU(X), GELU(GELU(X)), SEQUENCE, "activation-twice", None),
    "another activation": (silu(X), FUNCTIONS["ELU"](X), SEQUENCE, "activation-other", None),
    "no gate": (IMAGE * GATE, IMAGE, PICTURES, "gate-missing", "Sigmoid([blk.se output.0])"),
    "no sigmoid in the gate": (X + sigmoid(G) * A, X + G * A, SEQUENCE, "activation-missing", "[blk.gate output.0]"),
    "no layer scale": (X + BIAS * A, X + A, SEQUENCE, "scale-missing", "[blk scale]"),
    "no scale": (X * np.sqrt(WIDTH), X, SEQUENCE, "scale-missing", None),
    "another factor": (X * A, X * N, SEQUENCE, "wrong-tensor", "[blk.attn output.0]"),
    "halves swapped": (silu(FIRST) * SECOND, silu(SECOND) * FIRST, SEQUENCE, "swiglu-chunk-order", None),
    "halves interleaved": (silu(FIRST) * SECOND, silu(UP[..., ::2]) * UP[..., 1::2], SEQUENCE, "chunk-order", None),
    "a tanh GELU": (
        GELU(G) * N,
        TANH_GELU(G) * N,
        SEQUENCE,
        "gelu-approximate-default",
        None,
    ),
    "max for mean": (IMAGE.mean((2, 3)), IMAGE.max((2, 3)), PICTURES, "reduction-other", None),
    "mean for the first": (X[:, 0], X.mean(1), SEQUENCE, "reduction-other", None),
    "the last but one": (X[:, -1], X[:, -2], SEQUENCE, "slice-off", None),
    "n for n - 1": (X.std(1, ddof=1), X.std(1), SEQUENCE, "std-ddof", None),
    "n for n - 1 in a norm": (by_hand(X, 1), by_hand(X, 0), SEQUENCE, "std-ddof", None),
    "padding counted": (masked_mean(X, PRESENT), X.mean(1), MASKED, "mask-missing", None),
    "the other places counted": (masked_mean(X, PRESENT), masked_mean(X, 1 - PRESENT), MASKED, "mask-inverted", None),
    "not normalised": (unit(X, -1), X, SEQUENCE, "normalize-missing", None),
    "normalised over another axis": (unit(X, -1), unit(X, 1), SEQUENCE, "normalize-axis", None),
    "masked softmax over another axis": (
        softmax(np.where(PRESENT > 0, SCORES, -1e9), 1),
        softmax(np.where(PRESENT > 0, SCORES, -1e9), 0),
        (*MASKED, value(SCORES, "output.0", "blk.score")),
        "softmax-axis",
        None,
    ),
    "softmax over another axis": (softmax(X, -1), softmax(X, 1), SEQUENCE, "softmax-axis", None),
    "a reshape for a transpose": (
        IMAGE.reshape(BATCH, 16, 64).transpose(0, 2, 1),
        IMAGE.reshape(BATCH, 64, 16),
        PICTURES,
        "view-vs-transpose",
        None,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_proved(name):
    reference, port, known, cause, other = MISTAKES[name]
    found = list(glue.suspects(place(reference, port, known)))
    assert found, "nothing was suspected"
    assert found[0].cause == cause
    assert found[0].error < 1e-6
    if other is not None:
        assert found[0].facts["other"] == other


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_its_sentences_are_whole(name, language):
    reference, port, known, cause, _ = MISTAKES[name]
    first = next(iter(glue.suspects(place(reference, port, known))))
    assert cause in catalogue()
    for text in sentences(cause, first.facts, language):
        assert "<" not in text.replace("<unknown>", "")


@pytest.mark.parametrize("seed", range(6))
def test_unrelated_values_prove_nothing(seed):
    random = np.random.default_rng(seed)
    shape = [(2, 12, 32), (2, 16, 8, 8), (4, 32), (3, 5), (2, 12, 32), (24, 7)][seed]
    reference, port = random.standard_normal((2, *shape))
    known = [value(random.standard_normal(shape).astype(np.float32), f"output.{i}", f"blk.l{i}") for i in range(6)]
    assert not [s for s in glue.suspects(place(reference, port, known)) if s.error is not None]


def test_round_off_is_not_explained():
    noisy = (X + A) * (1 + 1e-7 * drawn(*X.shape))
    assert not [s for s in glue.suspects(place(X + A, noisy)) if s.error is not None]


def test_layers_are_left_to_others():
    made = place(X + A, A)
    layer = case(expected=made.expected, actual=made.actual, known=SEQUENCE)
    assert not list(glue.suspects(layer))


def test_a_value_that_is_made_only_later_is_named():
    later = value(drawn(BATCH, LENGTH, WIDTH), "output.0", "blk.act")
    made = replace(place(X + A, later.load()), later=(later,))
    first = next(iter(glue.suspects(made)))
    assert first.cause == "wrong-tensor"
    assert first.facts["instead"] == "[blk.act output.0]"


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_constant_is_no_function_of_anything(level):
    """An LSTM's first memory: Softshrink(0.5) would make zeros of what is small, and Hardsigmoid ones of the large."""
    small = (0.4 * np.tanh(drawn(BATCH, LENGTH, WIDTH)) + 4.0 * level).astype(np.float32)
    made = place(np.full_like(small, level), np.tanh(small), (value(small, "output.0", "blk.bridge"),))
    first = next(iter(glue.suspects(made)))
    assert first.cause == "wrong-tensor"
    assert first.facts["other"] == f"full({level:g})"
    assert first.facts["instead"] == "Tanh([blk.bridge output.0])"

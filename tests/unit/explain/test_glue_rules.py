"""Mistakes between layers beyond formulas: masks, parts, grids, shuffles, resizing functions, operations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from aligner.explain.patterns.functions import FUNCTIONS, softmax
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

BATCH, LENGTH, WIDTH = 2, 12, 32
RANDOM = np.random.default_rng(11)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def made(array, slot="output.0", layer="blk.layer"):
    return value(np.asarray(array, np.float32), slot, layer)


X, A, OTHER = drawn(BATCH, LENGTH, WIDTH), drawn(BATCH, LENGTH, WIDTH), drawn(BATCH, LENGTH, WIDTH)
POSITIONS, START, WEIGHT = drawn(LENGTH, WIDTH), drawn(1, 1, WIDTH), drawn(WIDTH, WIDTH)
IMAGE, LARGE, LATERAL = drawn(BATCH, 16, 8, 8), drawn(BATCH, 16, 16, 16), drawn(BATCH, 16, 16, 16)
SCORES, HIDDEN, TABLE = drawn(BATCH, 4, LENGTH, LENGTH), drawn(4, BATCH, 16), drawn(40, WIDTH)
GRAPH = (RANDOM.random((LENGTH, LENGTH)) < 0.4).astype(np.float32)
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
START_ROWS = np.broadcast_to(START, (BATCH, 1, WIDTH))
BOXES = drawn(BATCH, 3, 6, 6, 7)
COLUMN, ROW = np.arange(6.0)[None, :, None], np.arange(6.0)[:, None, None]
SHORT = X[:, 1:]

SEQUENCE = (made(X, "input.0", "blk"), made(POSITIONS, "pos", "blk"), made(WEIGHT, "weight", "blk"), made(A))
PICTURES = (made(IMAGE, "input.0", "blk"), made(LATERAL, "output.0", "blk.lateral"), made(LARGE, "output.0", "blk.up"))


UP, CONDITION = drawn(BATCH, LENGTH, 2 * WIDTH), drawn(BATCH, 1, 2 * WIDTH)
WORDS = RANDOM.integers(0, 3, (BATCH, LENGTH))


PRESENT = np.arange(LENGTH)[None] < np.array([[7], [LENGTH]])
SILENT = np.where(np.arange(16)[:, None, None] % 3 == 0, 0, drawn(BATCH, 16, 8, 8))
PIXELS = drawn(BATCH, 3, 9, 9)


def heads(x):
    return x.reshape(BATCH, LENGTH, 4, -1).swapaxes(1, 2)


def merged(x):
    return x.swapaxes(1, 2).reshape(BATCH, LENGTH, -1)


def nearest(x):
    return x.repeat(2, -1).repeat(2, -2)


def bilinear(x):
    """Twice the size, half-pixel centres."""
    for axis in (-1, -2):
        before = np.concatenate([x.take([0], axis), x.take(range(x.shape[axis] - 1), axis)], axis)
        after = np.concatenate([x.take(range(1, x.shape[axis]), axis), x.take([-1], axis)], axis)
        x = np.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], axis if axis == -1 else -2)
        x = x.reshape(*x.shape[:-2], -1) if axis == -1 else x.reshape(*x.shape[:-3], -1, x.shape[-1])
    return x


def masked(x, seen):
    return np.where(seen, x, -1e9)


def tokens(x, order):
    return np.concatenate([START_ROWS, x] if order else [x, START_ROWS], 1)


def decoded(one, other):
    xy = FUNCTIONS["Sigmoid"](BOXES[..., :2]) * 2 - 0.5
    return np.concatenate([(xy[..., :1] + one) * 8, (xy[..., 1:] + other) * 8, BOXES[..., 2:]], -1)


def blocks(x, order):
    whole = [x[:, :, i::2, j::2] for i, j in product((0, 1), (0, 1))]
    return np.concatenate([whole[i] for i in order], 1)


def shuffled(x, groups):
    return x.reshape(BATCH, groups, -1, 8, 8).swapaxes(1, 2).reshape(x.shape)


MIXED = np.concatenate([X, A, np.abs(X - A), X * A], -1)
SIGNED = np.concatenate([X, A, X - A, X * A], -1)

MISTAKES = {
    "no mask": (masked(SCORES, CAUSAL), SCORES, (made(X),), "causal-mask-missing"),
    "mask inverted": (masked(SCORES, CAUSAL), masked(SCORES, ~CAUSAL), (made(X),), "mask-inverted"),
    "diagonal": (
        masked(SCORES, CAUSAL),
        masked(SCORES, np.tril(CAUSAL, -1)),
        (made(X),),
        "causal-mask-diagonal",
    ),
    "weights unmasked": (
        softmax(masked(SCORES, SCORES > -0.5), -1),
        softmax(SCORES, -1),
        (made(X),),
        "mask-missing",
    ),
    "weights of a key too many": (
        softmax(masked(SCORES, CAUSAL), -1),
        softmax(masked(SCORES, np.tril(np.ones((LENGTH, LENGTH), bool), 1)), -1),
        (made(X),),
        "causal-mask-diagonal",
    ),
    "temperature": (softmax(SCORES / 4, -1), softmax(SCORES, -1), (made(X),), "attention-scale-missing"),
    "concat order": (
        np.concatenate([LATERAL, LARGE], 1),
        np.concatenate([LARGE, LATERAL], 1),
        PICTURES,
        "concat-order",
    ),
    "one wrong block": (MIXED, SIGNED, SEQUENCE, "function-missing"),
    "tokens in another order": (
        tokens(IMAGE.reshape(BATCH, 16, 64)[..., :WIDTH].reshape(BATCH, WIDTH, 16).swapaxes(1, 2), True),
        tokens(IMAGE.reshape(BATCH, 16, 64)[..., :WIDTH].reshape(BATCH, 16, WIDTH), True),
        (made(IMAGE.reshape(BATCH, 16, 64)[..., :WIDTH].reshape(BATCH, WIDTH, 16)),),
        "view-vs-transpose",
    ),
    "start token last, beneath positions": (
        tokens(SHORT, True) + POSITIONS,
        tokens(SHORT, False) + POSITIONS,
        (made(SHORT), made(POSITIONS, "pos", "blk")),
        "concat-order",
    ),
    "rolled the other way": (np.roll(X, -3, 1), np.roll(X, 3, 1), SEQUENCE, "roll-sign"),
    "channels shuffled otherwise": (shuffled(IMAGE, 2), shuffled(IMAGE, 8), PICTURES, "channel-shuffle-order"),
    "focus": (blocks(LARGE, (0, 2, 1, 3)), blocks(LARGE, (0, 1, 2, 3)), PICTURES, "concat-order"),
    "grid": (decoded(COLUMN, ROW), decoded(ROW, COLUMN), (made(BOXES),), "meshgrid-indexing-default"),
    "resized otherwise": (nearest(IMAGE), bilinear(IMAGE), PICTURES, "upsample-mode-default-nearest"),
    "resized otherwise, then added": (
        LATERAL + nearest(IMAGE),
        LATERAL + bilinear(IMAGE),
        PICTURES[:2],
        "upsample-mode-default-nearest",
    ),
    "resized otherwise, then joined": (
        np.concatenate([LATERAL, nearest(IMAGE)], 1),
        np.concatenate([LATERAL, bilinear(IMAGE)], 1),
        PICTURES[:2],
        "upsample-mode-default-nearest",
    ),
    "padded on the other side": (
        np.pad(X, ((0, 0), (3, 0), (0, 0))),
        np.pad(X, ((0, 0), (1, 2), (0, 0))),
        SEQUENCE,
        "causal-conv-padding",
    ),
    "a table from the second row": (
        X + TABLE[:LENGTH],
        X + TABLE[1 : LENGTH + 1],
        (*SEQUENCE, made(TABLE, "table", "blk")),
        "slice-off",
    ),
    "another layer's state": (
        np.concatenate([HIDDEN[2], HIDDEN[3]], -1),
        np.concatenate([HIDDEN[0], HIDDEN[1]], -1),
        (made(HIDDEN, "output.1", "blk.lstm"),),
        "slice-off",
    ),
    "a weight transposed": (X @ WEIGHT.T, X @ WEIGHT, SEQUENCE, "matmul-transposed"),
    "no cosine": (
        (X * A).sum(-1) / np.linalg.norm(X, axis=-1) / np.linalg.norm(A, axis=-1),
        (X * A).sum(-1),
        SEQUENCE,
        "normalize-missing",
    ),
    "weighted over the wrong axis": (
        (softmax(X[..., :1], 1) * A).sum(1),
        (softmax(X[..., :1], 0) * A).sum(1),
        (made(A), made(X[..., :1], "output.0", "blk.score")),
        "softmax-axis",
    ),
    "a sum for a product": (X * A, X + A, SEQUENCE, "operation-other"),
    "a gate the wrong way round": (
        FUNCTIONS["Sigmoid"](OTHER) * A + (1 - FUNCTIONS["Sigmoid"](OTHER)) * X,
        FUNCTIONS["Sigmoid"](OTHER) * X + (1 - FUNCTIONS["Sigmoid"](OTHER)) * A,
        (*SEQUENCE, made(OTHER, "output.0", "blk.gate")),
        "gate-inverted",
    ),
    "an addend of five": (
        X + A + OTHER + POSITIONS + START,
        X + A + POSITIONS + START,
        (*SEQUENCE, made(OTHER, "output.0", "blk.other"), made(START, "start", "blk")),
        "addend-missing",
    ),
    "a gate of sums": (
        np.tanh((UP + CONDITION)[..., :WIDTH]) * FUNCTIONS["Sigmoid"]((UP + CONDITION)[..., WIDTH:]),
        np.tanh((UP + CONDITION)[..., WIDTH:]) * FUNCTIONS["Sigmoid"]((UP + CONDITION)[..., :WIDTH]),
        (made(UP, "output.0", "blk.conv"), made(CONDITION, "output.0", "blk.condition")),
        "swiglu-chunk-order",
    ),
    "a scaled sum without one": (
        (X + A) * np.sqrt(0.5),
        A * np.sqrt(0.5),
        SEQUENCE,
        "residual-missing",
    ),
    "padding counted": (
        (A * (WORDS != 0)[..., None]).sum(1) / (WORDS != 0).sum(1, keepdims=True),
        A.mean(1),
        (value(WORDS, "input.0", "blk"), made(A)),
        "mask-missing",
    ),
    "resized otherwise, added and clamped": (
        np.clip(LATERAL * 0.3 + 0.5 + nearest(IMAGE) * 1.0, 0, 1),
        np.clip(LATERAL * 0.3 + 0.5 + bilinear(IMAGE) * 1.0, 0, 1),
        (made(LATERAL * 0.3 + 0.5, "output.0", "blk.tail"), made(IMAGE, "input.0", "blk")),
        "upsample-mode-default-nearest",
    ),
    "no loops": (GRAPH + np.eye(LENGTH), GRAPH, (made(GRAPH * 0.5),), "addend-missing"),
    "channels reversed": (PIXELS * 0.5, PIXELS[:, ::-1] * 0.5, (made(PIXELS, "input.0", "blk"),), "rgb-bgr"),
    "pooled without the mask": (
        (softmax(masked(X[..., 0], PRESENT), 1)[..., None] * A).sum(1),
        (softmax(X[..., 0], 1)[..., None] * A).sum(1),
        (made(A), made(X[..., :1], "output.0", "blk.score"), value(PRESENT, "input.1", "blk")),
        "mask-missing",
    ),
    "scores in hand unmasked": (
        merged(softmax(masked(SCORES, CAUSAL), -1) @ heads(A)) + START[0],
        merged(softmax(SCORES, -1) @ heads(A)) + START[0],
        (made(A, "output.0", "blk.value"), made(SCORES, "output.0", "blk.leaky"), made(START[0, 0], "bias", "blk")),
        "causal-mask-missing",
    ),
    "branches in another order, some of them silent": (
        np.concatenate([SILENT, IMAGE, 0.0 * IMAGE], 1),
        np.concatenate([IMAGE, 0.0 * IMAGE, SILENT], 1),
        (made(SILENT, "output.0", "blk.a"), made(IMAGE, "output.0", "blk.b"), made(0 * IMAGE, "output.0", "blk.c")),
        "concat-order",
    ),
    "one branch twice": (
        np.concatenate([LATERAL, LARGE], 1),
        np.concatenate([LARGE, LARGE], 1),
        PICTURES,
        "wrong-tensor",
    ),
    "mask after the softmax": (
        softmax(masked(X[..., 0], PRESENT), 1),
        np.where(PRESENT, softmax(X[..., 0], 1), 0),
        (made(X[..., :1], "output.0", "blk.score"), value(PRESENT, "input.1", "blk")),
        "mask-after-softmax",
    ),
    "softmax for its logarithm": (np.log(softmax(X, -1)), softmax(X, -1), SEQUENCE, "activation-other"),
    "another shape": (X.mean(1), X.mean(2), SEQUENCE, "reduction-axis"),
    "not transposed": (X.swapaxes(1, 2), X, SEQUENCE, "view-vs-transpose"),
}


def place(reference, port, known, **more):
    sides = [made(side, "input.0", "blk.next") for side in (reference, port)]
    return case(where="glue", layer="blk", expected=sides[0], actual=sides[1], known=known, **more)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_proved(name):
    reference, port, known, cause = MISTAKES[name]
    found = [suspect for suspect in glue.suspects(place(reference, port, known)) if suspect.error is not None]
    assert found, "nothing was proved"
    assert found[0].cause == cause
    assert found[0].error < 2e-6
    for language in ("en", "zh"):
        assert not any("<" in text for text in sentences(cause, found[0].facts, language))


def test_operations_on_one_side_are_evidence():
    ran = (("linear", "add", "softmax"), ("Linear", "softmax"))
    found = list(glue.suspects(place(drawn(4, 8), drawn(4, 8), (), operations=ran)))
    assert [suspect.cause for suspect in found] == ["operations-differ"]
    assert found[0].error is None
    assert found[0].facts["missing"] == "add"


TWICE = {
    "moved in other ways": (("permute", "view", "__add__", "getitem"), ("make_range", "transpose", "reshape", "add")),
    "other words": (("masked_fill", "__ge__", "hardsigmoid"), ("greater_equal", "select", "hsigmoid")),
    "composed": (("gelu", "mean"), ("sqrt", "div", "erf", "add", "mul", "mul", "mean")),
    "fused": (("scaled_dot_product_attention",), ("matmul", "div", "logical_not", "masked_fill", "softmax", "matmul")),
}


@pytest.mark.parametrize("name", TWICE)
def test_the_same_operations_in_other_words_are_no_difference(name):
    first = place(drawn(4, 8), drawn(4, 8), (), operations=TWICE[name], between=("", "blk.next"))
    assert [suspect.cause for suspect in glue.suspects(first)] == ["operations-alike"]
    behind = place(drawn(4, 8), drawn(4, 8), (), operations=TWICE[name], between=("blk.first", "blk.next"))
    assert not list(glue.suspects(behind)), "it may have been made before the layer in front"


def test_of_many_operations_the_one_that_lacks_is_named_in_its_place():
    ours = ("getitem", "sub", "rsub", "sqrt", "mul", "sub", "div", "clamp", "chunk")
    theirs = ("gather", "split", "sub", "sub", "mul", "sub", "div", "clampscalar")
    (found,) = glue.suspects(place(drawn(4, 8), drawn(4, 8), (), operations=(ours, theirs)))
    assert (found.cause, found.facts["missing"]) == ("operations-differ", "sqrt")
    assert found.facts["ours"] == "sub, sub, sqrt, mul, sub, div, clamp"
    assert (
        sentences(found.cause, found.facts, "en")[0]
        == "Other operations run here: in the reference sqrt, in the port -"
    )


def test_a_clamp_that_lacks_tells_more_than_that_something_was_resized():
    ran = (("interpolate", "add", "clamp"), ("resize_bilinear", "add"))
    wrong = place(drawn(2, 3, 4, 4), drawn(2, 3, 4, 4), (), operations=ran)
    assert [s.cause for s in suspects(wrong)][:2] == ["operations-differ", "resize-bilinear-half-pixel"]


def test_a_class_of_the_users_own_is_code_too():
    gain, shift = drawn(WIDTH), drawn(WIDTH)

    def normed(ddof):
        centred = X - X.mean(-1, keepdims=True)
        return gain * centred / (X.std(-1, ddof=ddof, keepdims=True) + 1e-6) + shift

    own = case(
        "OwnNorm",
        layer="blk.norm",
        expected=made(normed(1), "output.0", "blk.norm"),
        actual=made(normed(0), "output.0", "blk.norm"),
        inputs=(X,),
        parameters={"gain": gain, "shift": shift},
    )
    first = next(iter(glue.suspects(own)))
    assert first.cause == "std-ddof"
    assert first.error < 1e-6


@pytest.mark.parametrize("shapes", [((2, 12, 32), (2, 32, 12)), ((2, 16, 8, 8), (2, 16, 4, 4)), ((4, 6), (4, 1, 6))])
def test_unrelated_values_of_other_shapes_prove_nothing(shapes):
    known = [made(drawn(*shape), f"output.{i}") for i, shape in enumerate((*shapes, (2, 24, 8)))]
    found = glue.suspects(place(drawn(*shapes[0]), drawn(*shapes[1]), known))
    assert not [suspect for suspect in found if suspect.error is not None]


@pytest.mark.parametrize("seed", range(4))
def test_few_numbers_prove_nothing(seed):
    random = np.random.default_rng(seed)
    known = [made(random.standard_normal((2, 2)), f"output.{i}") for i in range(12)]
    found = glue.suspects(place(*random.standard_normal((2, 2, 2)), known))
    assert not [suspect for suspect in found if suspect.error is not None]

"""Causes that no other test of a rule comes to: one case for each, so that what is told of them is seen."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.glue.attention_plan import rotated
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.loss_forms import Given, Loss
from aligner.explain.patterns.recurrent import COARSE, Guess, Net
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(3)
X, A, B = (RANDOM.standard_normal((3, 10, 16)).astype(np.float32) for _ in range(3))
SQUARE = RANDOM.standard_normal((6, 6)).astype(np.float32)
INDEX = RANDOM.integers(0, 6, (6, 6))
SCALE = np.float32([1.7])


def made(array, slot="output.0", layer="net.a"):
    return value(np.asarray(array, np.float32), slot, layer)


def glue(reference, port, *known, **more):
    sides = {"expected": np.asarray(reference, np.float32), "actual": np.asarray(port, np.float32)}
    return case("Net", {}, where="glue", layer="net", known=known, rounding=3e-7, **sides, **more)


def layer(kind, reference, port, expected, actual, **more):
    sides = {"expected": np.asarray(expected, np.float32), "actual": np.asarray(actual, np.float32)}
    return case(kind, reference, port, **sides, **more)


# Losses that are layers.

ROWS, OTHERS = RANDOM.standard_normal((6, 5)), RANDOM.standard_normal((6, 5))
BITS, COUNTS = (RANDOM.random((6, 5)) < 0.4).astype(np.float64), RANDOM.integers(0, 6, (6, 5)).astype(np.float64)
SPREAD, SIGNS = RANDOM.random((6, 5)) * 3 + 1e-6, np.array([1.0, -1, -1, 1, -1, 1])
POSITIVE = np.linspace(0.5, 2.5, 5)


def loss(kind, family, arrays, settings, change, **more):
    """What the layer makes, and what it makes with a change."""
    given = tuple(Given(f"input.{number}", np.asarray(array, np.float64)) for number, array in enumerate(arrays))
    right = Loss(family, given, {"reduction": "mean", **settings})
    spec = {"reduction": "mean", **{name: number for name, number in settings.items() if name in SETTINGS}}
    return layer(kind, spec, spec, right(), right.changed(**change)(), inputs=[g.array for g in given], **more)


SETTINGS = {"full", "eps", "log_input", "margin", "p", "swap"}
BCE, POISSON = ("BCEWithLogitsLoss", "binary cross entropy"), ("PoissonNLLLoss", "Poisson NLL")
GAUSSIAN, TRIPLET = ("GaussianNLLLoss", "Gaussian NLL"), ("TripletMarginLoss", "triplet margin")
THREE = (ROWS, OTHERS, ROWS[::-1])


def signed():
    """Labels of 0 where the loss wants -1."""
    arrays = [Given("x", ROWS), Given("y", np.abs(OTHERS)), Given("z", SIGNS)]
    right = Loss("cosine embedding", tuple(arrays), {"margin": 0.2})
    wrong = Loss("cosine embedding", (*arrays[:2], Given("z", np.where(SIGNS < 0, 0, SIGNS))), {"margin": 0.2})
    inputs = [each.array for each in arrays]
    return layer("CosineEmbeddingLoss", {"margin": 0.2}, {"margin": 0.2}, right(), wrong(), inputs=inputs)


def huber():
    right = Loss("Huber loss", (Given("x", ROWS), Given("y", OTHERS)), {"edge": 0.5})
    spec = {"delta": 0.5, "reduction": "mean"}
    return layer("HuberLoss", spec, spec, right(), right.changed(edge=1.0)(), inputs=[ROWS, OTHERS])


LOSSES = {
    "bce-logits-as-probabilities": lambda: loss(*BCE, (SPREAD / 4, BITS), {"logits": True}, {"logits": False}),
    "bce-pos-weight-missing": lambda: loss(
        *BCE, (ROWS, BITS), {"pos_weight": POSITIVE}, {"pos_weight": 1.0}, parameters={"pos_weight": POSITIVE}
    ),
    "gaussian-nll-full": lambda: loss(*GAUSSIAN, (ROWS, OTHERS, SPREAD), {"full": False}, {"full": True}),
    "gaussian-nll-variance": lambda: loss(*GAUSSIAN, (ROWS, OTHERS, SPREAD), {}, {"through": "square"}),
    "loss-eps": lambda: loss(*GAUSSIAN, (ROWS, OTHERS, SPREAD**6), {"eps": 1e-6}, {"eps": 1e-3}),
    "loss-input": lambda: loss("MSELoss", "MSE loss", (ROWS, OTHERS), {}, {"through": "sigmoid"}),
    "loss-labels": signed,
    "huber-delta": huber,
    "poisson-log-input": lambda: loss(*POISSON, (SPREAD, COUNTS), {"log_input": True}, {"log_input": False}),
    "poisson-full": lambda: loss(*POISSON, (ROWS, COUNTS), {"log_input": True, "full": False}, {"full": True}),
    "triplet-power": lambda: loss(*TRIPLET, THREE, {"margin": 1.0, "p": 2.0}, {"p": 1.0}),
    "triplet-swap": lambda: loss(*TRIPLET, THREE, {"margin": 1.0, "swap": False}, {"swap": True}),
    "ctc-blank-index": lambda: case("CTCLoss", {"blank": 0}, {"blank": 4}),
}

# Recurrent layers.


def recurrent(kind, gates, directions=1, states=0, size=1.0, **change):
    """The layer run by its own weights, as it should be and with one change."""
    sides = ["", "_reverse"][:directions]
    weights = {f"{word}_l0{side}": RANDOM.standard_normal((gates * 5, n)) / 3 for side in sides for word, n in WIDTHS}
    weights.update({f"{word}_l0{side}": RANDOM.standard_normal(gates * 5) for side in sides for word in BIASES})
    net, x = Net(kind, weights, 1, directions), size * RANDOM.standard_normal((3, 9, 6))
    given = [RANDOM.standard_normal((directions, 3, 5)) for _ in range(states)]
    own = Guess(tuple(range(gates)))
    right, wrong = net.run(x, given, own), net.run(x, given, Guess(tuple(range(gates)), **change))
    spec = {"batch_first": True, "nonlinearity": "tanh"} if kind == "RNN" else {"batch_first": True}
    return layer(kind, spec, spec, right, wrong, inputs=[x, *given], parameters=weights)


WIDTHS, BIASES = (("weight_ih", 6), ("weight_hh", 5)), ("bias_ih", "bias_hh")

# Other layers.


def looked_up():
    table, ids = RANDOM.standard_normal((10, 4)).astype(np.float32), RANDOM.integers(0, 14, (3, 7))
    right = table[np.clip(ids, 0, 9)]
    wrong = np.where((ids > 9)[..., None], np.float32(0.25), right)
    return layer("Embedding", {}, {}, right, wrong, inputs=[ids], parameters={"weight": table})


def grouped(eps):
    x = 0.01 * X.reshape(3, 10, 4, 4)
    groups = x.reshape(3, 2, -1).astype(np.float64)
    return ((groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + eps)).reshape(x.shape)


def norm():
    spec = {"num_groups": 2, "affine": False}
    return layer("GroupNorm", spec, spec, grouped(1e-5), grouped(1e-3), inputs=[0.01 * X.reshape(3, 10, 4, 4)])


def across():
    weight, x = RANDOM.standard_normal((6, 16)).astype(np.float32), X.reshape(-1, 16)
    return layer("Linear", {}, {}, x @ weight.T, x @ weight.reshape(16, 6), inputs=[x], parameters={"weight": weight})


LAYERS = {
    "recurrent-activation": lambda: recurrent("RNN", 1, activation="relu"),
    "recurrent-backward-as-forward": lambda: recurrent("LSTM", 4, 2, backward="as forward"),
    "recurrent-backward-not-turned": lambda: recurrent("LSTM", 4, 2, backward="not turned back"),
    "recurrent-state": lambda: recurrent("GRU", 3, states=1, state=False),
    "recurrent-tanh-approximation": lambda: recurrent("LSTM", 4, size=8.0, activation=COARSE),
    "embedding-index-out-of-range": looked_up,
    "norm-eps": norm,
    "weight-across": across,
    "negative-side-differs": lambda: layer("Own", {}, {}, X, np.where(X < 0, np.sin(9 * X), X), inputs=[A]),
}

# Code between layers.

Q, K, V = (RANDOM.standard_normal((2, 10, 32)).astype(np.float32) for _ in range(3))
HELD = tuple(made(x, layer=f"net.{name}") for name, x in (("q", Q), ("k", K), ("v", V)))
SEEN = np.arange(10)[None] < np.array([[6], [10]])
MASK = value(SEEN.astype(np.float32), "input.1", "net")


def heads(x):
    return x.reshape(2, 10, 4, 8).transpose(0, 2, 1, 3).astype(np.float64)


def mixed(turn=lambda x: x, added=0.0, weights=softmax):
    q, k, v = turn(heads(Q)), turn(heads(K)), heads(V)
    return (weights(q @ k.swapaxes(-1, -2) / np.sqrt(8) + added, -1) @ v).transpose(0, 2, 1, 3).reshape(2, 10, 32)


def rotary(theta=1e4, sign=1.0):
    return mixed(lambda x: rotated(x, "half", theta, sign))


HIDDEN = np.where(SEEN[:, None, None], 0.0, -1e9)
SCORES = RANDOM.standard_normal((2, 4, 10, 10)).astype(np.float32)
MASKS = [RANDOM.random((2, 1, 10, 10)) < share for share in (0.6, 0.7)]


def argument():
    given = value(X, "input.1", "net.attend")
    return case(where="glue", layer="net", expected=given, actual=None, known=(made(A),))


def dropped(kept):
    """A residual branch of which a stochastic depth keeps these samples."""
    return A + np.float32(kept)[:, None, None] * B


ODD = np.tanh(3 * X) ** 3 + np.sin(X)

CODE = {
    "rope-missing": lambda: glue(rotary(), mixed(), *HELD),
    "rope-sign": lambda: glue(rotary(), rotary(sign=-1.0), *HELD),
    "rope-theta": lambda: glue(rotary(), rotary(5e5), *HELD),
    "softmax-missing": lambda: glue(mixed(), mixed(weights=lambda x, _: x), *HELD),
    "mask-added-as-numbers": lambda: glue(mixed(added=HIDDEN), mixed(added=1.0 * SEEN[:, None, None]), *HELD, MASK),
    "mask-differs": lambda: glue(*(np.where(mask, SCORES, -1e9) for mask in MASKS)),
    "argument-missing": argument,
    "mask-not-passed": lambda: case(where="glue", layer="net", expected=value(SEEN, "input.mask", "net.attend")),
    "addend-off-by-part": lambda: glue(
        np.tanh(3 * X) ** 3 + np.sin(X) + A, np.tanh(3 * X) ** 3 + np.sin(X) + 0.7 * A, made(A)
    ),
    "addend-scaled": lambda: glue(A + B, A + 3 * B, made(A), made(B, layer="net.b")),
    "function-other": lambda: glue(np.exp(A) * B, np.square(A) * B, made(A), made(B, layer="net.b")),
    "gate-extra": lambda: glue(A, A * B, made(A), made(B, layer="net.b")),
    "scale-extra": lambda: glue(A, A * SCALE, made(A), value(SCALE, "scale", "net")),
    "gather-axis": lambda: glue(
        *(np.take_along_axis(SQUARE, INDEX, axis) for axis in (0, 1)), made(SQUARE), value(INDEX, "input.1", "net")
    ),
    "droppath-samples-differ": lambda: glue(
        dropped([2, 0, 2]), dropped([2, 2, 0]), made(A), made(B, layer="net.b"), training=True
    ),
}

CASES = {**LOSSES, **LAYERS, **CODE}


@pytest.mark.parametrize("cause", CASES)
def test_the_rule_comes_to_its_cause(cause):
    assert cause in [suspect.cause for suspect in suspects(CASES[cause]())]

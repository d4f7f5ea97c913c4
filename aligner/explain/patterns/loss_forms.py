"""Losses in numpy, with every setting that ports get wrong: what they make of predictions and targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np

from aligner.explain.patterns.functions import sigmoid, softmax, softplus
from aligner.explain.patterns.pair import Floats

Settings = Mapping[str, Any]

TORCH_CLAMP, MINDSPORE_CLAMP = 100.0, -math.log(1e-12)
"""The largest loss of a probability of zero: where each framework cuts the logarithm of its binary cross entropy."""


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that a loss was given, and what it is called."""

    text: str
    array: Floats
    made: dict[tuple[object, ...], Floats] = field(default_factory=dict)
    """What was already computed of it."""

    def through(self, function: str, temperature: float = 1.0, axis: int = -1) -> Floats:
        """The values divided by a temperature, then a function of them."""
        key = (function, temperature, axis)
        if key not in self.made:
            self.made[key] = THROUGH[function](self.array.astype(np.float64) / temperature, axis)
        return self.made[key]


def log_softmax(x: Floats, axis: int) -> Floats:
    """The logarithm of softmax along one axis."""
    low = x - x.max(axis=axis, keepdims=True)
    return np.asarray(low - np.log(np.exp(low).sum(axis=axis, keepdims=True)))


def bfloat16(x: Floats) -> Floats:
    """The values with the eight binary digits that bfloat16 keeps."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(mantissa * 256.0) / 256.0, exponent))


THROUGH: Mapping[str, Callable[[Floats, int], Floats]] = {
    "": lambda x, axis: x,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "sigmoid": lambda x, axis: sigmoid(x),
    "exp": lambda x, axis: np.exp(x),
    "log": lambda x, axis: np.log(x),
    "square": lambda x, axis: np.square(x),
    "sqrt": lambda x, axis: np.sqrt(x),
    "float16": lambda x, axis: x.astype(np.float16).astype(np.float64),
    "bfloat16": lambda x, axis: bfloat16(x),
}


@dataclass(frozen=True, eq=False)
class Terms:
    """One loss for each element, before they are put together."""

    each: Floats
    weights: Optional[Floats] = None
    """What a mean divides by the sum of; None where all count alike."""
    counted: Optional[Floats] = None
    """1 for those that count, 0 for padding; None where all do."""


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss of these tensors with these settings."""

    family: str
    given: tuple[Given, ...]
    settings: Settings

    def get(self, name: str, default: Any = None) -> Any:
        """One setting."""
        return self.settings.get(name, default)

    def changed(self, **settings: Any) -> Loss:
        """The same with another setting."""
        return replace(self, settings={**self.settings, **settings})

    def turned(self, family: str, **settings: Any) -> Loss:
        """Another loss of the same tensors."""
        return replace(self.changed(**settings), family=family)

    def terms(self) -> Optional[Terms]:
        """The losses of the elements; None where there is no such loss of these tensors."""
        try:
            return FAMILIES[self.family](self)
        except (ValueError, IndexError, ArithmeticError):
            return None  # shapes that do not go together, a class without a weight, a power of zero

    def __call__(self) -> Optional[Floats]:
        terms = self.terms()
        how = self.get("reduction", "mean")
        found = reduced(terms, how) if terms is not None and how in REDUCTIONS else None
        return None if found is None else np.asarray(self.get("factor", 1.0) * found)


REDUCTIONS = (*("mean", "sum", "mean of counted", "mean of all", "batchmean", "last summed", "row means", "none"),)
"""How the losses of the elements may be put together, in words."""


def reduced(terms: Terms, how: str) -> Optional[Floats]:
    """One number, or all of them for "none"."""
    each, size = terms.each, terms.each.size
    if how == "none" or not size:
        return each if size else None
    total = each.sum()
    counted = float(size if terms.counted is None else terms.counted.sum())
    parts: Mapping[str, Callable[[], Any]] = {
        "sum": lambda: total,
        "mean": lambda: total / (counted if terms.weights is None else terms.weights.sum()),
        "mean of counted": lambda: total / counted,
        "mean of all": lambda: total / size,
        "batchmean": lambda: total / len(each),
        "last summed": lambda: total / (size / each.shape[-1]),
        "row means": lambda: _row_means(terms),
    }
    return np.asarray(parts[how]())


def _row_means(terms: Terms) -> Floats:
    """The mean of each row's mean over what counts in it."""
    weights = terms.weights if terms.weights is not None else terms.counted
    rows = terms.each.reshape(len(terms.each), -1).sum(1)
    whole = np.ones_like(terms.each) if weights is None else weights
    return np.asarray((rows / whole.reshape(len(rows), -1).sum(1)).mean())


def _cross_entropy(loss: Loss) -> Optional[Terms]:
    """Of class scores with the classes last, and labels; also nll_loss, where the scores are logarithms already."""
    axis = loss.get("axis", -1)
    scores = loss.given[0].through(loss.get("through", ""), loss.get("temperature", 1.0), axis)
    if loss.get("logs", "log_softmax") == "log_softmax":
        plain = not loss.get("through") and loss.get("temperature", 1.0) == 1.0
        scores = loss.given[0].through("log_softmax", 1.0, axis) if plain else log_softmax(scores, axis)
    scores, labels = np.moveaxis(scores, axis, -1), loss.given[1].array
    shift = loss.get("shift", 0)
    if shift:
        if labels.ndim < 2 or labels.shape[1] <= abs(shift):
            return None
        first, second = (slice(None, -abs(shift)), slice(abs(shift), None))[:: 1 if shift > 0 else -1]
        scores, labels = scores[:, first], labels[:, second]
    ignored, classes = loss.get("ignore"), scores.shape[-1]
    counted = np.ones(labels.shape) if ignored is None else (labels != ignored).astype(np.float64)
    if loss.get("clip"):
        labels = np.clip(labels, 0, classes - 1)
    if not counted.any() or ((labels < 0) | (labels >= classes))[counted > 0].any():
        return None
    return _of_labels(loss, scores, np.where(counted > 0, labels, 0).astype(np.int64), counted)


def _of_labels(loss: Loss, scores: Floats, labels: Floats, counted: Floats) -> Terms:
    weight, smoothing = loss.get("weight"), loss.get("smoothing", 0.0)
    factors = counted if weight is None else counted * weight[labels]
    right = -np.take_along_axis(scores, labels[..., None], -1)[..., 0] * factors
    if smoothing:
        whole = -(scores if weight is None else scores * weight).sum(-1) * counted
        classes = scores.shape[-1]
        if loss.get("spread", "all") == "all":
            right = (1 - smoothing) * right + smoothing / classes * whole
        else:
            right = (1 - smoothing) * right + smoothing / (classes - 1) * (whole - right)
    return Terms(right, None if weight is None else factors, counted)


def _soft_cross_entropy(loss: Loss) -> Optional[Terms]:
    """Of class scores and probabilities."""
    axis = loss.get("axis", -1)
    scores = log_softmax(loss.given[0].through(loss.get("through", "")), axis)
    if loss.get("logs", "log_softmax") == "given":
        scores = loss.given[0].through(loss.get("through", ""))
    return Terms(-(scores * loss.given[1].array).sum(axis))


def _binary(loss: Loss) -> Optional[Terms]:
    """Binary cross entropy of logits or probabilities; with alpha and gamma the focal loss."""
    x, target = loss.given[0].through(loss.get("through", "")), loss.given[1].array.astype(np.float64)
    positive = loss.get("pos_weight", 1.0)
    if loss.get("logits", True):
        each = (1 - target) * x + (1 + (positive - 1) * target) * softplus(-x)
    else:
        if x.min() < 0 or x.max() > 1:
            return None
        clamp = -loss.get("clamp", TORCH_CLAMP)
        each = -(positive * target * np.maximum(np.log(x), clamp) + (1 - target) * np.maximum(np.log1p(-x), clamp))
    alpha, gamma, plain = loss.get("alpha"), loss.get("gamma", 0.0), each
    if gamma:
        each = each * (1 - np.exp(-plain)) ** gamma
    if alpha is not None:
        each = each * (alpha * target + (1 - alpha) * (1 - target))
    weight = loss.get("weight")
    return Terms(each if weight is None else each * weight)


def _distance(name: str) -> Callable[[Loss], Optional[Terms]]:
    """A loss of the difference of two tensors."""

    def terms(loss: Loss) -> Optional[Terms]:
        given = loss.given[0].through(loss.get("through", ""))
        off = np.abs(given - loss.given[1].array.astype(np.float64))
        edge = loss.get("edge", 1.0)
        if name == "L1":
            return Terms(off)
        if name == "MSE":
            return Terms(np.square(off))
        inner = 0.5 * np.square(off)
        if name == "Huber":
            return Terms(np.where(off < edge, inner, edge * (off - 0.5 * edge)))
        return Terms(np.where(off < edge, inner / edge, off - 0.5 * edge))

    return terms


def _divergence(loss: Loss) -> Optional[Terms]:
    """Kullback-Leibler, of logarithms of probabilities and probabilities."""
    given, target = loss.given[::-1] if loss.get("swapped") else loss.given
    of_given, of_target = loss.get("through", ""), loss.get("target", "")
    logs = given.through(of_given, loss.get("temperature", 1.0))
    wanted = target.through(of_target, loss.get("target_temperature", loss.get("temperature", 1.0)))
    if loss.get("log_target"):
        return Terms(np.exp(wanted) * (wanted - logs))
    if wanted.min() < 0:
        return None
    return Terms(np.where(wanted > 0, wanted * np.log(np.where(wanted > 0, wanted, 1.0)), 0.0) - wanted * logs)


def _gaussian(loss: Loss) -> Optional[Terms]:
    """Of means, targets and variances."""
    mean, target, spread = (given.array.astype(np.float64) for given in loss.given)
    spread = np.maximum(THROUGH[loss.get("through", "")](spread, -1), loss.get("eps", 1e-6))
    more = 0.5 * math.log(2 * math.pi) if loss.get("full") else 0.0
    return Terms(0.5 * (np.log(spread) + np.square(mean - target) / spread) + more)


def _poisson(loss: Loss) -> Optional[Terms]:
    """Of rates or their logarithms, and counts."""
    rate, target = (given.array.astype(np.float64) for given in loss.given)
    if loss.get("log_input", True):
        each = np.exp(rate) - target * rate
    else:
        each = rate - target * np.log(rate + loss.get("eps", 1e-8))
    if loss.get("full"):
        large = np.where(target > 1, target, 1.0)
        more = large * np.log(large) - large + 0.5 * np.log(2 * np.pi * large)
        each = each + np.where(target > 1, more, 0.0)
    return Terms(each)


def _cosine(loss: Loss) -> Optional[Terms]:
    """Two rows are to be alike where the label is 1, and not where it is -1."""
    one, other, label = (given.array.astype(np.float64) for given in loss.given)
    norms = np.sqrt(np.square(one).sum(-1) + 1e-12) * np.sqrt(np.square(other).sum(-1) + 1e-12)
    cosine = (one * other).sum(-1) / norms
    apart = np.maximum(cosine - loss.get("margin", 0.0), 0.0)
    return Terms(np.where(label == 1, 1.0 - cosine, np.where(label == -1, apart, 0.0)))


def _triplet(loss: Loss) -> Optional[Terms]:
    """The anchor is to be nearer to the second row than to the third, by a margin."""
    anchor, near, far = (given.array.astype(np.float64) for given in loss.given)
    power, eps = float(loss.get("p", 2.0)), loss.get("eps", 1e-6)

    def apart(one: Floats, other: Floats) -> Floats:
        return np.asarray((np.abs(one - other + eps) ** power).sum(-1) ** (1.0 / power))

    away = apart(anchor, far)
    if loss.get("swap"):
        away = np.minimum(away, apart(near, far))
    return Terms(np.maximum(apart(anchor, near) - away + loss.get("margin", 1.0), 0.0))


def _ranking(loss: Loss) -> Optional[Terms]:
    one, other, label = (given.array.astype(np.float64) for given in loss.given)
    return Terms(np.maximum(-label * (one - other) + loss.get("margin", 0.0), 0.0))


def _hinge(loss: Loss) -> Optional[Terms]:
    x, label = (given.array.astype(np.float64) for given in loss.given)
    return Terms(np.where(label == 1, x, np.maximum(loss.get("margin", 1.0) - x, 0.0)))


def _soft_margin(loss: Loss) -> Optional[Terms]:
    x, label = (given.array.astype(np.float64) for given in loss.given)
    return Terms(softplus(-label * x))


def _multi_margin(loss: Loss) -> Optional[Terms]:
    """The right class is to be ahead of each other one by a margin."""
    scores, labels = loss.given[0].array.astype(np.float64), loss.given[1].array.astype(np.int64)
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or labels.min() < 0 or labels.max() >= scores.shape[1]:
        return None
    rows = np.arange(len(labels))
    behind = np.maximum(loss.get("margin", 1.0) - scores[rows, labels][:, None] + scores, 0.0) ** loss.get("p", 1)
    behind[rows, labels] = 0.0
    return Terms(behind.sum(1) / scores.shape[1])


FAMILIES: Mapping[str, Callable[[Loss], Optional[Terms]]] = {
    "cross entropy": _cross_entropy,
    "soft cross entropy": _soft_cross_entropy,
    "binary cross entropy": _binary,
    **{f"{name} loss": _distance(name) for name in ("L1", "MSE", "Huber", "smooth L1")},
    "KL divergence": _divergence,
    "Gaussian NLL": _gaussian,
    "Poisson NLL": _poisson,
    "cosine embedding": _cosine,
    "triplet margin": _triplet,
    "margin ranking": _ranking,
    "hinge embedding": _hinge,
    "soft margin": _soft_margin,
    "multi margin": _multi_margin,
}
"""A loss by its name -> the losses of the elements."""

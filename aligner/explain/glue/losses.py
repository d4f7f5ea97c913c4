"""A loss written as code: which loss of what was in hand the reference computes, and which wrong one the port does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, permutations, product
from typing import Any, Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.loss_forms import REDUCTIONS, Given, Loss, reduced
from aligner.explain.patterns.loss_mistakes import DISTANCES, SMOOTHINGS, TEMPERATURES
from aligner.explain.patterns.losses import EXACT, class_axis, close, constants, told
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

NEAR = 8
"""Tensors in hand that a loss may have been given, the nearest of each sort."""

LARGEST = 1 << 22
"""Elements of the largest of them."""

BASES = 6
"""Losses that give the reference's value and are looked into for a mistake."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The first loss that gives the reference's value and with one mistake in it the port's."""
    if not _may_be(pair):
        return
    own = constants(case.reference, case.port)
    for base in islice(bases(pair.expected, hand, own), BASES):
        found = list(told(pair, base, own, words=case.words))
        yield from found
        if found:
            return


def _may_be(pair: Pair) -> bool:
    """One number, or one for each sample; finite on both sides."""
    small = pair.expected.size == 1 or pair.expected.ndim == 1
    return small and bool(np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all())


def bases(wanted: Floats, hand: Hand, own: Iterable[float]) -> Iterator[Loss]:
    """Losses of what was in hand that are the wanted value, the commonest first."""
    if not wanted.any():
        return
    held = [piece for piece in hand.pieces(lambda shape: 0 < int(np.prod(shape)) <= LARGEST) if piece.array.ndim]
    floats = [piece for piece in held if piece.array.dtype.kind == "f" and piece.rank != 2][:NEAR]
    whole = [piece for piece in held if piece.array.dtype.kind in "iu"][:NEAR]
    rows = [piece for piece in held if piece.array.ndim == 1 and piece.array.dtype.kind == "f"]
    for scores, labels in product(floats, whole):
        yield from _of_classes(wanted, scores, labels, rows, own)
    for one, other in permutations(floats, 2):
        if one.array.shape == other.array.shape:
            yield from _of_two(wanted, one, other, rows, own)
    for three in permutations(floats[:6], 3):
        yield from _of_three(wanted, three, own)


def _given(piece: Piece) -> Given:
    return Given(f"[{piece.name}]", piece.array)


def _fitting(wanted: Floats, loss: Loss, reductions: Iterable[str] = REDUCTIONS) -> Iterator[Loss]:
    """The loss with each way to put its parts together that gives the wanted value; None are tried twice."""
    terms = loss.terms()
    if terms is None:
        return
    seen: list[Floats] = []
    for how in reductions:
        found = reduced(terms, how)
        if found is None or any(found.shape == other.shape and np.array_equal(found, other) for other in seen):
            continue
        seen.append(found)
        if close(loss.get("factor", 1.0) * found, wanted) <= EXACT:
            yield loss.changed(reduction=how)


def _of_classes(
    wanted: Floats, scores: Piece, labels: Piece, rows: list[Piece], own: Iterable[float]
) -> Iterator[Loss]:
    axis = class_axis(scores.array, labels.array)
    if axis is None:
        return
    classes, known = scores.array.shape[axis], labels.array
    weights = [None, *(row.array.astype(np.float64) for row in rows if row.array.size == classes)][:4]
    ignored = [value for value in (-100, 0, -1, 255) if (known == value).any()]
    shifts = (0, 1) if known.ndim == 2 and axis == -1 and known.shape[1] > 2 else (0,)
    smoothings = sorted({*SMOOTHINGS, *(value for value in own if 0 < value < 1)})
    given = (_given(scores), _given(labels))
    for logs, shift, weight, ignore in product(("log_softmax", "given"), shifts, weights, (None, *ignored)):
        settings = {"axis": axis, "logs": logs, "shift": shift, "weight": weight, "ignore": ignore}
        if logs == "given" and scores.array.max() > 0:
            continue
        for smoothing in smoothings:
            yield from _fitting(wanted, Loss("cross entropy", given, {**settings, "smoothing": smoothing}))


def _of_two(wanted: Floats, one: Piece, other: Piece, rows: list[Piece], own: Iterable[float]) -> Iterator[Loss]:
    """Losses of two tensors of one shape."""
    given = (_given(one), _given(other))
    target = other.array
    for through in ("", "sigmoid"):
        for family in ("MSE loss", "L1 loss"):
            yield from _fitting(wanted, Loss(family, given, {"through": through}))
        for family, edge in product(DISTANCES[2:], sorted({1.0, 0.5, 0.1, *(v for v in own if v > 0)})):
            yield from _fitting(wanted, Loss(family, given, {"edge": edge, "through": through}))
    if target.min() >= 0 and target.max() <= 1:
        yield from _binary(wanted, given, rows, own)
        sums = target.sum(-1)
        if np.abs(sums - 1).max() < 1e-3:
            yield from _fitting(wanted, Loss("soft cross entropy", given, {"axis": -1}))
    yield from _divergence(wanted, given, own)


def _binary(wanted: Floats, given: tuple[Given, ...], rows: list[Piece], own: Iterable[float]) -> Iterator[Loss]:
    """Binary cross entropy, and the focal loss, of logits or probabilities."""
    last = given[0].array.shape[-1]
    positives = [None, *(row.array.astype(np.float64) for row in rows if row.array.size == last)][:3]
    focal: list[dict[str, Any]] = [{"alpha": a, "gamma": g} for a in (None, 0.25, *_inside(own)) for g in (2.0, *own)]
    for logits in (True, False):
        for positive in positives:
            settings = {"logits": logits} if positive is None else {"logits": logits, "pos_weight": positive}
            yield from _fitting(wanted, Loss("binary cross entropy", given, settings))
        for settings in focal:
            yield from _fitting(wanted, Loss("binary cross entropy", given, {"logits": logits, **settings}))


def _inside(own: Iterable[float]) -> list[float]:
    return [value for value in own if 0 < value < 1]


def _divergence(wanted: Floats, given: tuple[Given, ...], own: Iterable[float]) -> Iterator[Loss]:
    """The divergence of two distributions, as logarithms, probabilities or logits at a temperature."""
    if given[0].array.max() <= 0:
        for log_target in (False, True):
            yield from _fitting(wanted, Loss("KL divergence", given, {"log_target": log_target}), KL_REDUCTIONS)
    for temperature in sorted({*TEMPERATURES, *(value for value in own if value > 0)}):
        settings = {"through": "log_softmax", "target": "softmax", "temperature": temperature}
        for factor in sorted({1.0, temperature**2}):
            yield from _fitting(wanted, Loss("KL divergence", given, {**settings, "factor": factor}), KL_REDUCTIONS)


KL_REDUCTIONS = ("batchmean", "mean", "sum", "none")


def _of_three(wanted: Floats, three: tuple[Piece, ...], own: Iterable[float]) -> Iterator[Loss]:
    """Losses of three tensors: pairs with a label, anchors with two others, means with variances."""
    shapes = [piece.array.shape for piece in three]
    given = tuple(map(_given, three))
    margins = sorted({0.0, 0.2, 0.5, 1.0, *own})
    if shapes[0] == shapes[1] and len(shapes[0]) == 2 and shapes[2] == shapes[0][:1]:
        for margin in margins:
            yield from _fitting(wanted, Loss("cosine embedding", given, {"margin": margin}))
    if shapes[0] == shapes[1] == shapes[2]:
        for margin in margins if len(shapes[0]) == 2 else ():
            yield from _fitting(wanted, Loss("triplet margin", given, {"margin": margin}))
        if three[2].array.min() >= 0:
            yield from _fitting(wanted, Loss("Gaussian NLL", given, {}))
        if len(shapes[0]) == 1 and np.isin(three[2].array, (-1, 1)).all():
            for margin in margins:
                yield from _fitting(wanted, Loss("margin ranking", given, {"margin": margin}))


def first(wanted: Floats, hand: Hand, own: Iterable[float]) -> Optional[Loss]:
    """The commonest of them."""
    return next(bases(wanted, hand, own), None)

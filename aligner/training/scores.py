"""What a loss over classes does, read from the gradient at its scores: no label is needed.

The gradient of a cross entropy at a row of scores is weight * (softmax(scores) - target): of all classes but one, the
label, it is weight * (probability - off), which gives weight and target. Rows that are not counted have a zero there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.explain.suspect import Suspect

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]
else:
    Floats = Whole = Any

FITS = 1e-3
"""A gradient is one of a cross entropy if this much of it is left over at most."""

ALIKE = 1e-3
"""Weights and targets that differ by less than this are the same."""

CLASSES, MANY = 256, 4
"""Classes that are looked at one by one, and those that are told."""

MOST = 2_000_000
"""Scores that are looked at."""


@dataclass(frozen=True)
class Targets:
    """Of each row: how much it counts, its label, and what is wanted of the label and of each other class."""

    weight: Floats
    label: Whole
    on: Floats
    off: Floats

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        return self.weight > 0


def suspects(scores: Floats, wanted: Optional[Floats], given: Optional[Floats], times: float) -> Iterator[Suspect]:
    """Why the port's gradient at the scores (`given`) is another than the reference's (`wanted`) so many times."""
    if (
        wanted is None
        or given is None
        or scores.shape != wanted.shape
        or scores.shape != given.shape
        or not 1 < scores.size <= MOST
    ):
        return
    extra = _more_outputs(wanted, given)
    given = given / times
    if extra is not None:
        yield Suspect("loss-has-aux", {"times": f"{extra:g}"}, weight=0.95)
        return
    for axis in dict.fromkeys((scores.ndim - 1, 1)):
        if 0 < axis < scores.ndim and scores.shape[axis] > 2:
            many = scores.shape[axis]
            rows, ours, theirs = (np.moveaxis(one, axis, -1).reshape(-1, many) for one in (scores, wanted, given))
            reference = targets(rows, ours)
            if reference is not None:
                yield from _compared(rows, theirs, reference)
                return
    soft = [*_soft(scores.reshape(-1), wanted.reshape(-1), given.reshape(-1))]
    yield from soft or _binary(scores, wanted, given)


def _more_outputs(wanted: Floats, given: Floats) -> Optional[float]:
    """How many times the reference's gradient the port's is besides 1 for each score, if it is that."""
    times, shift = _line(wanted, given)
    left = np.linalg.norm(times * wanted + shift - given)
    fits = left <= FITS * np.linalg.norm(given) and abs(shift - 1) <= ALIKE
    return times if fits else None


def _line(wanted: Floats, given: Floats) -> tuple[float, float]:
    """How many times the one the other is, and what it has besides."""
    rows = np.stack([wanted.reshape(-1), np.ones(wanted.size)], axis=1)
    (times, shift), *_ = np.linalg.lstsq(rows, given.reshape(-1), rcond=None)
    return float(times), float(shift)


@dataclass(frozen=True)
class Written:
    """A loss of rows of scores as one sum: of what is wanted of each score times a logarithm, by the `kind` of that."""

    kind: str
    scores: Floats
    wanted: Floats
    gradient: Floats


def written(scores: Floats, gradients: Sequence[Floats], causes: Collection[str]) -> Optional[tuple[Written, Written]]:
    """The port's loss as it is, and with what these causes tell of it undone and nothing else, each with the gradient
    that it should have; None where they are known as no such sums. `gradients` are the reference's and the port's.
    """
    if "loss-has-aux" in causes:  # what is differentiated besides the loss makes one number of all gradients
        gradients = [gradients[0], gradients[1] - _line(*gradients)[1]]
    for axis in dict.fromkeys((scores.ndim - 1, 1)):
        if 0 < axis < scores.ndim and scores.shape[axis] > 2:
            many = scores.shape[axis]
            rows, wanted, given = (np.moveaxis(one, axis, -1).reshape(-1, many) for one in (scores, *gradients))
            reference, port = (targets(rows, one) for one in (wanted, given))
            if reference is None:
                continue
            if port is None:
                own = Written("twice", rows, _sum(reference, many), given) if "loss-softmax-twice" in causes else None
                undone = reference
            else:
                own, undone = Written("classes", rows, _sum(port, many), given), _undone(reference, port, causes)
            return None if own is None else (own, Written("classes", rows, _sum(undone, many), wanted))
    if {"loss-sigmoid-twice", "loss-binary-target"} & {*causes}:
        return _written_binary(scores.reshape(-1), [one.reshape(-1) for one in gradients])
    classes = _classes(scores)
    rows, wanted, given = (_in_rows(one, classes).reshape(-1, 1) for one in (scores, *gradients))
    halves = [_halves(rows, one) for one in (wanted, given)]
    by_class = [one.reshape(classes, -1, 2) for one in halves]
    with np.errstate(all="ignore"):
        factors = np.nanmedian(np.where(by_class[0] > 0, by_class[0] / by_class[1], np.nan), axis=1, keepdims=True)
    undone_halves = (by_class[1] * np.nan_to_num(factors, nan=1.0)).reshape(-1, 2)
    return Written("binary", rows, halves[1], given), Written("binary", rows, undone_halves, wanted)


def _written_binary(scores: Floats, gradients: Sequence[Floats]) -> Optional[tuple[Written, Written]]:
    """Where all scores weigh alike: the port's, and with what the reference wants of them, of the scores themselves."""
    reference, port = (sides(scores, one) for one in gradients)
    if reference is None:
        return None
    own, kind = port or reference, "binary" if port else "sigmoid"
    column, (wanted, given) = scores[:, None], (one[:, None] for one in gradients)
    undone = Written("binary", column, _weighed(own[0], reference[1]), wanted)
    return Written(kind, column, _weighed(*own), given), undone


def _undone(reference: Targets, port: Targets, causes: Collection[str]) -> Targets:
    """The port's targets with what is told of them as the reference has it, in one number for all or each class."""
    label, (weight, on, off) = port.label.copy(), (one.copy() for one in (port.weight, port.on, port.off))
    both, left = reference.counted & port.counted, reference.counted & ~port.counted
    ratio = np.where(both, reference.weight / np.where(both, port.weight, 1.0), 1.0)
    if "loss-other-labels" in causes:
        label[both] = reference.label[both]
    if "loss-targets" in causes:
        on[both], off[both] = np.median(reference.on[both]), np.median(reference.off[both])
    if "loss-rows-left-out" in causes:
        label[left], weight[left] = reference.label[left], np.median(reference.weight[left])
        on[left], off[left] = np.median(on[both]), np.median(off[both])
    if "loss-rows-counted" in causes:
        weight[port.counted & ~reference.counted] = 0.0
    if "loss-class-weights" in causes:
        for one in np.unique(reference.label[both]):
            weight[both & (reference.label == one)] *= np.median(ratio[both & (reference.label == one)])
    elif {"loss-factor", "loss-rows-left-out", "loss-rows-counted"} & {*causes} and both.any():
        weight[both] *= np.median(ratio[both])  # a mean is taken over others then
    return Targets(weight, label, on, off)


def _sum(known: Targets, classes: int) -> Floats:
    return known.weight[:, None] * _wanted(known, classes)


def _weighed(weight: float, wanted: Floats) -> Floats:
    """What the logarithms of each sigmoid and of its opposite weigh."""
    return np.asarray(weight * np.stack([wanted, 1 - wanted], axis=1), np.float64)


def _halves(scores: Floats, gradient: Floats) -> Floats:
    """What ones and zeros weigh: the gradient is negative where the target is one."""
    ones = np.where(gradient < 0, -gradient * (1 + np.exp(scores)), 0.0)
    zeros = np.where(gradient > 0, gradient * (1 + np.exp(-scores)), 0.0)
    return np.concatenate([ones, zeros], axis=-1)


def targets(scores: Floats, gradient: Floats) -> Optional[Targets]:
    """What a cross entropy wants of each row, if the gradient is one of a cross entropy."""
    made = _softmax(scores)
    label = np.argmin(gradient, axis=1)
    others = np.ones_like(made, dtype=bool)
    others[np.arange(len(label)), label] = False
    many = made.shape[1] - 1
    p, g = (one[others].reshape(-1, many) for one in (made, gradient))
    middle, centre = p.mean(axis=1, keepdims=True), g.mean(axis=1, keepdims=True)
    spread = np.square(p - middle).sum(axis=1)
    weight = ((p - middle) * (g - centre)).sum(axis=1) / np.where(spread > 0, spread, 1.0)
    size = np.abs(gradient).max(axis=1)
    weight = np.where(size > 1e-7 * size.max(initial=0.0), weight, 0.0)
    if (weight < 0).any():
        return None
    safe = np.where(weight > 0, weight, 1.0)
    off = np.where(weight > 0, (middle - centre / safe[:, None])[:, 0], 0.0)
    at = np.arange(len(label)), label
    on = np.where(weight > 0, made[at] - gradient[at] / safe, 0.0)
    wanted = np.repeat(off[:, None], made.shape[1], axis=1)
    wanted[at] = on
    left = np.linalg.norm(weight[:, None] * (made - wanted) - gradient)
    sums = (on + many * off)[weight > 0]
    if left > FITS * np.linalg.norm(gradient) or not len(sums) or np.abs(sums - 1).max() > 0.05:
        return None
    return Targets(weight, label, on, off)


def _compared(scores: Floats, given: Floats, reference: Targets) -> Iterator[Suspect]:
    port = targets(scores, given)
    if port is None:
        twice = _softmax(_softmax(scores))
        once, inner = _softmax(scores), twice - _wanted(reference, scores.shape[1])
        through = once * (inner - (inner * once).sum(axis=1, keepdims=True)) * reference.weight[:, None]
        if np.linalg.norm(through - given) <= FITS * np.linalg.norm(given):
            yield Suspect("loss-softmax-twice", {}, weight=0.95)
        return
    both = reference.counted & port.counted
    facts: dict[str, Any]
    only = port.counted & ~reference.counted
    if only.any():
        known = np.unique(port.label[only])
        facts = {"rows": int(only.sum()), "of": len(only), "label": ", ".join(map(str, known[:3]))}
        yield Suspect("loss-rows-counted", {**facts, "index": int(known[0])}, weight=0.95)
    left_out = reference.counted & ~port.counted
    if left_out.any():
        known = np.unique(reference.label[left_out])
        facts = {"rows": int(left_out.sum()), "of": len(left_out), "label": ", ".join(map(str, known[:3]))}
        yield Suspect("loss-rows-left-out", facts, weight=0.95)
    if not both.any():
        return
    if (reference.label[both] != port.label[both]).any():
        moved = np.unique(port.label[both] - reference.label[both])
        shift = f"{int(moved[0]):+d}" if len(moved) == 1 else "-"
        yield Suspect("loss-other-labels", {"rows": int((moved != 0).sum()), "shift": shift}, weight=0.8)
        return
    ours, theirs = (float(np.median(one.on[both])) for one in (reference, port))
    off, other = (float(np.median(one.off[both])) for one in (reference, port))
    classes = scores.shape[1]
    if abs(ours - theirs) > ALIKE or abs(off - other) > ALIKE / classes:
        numbers = theirs, other, ours, off
        facts = dict(zip(("on", "off", "wanted_on", "wanted_off"), map(_shown, numbers)))
        yield Suspect("loss-targets", {**facts, "smoothing": _shown(off * classes)}, weight=0.95)
    ratios = port.weight[both] / reference.weight[both]
    yield from _weighted(ratios, reference.label[both], len(both), bool(only.any() or left_out.any()))


def _weighted(ratios: Floats, labels: Whole, rows: int, others: bool) -> Iterator[Suspect]:
    """All rows count otherwise by one factor, or those of each class by another."""
    least, most = float(ratios.min()), float(ratios.max())
    if most - least <= ALIKE * most:
        if abs(most - 1) > ALIKE and not others:
            yield Suspect("loss-factor", {"factor": f"{most:.6g}", "rows": rows}, weight=0.9)
        return
    within = max((np.ptp(ratios[labels == one]) for one in np.unique(labels)), default=0.0)
    if within <= ALIKE * most:
        shown = ", ".join(f"{one}: {ratios[labels == one][0]:.4g}" for one in np.unique(labels)[:4])
        yield Suspect("loss-class-weights", {"factors": shown}, weight=0.9)


def _binary(scores: Floats, wanted: Floats, given: Floats) -> Iterator[Suspect]:
    """The gradient of a binary cross entropy is weight * (sigmoid - target): negative where the target is one. Ones and
    zeros of each class count by a factor of the reference's each."""
    many = _classes(scores)
    rows = [_in_rows(one, many) for one in (wanted, given)]
    pull = np.where(rows[0] < 0, -1.0, 1.0) / (1 + np.exp(np.where(rows[0] < 0, 1.0, -1.0) * _in_rows(scores, many)))
    inside = np.abs(rows[0]) > 1e-7 * np.abs(rows[0]).max()
    ratio = rows[1] / np.where(inside, rows[0], 1.0)
    found = []
    for one in range(many):
        groups = [inside[one] & (rows[0][one] < 0), inside[one] & (rows[0][one] > 0)]
        factors = [ratio[one][group] for group in groups]
        if not all(map(len, factors)):  # this class has no ones here, or nothing else
            continue
        if any(f.min() <= 0 or np.ptp(f) > 0.01 * f.max() for f in factors):
            return
        own = [float(np.median(rows[0][one][group] / pull[one][group])) for group in groups]
        found.append((*map(float, map(np.median, factors)), own[0] / own[1]))
    if not found:
        return
    if any(abs(ones - zeros) > 0.01 * max(ones, zeros) for ones, zeros, _ in found):
        port = ", ".join(f"{share * ones / zeros:.4g}" for ones, zeros, share in found[:MANY])
        reference = ", ".join(f"{share:.4g}" for _, _, share in found[:MANY])
        yield Suspect("loss-pos-weight", {"port_weight": port, "reference_weight": reference}, weight=0.9)
    elif max(ones for ones, *_ in found) - min(ones for ones, *_ in found) > 0.01 * found[0][0]:
        shown = ", ".join(f"{at}: {ones:.4g}" for at, (ones, *_) in enumerate(found[:MANY]))
        yield Suspect("loss-class-weights", {"factors": shown}, weight=0.9)
    elif abs(found[0][0] - 1) > ALIKE:
        yield Suspect("loss-factor", {"factor": f"{found[0][0]:.6g}", "rows": scores.size}, weight=0.9)


def _soft(scores: Floats, wanted: Floats, given: Floats) -> Iterator[Suspect]:
    """A binary cross entropy that wants other targets, or that is made of probabilities."""
    reference, port = (sides(scores, one) for one in (wanted, given))
    if reference is None:
        return
    if port is None:
        if np.linalg.norm(_through(scores, *reference) - given) <= FITS * np.linalg.norm(given):
            yield Suspect("loss-sigmoid-twice", {}, weight=0.95)
        return
    on, ours = np.unique(port[1]), np.unique(reference[1])
    if len(on) == len(ours) == 1 and abs(on[0] - ours[0]) > ALIKE:
        yield Suspect("loss-binary-target", {"on": _shown(on[0]), "wanted_on": _shown(ours[0])}, weight=0.95)


def sides(scores: Floats, gradient: Floats) -> Optional[tuple[float, Floats]]:
    """What each score weighs in a binary cross entropy, and what is wanted of each, if all weigh alike and either one
    thing is wanted of all or ones and zeros are."""
    made = 1 / (1 + np.exp(-scores))
    size = np.linalg.norm(gradient)
    hard = np.where(gradient < 0, 1.0, 0.0)
    for of in (hard - made, None):
        rows = np.stack([made, np.ones_like(made)], axis=1) if of is None else -of[:, None]
        found, *_ = np.linalg.lstsq(rows, gradient, rcond=None)
        weight = float(found[0])
        if size and weight > 0 and np.linalg.norm(rows @ found - gradient) <= FITS * size:
            return weight, hard if of is not None else np.full_like(made, -found[1] / weight)
    return None


def _through(scores: Floats, weight: float, wanted: Floats) -> Floats:
    """The gradient of a binary cross entropy of the scores' sigmoids."""
    once = 1 / (1 + np.exp(-scores))
    return np.asarray(weight * (1 / (1 + np.exp(-once)) - wanted) * once * (1 - once), np.float64)


def _classes(scores: Floats) -> int:
    """Those that are looked at one by one; 1 where all are alike."""
    return scores.shape[1] if scores.ndim > 1 and scores.shape[1] <= CLASSES else 1


def _in_rows(scores: Floats, many: int) -> Floats:
    return np.moveaxis(scores, 1, 0).reshape(many, -1) if many > 1 else scores.reshape(1, -1)


def _wanted(known: Targets, classes: int) -> Floats:
    made = np.repeat(known.off[:, None], classes, axis=1)
    made[np.arange(len(known.label)), known.label] = known.on
    return made


def _softmax(scores: Floats) -> Floats:
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(made / made.sum(axis=1, keepdims=True), np.float64)


def _shown(value: float) -> str:
    return f"{value if abs(value) > 1e-5 else 0.0:.5g}"

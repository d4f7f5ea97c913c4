"""Losses that are another than the reference's: the port's framework makes two of the recorded scores, the port's own,
written as one sum, and the same with what is told of it undone, and nothing else. Where the one comes to what the port
has, and the other to what the reference has, value and gradient, that is what lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Optional, cast

import numpy as np

from aligner.adapter import Adapter, Trains
from aligner.compare.training import Training
from aligner.compare.updating import LOST, UPDATES
from aligner.dtypes import DTYPES, decode, encode
from aligner.findings import TRIAL
from aligner.record import Key, Phase
from aligner.training import scores
from aligner.words.training import LOSS

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Dump
    from aligner.training.scores import Written

    Floats = npt.NDArray[np.float64]

WRONG, RIGHT, ROUNDS = 1e-3, 1e-4, 8.0
"""A gradient is another one if it is off by more than this part of itself; a loss or a gradient comes out if it is off
by less, or by less than so many times what the port's type rounds: its sum is read from its gradients."""

STEPS = 3
"""Wrong steps that are made again: each must come out right."""


def lost_again(reference: Dump, port: Dump, adapter: Adapter) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trial for each cause that is told in the first steps whose loss is wrong."""
    again = _Again(reference, port, adapter)
    found = [*islice(filter(None, map(again.step, reference.steps)), STEPS)]
    for cause in dict.fromkeys(cause for one in found for cause in one.causes):
        rows = [one for one in found if cause in one.causes]
        after = [one.after for one in rows if one.after is not None]
        if len(after) == len(rows):
            facts = {"layer": UPDATES, "suspect": "", "change": {LOST: cause}, "before": max(r.before for r in rows)}
            yield TRIAL, {**facts, "after": max(after), "proved": all(one.proved for one in rows)}


@dataclass(frozen=True)
class _Wrong:
    """A step whose loss is wrong: what its gradients tell, how far off these are, and with that undone; None where the
    framework cannot say."""

    causes: frozenset[str]
    before: float
    after: Optional[float]
    proved: bool


@dataclass(frozen=True)
class _Part:
    """Of the loss, by one output of the net: what is made of the port's own sum, and with what is told undone."""

    own: float
    undone: float
    off: float
    """Of the port's own gradient, in what is allowed."""
    after: float
    """Of the reference's."""
    right: float


class _Again:
    """Losses of one port, made again."""

    def __init__(self, reference: Dump, port: Dump, adapter: Adapter) -> None:
        self._dumps, self._adapter = (reference, port), adapter
        self._training = Training(reference, port)

    def step(self, step: int) -> Optional[_Wrong]:
        """What comes of a step; None where its loss is right."""
        causes: set[str] = set()
        parts: list[Optional[_Part]] = []
        before, times = 0.0, self._training.scale(step)
        ends = ((key, self._dumps[0].find(key)) for key in self._training.ends(step))
        for key in (key for key, one in ends if one is not None and math.prod(one.shape) <= scores.MOST):
            made = _floats(self._dumps[0], key._replace(phase=Phase.FORWARD))
            ours, theirs = (_floats(dump, key) for dump in self._dumps)
            if made is None or ours is None or theirs is None or ours.shape != theirs.shape:
                continue
            off = _off(theirs / times, ours)
            told = {one.cause for one in scores.suspects(made, ours, theirs, times)} if off > WRONG else set()
            if told:
                causes |= told
                before = max(before, off)
                parts.append(self._part(key, made, (ours, theirs), told))
        if not causes:
            return None
        known = [one for one in parts if one is not None]
        after = max(one.after for one in known) if known and len(known) == len(parts) else None
        proved = after is not None and self._comes_out(step, known)
        return _Wrong(frozenset(causes), before, after, proved)

    def _part(self, key: Key, made: Floats, gradients: tuple[Floats, Floats], causes: set[str]) -> Optional[_Part]:
        seeds = [self._training.scale(key.step, side) for side in (0, 1)]
        both = scores.written(made, [one / seed for one, seed in zip(gradients, seeds)], causes)
        if both is None:
            return None
        try:
            (own, other), (undone, slope) = (_run(self._adapter, one) for one in both)
        except Exception:  # not every framework has it
            return None
        right = max(RIGHT, ROUNDS * _eps(self._dumps[1], key))
        return _Part(own, undone, _off(other, both[0].gradient) / right, _off(slope, both[1].gradient), right)

    def _comes_out(self, step: int, parts: Sequence[_Part]) -> bool:
        """Whether all gradients are right, and these as far apart as both losses, which have all else in common."""
        loss = Key(step, Phase.FORWARD, LOSS, 0, "output.0")
        ours, theirs = (self._training.loss(side, step) for side in (0, 1))
        if ours is None or theirs is None:
            return False
        theirs /= self._training.times(step)
        apart = abs((theirs - ours) - sum(one.own - one.undone for one in parts)) / max(abs(ours), abs(theirs))
        gradients = all(one.off <= 1.0 and one.after <= one.right for one in parts)
        return gradients and apart <= max(RIGHT, ROUNDS * _eps(self._dumps[1], loss))


def _run(adapter: Adapter, one: Written) -> tuple[float, Floats]:
    given = [
        adapter.from_numpy(np.ascontiguousarray(encode(x, "float32")), "float32") for x in (one.scores, one.wanted)
    ]
    found = cast(Trains, adapter).lost(given[0], given[1], one.kind)
    loss, gradient = (np.asarray(decode(adapter.to_numpy(x), adapter.dtype(x)), np.float64) for x in found)
    return float(loss.reshape(-1)[0]), gradient


def _eps(dump: Dump, key: Key) -> float:
    entry = dump.find(key)
    return 0.0 if entry is None else DTYPES[entry.dtype].eps or 0.0


def _off(one: Floats, other: Floats) -> float:
    size = float(np.linalg.norm(other))
    off = float(np.linalg.norm(one - other)) / size if size else 0.0
    return off if math.isfinite(off) else math.inf


def _floats(dump: Dump, key: Key) -> Optional[Floats]:
    entry = dump.find(key)
    return None if entry is None else np.asarray(entry.load(), np.float64)

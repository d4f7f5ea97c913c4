"""Losses that are another than the reference's: the port's framework makes both of the recorded scores, the reference's
loss and the port's own, each written as one sum. Where it makes of the one what the reference has, and of the other
what the port has, value and gradient, that is what lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Optional, cast

import numpy as np

from aligner.adapter import Adapter, Trains
from aligner.compare.later import is_end
from aligner.compare.training import Training
from aligner.compare.updating import LOST, UPDATES
from aligner.dtypes import decode, encode
from aligner.findings import TRIAL
from aligner.record import Key, Phase
from aligner.training import losses, scores
from aligner.words.training import LOSS

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Dump
    from aligner.training.scores import Written

    Floats = npt.NDArray[np.float64]

WRONG, RIGHT = 1e-3, 1e-4
"""A gradient is another one if it is off by more than this part of itself; a loss or a gradient is made again if it is
off by less."""

STEPS = 3
"""Wrong steps that are made again: each must come out right."""


def lost_again(reference: Dump, port: Dump, adapter: Adapter) -> Iterator[tuple[str, dict[str, Any]]]:
    """A trial for each cause that is told in the first steps whose loss is wrong."""
    made = _wrong(reference, port, adapter)
    found = [*islice(made, STEPS)]
    for cause in dict.fromkeys(cause for causes, *_ in found for cause in causes):
        rows = [(before, after) for causes, before, after in found if cause in causes]
        after = [one for _, one in rows if one is not None]
        if len(after) == len(rows):
            facts = {"layer": UPDATES, "suspect": "", "change": {LOST: cause}, "before": max(one for one, _ in rows)}
            yield TRIAL, {**facts, "after": max(after), "proved": max(after) <= RIGHT}


def _wrong(reference: Dump, port: Dump, adapter: Adapter) -> Iterator[tuple[frozenset[str], float, Optional[float]]]:
    """Of each step and output of the net with another gradient than the reference's: what that tells, and how far off
    it is before and after."""
    training = Training(reference, port)
    ends = [e.key for e in reference.entries if is_end(e.key) and not e.key.call and math.prod(e.shape) <= scores.MOST]
    for key in ends:
        made = _floats(reference, key._replace(phase=Phase.FORWARD))
        ours, theirs = _floats(reference, key), _floats(port, key)
        times = training.scale(key.step)
        if made is None or ours is None or theirs is None or ours.shape != theirs.shape:
            continue
        before = _off(theirs / times, ours)
        told = scores.suspects(made, ours, theirs, times) if before > WRONG else ()
        causes = frozenset(one.cause for one in told)
        if causes:
            yield causes, before, _again(reference, port, adapter, key, training, (made, ours, theirs), causes)


def _again(
    reference: Dump,
    port: Dump,
    adapter: Adapter,
    key: Key,
    training: Training,
    numbers: tuple[Floats, Floats, Floats],
    causes: frozenset[str],
) -> Optional[float]:
    """How far off the port's loss and its gradient are with the reference's sum in the place of the port's own, if that
    is the port's own; None where the framework cannot say."""
    seeds = [training.scale(key.step, side) for side in (0, 1)]
    made, *gradients = numbers
    both = scores.written(made, [one / seed for one, seed in zip(gradients, seeds)], causes)
    loss = Key(key.step, Phase.FORWARD, LOSS, 0, "output.0")
    ours, theirs = (losses.value(dump.find(loss)) for dump in (reference, port))
    if both is None or ours is None or theirs is None:
        return None
    try:
        (mine, slope), (own, other) = (_run(adapter, one) for one in both)
    except Exception:  # not every framework has it
        return None
    theirs /= training.times(key.step)
    own_off = max(_off(other, both[1].gradient), abs((theirs - ours) - (own - mine)) / max(abs(ours), abs(theirs)))
    return _off(slope, both[0].gradient) if own_off <= RIGHT else math.inf


def _run(adapter: Adapter, one: Written) -> tuple[float, Floats]:
    given = [
        adapter.from_numpy(np.ascontiguousarray(encode(x, "float32")), "float32") for x in (one.scores, one.wanted)
    ]
    found = cast(Trains, adapter).lost(given[0], given[1], one.kind)
    loss, gradient = (np.asarray(decode(adapter.to_numpy(x), adapter.dtype(x)), np.float64) for x in found)
    return float(loss.reshape(-1)[0]), gradient


def _off(one: Floats, other: Floats) -> float:
    size = float(np.linalg.norm(other))
    off = float(np.linalg.norm(one - other)) / size if size else 0.0
    return off if math.isfinite(off) else math.inf


def _floats(dump: Dump, key: Key) -> Optional[Floats]:
    entry = dump.find(key)
    return None if entry is None else np.asarray(entry.load(), np.float64)

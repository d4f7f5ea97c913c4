"""Gradients that the port treats otherwise than the reference: what the backward runs made is treated once more, by the
port's framework, in the reference's way. What comes out right proves it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, cast

import numpy as np

from aligner.adapter import Adapter, Trains
from aligner.compare.treating import LARGE, TREATMENT, raws, way_of
from aligner.compare.updating import UPDATES
from aligner.dtypes import decode, encode
from aligner.findings import TRIAL
from aligner.record import Key, Phase
from aligner.replay.items import Match

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.training import Owner
    from aligner.dump.reader import Dump
    from aligner.training.ways import Way

    Floats = npt.NDArray[np.float64]

WRONG, RIGHT = 1e-3, 1e-4
"""All gradients of a step together are off by more than this part of themselves, or by less: what PyTorch adds to a
norm before it divides by it makes up to that."""

STEPS = 3
"""Wrong steps that are treated again: each must come out right."""


def treated_again(
    reference: Dump, port: Dump, adapter: Adapter, matches: Sequence[Match]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """One trial, where any gradients are treated otherwise and the reference's way is known."""
    pairs = {tuple(one.reference.slot): tuple(one.port.slot) for one in matches}
    ports = {cast("Owner", ours): cast("Owner", theirs) for ours, theirs in pairs.items()}
    sizes = (math.prod(e.shape) for e in reference.entries if e.key.phase is Phase.GRADIENT and not e.key.step)
    if sum(sizes) > LARGE:
        return  # the way that so many are treated is not read
    wrong = {step: off for step in reference.steps if (off := _off(reference, port, ports, step)) > WRONG}
    owners = [one for one in ports if reference.find(Key(min(wrong, default=0), Phase.GRADIENT, one[0], 0, one[1]))]
    way = way_of(reference, reference, {owner: owner for owner in owners}) if wrong else None
    if way is None:
        return
    after = [_again(reference, adapter, owners, step, way) for step in [*wrong][:STEPS]]
    known = [one for one in after if one is not None]
    if known and len(known) == len(after):
        facts: dict[str, Any] = {"layer": UPDATES, "suspect": "", "step": min(wrong), "change": {TREATMENT: way.word}}
        proved = max(known) <= RIGHT
        yield TRIAL, {**facts, "before": max(wrong.values()), "after": max(known), "proved": proved}


def _off(reference: Dump, port: Dump, ports: dict[Owner, Owner], step: int) -> float:
    """How far off all gradients are that the port's optimizers are given, as a part of the reference's."""
    square = whole = 0.0
    for ours, theirs in ports.items():
        one, other = (
            dump.find(Key(step, Phase.GRADIENT, owner[0], 0, owner[1]))
            for dump, owner in ((reference, ours), (port, theirs))
        )
        if one is not None and other is not None and one.shape == other.shape:
            wanted = np.asarray(one.load(), np.float64)
            square += float(np.square(np.asarray(other.load(), np.float64) - wanted).sum())
            whole += float(np.square(wanted).sum())
    off = math.sqrt(square / whole) if whole else 0.0
    return off if math.isfinite(off) else 0.0


def _again(reference: Dump, adapter: Adapter, owners: Sequence[Owner], step: int, way: Way) -> Optional[float]:
    """How far off they are if the port's framework treats what the reference's backward runs made so."""
    given, wanted = [], []
    for owner in owners:
        entry = reference.find(Key(step, Phase.GRADIENT, owner[0], 0, owner[1]))
        made = raws(reference, step, owner)
        if entry is not None and made:
            whole: Floats = sum(made[1:], made[0])
            given.append(adapter.from_numpy(np.ascontiguousarray(encode(whole, "float32")), "float32"))
            wanted.append(np.asarray(entry.load(), np.float64))
    try:
        treated = cast(Trains, adapter).treated(given, way.kind, way.factor, way.bound)
    except Exception:  # not every framework has it
        return None
    found = [np.asarray(decode(adapter.to_numpy(one), adapter.dtype(one)), np.float64) for one in treated]
    square = sum(float(np.square(one - two).sum()) for one, two in zip(found, wanted))
    whole_square = sum(float(np.square(one).sum()) for one in wanted)
    return math.sqrt(square / whole_square) if whole_square else None

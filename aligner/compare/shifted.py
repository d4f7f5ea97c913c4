"""A training's dump from one of its steps on, as if that were its first: what a resumed run is set against.

What the step before has left (parameters, buffers, what optimizers keep) stands where a dump has what a training begins
with. Steps count from 0; `Part.addresses` tells where each record really stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.training import Owner, updates
from aligner.dump.part import Part
from aligner.findings import TRAINING
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.dump.sections import Finding


def shifted(dump: Dump, begin: int, end: int) -> Part:
    """Its steps from `begin` on, up to and without `end`."""
    rows: list[tuple[int, Key]] = []
    left: dict[tuple[str, str], tuple[int, Key]] = {}
    owners = optimized(dump)
    for row, entry in enumerate(dump.entries):
        key = entry.key
        first = _as_first(key, owners)
        if key.step < begin and first is not None:
            left[key.layer, key.slot] = row, first
        elif begin <= key.step < end:
            rows.append((row, key._replace(step=key.step - begin)))
    kept = [(row, key) for row, key in left.values() if key.phase is Phase.PARAMETER or dump.entries[row].load().any()]
    calls = [replace(call, step=call.step - begin) for call in dump.calls if begin <= call.step < end]
    return Part(dump, sorted(kept + rows), calls, [*_findings(dump, begin, end)])


def optimized(dump: Dump) -> frozenset[Owner]:
    """The parameters that optimizers update."""
    return frozenset(owner for update in updates(dump) for owner in update.settings)


def is_kept(key: Key, owners: frozenset[Owner]) -> bool:
    """Whether a record is what an optimizer keeps of a parameter."""
    owner = key.layer, key.slot.rpartition(".")[0]
    return key.phase in (Phase.GRADIENT, Phase.UPDATE) and owner in owners and (key.layer, key.slot) not in owners


def _as_first(key: Key, owners: frozenset[Owner]) -> Optional[Key]:
    """The address that a record has if it is what a training begins with; None if it cannot be that."""
    if is_kept(key, owners):
        return key._replace(step=0, phase=Phase.GRADIENT)
    if key.phase in (Phase.PARAMETER, Phase.UPDATE):
        return key._replace(step=0, phase=Phase.PARAMETER, call=0)
    return None


def _findings(dump: Dump, begin: int, end: int) -> Iterator[Finding]:
    """Those of these steps and those of none. What an update says of an earlier one is said in it."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for kind, facts in dump.findings:
        step = facts.get("step")
        if kind == TRAINING and type(step) is int:
            like = known.get((str(facts.get("like")), str(facts.get("optimizer"))))
            if like is not None:
                facts = {name: value for name, value in facts.items() if name != "like"}
                facts.update({name: like.get(name) for name in ("groups", "without")})
            known[str(step), str(facts.get("optimizer"))] = facts
        if type(step) is not int:
            yield kind, facts
        elif begin <= step < end:
            yield kind, {**facts, "step": step - begin}

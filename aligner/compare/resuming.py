"""The answer of a resumed run: what it has lost are the origins, all that shows behind that comes of it.

Steps count as the whole run counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.lost import FORWARD, Lost, Resumed, moment
from aligner.compare.lost_data import accumulated, data
from aligner.compare.lost_schedule import rate_of_optimizer, scale, settings
from aligner.compare.lost_state import parameters, state
from aligner.compare.place import Place
from aligner.compare.step_rows import step_rows
from aligner.compare.steps import StepRow, Steps
from aligner.compare.tolerance import Tolerance
from aligner.compare.verdict import Comparison, Origin, Outcome, Side, Verdict
from aligner.dump.part import Part
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Cause, Suspect
from aligner.record import Key, Phase, Scalar

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.dump.entry import Entry

DROPPED = 0.02
"""Elements that are zero on one side alone are dropped at random if they are this part of all at least."""

Moment = tuple[int, int]
"""A step, and how far in it."""


def resumed(comparison: Comparison, run: Resumed, tolerance: Tolerance) -> Comparison:
    """The comparison of a resumed run with the whole one from where it begins."""
    found = _lost(run)
    found += _random(comparison, run, found)
    origins, index = _origins(comparison, found, run, tolerance)
    verdicts = tuple(_verdicts(comparison, found, index))
    rows = step_rows((run.reference, run.port), run.training, verdicts, run.roots, origins)
    failing = [verdict for verdict in verdicts if verdict.fails]
    own = [verdict for verdict in failing if verdict.origin == 0]
    counts = {outcome.value: sum(v.outcome is outcome for v in verdicts) for outcome in Outcome}
    first = next(iter(own or failing), None)
    told = replace(
        comparison,
        outcome="diverged" if found else comparison.outcome,
        verdicts=verdicts,
        origins=origins,
        suspects=() if found else comparison.suspects,
        first=first,
        counts=counts,
        steps=Steps(_row(row, origins, found) for row in rows),
        warnings=(*_warnings(run), *(() if found else comparison.warnings)),
        resumed=run.begun,
    )
    return _renumbered(told, run)


def _lost(run: Resumed) -> list[Lost]:
    """All lost things, those first that show first."""
    begun = [*accumulated(run)]
    kept = [*state(run)]
    told = rate_of_optimizer(run) if any(one.readings for one in kept) else []
    found = [
        *parameters(run, bool(begun)),
        *begun,
        *([] if begun else data(run)),
        *scale(run),
        *kept,
        *settings(run, told),
    ]
    return sorted(found, key=lambda one: (one.step, one.stage))


def _warnings(run: Resumed) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
    begun = run.begun
    if begun.others:
        yield "resumed-several", {"step": begun.step, "others": ", ".join(map(str, begun.others))}
    if begun.left[1]:
        yield "resumed-longer", {"count": begun.left[1], "steps": begun.steps}


def _origins(
    comparison: Comparison, found: Sequence[Lost], run: Resumed, tolerance: Tolerance
) -> tuple[tuple[Origin, ...], Mapping[object, int]]:
    """Lost things, and what was wrong before any of them; the place of each by its Lost or its old place."""
    placed: list[tuple[Moment, object, Origin]] = [
        ((one.step, one.stage), id(one), _origin(one, run, tolerance)) for one in found
    ]
    for number, origin in enumerate(comparison.origins):
        at = moment(_key(origin))
        if all(at < (one.step, one.stage) for one in found):
            placed.append((at, number, origin))
    placed.sort(key=lambda one: one[0])
    return tuple(origin for *_, origin in placed), {name: place for place, (_, name, _) in enumerate(placed)}


def _origin(one: Lost, run: Resumed, tolerance: Tolerance) -> Origin:
    shown = [r for r in one.readings if r.deviation is not None]
    worst = max(shown, key=lambda r: tolerance.error(r.deviation) if r.deviation else 0.0) if shown else None
    deviation = None if worst is None else worst.deviation
    reading = worst or next(iter(one.readings), None)
    place = None if reading is None else _place(one, reading)
    suspect = one.suspect
    return Origin(
        layer=one.key.layer,
        port_layer=one.key.layer,
        kind="",
        where=one.where,
        step=one.step,
        phase=one.key.phase.value,
        call=one.key.call,
        slot=one.key.slot,
        order=0 if reading is None else reading.pair.entry.order,
        own_error=math.inf if deviation is None else tolerance.error(deviation),
        input_error=None,
        deviation=deviation,
        causes=(Cause(suspect.cause, False, suspect.facts, None, None),),
        owners=one.owners,
        of=one.of,
        steps=tuple(sorted({one.step, *(r.pair.key.step for r in one.readings)})),
        place=place,
    )


def _place(one: Lost, reading: Reading) -> Place:
    pair = reading.pair
    ours, theirs = (None if entry is None else entry.key for entry in (pair.reference, pair.port))
    return Place(one.where, one.key.layer, ours, theirs, None, reading.own, False)


def _verdicts(comparison: Comparison, found: Sequence[Lost], index: Mapping[object, int]) -> Iterator[Verdict]:
    shown = {(r.pair.key, r.pair.reference is None): one for one in found for r in one.readings}
    for verdict in comparison.verdicts:
        own = shown.get((verdict.key, verdict.reference is None))
        if own is not None:
            yield replace(verdict, outcome=_own(verdict), origin=index[id(own)])
            continue
        at = moment(verdict.key)
        before = [one for one in found if (one.step, one.stage) <= at]
        if before and verdict.outcome.fails:
            outcome = Outcome.INHERITED if verdict.outcome is Outcome.ORIGIN else verdict.outcome
            yield replace(verdict, outcome=outcome, origin=index[id(before[0])])
        else:
            yield replace(verdict, origin=index.get(verdict.origin))


def _own(verdict: Verdict) -> Outcome:
    return verdict.outcome if verdict.outcome in (Outcome.UNMATCHED, Outcome.INCOMPARABLE) else Outcome.ORIGIN


def _random(comparison: Comparison, run: Resumed, found: Sequence[Lost]) -> list[Lost]:
    """Values of which other elements were dropped, where nothing else is lost before: the random state is another."""
    for origin in comparison.origins:
        at = moment(_key(origin))
        key = origin.measured
        if at[1] != FORWARD or origin.where not in ("layer", "glue") or key is None:
            continue
        reading = next((r for r in run.readings if r.pair.key == key and r.matched), None)
        share = 0.0 if reading is None else _dropped(reading)
        if reading is None or share < DROPPED or any((one.step, one.stage) <= at for one in found):
            continue
        facts: dict[str, Fact] = {"share": f"{100 * share:.0f}", "slot": key.slot, "step": origin.step + run.begun.step}
        suspect = Suspect("resume-random-state", {**facts, "layer": key.layer or "net", "fix": run.fix("random")})
        return [Lost(suspect, "state", *at, key, (reading,))]
    return []


def _dropped(reading: Reading) -> float:
    """The part of the elements that is zero on one side alone, if all others agree."""
    one, other = (np.asarray(entry.load(), np.float64) for entry in _both(reading))
    if one.shape != other.shape or not one.size:
        return 0.0
    apart = (one == 0) != (other == 0)
    both = (one != 0) & (other != 0)
    same = np.allclose(one[both], other[both], rtol=1e-3, atol=1e-6)
    return float(apart.mean()) if same and both.any() else 0.0


def _both(reading: Reading) -> list[Entry]:
    return [entry for entry in (reading.pair.reference, reading.pair.port) if entry is not None]


def _row(row: StepRow, origins: Sequence[Origin], found: Sequence[Lost]) -> StepRow:
    """A lost thing that is in no record stands in its step all the same."""
    bare = [one for one in found if one.step == row.step and not one.readings]
    at = None if row.origin is None else row.origin
    for number, origin in enumerate(origins):
        if any(origin.causes[:1] and one.key == _key(origin) for one in bare) and (at is None or number <= at):
            wrong = row.wrong + len(bare)
            return replace(row, first=_key(origin), origin=number, stage=origin.where, wrong=wrong)
    return row


def _key(origin: Origin) -> Key:
    return Key(origin.step, Phase(origin.phase), origin.layer, origin.call, origin.slot)


def _renumbered(comparison: Comparison, run: Resumed) -> Comparison:
    """Steps as the whole run counts them, and records where they stand in both files."""
    later = run.begun.step

    def step(key: Key) -> Key:
        return key._replace(step=key.step + later)

    def address(side: Optional[Side]) -> Optional[Side]:
        return None if side is None else replace(side, key=_address(run, side.key))

    verdicts = {
        id(one): replace(one, key=step(one.key), reference=address(one.reference)) for one in comparison.verdicts
    }
    first = comparison.first
    return replace(
        comparison,
        verdicts=tuple(verdicts.values()),
        first=None if first is None else verdicts[id(first)],
        origins=tuple(_later(origin, run) for origin in comparison.origins),
        suspects=tuple(_later(origin, run) for origin in comparison.suspects),
        steps=Steps(
            replace(row, step=row.step + later, first=None if row.first is None else step(row.first))
            for row in comparison.steps
        ),
    )


def _address(run: Resumed, key: Key) -> Key:
    return run.reference.addresses.get(key, key) if isinstance(run.reference, Part) else key


def _later(origin: Origin, run: Resumed) -> Origin:
    later, place = run.begun.step, origin.place
    if place is not None and place.key is not None:
        place = replace(place, key=_address(run, place.key))
    return replace(origin, step=origin.step + later, steps=tuple(step + later for step in origin.steps), place=place)

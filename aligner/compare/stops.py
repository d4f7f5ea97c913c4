"""Nets that stopped with an exception: where, and which records the other side has only because it ran on.

What ran before the stop is judged as usual. What did not run has no difference to the reference, and no origin: it is
told as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from aligner.compare.layers import Pairing
from aligner.compare.net import CallId
from aligner.compare.reading import Reading
from aligner.compare.stop import NOT_RUN, Stop, stop_of
from aligner.compare.verdict import Comparison, Outcome
from aligner.record import Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


def stops(reference: Dump, port: Dump, pairing: Pairing) -> tuple[Stop, ...]:
    """The stops of both sides, the reference's first."""
    partners: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for pair in pairing.layers:
        partners[0].setdefault(pair.reference, pair.port)
        partners[1].setdefault(pair.port, pair.reference)
    sides = (("reference", reference, partners[0]), ("port", port, partners[1]))
    found = (stop_of(dump, side, known) for side, dump, known in sides)
    return tuple(stop for stop in found if stop is not None)


def excuse_not_run(readings: Sequence[Reading], found: Sequence[Stop], dumps: tuple[Dump, Dump], own: Pairing) -> None:
    """Mark the records of the side that ran on, from where the other one stopped.

    That is what it ran behind the last record that both have, and what calls made that the other side did not end. A
    layer that only one side ran before is another matter.
    """
    for stop in found:
        side = 0 if stop.side == "port" else 1  # the one that ran on
        stopped = dumps[1 - side]
        last = _last(readings, side, stop.step)
        waiting = _waiting(stop, stopped, own, side)
        for reading in readings:
            key = reading.pair.key
            entry = (reading.pair.reference, reading.pair.port)[side]
            if reading.matched or reading.covered or entry is None or key.phase is Phase.PARAMETER:
                continue
            behind = key.step > stop.step or (key.step == stop.step and entry.order > last)
            if behind or (key.step == stop.step and CallId(key.layer, key.call) in waiting):
                reading.reason, reading.over, reading.facts = NOT_RUN, False, {"side": stop.side}


def _last(readings: Sequence[Reading], side: int, step: int) -> int:
    """The order of the last record of that side and step that the other side has as well."""
    orders = [
        entry.order
        for reading in readings
        for entry in ((reading.pair.reference, reading.pair.port)[side],)
        if reading.matched and entry is not None and entry.key.step == step and entry.key.phase is Phase.FORWARD
    ]
    return max(orders, default=-1)


def _waiting(stop: Stop, stopped: Dump, pairing: Pairing, side: int) -> Set[CallId]:
    """Calls of the side that ran on whose counterparts did not end."""
    begun = {CallId(c.layer, c.number) for c in stopped.calls if c.step == stop.step and c.last is None}
    return {(one, other)[side] for one, other in pairing.calls.items() if (one, other)[1 - side] in begun}


def stopped(comparison: Comparison, found: tuple[Stop, ...]) -> Comparison:
    """The comparison with what is known of the stops: such nets are not aligned, whatever ran before."""
    if not found:
        return comparison
    sides = {stop.side for stop in found}
    told = {"steps-differ"} if comparison.counts.get(Outcome.NOT_RUN.value) else set()
    warnings = tuple(
        (message, facts)
        for message, facts in comparison.warnings
        if not (message == "dump-incomplete" and facts.get("side") in sides) and message not in told
    )
    outcome = "diverged" if comparison.outcome == "aligned" else comparison.outcome
    return replace(comparison, stops=found, warnings=warnings, outcome=outcome)

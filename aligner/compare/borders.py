"""Inputs and outputs of layers that hold others, where the two nets draw the border or write an argument differently.

- One net's block ends with its ReLU, the other calls the ReLU behind the block: what the blocks hand on differs, and
  yet whoever uses the reference's value in the port gets that value.
- The same where the reference's value is used by code and not by a layer, and all that comes of it agrees.
- A mask comes as (1, 1, n, n) or as (n, n), as True where to look or where not to: the values differ, and yet all that
  is computed with them agrees.

Such a record is covered: nothing that follows is off by it. The net's own inputs and outputs are never excused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from aligner.compare.cover import telling
from aligner.compare.layers import Pairing
from aligner.compare.net import Net, is_input
from aligner.compare.reading import Reading
from aligner.record import Phase, display

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

_Content = tuple[int, tuple[str, int, int]]


class _Moment(NamedTuple):
    """A call of a layer in a step."""

    step: int
    layer: str
    call: int


def excuse_borders(readings: Sequence[Reading], reference: Net, port: Net, pairing: Pairing) -> None:
    """Mark the paired readings at borders whose difference has no effect, with the reason."""
    borders = [reading for reading in readings if _on_border(reading, reference, port)]
    if not borders:
        return
    spans = _spans(readings)
    uses = _uses(readings, reference)
    wrong = _wrong(readings, {id(reading) for reading in borders})
    for reading in borders:
        _elsewhere(reading, spans, uses)
    guessed = {pair.reference for pair in pairing.layers if pair.by == "structure"}
    for reading in borders:
        if not reading.covered and not is_input(reading.pair.key.slot) and _sound(reading, spans, wrong):
            orders = wrong.get(reading.pair.key.step, [-1])
            if orders[-1] < reading.pair.entry.order:  # all that follows agrees, up to what the net hands out
                _cover(reading, "covered-border-effect")
            elif reading.pair.key.layer in guessed and reading.check is None:
                _taken_up(reading, readings, spans)
    results = [(_moment(r.pair.reference), r) for r in readings if r.pair.reference is not None and _is_result(r)]
    agreeing = {moment for moment, r in results if r.deviation is not None} - {
        moment for moment, r in results if r.over
    }
    inward = [reading for reading in borders if is_input(reading.pair.key.slot) and not reading.covered]
    harmful = {_contents(reading) for reading in inward if _moment(reading.pair.entry) not in agreeing}
    for reading in inward:
        fails = reading.check is not None and reading.check.fails
        if fails and _contents(reading) in harmful:
            continue  # this call has no use for it, and another one that gets the same has
        if _moment(reading.pair.entry) in agreeing and _sound(reading, spans, wrong):
            _cover(reading, "covered-argument")


def _is_result(reading: Reading) -> bool:
    return reading.matched and reading.pair.key.phase is Phase.FORWARD and not is_input(reading.pair.key.slot)


def _wrong(readings: Iterable[Reading], borders: Set[int]) -> Mapping[int, list[int]]:
    """Order numbers of the records over tolerance by step, rising, without those at borders."""
    wrong: dict[int, list[int]] = {}
    for reading in readings:
        entry = reading.pair.reference
        forward = entry is not None and entry.key.phase is Phase.FORWARD
        if entry is not None and forward and reading.matched and reading.over and id(reading) not in borders:
            wrong.setdefault(entry.key.step, []).append(entry.order)
    for orders in wrong.values():
        orders.sort()
    return wrong


def _sound(reading: Reading, spans: Mapping[_Moment, tuple[int, int]], wrong: Mapping[int, Sequence[int]]) -> bool:
    """Whether nothing that was compared inside the call is off: what is wrong inside comes out of it."""
    entry = reading.pair.entry
    low, high = spans[_moment(entry)]
    orders = wrong.get(entry.key.step, ())
    at = bisect_left(orders, low)
    return not (at < len(orders) and orders[at] <= high)


def _on_border(reading: Reading, reference: Net, port: Net) -> bool:
    one, other = reading.pair.reference, reading.pair.port
    if one is None or other is None or not reading.over or one.key.phase is not Phase.FORWARD:
        return False
    layer, counterpart = one.key.layer, other.key.layer
    if layer in reference.roots or counterpart in port.roots:
        return False
    return layer in reference.inner and counterpart in port.inner


def _spans(readings: Iterable[Reading]) -> Mapping[_Moment, tuple[int, int]]:
    """The first and the last order number among the records of each of the reference's calls."""
    spans: dict[_Moment, tuple[int, int]] = {}
    for reading in readings:
        entry = reading.pair.reference
        if entry is not None and entry.key.phase is Phase.FORWARD:
            moment = _moment(entry)
            low, high = spans.get(moment, (entry.order, entry.order))
            spans[moment] = (min(low, entry.order), max(high, entry.order))
    return spans


def _moment(entry: Entry) -> _Moment:
    return _Moment(entry.key.step, entry.key.layer, entry.key.call)


def _uses(readings: Iterable[Reading], reference: Net) -> Mapping[_Content, list[Reading]]:
    """Where each value of the reference is used: as input of a layer without layers inside, or as the net's output."""
    uses: dict[_Content, list[Reading]] = {}
    for reading in readings:
        entry = reading.pair.reference
        if entry is None or not reading.matched or entry.key.phase is not Phase.FORWARD:
            continue
        inward = is_input(entry.key.slot)
        if entry.key.layer not in reference.inner if inward else entry.key.layer in reference.roots:
            uses.setdefault((entry.key.step, entry.content), []).append(reading)
    return uses


def _elsewhere(
    reading: Reading, spans: Mapping[_Moment, tuple[int, int]], uses: Mapping[_Content, list[Reading]]
) -> None:
    """Cover a border whose value is used in agreement: inputs by what stands inside, outputs by what comes behind."""
    one = reading.pair.entry
    end = spans[_moment(one)][1]
    inward = is_input(one.key.slot)
    users = []
    for user in uses.get((one.key.step, one.content), ()):
        entry = user.pair.reference
        if entry is not None and (one.order < entry.order <= end if inward else entry.order > end):
            users.append(user)
    # What is excused itself, as the value stands in the port while layers are held to it, tells nothing of this one.
    compared = [user for user in users if user.deviation is not None and not user.covered]
    if compared and not any(user.over for user in users) and telling(one):
        key = compared[0].pair.key
        _cover(reading, "covered-border")
        reading.facts = {**reading.facts, "user": display(key.layer), "slot": key.slot}


def _taken_up(reading: Reading, readings: Sequence[Reading], spans: Mapping[_Moment, tuple[int, int]]) -> None:
    """Cover the output of a guessed pair where the next value that the net makes and hands to a layer agrees."""
    one = reading.pair.entry
    end = spans[_moment(one)][1]
    known = set()
    behind = []
    for other in readings:
        entry = other.pair.reference
        if entry is None or entry.key.phase is not Phase.FORWARD or entry.key.step != one.key.step:
            continue
        if entry.order <= end:
            known.add(entry.content)
        elif is_input(entry.key.slot):
            behind.append((entry.order, other))
    behind.sort(key=lambda pair: pair[0])
    for _, other in behind:
        entry = other.pair.reference
        if entry is not None and entry.content not in known:
            if other.matched and not other.over:
                _cover(reading, "covered-border-effect")
            return


def _contents(reading: Reading) -> object:
    """Equal where the same value is handed on in the place of the same one."""
    return tuple(None if side is None else side.content for side in (reading.pair.reference, reading.pair.port))


def _cover(reading: Reading, why: str) -> None:
    one, other = reading.pair.reference, reading.pair.port
    reading.over, reading.covered, reading.reason = False, True, why
    reading.facts = {
        "layer": display(one.key.layer if one is not None else ""),
        "port_layer": display(other.key.layer if other is not None else ""),
    }

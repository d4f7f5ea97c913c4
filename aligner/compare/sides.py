"""What only one side gives, and the net's own outputs that the port does not: told, and never held against it silently.

A value that the other side's layer does not hand out (attention weights against None, a cache, a loss) cannot be
compared, and is no mistake: what is made of it is compared behind that layer. The net's own outputs are what it is
for: one that the port lacks stands in the answer's first line, and where not one of them was compared, the nets are
not called aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aligner.compare.arranged import SORTED
from aligner.compare.cover import BY_VALUE, ONE_SIDED
from aligner.compare.layers import Pairing
from aligner.compare.net import Net, is_input
from aligner.compare.sequence import rising
from aligner.record import Phase, Scalar, display

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.compare.verdict import Verdict

LACKING, NONE, UNSEEN, ORDER = "outputs-lacking", "outputs-none", "outputs-unseen", "outputs-order"
ARRANGED = "outputs-arranged"
"""Warnings that stand in the answer's first line as well."""

NAMED = 3
"""Values that a warning names."""


@dataclass(frozen=True)
class Alone:
    """Values of one side that were not compared, for the other one does not give them."""

    side: str
    layer: str
    slot: str
    records: int


def not_compared(verdicts: Iterable[Verdict]) -> tuple[Alone, ...]:
    """By side, layer and slot, in the order of the run."""
    found: dict[tuple[str, str, str], int] = {}
    for verdict in verdicts:
        if verdict.reason == ONE_SIDED:
            key = "port" if verdict.reference is None else "reference", verdict.key.layer, verdict.key.slot
            found[key] = found.get(key, 0) + 1
    return tuple(Alone(*key, records) for key, records in found.items())


@dataclass(frozen=True)
class Elsewhere:
    """Values that no layer of the other side stands against, or whose counterpart holds another value."""

    by_value: int
    """Compared all the same, at another place."""
    by_effect: int
    """What comes of them was."""
    layers: tuple[str, ...]
    """Whose values were compared so, in the order of the run."""


def elsewhere(verdicts: Iterable[Verdict]) -> Elsewhere:
    """How many, and where."""
    covered = [verdict for verdict in verdicts if verdict.outcome.value == "covered"]
    found = [verdict for verdict in covered if verdict.reason in BY_VALUE]
    return Elsewhere(len(found), len(covered) - len(found), tuple(dict.fromkeys(v.key.layer for v in found)))


@dataclass(frozen=True)
class Ends:
    """What became of the reference's own outputs, by slot."""

    compared: int
    lacking: tuple[str, ...]
    """Those that the port gives nowhere among its own."""
    crossed: tuple[str, ...]
    """Those that stand in another order in the port."""
    unseen: tuple[str, ...] = ()
    """Classes of what the reference returns and nobody can look into; "None" where it returns no tensor at all."""
    arranged: bool = False
    """They stand in another arrangement in the port: their numbers were compared, and not their places."""

    @property
    def void(self) -> bool:
        """Whether the reference gives something, and none of it was compared."""
        return bool(self.lacking) and not self.compared

    def cautions(self) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
        """What is to be told of them."""
        slots = _listed(self.lacking)
        if self.lacking:
            yield (NONE if self.void else LACKING), {"count": len(self.lacking), "slots": slots}
        if self.crossed:
            yield ORDER, {"slots": _listed(self.crossed)}
        if self.arranged:
            yield ARRANGED, {}
        if self.unseen:
            yield UNSEEN, {"kinds": _listed(self.unseen)}


def ends(readings: Sequence[Reading], reference: Net, port: Net, pairing: Pairing) -> Ends:
    """Read them from the net's own outputs of all steps. Of an import or a net that broke off nothing is known.

    A wrapper around the net, which the port does not have, lacks nothing: what it hands out is the net's.
    """
    if reference.partial or port.partial:
        return Ends(0, (), ())
    outputs = [r for r in readings if r.pair.reference is not None and _is_end(r, reference)]
    matched = [reading for reading in outputs if reading.matched]
    keys = (r.pair.key for r in outputs if not r.matched and (r.covered or r.reason == ONE_SIDED))
    if matched and not port.complete:  # what came later it did not live to give
        last = max(reading.pair.key.step for reading in matched)
        keys = (key for key in keys if key.step <= last)
    paired = {call.layer for call in pairing.calls}
    lacking = tuple(dict.fromkeys(key.slot for key in keys if key.layer in paired))
    moved = any(reading.pair.key.slot.endswith(SORTED) for reading in matched)
    return Ends(len(matched), lacking, _crossed(matched), _unseen(reference, bool(outputs)), moved)


def _unseen(reference: Net, seen: bool) -> tuple[str, ...]:
    ended = [visit.call for visit in reference.visits if visit.parent is None and visit.call.last is not None]
    found = dict.fromkeys(kind for call in ended for kind in _opaque(call.outputs))
    return tuple(found) or (() if seen or not ended else ("None",))


def _opaque(structure: Any) -> Iterator[str]:
    """The classes in a structure (aligner.structure) that were not looked into."""
    if isinstance(structure, Mapping):
        if "opaque" in structure:
            yield str(structure["opaque"])
        named = [item[1] for word in ("dict", "fields") for item in structure.get(word, ())]
        for item in (*structure.get("list", ()), *structure.get("tuple", ()), *named):
            yield from _opaque(item)


def _is_end(reading: Reading, reference: Net) -> bool:
    key = reading.pair.key
    return key.phase is Phase.FORWARD and key.layer in reference.roots and not is_input(key.slot)


def _crossed(matched: Sequence[Reading]) -> tuple[str, ...]:
    """Slots that had to be paired out of order: names on one side, and another order of places on the other."""
    calls: dict[object, list[Reading]] = {}
    for reading in matched:
        key = reading.pair.key
        calls.setdefault((key.step, key.layer, key.call), []).append(reading)
    found: dict[str, None] = {}
    for here in calls.values():
        ours = {r.pair.reference.key.slot for r in here if r.pair.reference is not None}
        if ours == {r.pair.port.key.slot for r in here if r.pair.port is not None}:
            continue  # the same names, or the same places: they are compared by these
        here.sort(key=lambda reading: reading.pair.entry.order)
        orders = [reading.pair.port.order for reading in here if reading.pair.port is not None]
        kept = set(rising(orders))
        found.update((r.pair.key.slot, None) for place, r in enumerate(here) if place not in kept)
    return tuple(found)


def one_sided(alone: Sequence[Alone], lacking: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
    """One line for each side; outputs of the net that the port lacks have one of their own."""
    own = set(lacking)
    for side in ("reference", "port"):
        here = [one for one in alone if one.side == side and (one.side == "port" or one.layer or one.slot not in own)]
        if here:
            names = [f"{display(one.layer)} {one.slot}" for one in here]
            yield "one-sided", {"side": side, "count": sum(one.records for one in here), "names": _listed(names)}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")

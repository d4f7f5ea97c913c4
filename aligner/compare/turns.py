"""Layers that a piece of code calls in a loop: the code before the first turn's call is the same as before the others.

Seen from the calls, a loop's first turn comes after something else than the later ones do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aligner.compare.birth import Birth
from aligner.compare.net import Visit

TURNS = 3
"""So many calls, all but the first after the same layer, are a loop."""


def loops(visits: Iterable[Visit]) -> frozenset[tuple[str, str]]:
    """Owner and layer of the calls that are made in a loop."""
    before: dict[tuple[int, str], list[str]] = {}
    owners: dict[int, str] = {}
    last: dict[int, str] = {}
    for visit in visits:
        if visit.parent is None:
            continue
        owner, layer = id(visit.parent), visit.call.layer
        owners[owner] = visit.parent.call.layer
        before.setdefault((owner, layer), []).append(last.get(owner, ""))
        last[owner] = layer
    return frozenset(
        (owners[owner], layer)
        for (owner, layer), seen in before.items()
        if len(seen) >= TURNS and len(set(seen[1:])) == 1 and seen[0] != seen[1]
    )


def joined(groups: Mapping[object, Sequence[Birth]], known: frozenset[tuple[str, str]]) -> Mapping[object, object]:
    """Which group of births is to be counted to which earlier one: the same value, handed to the same layer in a loop.

    Args:
        groups: births by place.
        known: owner and layer of calls in loops.
    """
    first: dict[tuple[str, str, str], object] = {}
    result: dict[object, object] = {}
    for place, births in groups.items():
        birth = births[0]
        if birth.where != "glue" or birth.between is None or (birth.layer, birth.between[1]) not in known:
            continue
        turns = [(birth.layer, birth.between[1], slot) for slot in dict.fromkeys(b.key.slot for b in births)]
        earlier = next((first[turn] for turn in turns if turn in first), place)
        result[place] = earlier
        for turn in turns:
            first.setdefault(turn, earlier)
    return result

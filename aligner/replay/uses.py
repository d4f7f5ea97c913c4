"""What a free run's dumps tell of where the port uses its values, and makes the reference's: by which values are the
same on either side, whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aligner.compare.cover import telling
from aligner.compare.net import is_input
from aligner.compare.pairing import Pair
from aligner.record import Call, Key, Phase
from aligner.replay.standing import Standing

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


@dataclass(frozen=True)
class Uses:
    """What the free run tells, by the port's address."""

    used: Mapping[Key, Sequence[Entry]] = field(default_factory=dict)
    """The reference's values in the places where the port uses this one, other than its counterpart."""
    later: frozenset[Key] = frozenset()
    """Addresses whose counterpart is used by the reference where the port has a value that it makes later."""
    passed: frozenset[Key] = frozenset()
    """Addresses of layers that hand on what they are given on both sides."""
    around: frozenset[str] = frozenset()
    """The port's layers that others run inside of, or that have other code inside, without the net itself."""
    standing: Standing = field(default_factory=Standing)
    rewritten: Set[str] = frozenset()
    """Layers of the user's own kinds whose counterparts are the framework's: they may do more than those."""


def uses(pairs: Sequence[Pair], calls: Iterable[Call], around: Set[str]) -> Uses:
    """Read them from the pairs of a free run and the port's calls. The net's own border is where it is.

    `around` are the port's layers with others or other code inside.

    What a layer is given counts for what is used inside it alone: a right value in the wrong place is wrong.
    """
    ends = {(call.step, call.layer, call.number): call.last for call in calls if call.phase is Phase.FORWARD}
    matched = [(p.reference, p.port) for p in pairs if p.reference is not None and p.port is not None]
    forward = [(one, other) for one, other in matched if one.key.phase is Phase.FORWARD]
    ours: dict[object, list[tuple[Entry, Entry]]] = {}
    theirs: dict[object, list[tuple[Entry, Entry]]] = {}
    for one, other in forward:
        ours.setdefault((one.key.step, one.content), []).append((one, other))
        theirs.setdefault((other.key.step, other.content), []).append((one, other))
    used: dict[Key, list[Entry]] = {}
    later = set()
    for one, other in forward:
        if not (one.key.layer and other.key.layer):
            continue
        found: dict[object, Entry] = {}
        given = is_input(other.key.slot)
        end = ends.get((other.key.step, other.key.layer, other.key.call)) if given else math.inf
        for there, user in theirs[other.key.step, other.content]:
            inside = other.order < user.order <= (math.inf if end is None else end)
            again = not given and _one_place(user.key, other.key)  # made once more, not used
            if inside and not again and there.content != one.content and _size(there) == _size(other):
                found.setdefault(there.content, there)
        if found and not telling(other):
            continue  # a value of ones is equal to any other of ones by chance
        if found:
            used[other.key] = [*found.values()]
        if found or given:
            continue
        places = [here for user, here in ours[one.key.step, one.content] if user.order > one.order]
        if places and all(here.order > other.order and here.content != other.content for here in places):
            later.add(other.key)
    standing = Standing.of(pair.reference for pair in pairs if pair.reference is not None)
    return Uses(used, frozenset(later), _passed(forward, around), frozenset(around - {""}), standing)


def _passed(forward: Iterable[tuple[Entry, Entry]], around: Set[str]) -> frozenset[Key]:
    """The addresses of the calls that hand on what they are given, on both sides."""
    calls: dict[object, list[tuple[Entry, Entry]]] = {}
    for one, other in forward:
        if other.key.layer not in around:
            calls.setdefault((other.key.step, other.key.layer, other.key.call), []).append((one, other))
    return frozenset(
        other.key
        for pairs in calls.values()
        if {is_input(other.key.slot) for _, other in pairs} == {True, False}
        and all(len({side.content for side in sides}) == 1 for sides in zip(*pairs))
        for _, other in pairs
    )


def _size(entry: Entry) -> int:
    return math.prod(entry.shape)


def _one_place(one: Key, other: Key) -> bool:
    return (one.layer, one.slot) == (other.layer, other.slot)

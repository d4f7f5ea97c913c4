"""What a layer of the port is given in a form that the reference's has not, by what it hands on inside as it is.

The reference's gets a list of values and joins them, the port's gets them joined: the first norm inside is given the
same on both sides, and so it is known what the port's layer should have been given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aligner.compare.cover import telling
from aligner.compare.net import is_input
from aligner.compare.pairing import Pair
from aligner.record import Call, Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


def counterparts(pairs: Iterable[Pair], calls: Iterable[Call]) -> Mapping[Key, Entry]:
    """By the port's address."""
    ends = {(call.step, call.layer, call.number): call.last for call in calls if call.phase is Phase.FORWARD}
    lone: list[Any] = []
    users: dict[object, list[tuple[Any, Any]]] = {}
    for pair in pairs:
        port = pair.port
        if port is None or pair.key.phase is not Phase.FORWARD or not is_input(port.key.slot):
            continue
        if pair.reference is None:
            lone.append(port)
        else:
            users.setdefault((port.key.step, port.content), []).append((pair.reference, port))
    found: dict[Key, Entry] = {}
    for one in lone:
        end = ends.get((one.key.step, one.key.layer, one.key.call)) or one.order
        for reference, user in users.get((one.key.step, one.content), ()) if one.key.layer else ():
            if one.order < user.order <= end and user.shape == one.shape == reference.shape and telling(one):
                found.setdefault(one.key, reference)
    return found

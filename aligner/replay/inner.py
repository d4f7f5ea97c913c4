"""What a layer of the port is given in the place of a list that the reference's is given.

The reference's joins its list, the port's gets it joined and hands it on as it is: the first norm inside is given the
same on both sides, and so it is known what the port's layer should have been given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aligner.compare.cover import telling
from aligner.compare.net import CallId, is_input
from aligner.compare.pairing import Pair
from aligner.record import Call, Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


def counterparts(
    pairs: Iterable[Pair], calls: Iterable[Call], missing: Mapping[tuple[int, CallId], Sequence[Entry]]
) -> Mapping[Key, Entry]:
    """By the port's address; `missing` are the arguments that only the reference's calls were given."""
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
        call = CallId(one.key.layer, one.key.call)
        listed = any(its.key.slot.startswith(f"{one.key.slot}.") for its in missing.get((one.key.step, call), ()))
        end = ends.get((one.key.step, *call)) or one.order
        for reference, user in users.get((one.key.step, one.content), ()) if listed else ():
            if one.order < user.order <= end and user.shape == one.shape == reference.shape and telling(one):
                found.setdefault(one.key, reference)
    return found

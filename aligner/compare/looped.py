"""Layers that one side calls in every turn of a loop, and the other side once for all turns.

Words may be embedded one by one as a decoder comes to them, or all of them beforehand. What the calls are given and
make lies along an axis of what the one call is given and makes, a new one or one that both have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from aligner.compare.along import Along, Row, Single, apart, stacks
from aligner.compare.folded import as_part
from aligner.compare.formed import Formed
from aligner.compare.net import CallId, is_input
from aligner.compare.reformed import Part
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.compare.layers import Pairing
    from aligner.dump.reader import Dump, Entry


@dataclass(frozen=True)
class Loop:
    """Of one layer and step: what stands for each other, and what each of the port's calls is to be given and make."""

    reference: CallId
    port: Sequence[CallId]
    parts: Sequence[Part]
    entries: Mapping[Key, Formed]


def loops(reference: Dump, port: Dump, pairing: Pairing) -> Iterator[Loop]:
    """The layers that one side calls once in a step, and the other several times."""
    ours, theirs = (
        Counter((call.step, call.layer) for call in dump.calls if call.phase is Phase.FORWARD)
        for dump in (reference, port)
    )
    for one, other in pairing.single.items():
        for step in sorted({step for step, layer in ours if layer == one}):
            counts = ours[step, one], theirs[step, other]
            if min(counts) == 1 < max(counts) and one and other:
                found = _loop((reference, port), step, (one, other), counts)
                if found is not None:
                    yield found


def _loop(dumps: tuple[Dump, Dump], step: int, layers: tuple[str, str], counts: tuple[int, int]) -> Optional[Loop]:
    """None where what the calls make is not what the one call makes."""
    several = 0 if counts[0] > 1 else 1
    calls = max(counts)
    slots = [e.key.slot for e in _of_call(dumps[1 - several], step, layers[1 - several], 0)]
    parts: list[Part] = []
    entries: dict[Key, Formed] = {}
    for slot in slots:
        keys = [Key(step, Phase.FORWARD, layers[several], number, slot) for number in range(calls)]
        each = [entry for entry in map(dumps[several].find, keys) if entry is not None]
        whole = dumps[1 - several].find(Key(step, Phase.FORWARD, layers[1 - several], 0, slot))
        alike = len(each) == calls and len({(entry.shape, entry.dtype) for entry in each}) == 1
        if whole is None or not alike or not (along := _along(each, whole)):
            if not is_input(slot):
                return None
            continue
        turns = Row(each, along, whole.shape)
        if several == 0:
            parts.append(Part(turns, as_part(whole), (keys[0], whole.key), (keys[1:], ())))
            entries[whole.key] = turns
        else:
            parts.append(Part(as_part(whole), turns, (whole.key, keys[0]), ((), keys[1:])))
            entries.update({key: Single(whole, along, n, each[n].shape) for n, key in enumerate(keys)})
    port = [CallId(layers[1], number) for number in range(counts[1])]
    return Loop(CallId(layers[0], 0), port, parts, entries) if parts else None


def _of_call(dump: Dump, step: int, layer: str, number: int) -> Sequence[Entry]:
    entries, _ = dump.of_layer(layer)
    return [e for e in entries if (e.key.step, e.key.call, e.key.phase) == (step, number, Phase.FORWARD)]


def _along(each: Sequence[Entry], whole: Entry) -> Optional[Along]:
    """How the calls' values may lie in the one; of several ways the one in which they are nearest to it."""
    part, calls, shape = each[0].shape, len(each), whole.shape
    ways = stacks(part, calls, shape)
    ways += [
        Along(axis, (size,) * calls)
        for axis, size in enumerate(part)
        if shape == (*part[:axis], size * calls, *part[axis + 1 :])
    ]
    return min(ways, key=lambda way: apart(way, each, whole)) if len(ways) > 1 else next(iter(ways), None)

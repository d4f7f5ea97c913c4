"""Nets that one training trains beside each other (a generator and a discriminator, an encoder and a decoder), by name.

They are captured as one net that hands each call on to one of them: a call of the discriminator is one of the whole,
and what is known of a net's steps, calls, batches and parameters holds for it.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Optional, cast

from aligner import registry
from aligner.adapter import Adapter, Trains
from aligner.capture.steps import check_training
from aligner.record import Phase
from aligner.words.training import NETS

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

_NEVER = ("aligner", "aligner_hooks")


def whole(nets: Mapping[str, object]) -> tuple[Adapter, object, Mapping[str, Any]]:
    """Nets that are given by name as one: its adapter, that net, and what a dump's header tells of it.

    Raises:
        AdapterError: no adapter knows them.
        CaptureError: their framework does not tell of training.
    """
    adapter = registry.of(next(iter(nets.values()), None))
    check_training(adapter, True)
    return adapter, cast(Trains, adapter).together(nets), told(nets)


def told(nets: Iterable[str]) -> Mapping[str, Any]:
    """What a dump's header tells of nets that are captured together."""
    return {NETS: [*nets], "model": ", ".join(nets)}


def beside(adapter: Adapter, model: object) -> list[object]:
    """Nets whose parameters an optimizer of this program moves, and that share none with the model."""
    if not hasattr(adapter, "alive"):
        return []
    trains = cast(Trains, adapter)
    optimizers, nets = trains.alive()
    own = {id(one.tensor) for one in adapter.parameters(model)}
    groups = (group for one in optimizers for group in trains.optimizer(one).groups)
    moved = {id(tensor) for group in groups for tensor in group.parameters} - own
    return [net for net in _outermost(adapter, model, nets) if _owns(adapter, net, moved)] if moved else []


def _outermost(adapter: Adapter, model: object, nets: Sequence[object]) -> list[object]:
    """Those that are in no other one, nor in the model; a frame around the model (a trainer) counts for nothing."""
    inside = {id(layer) for _, layer in adapter.layers(model)}
    found = []
    for net in nets:
        if id(net) in inside:
            continue
        within = {id(layer) for _, layer in adapter.layers(net)}
        if id(model) not in within:
            inside |= within - {id(net)}
            found.append(net)
    return [net for net in found if id(net) not in inside]


def _owns(adapter: Adapter, net: object, moved: set[int]) -> bool:
    return any(id(one.tensor) in moved for one in adapter.parameters(net))


def named(adapter: Adapter, nets: Sequence[object]) -> dict[str, object]:
    """Each net by the variable, the attribute or the entry that holds it where the program is now."""
    found: dict[str, object] = {}
    for net in nets:
        word = next(_names(adapter, net), "") or adapter.type_name(net).rpartition(".")[2].lower()
        found[_free(word, found)] = net
    return found


def _free(word: str, taken: Mapping[str, object]) -> str:
    return next(name for name in (word, *(f"{word}_{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _names(adapter: Adapter, net: object) -> Iterator[str]:
    frame: Optional[FrameType] = sys._getframe(1)
    outer: Mapping[str, Any] = {}
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in (*_NEVER, *adapter.packages):
            outer = frame.f_globals
            yield from _holding(frame.f_locals, net)
        frame = frame.f_back
    yield from _holding(outer, net)


def _holding(variables: Mapping[str, Any], net: object) -> Iterator[str]:
    held = [*variables.items()]
    yield from (name for name, value in held if value is net and name != "self")
    for name, value in held:
        inner = vars(value) if name == "self" and hasattr(value, "__dict__") else value
        if isinstance(inner, dict):
            for table in (inner, *(one for one in inner.values() if type(one) is dict)):
                yield from (key for key, one in [*table.items()] if one is net and isinstance(key, str))


def renamed(reference: Dump, adapter: Adapter, nets: Mapping[str, object]) -> dict[str, object]:
    """The nets of a port by the names of the reference's, as their parameters tell which are which; none if those of
    the reference are not captured together."""
    names = [str(name) for name in reference.header.get(NETS, ())]
    if not names:
        return {}
    theirs = {name: Counter[int]() for name in names}
    for entry in reference.entries:
        if entry.key.phase is Phase.PARAMETER and entry.key.layer.partition(".")[0] in theirs:
            theirs[entry.key.layer.partition(".")[0]][math.prod(entry.shape)] += 1
    ours = {name: Counter(math.prod(one.shape) for one in adapter.parameters(net)) for name, net in nets.items()}

    def likeness(name: str, other: str) -> tuple[float, float]:
        shared, most = theirs[name] & ours[other], theirs[name] | ours[other]
        alike = sum(size * count for size, count in shared.items()) / max(
            sum(size * count for size, count in most.items()), 1
        )
        return alike, difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()

    pairs = sorted(((likeness(a, b), a, b) for a in theirs for b in ours), key=lambda row: row[0], reverse=True)
    found: dict[str, object] = {}
    for _, name, other in pairs:
        if name not in found and other in ours:
            found[name] = nets[other]
            del ours[other]
    for other in ours:
        found[_free(other, {**theirs, **found})] = nets[other]
    return {name: found[name] for name in (*names, *found) if name in found}

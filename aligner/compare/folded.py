"""What comes out where one side has a convolution and a BatchNorm, and the other one a convolution alone.

Their parameters are computed (aligner.compare.combined). Of the values, what the one convolution makes is what the
BatchNorm of the other side makes; and a BatchNorm that was loaded to do nothing but add the bias is given what the
convolution makes without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.net import CallId
from aligner.compare.reformed import Part, combined, table
from aligner.dtypes import encode
from aligner.record import Array, Key, Phase, display

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.dump.reader import Dump, Entry

CHANNELS = 1
"""The axis of the channels in what a BatchNorm is given."""


class Shifted(Formed):
    """What a layer makes, without the bias that it adds."""

    def __init__(self, entry: Entry, bias: Entry) -> None:
        key = entry.key._replace(slot=f"{entry.key.slot}[-bias]")
        super().__init__(key, entry, entry.shape, (entry.content, bias.content))
        self._entry, self._bias = entry, bias

    def raw(self) -> Array:
        """The exact bits."""
        value, bias = self._entry.load().astype(np.float64), self._bias.load().astype(np.float64)
        beside = [1] * value.ndim
        beside[CHANNELS] = bias.size
        return encode(value - bias.reshape(beside), self.dtype)


class Elsewhere(Formed):
    """Another layer's value in the place of this layer's: what comes out where both of them are one."""

    def __init__(self, key: Key, entry: Any) -> None:
        super().__init__(key, entry, entry.shape, None)
        self.content = self.place = entry.content  # the same value, wherever else it stands
        self.entry = entry

    def raw(self) -> Array:
        """The exact bits."""
        bits: Array = self.entry.raw()
        return bits


@dataclass(frozen=True)
class Ends:
    """What is made by layers that are two on one side and one on the other."""

    parts: Sequence[Part]
    between: Mapping[Key, str]
    """The reference's values that the port does not have, and the layer that the port has folded away."""
    calls: Mapping[CallId, CallId]
    """The reference's call by the port's, of the port's second layers."""
    given: Mapping[Key, Formed]
    """What the port's second layers are to be given."""


def ends(reference: Dump, port: Dump) -> Ends:
    """Read them from the port's header."""
    ours, theirs = (side.norms() for side in combined(reference, port))
    found = Ends([], {}, {}, {})
    pairs = {row[0][0]: row[1][0] for row in table(port.header) if (row[0][0] in ours) != (row[1][0] in theirs)}
    for call in reference.calls if pairs else ():
        layer = pairs.get(call.layer)
        if layer is None or call.phase is not Phase.FORWARD:
            continue
        here, there = (Key(call.step, call.phase, path, call.number, "output.0") for path in (call.layer, layer))
        if call.layer in ours:
            _folded(found, (reference, port), (here, there), ours[call.layer][0])
        else:
            norm, recipe = theirs[layer]
            _unfolded(found, (reference, port), (here, there), norm, any(word == "bias" for word, *_ in recipe.parts))
    return found


def _folded(found: Any, dumps: tuple[Dump, Dump], keys: tuple[Key, Key], norm: str) -> None:
    """The port has the norm in its convolution."""
    behind = keys[0]._replace(layer=norm)
    made, other = dumps[0].find(behind), dumps[1].find(keys[1])
    if made is not None and other is not None:
        found.parts.append(Part(Elsewhere(keys[0], made), as_part(other), (behind, keys[1])))
        found.between.update({keys[0]: norm, behind._replace(slot="input.0"): norm})


def _unfolded(found: Any, dumps: tuple[Dump, Dump], keys: tuple[Key, Key], norm: str, biased: bool) -> None:
    """The port has a norm of its own; `biased`: its convolution adds the bias, else the norm does."""
    behind = keys[1]._replace(layer=norm)
    made, bias = dumps[0].find(keys[0]), dumps[0].find(Key(0, Phase.PARAMETER, keys[0].layer, 0, "bias"))
    first, last = dumps[1].find(keys[1]), dumps[1].find(behind)
    if (
        made is None
        or bias is None
        or first is None
        or last is None
        or made.shape[CHANNELS : CHANNELS + 1] != bias.shape
    ):
        return
    before = as_part(made) if biased else Shifted(made, bias)
    found.parts.append(Part(before, as_part(first), (keys[0], keys[1])))
    found.parts.append(Part(as_part(made), as_part(last), (keys[0], behind)))
    found.calls[CallId(norm, keys[1].call)] = CallId(keys[0].layer, keys[0].call)
    place = keys[0]._replace(slot=f"input.0[{norm.rpartition('.')[2]}]")  # one address, one check
    found.given[behind._replace(slot="input.0")] = Elsewhere(place, before)


def as_part(entry: Any) -> Formed:
    """A record where a part of one is looked for: it offers the same."""
    return entry  # type: ignore[no-any-return]  # see above


def excuse_between(readings: Iterable[Reading], reference: Dump, port: Dump) -> None:
    """What the reference has between a convolution and a norm that is folded into the port's is nowhere in the port."""
    between = ends(reference, port).between
    for reading in readings if between else ():
        if not reading.matched and reading.pair.reference is not None and reading.pair.key in between:
            reading.over, reading.covered, reading.reason = False, True, "covered-folded"
            reading.facts = {"layer": display(between[reading.pair.key])}

"""Values of a forced pass whose axes stand in another order than the reference's, or are joined."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Optional

from aligner.compare.checks import LIMIT, OTHER_FORM, Check
from aligner.compare.held import Held
from aligner.compare.masking import mask_like
from aligner.compare.net import is_input
from aligner.record import Key
from aligner.replay.forms import Axes, joined, laid, laid_out, other_orders, squeezed
from aligner.replay.judgement import judged

MOST = 8
"""Kinds of arguments that are looked into one by one."""

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Turned:
    """What is known of them, by the port's address."""

    orders: dict[Key, Axes] = field(default_factory=dict)
    """The order of axes in which a value was set against the reference's."""
    known: dict[Key, Sequence[Optional[Axes]]] = field(default_factory=dict)
    """Arguments that are the reference's in another order of axes; and which else they may have to be in (None: the
    reference's)."""
    mixed: set[Key] = field(default_factory=set)
    """Of these the ones that are in no other order, and have other sizes along as many axes: reshaped."""
    instead: dict[Key, Optional[Axes]] = field(default_factory=dict)
    """The order that such an argument is given in, where the layer does not take the one that it came in."""
    exchanged: set[Key] = field(default_factory=set)
    """Arguments that are the reference's with axes of one size in each other's places: most are a mistake."""
    trusted: set[Key] = field(default_factory=set)
    """Of these the ones that are none."""
    _seen: dict[Shapes, Axes] = field(default_factory=dict)
    """By the reference's shape and the port's: the order in which the port has the reference's values."""
    _slots: dict[tuple[str, str], Axes] = field(default_factory=dict)
    """By the port's layer and slot: the order in which that is in a call in which its shape tells."""

    def judged(
        self, check: Check, wanted: Held, found: Held, short: Optional[str], given: bool = False
    ) -> tuple[Check, Held]:
        """The check of a value that may be such a one, and the reference's value so. One in the same shape is one if it
        is trusted, or made of what was `given` so.
        """
        alike, slot = check.deviation is not None, (check.port.layer, check.port.slot)
        telling = not alike and squeezed(wanted.shape) != squeezed(found.shape)
        if not check.suspicious or check.axes is not None:  # else it is set against the reference's so by now
            return check, wanted
        if alike and not (given or is_input(check.port.slot) or slot in self._slots):
            return check, wanted
        shapes, array = (wanted.shape, found.shape), found.raw()
        order = laid_out(wanted, array, found.dtype, LIMIT * check.expected)
        if order is not None and not mask_like(wanted):
            self._seen.update({} if alike else {shapes: order})
            self._slots.update({slot: order} if telling else {})
        if order is None and wanted.shape != found.shape and not mask_like(wanted):
            order = self._seen.get(shapes) or self._likely(shapes)
        if order is not None and alike and is_input(check.port.slot):
            self.exchanged.add(check.port)
            order = order if check.port in self.trusted or self._slots.get(slot) == order else None
        known = self._slots.get(slot, ()) if alike else ()  # a call with other axes tells nothing of this one
        order = order or (known if known and len(known) == len(wanted.shape) else None)
        if order is None:
            return check, wanted
        if telling:
            self._slots.setdefault(slot, order)
        self.orders[check.port] = order
        put = laid(wanted, order, found.shape)
        place = (check.where, check.owner, check.between)
        judgement = replace(judged(short, put, found, place, False), isolated=check.isolated)
        if judgement.suspicious:
            return replace(judgement, axes=order), put
        if is_input(check.port.slot):
            self.known[check.port] = [None, *other_orders(wanted.shape, order, found.shape)]
            right = joined(wanted.shape, order, found.shape)
            straight = order == (*range(len(found.shape)),) and wanted.shape != found.shape
            self.mixed |= {check.port} if straight and not right else set()
            return (replace(check, error=0.0, reason=OTHER_FORM) if right else check), wanted
        return replace(judgement, error=0.0, reason=OTHER_FORM), put

    def readings(self, asked: Set[Key]) -> Iterator[tuple[int, Set[Key]]]:
        """Which of these to trust, or to trust no more, and in how many places less must be wrong then: all of them,
        and after that those without which no more is wrong, the same layer's of all blocks at once."""
        alike: dict[str, set[Key]] = {}
        for key in sorted(asked):
            alike.setdefault(re.sub(r"\d+", "*", key.layer), set()).add(key)
        yield from [(1, asked)] if asked else []
        yield from [(0, part) for part in [*alike.values()][:MOST]] if len(alike) > 1 else []

    def reading(self, part: Set[Key]) -> tuple[dict[Key, Axes], dict[Key, Sequence[Optional[Axes]]], set[Key]]:
        """Read these otherwise; gives what was known until then."""
        before = self.orders, self.known, self.trusted
        self.trusted = self.trusted ^ part
        self.orders = {key: order for key, order in self.orders.items() if key not in self.exchanged}
        self.known = {key: others for key, others in self.known.items() if key not in self.exchanged}
        return before

    def _likely(self, shapes: Shapes) -> Optional[Axes]:
        """The order for a wrong value: the one in which all right ones of as many axes were seen.

        The last axis must be as long: so it is known that the two shapes are of one kind.
        """
        one, other = shapes
        alike = {order for (a, b), order in self._seen.items() if (len(a), len(b)) == (len(one), len(other))}
        order = next(iter(alike)) if len(alike) == 1 else None
        fits = order is not None and one[order[-1]] == other[-1] and math.prod(one) == math.prod(other)
        return order if fits else None

"""Other forms in which parameters that fit nowhere as they are may fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from aligner.compare.views import View, squeezed
from aligner.replay import combining
from aligner.replay.items import Item
from aligner.vocabulary import KINDS

Sides = tuple[Sequence[Item], Sequence[Item]]
Form = Callable[[Sides], Sides]
"""Makes of both sides' parameters what else they may be."""


def forms(failing: Sequence[Sequence[Item]], by_order: bool, sides: Sides) -> Iterator[Form]:
    """Without axes of one, with the axes of a matrix turned (one kind of layer after the other), as tables.

    `failing` is what is left over on either side; `by_order` says whether anything was matched by its order alone.
    """
    if any(failing):
        for one, other in ((True, False), (False, True), (True, True)):
            yield partial(_with_lengths, (one, other))
        yield lambda sides: (_loosened(sides[0]), _loosened(sides[1]))
    if any(failing) or by_order:
        for side in (1, 0):
            flat = [i for i in sides[side] if len(i.whole) == 2 and i.kind not in KINDS and i.slot.role != "bias"]
            for group in dict.fromkeys(map(_group, flat)):
                yield partial(_turned, side, group)
    if all(failing):
        for turned in product((False, True), repeat=2):
            yield partial(_flat, failing, turned)


def _with_lengths(chosen: tuple[bool, bool], sides: Sides) -> Sides:
    one, other = (combining.lengths(side) if taken else side for taken, side in zip(chosen, sides))
    return one, other


def _flat(failing: Sequence[Sequence[Item]], turned: Sequence[bool], sides: Sides) -> Sides:
    """Tables without a counterpart, with their last axis in front or not, and all others as one."""
    one, other = (
        [_as_table(item, last) if item.slot in slots else item for item in side]
        for side, slots, last in zip(sides, ({item.slot for item in items} for items in failing), turned)
    )
    return one, other


def _as_table(item: Item, turned: bool) -> Item:
    """The item with two axes, if its first one is not to be mistaken for another."""
    found = replace(item, view=View(turned=turned), flat=True)
    axes = squeezed(found.view.shape(item.whole))
    plain = item.view.plain and item.recipe is None and (item.kind == "Embedding" or item.kind not in KINDS)
    return found if plain and len(axes) > 1 and axes[0] not in axes[1:] else item


def _loosened(items: Sequence[Item]) -> Sequence[Item]:
    return [replace(item, loose=True) for item in items]


def _turned(side: int, group: tuple[str, str], sides: Sides) -> Sides:
    turned = View(turned=True)
    changed = [
        replace(item, view=turned) if len(item.whole) == 2 and _group(item) == group else item for item in sides[side]
    ]
    return (sides[0], changed) if side else (changed, sides[1])


def _group(item: Item) -> tuple[str, str]:
    return item.kind, item.slot.role

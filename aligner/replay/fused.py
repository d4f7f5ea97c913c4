"""Parameters that are one on one side and several on the other: found by their shapes, their place and their names.

A parameter that has no counterpart may be the rows of several that stand beside each other in one layer of the other
side (q, k and v; k and v; all experts).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Optional

from aligner.compare.views import View
from aligner.replay.items import Item, Match, Slot

MOST = 256
"""Parts of one parameter; more experts than this are none."""

MOST_HEADS, TRIED = 128, 12
"""Heads of an attention, and how many numbers of them are tried."""

STACK = 3
"""Axes of a stack of matrices; its name is its own."""

_ORDER = {"q": 0, "query": 0, "queries": 0, "k": 1, "key": 1, "keys": 1, "v": 2, "value": 2, "values": 2}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def parts(
    wholes: Iterable[Item], others: Sequence[Item], free: Sequence[Item], kin: Mapping[str, str]
) -> list[tuple[Item, Item]]:
    """Parts of parameters without a counterpart, each with the parameter of the other side that it is.

    Matrices first: what else a layer has follows its matrix. The largest of them before others: what a qkv takes is no
    part of a qk. What stands in the `kin` of the layer around does, if each has such. Where more of the other side
    would do than there are, those at the same place do: with the same numbers in their paths, or `free` of a
    counterpart.
    """
    alike: dict[tuple[str, tuple[int, ...], str], list[Item]] = {}
    for item in sorted(wholes, key=lambda item: [-len(item.shape), *(-size for size in item.shape)]):
        if item.shape:
            alike.setdefault((_role(item), item.shape, _said(item)), []).append(item)
    partners: dict[str, list[str]] = {}
    there = {(item.slot.layer, _role(item)): item for item in others}
    found: list[tuple[Item, Item]] = []
    taken: set[Slot] = set()
    for (role, shape, said), items in alike.items():
        places = {_place(item) for item in items}
        groups: list[list[Optional[Item]]] = []
        near = [kin.get(_around(item)) for item in items]
        pools = (
            [[item for item in others if _around(item) == each] for each in near] if len({*near}) == len(near) else []
        )
        if len(shape) > 1 and pools:
            groups = [group for pool in pools for group in _groups(pool, taken, (role, shape, said))[:1]]
        for pool in (others, [item for item in others if _place(item) in places], free) if len(shape) > 1 else ():
            if len(groups) == len(items):
                break
            groups = _groups(pool, taken, (role, shape, said))
        if all(item.slot.layer in partners for item in items):
            groups = [[there.get((layer, role)) for layer in partners[item.slot.layer]] for item in items]
        for item, group in zip(items, groups) if len(groups) == len(items) else ():
            partners[item.slot.layer] = [other.slot.layer for other in group if other is not None]
            taken |= {other.slot for other in group if other is not None}
            found += _parts(item, group)
    return found


def _groups(
    pool: Iterable[Item], taken: Container[Slot], whole: tuple[str, tuple[int, ...], str]
) -> list[list[Optional[Item]]]:
    """Those that are the rows of one such whole together, each of one layer, in order of definition."""
    role, shape, said = whole
    rows = _rows(item for item in pool if item.slot not in taken)
    near = rows.get(role, []) if len(shape) < STACK else [row for every in rows.values() for row in every]
    return [group for row in near if (group := _group(row, shape, said))]


def kin(matches: Iterable[tuple[Item, Item]]) -> Mapping[str, str]:
    """By the first side's layer: the other side's with which it has most in common, of what stands in them."""
    counts: Counter[tuple[str, str]] = Counter()
    for one, other in matches:
        counts.update({(one.slot.layer, other.slot.layer), (_around(one), _around(other))})
    return {one: other for (one, other), _ in sorted(counts.items(), key=lambda item: item[1])}


def _around(item: Item) -> str:
    """The layer that its layer stands in."""
    return item.place.rpartition(".")[0]


def _role(item: Item) -> str:
    """ "weight" or "bias", also of in_proj_weight."""
    return item.slot.role.rpartition("_")[2]


def _place(item: Item) -> tuple[str, ...]:
    """The numbers in the path of the layer that it stands in."""
    return tuple(name for name in item.place.split(".")[:-1] if name.isdigit())


def _rows(items: Iterable[Item]) -> dict[str, list[list[Item]]]:
    """By role: the parameters of that role of the layers that stand in one layer, in order of definition."""
    rows: dict[str, dict[str, list[Item]]] = {}
    for item in items:
        rows.setdefault(_role(item), {}).setdefault(_around(item), []).append(item)
    return {role: [*parents.values()] for role, parents in rows.items()}


def _said(item: Item) -> str:
    """What the name of the whole says of its parts: "qk"; nothing for another name."""
    name = item.place.rpartition(".")[2].lower()
    return name if len(name) > 1 and "qkv".find(name) >= 0 else ""


def _group(row: Sequence[Item], shape: tuple[int, ...], said: str) -> list[Optional[Item]]:
    """The parameters of a row that are the rows of one of this shape together."""
    for axes in (len(shape), len(shape) - 1):  # all of them are rows, or all of them one row each
        fitting = [i for i in row if len(i.shape) == axes and i.shape[len(i.shape) - len(shape) + 1 :] == shape[1:]]
        named = sorted((item for item in fitting if meant(item) is not None), key=lambda item: meant(item) or 0)
        told = [item for item in named if "qkv"[meant(item) or 0] in said]
        for chosen in (told, named, [item for item in named if meant(item)], *_runs(fitting, shape)):
            if 1 < len(chosen) <= MOST and sum(_length(item, shape) for item in chosen) == shape[0]:
                return [*chosen]
    return []


def _runs(items: Sequence[Item], shape: tuple[int, ...]) -> Iterable[list[Item]]:
    """Neighbours whose rows are as many as wanted."""
    for first in range(len(items)):
        total = 0
        for last in range(first, len(items)):
            total += _length(items[last], shape)
            if total == shape[0]:
                yield [*items[first : last + 1]]
            if total >= shape[0]:
                break


def _length(item: Item, shape: tuple[int, ...]) -> int:
    """How many rows of the whole it is: one, where the whole is a stack of such."""
    return 1 if item.shape == shape[1:] else item.shape[0]


def meant(item: Item) -> Optional[int]:
    """0 for a query, 1 for a key, 2 for a value, by the layer's name; None for another name."""
    words = {word.lower() for word in _WORD.findall(item.place.rpartition(".")[2])}
    found = {_ORDER[word] for word in words if word in _ORDER}
    return found.pop() if len(found) == 1 else None


def rows_of(item: Item, parts: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Parts of a parameter, each with what it is: in their order, or by what their names mean, if all of them tell."""
    named = sorted((part for part in parts if meant(part) is not None), key=lambda part: meant(part) or 0)
    told = len({meant(part) for part in named}) == len(parts)
    return [*_parts(item, named if told else parts)]


def _parts(item: Item, group: Sequence[Optional[Item]]) -> Iterable[tuple[Item, Item]]:
    """The rows of each; where one lacks (a key without a bias), all have as many."""
    lengths = [0 if other is None else _length(other, item.shape) for other in group]
    missing = lengths.count(0)
    left = item.shape[0] - sum(lengths)
    if left < 0 or (left and not missing):
        return  # they are no parts of this one
    share = left // missing if missing else 0
    start = 0
    for other, length in zip(group, lengths):
        stop = start + (length or share)
        if other is not None:
            yield replace(item, view=View(start, stop, item.view.turned), loose=True), replace(other, loose=True)
        start = stop


def heads(matches: Iterable[Match]) -> list[int]:
    """How many heads the rows of parts may be of: what divides all of them."""
    sizes = {
        view.stop - view.start for match in matches for view in (match.reference.view, match.port.view) if view.stop
    }
    common = reduce(math.gcd, sizes, 0)
    return [number for number in range(2, min(common, MOST_HEADS) + 1) if common % number == 0][:TRIED]

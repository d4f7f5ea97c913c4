"""Which tensor of one checkpoint stands for which of the other, and by which rule it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.compare.layer_map import Rule
from aligner.compare.views import squeezed
from aligner.replay import mapped
from aligner.replay.items import MEANINGS, Item, Match, Slot
from aligner.replay.transfer import IGNORED_ROLES, plainly
from aligner.weights import content
from aligner.weights.items import items_of, without_prefixes
from aligner.weights.stored import Spans, Weight

SURE = 0.7
"""What is less sure than this rests on names that are alike by chance."""

CERTAIN = 1.0


@dataclass(frozen=True)
class Pair:
    """Two tensors that stand for each other. `by`: "same" (one name), "name" (by the rules of names), "prefix",
    "map", "order" (alike layers in order) or "values"."""

    reference: Weight
    port: Weight
    by: str
    confidence: float
    layer: str
    role: str
    kind: str


@dataclass(frozen=True)
class Pairing:
    """All pairs in the reference's order, and what is left over; `counters` need no counterpart at all."""

    pairs: tuple[Pair, ...]
    left: tuple[tuple[Weight, ...], tuple[Weight, ...]]
    required: frozenset[tuple[int, str]]
    """Side and name of what is left over and must not be; another name of a tensor that is paired may."""
    counters: tuple[str, ...]
    prefixes: tuple[str, str]


def pair(
    reference: Sequence[Weight],
    port: Sequence[Weight],
    rules: Sequence[Rule] = (),
    ordered: bool = True,
    by_values: bool = True,
) -> Pairing:
    """Set the tensors of two checkpoints against each other.

    Args:
        reference: in the order of their file.
        port: the same.
        rules: the user's map.
        ordered: both stand in the order in which the nets define them; else order says nothing.
        by_values: equal numbers say what names and order do not.

    Raises:
        ReplayError, UsageError: the map names what is not there.
    """
    known = all(weight.kind for weight in (*reference, *port))
    ours, theirs, prefixes = without_prefixes(items_of(reference, known), items_of(port, known))
    find = {w.name: w for w in reference}, {w.name: w for w in port}
    renames: Mapping[str, str] = {}
    if rules:
        layers = [list(dict.fromkeys(item.slot.layer for item in side)) for side in (ours, theirs)]
        given = mapped.given_pairs(rules, (ours, theirs), (layers[0], layers[1]))
        renames = mapped.renames(given, (ours, theirs))
    reshaped = [] if renames else _reshaped(ours, theirs)
    taken = {one.name for one, _ in reshaped}, {other.name for _, other in reshaped}
    sides = [[item for item in side if item.name not in names] for side, names in zip((ours, theirs), taken)]
    transfer = plainly(sides[0], sides[1], renames)
    firm = [match for match in transfer.matches if _is_firm(match)]
    loose = [match for match in transfer.matches if not _is_firm(match)]
    left = [*transfer.left_reference], [*transfer.left_port]
    matches = firm + _judged(loose, left, find, ordered, by_values)
    matches += [Match(one, other, "name", CERTAIN) for one, other in (*reshaped, *_counters(ours, theirs))]
    return _told(matches, (ours, theirs), find, prefixes)


def _is_firm(match: Match) -> bool:
    return match.by != "structure" or match.confidence >= CERTAIN


def _judged(
    loose: Sequence[Match],
    left: tuple[Sequence[Item], Sequence[Item]],
    find: tuple[Mapping[str, Weight], Mapping[str, Weight]],
    ordered: bool,
    by_values: bool,
) -> list[Match]:
    """What rests on order: held against what equal numbers say, and kept only where order means something."""
    found: list[Match] = []
    if by_values:
        ours = [*(match.reference for match in loose), *left[0]]
        theirs = [*(match.port for match in loose), *left[1]]
        looks = (lambda item: find[0][item.name]), (lambda item: find[1][item.name])
        found = [Match(one, other, "values", CERTAIN) for one, other in content.same(ours, theirs, looks)]
    taken = {match.reference.name for match in found}, {match.port.name for match in found}
    for match in loose:
        free = match.reference.name not in taken[0] and match.port.name not in taken[1]
        if free and ordered and match.confidence >= SURE:
            found.append(match)
    return found


def _reshaped(ours: Sequence[Item], theirs: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Tensors of one name and of other shapes, where most names mean the same on both sides."""
    others = {_meant(item): item for item in theirs}
    pairs = [(item, others[_meant(item)]) for item in ours if _meant(item) in others]
    apart = [pair for pair in pairs if squeezed(pair[0].whole) != squeezed(pair[1].whole)]
    return apart if 2 * len(apart) < len(pairs) else []


def _counters(ours: Sequence[Item], theirs: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Counters that both sides have; replay has no use for them, but a checkpoint of torch's is not whole without."""
    others = {item.slot: item for item in theirs if item.slot.role in IGNORED_ROLES}
    return [(item, others[item.slot]) for item in ours if item.slot in others]


def _meant(item: Item) -> Slot:
    return Slot(item.slot.layer, MEANINGS.get(item.slot.role, item.slot.role))


def _told(
    matches: Sequence[Match],
    sides: tuple[Sequence[Item], Sequence[Item]],
    find: tuple[Mapping[str, Weight], Mapping[str, Weight]],
    prefixes: tuple[str, str],
) -> Pairing:
    order = {item.name: number for number, item in enumerate(sides[0])}
    pairs = sorted((_pair(match, find, prefixes) for match in matches), key=lambda one: order[one.reference.name])
    used = {one.reference.name for one in pairs}, {one.port.name for one in pairs}
    rest = [[item for item in side if item.name not in names] for side, names in zip(sides, used)]
    counters = [item.name for side in rest for item in side if item.slot.role in IGNORED_ROLES]
    left = [tuple(look[i.name] for i in side if i.slot.role not in IGNORED_ROLES) for look, side in zip(find, rest)]
    shared = [{_place(look[name]) for name in names} - {None} for look, names in zip(find, used)]
    required = frozenset(
        (n, item.name)
        for n, side in enumerate(rest)
        for item in side
        if item.required and _place(find[n][item.name]) not in shared[n]
    )
    return Pairing(tuple(pairs), (left[0], left[1]), required, tuple(counters), prefixes)


def _place(weight: Weight) -> Optional[tuple[object, ...]]:
    """What two names of one tensor have in common: torch writes a tied weight under each, and stores it once."""
    stored = weight.stored
    return (id(stored.file), *stored.runs, *stored.shape) if isinstance(stored, Spans) and stored.nbytes else None


def _pair(match: Match, find: tuple[Mapping[str, Weight], Mapping[str, Weight]], prefixes: tuple[str, str]) -> Pair:
    one, other = find[0][match.reference.name], find[1][match.port.name]
    by = {"structure": "order", "rename": "map"}.get(match.by, match.by)
    if by == "name":
        by = "same" if one.name == other.name else "prefix" if any(prefixes) else "name"
    item = match.reference
    return Pair(one, other, by, match.confidence, item.slot.layer, item.role, item.kind)

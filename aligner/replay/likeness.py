"""Parameters that are matched by structure: alike layers, then alike parameters, in the order they are defined."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import lru_cache

from aligner.replay import blocks
from aligner.replay.items import STATISTICS, Item, Match, without

Signature = Callable[[Sequence[Item]], tuple[object, ...]]
"""What layers must have in common to be alike."""

IDLE = 1e-3
"""How much less the likeness of names counts where the reference's layer never ran."""


def by_structure(reference: Sequence[Item], port: Sequence[Item], known: Sequence[Match] = ()) -> list[Match]:
    """Layers with the same kind and parameters in order, then layers with the same shapes, then single parameters."""
    matches = _without_biases(reference, port)
    for signature in (_strict, _loose, _strictly_meant, _loosely_meant):
        rest_reference, rest_port = without(reference, port, matches)
        groups = _groups(rest_reference, signature), _groups(rest_port, signature)
        for key, layers in groups[0].items():
            for a, b, sure in _in_order(layers, groups[1].get(key, [])):
                matches += [Match(x, y, "structure", sure) for x, y in zip(_sorted(a), _sorted(b))]
    return matches + _singles(*without(reference, port, matches), [*known, *matches])


def _singles(reference: Sequence[Item], port: Sequence[Item], known: Sequence[Match]) -> list[Match]:
    """Single parameters of the same shape in order: block by block where it is known which block is which, then any."""
    matches: list[Match] = []
    for biases in (False, True):
        matches += _beside(*without(reference, port, matches), [*known, *matches])
        for rows in (blocks.rows(reference, port, known), _rows(reference, port)):
            free = [{i.slot for i in side if biases or not _is_bias(i)} for side in without(reference, port, matches)]
            for row in rows:
                sides = [[item for item in side if item.slot in slots] for side, slots in zip(row, free)]
                ours, theirs = ([[item] for item in side] for side in _without_statistics(sides))
                matches += [Match(a[0], b[0], "structure", sure * 0.8) for a, b, sure in _in_order(ours, theirs)]
    return matches


def _without_statistics(sides: Sequence[list[Item]]) -> Sequence[list[Item]]:
    """Where one side lacks a norm's statistics, what is left are not those."""
    learnt = [[item for item in side if item.role not in STATISTICS] for side in sides]
    return learnt if len(sides[0]) != len(sides[1]) and len(learnt[0]) == len(learnt[1]) else sides


def _is_bias(item: Item) -> bool:
    return "bias" in item.role


def _beside(reference: Sequence[Item], port: Sequence[Item], known: Sequence[Match]) -> list[Match]:
    """The biases that belong to weights whose counterparts are known, where they have other names."""
    ours, theirs = ({item.slot: item for item in side} for side in (reference, port))
    matches = []
    for match in known:
        slots = [item.slot._replace(role=item.slot.role.replace("weight", "bias")) for item in match[:2]]
        one, other = ours.get(slots[0]), theirs.get(slots[1])
        plain = match.reference.recipe is None and match.port.recipe is None
        if one is not None and other is not None and one.shape == other.shape and plain:
            matches.append(Match(one, other, "structure", match.confidence))
            del ours[slots[0]], theirs[slots[1]]
    return matches


def _rows(reference: Sequence[Item], port: Sequence[Item]) -> list[tuple[list[Item], list[Item]]]:
    shapes = dict.fromkeys(item.shape for item in reference)
    return [([i for i in reference if i.shape == shape], [i for i in port if i.shape == shape]) for shape in shapes]


def _without_biases(reference: Sequence[Item], port: Sequence[Item]) -> list[Match]:
    """Layers of which some lack their bias on one side (has_bias=False is a default): all in order, by the rest.

    Else the row of those that have one would be shorter, and its members would be pushed along.
    """
    matches: list[Match] = []
    ours, theirs = (_groups(items, _biasless) for items in (reference, port))
    for key, layers in ours.items():
        others = theirs.get(key, [])
        biased = [sum(any(item.slot.role == "bias" for item in layer) for layer in side) for side in (layers, others)]
        if len(layers) != len(others) or biased[0] == biased[1]:
            continue
        for a, b, sure in _in_order(layers, others):
            roles = {item.slot.role: item for item in b}
            matches += [Match(x, roles[x.slot.role], "structure", sure) for x in _sorted(a) if x.slot.role in roles]
    return matches


def _biasless(items: Sequence[Item]) -> tuple[object, ...]:
    return (items[0].kind, *sorted((item.slot.role, item.shape) for item in items if item.slot.role != "bias"))


def _strict(items: Sequence[Item]) -> tuple[object, ...]:
    return (items[0].kind, *sorted((item.slot.role, item.shape) for item in items))


def _loose(items: Sequence[Item]) -> tuple[object, ...]:
    return tuple(sorted((item.slot.role, item.shape) for item in items))


def _strictly_meant(items: Sequence[Item]) -> tuple[object, ...]:
    return (items[0].kind, *_loosely_meant(items))


def _loosely_meant(items: Sequence[Item]) -> tuple[object, ...]:
    return tuple(sorted((item.role, item.shape) for item in items))


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.role)


def _groups(items: Sequence[Item], signature: Signature) -> dict[tuple[object, ...], list[list[Item]]]:
    """The layers of one side by signature, each as the list of its parameters, in order of definition."""
    layers: dict[str, list[Item]] = {}
    for item in items:
        layers.setdefault(item.slot.layer, []).append(item)
    groups: dict[tuple[object, ...], list[list[Item]]] = {}
    for members in layers.values():
        groups.setdefault(signature(members), []).append(members)
    return groups


def _in_order(
    reference: Sequence[list[Item]], port: Sequence[list[Item]]
) -> list[tuple[list[Item], list[Item], float]]:
    """Pair two rows of alike layers without crossings; where one row is longer, likeness of names decides who stays.

    What never ran gets what nothing else wants.
    """
    if not reference or not port:
        return []
    if len(reference) == len(port):
        sure = 1.0 if len(reference) == 1 else 0.9
        return [(a, b, sure) for a, b in zip(reference, port)]
    likeness = [[_likeness(a[0], b[0]) for b in port] for a in reference]
    return [(reference[i], port[j], 0.6) for i, j in best_path(likeness)]


def _likeness(a: Item, b: Item) -> float:
    alike = ratio(a.slot.layer, b.slot.layer) + 0.1
    return alike * IDLE if a.idle else alike


@lru_cache(1 << 18)
def ratio(one: str, other: str) -> float:
    """How alike two names are, from 0 to 1."""
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def best_path(scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """The pairs (i, j), rising in both, whose scores sum to the most (dynamic programming)."""
    rows, columns = len(scores), len(scores[0])
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            best[i][j] = max(best[i + 1][j + 1] + scores[i][j], best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if best[i][j] == best[i + 1][j + 1] + scores[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs

"""Which of the port's parameters gets which of the reference's: by rename, by name, then by structure.

Both sides speak canonical words (adapters translate gamma to weight and squeeze Conv1d's extra axis), so equal nets
match by equal (layer, role, shape). What is left is matched by structure: layers of the same kind with the same
parameters, in the order they are defined; then single parameters of the same shape. Every match says what it rests
on and how sure it is; what fits nowhere is left over and named.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from aligner.errors import ReplayError
from aligner.record import display

IGNORED_ROLES = frozenset({"num_batches_tracked"})
"""Counters that a port has no use for."""


class Slot(NamedTuple):
    """A parameter's place on one side."""

    layer: str
    role: str


@dataclass(frozen=True, eq=False)
class Item:
    """What must be known of a parameter to find its counterpart. `name` is the framework's own."""

    slot: Slot
    shape: tuple[int, ...]
    name: str
    kind: str
    required: bool
    """False for buffers that nets recompute (masks, tables): left over, they are told but do not fail."""


class Match(NamedTuple):
    """A parameter of the reference, the port's that gets it, and why: "name", "rename" or "structure"."""

    reference: Item
    port: Item
    by: str
    confidence: float


@dataclass(frozen=True)
class Transfer:
    """The whole plan."""

    matches: tuple[Match, ...]
    left_reference: tuple[Item, ...]
    left_port: tuple[Item, ...]

    @property
    def layers(self) -> list[tuple[str, str, float]]:
        """Layer pairs that the matches imply, with the least confidence of theirs, in the reference's order."""
        pairs: dict[tuple[str, str], float] = {}
        for match in self.matches:
            pair = (match.reference.slot.layer, match.port.slot.layer)
            pairs[pair] = min(pairs.get(pair, 1.0), match.confidence)
        return [(reference, port, sure) for (reference, port), sure in pairs.items()]

    @property
    def failing(self) -> tuple[list[Item], list[Item]]:
        """What is left over and must not be."""
        return [item for item in self.left_reference if item.required], [i for i in self.left_port if i.required]


def plan(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> Transfer:
    """Match the port's parameters to the reference's.

    Raises:
        ReplayError: a rename names nothing on one side.
    """
    reference = [item for item in reference if item.slot.role not in IGNORED_ROLES]
    port = [item for item in port if item.slot.role not in IGNORED_ROLES]
    _check_renames(reference, port, renames)
    named = _by_name(reference, port, renames)
    rest_reference, rest_port = _without(reference, port, named)
    if rest_reference and rest_port and not renames:
        whole = _by_structure(reference, port)
        joined = named + _by_structure(rest_reference, rest_port)
        # Names that coincide by chance (two Sequentials numbered differently) leave crossings or gaps behind;
        # then the order of the whole net is the better witness.
        rank = {item: i for side in (reference, port) for i, item in enumerate(side)}
        matches = whole if _quality(whole, rank) > _quality(joined, rank) else joined
    else:
        matches = named + _by_structure(rest_reference, rest_port)
    position = {item.slot: i for i, item in enumerate(reference)}
    matches.sort(key=lambda match: position[match.reference.slot])
    left_reference, left_port = _without(reference, port, matches)
    return Transfer(tuple(matches), tuple(left_reference), tuple(left_port))


def _without(
    reference: Sequence[Item], port: Sequence[Item], matches: Sequence[Match]
) -> tuple[list[Item], list[Item]]:
    used = {match.reference.slot for match in matches}, {match.port.slot for match in matches}
    return [i for i in reference if i.slot not in used[0]], [i for i in port if i.slot not in used[1]]


def _check_renames(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> None:
    for side, items, wanted in (("reference", reference, renames.keys()), ("port", port, renames.values())):
        for name in wanted:
            known = {item.slot.layer for item in items} | {".".join(item.slot).lstrip(".") for item in items}
            if not any(_inside(path, name) for path in known):
                close = ", ".join(difflib.get_close_matches(name, sorted(known), n=3)) or "-"
                raise ReplayError("rename-unknown", name=name, side=side, close=close)


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or prefix == "" or path.startswith(f"{prefix}.")


def _renamed(slot: Slot, renames: Mapping[str, str]) -> Optional[Slot]:
    """The port's slot by the longest rename that covers this slot, or None when no rename does."""
    whole = ".".join(slot).lstrip(".")
    for prefix in sorted(renames, key=len, reverse=True):
        if _inside(whole, prefix):
            rest = whole[len(prefix) :].lstrip(".")
            layer, _, role = ".".join(part for part in (renames[prefix], rest) if part).rpartition(".")
            return Slot(layer, role)
    return None


def _by_name(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> list[Match]:
    ports = {item.slot: item for item in port}
    matches = []
    for item in reference:
        renamed = _renamed(item.slot, renames)
        found = ports.get(renamed or item.slot)
        if found is not None and found.shape == item.shape:
            matches.append(Match(item, found, "rename" if renamed else "name", 1.0))
    return matches


def _by_structure(reference: Sequence[Item], port: Sequence[Item]) -> list[Match]:
    """Layers with the same kind and parameters in order, then layers with the same shapes, then single parameters."""
    matches = _without_biases(reference, port)
    for signature in (_strict, _loose):
        rest_reference, rest_port = _without(reference, port, matches)
        groups = _groups(rest_reference, signature), _groups(rest_port, signature)
        for key, layers in groups[0].items():
            for a, b, sure in _in_order(layers, groups[1].get(key, [])):
                matches += [Match(x, y, "structure", sure) for x, y in zip(_sorted(a), _sorted(b))]
    rest_reference, rest_port = _without(reference, port, matches)
    shapes = {item.shape for item in rest_reference}
    for shape in shapes:
        ours = [[item] for item in rest_reference if item.shape == shape]
        theirs = [[item] for item in rest_port if item.shape == shape]
        matches += [Match(a[0], b[0], "structure", sure * 0.8) for a, b, sure in _in_order(ours, theirs)]
    return matches


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


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.slot.role)


def _groups(items: Sequence[Item], signature: object) -> dict[tuple[object, ...], list[list[Item]]]:
    """The layers of one side by signature, each as the list of its parameters, in order of definition."""
    layers: dict[str, list[Item]] = {}
    for item in items:
        layers.setdefault(item.slot.layer, []).append(item)
    groups: dict[tuple[object, ...], list[list[Item]]] = {}
    for members in layers.values():
        groups.setdefault(signature(members), []).append(members)  # type: ignore[operator]  # one of the two above
    return groups


def _in_order(
    reference: Sequence[list[Item]], port: Sequence[list[Item]]
) -> list[tuple[list[Item], list[Item], float]]:
    """Pair two rows of alike layers without crossings; where one row is longer, likeness of names decides who stays."""
    if not reference or not port:
        return []
    if len(reference) == len(port):
        sure = 1.0 if len(reference) == 1 else 0.9
        return [(a, b, sure) for a, b in zip(reference, port)]
    likeness = [[_likeness(a[0].slot.layer, b[0].slot.layer) for b in port] for a in reference]
    return [(reference[i], port[j], 0.6) for i, j in best_path(likeness)]


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() + 0.1


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


def _quality(matches: Sequence[Match], rank: Mapping[Item, int]) -> tuple[int, int, float]:
    """More matches first, then fewer crossings among alike parameters, then surer ones."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for match in sorted(matches, key=lambda match: rank[match.reference]):
        rows.setdefault(match.reference.shape, []).append(rank[match.port])
    crossings = sum(1 for row in rows.values() for a, b in zip(row, row[1:]) if a > b)
    return len(matches), -crossings, sum(match.confidence for match in matches)


def left_over(items: Sequence[Item], limit: int = 12) -> str:
    """The names, for a message."""
    names = [f"{item.name or display(item.slot.layer)} {list(item.shape)}" for item in items]
    more = [f"... {len(names) - limit} more"] if len(names) > limit else []
    return ", ".join(names[:limit] + more) or "-"

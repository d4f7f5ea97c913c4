"""Which of the port's parameters gets which of the reference's: by rename, by name, then by structure.

Both sides speak canonical words (adapters translate gamma to weight and squeeze Conv1d's extra axis), so equal nets
match by equal (layer, role, shape). What is left is matched by structure: layers of the same kind with the same
parameters, in the order they are defined; then single parameters of the same shape. Every match says what it rests
on and how sure it is; what fits nowhere is left over and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aligner.record import display
from aligner.replay import fused
from aligner.replay.items import Item, Match, Slot, with_meanings, without
from aligner.replay.likeness import by_structure
from aligner.replay.naming import by_name, check_renames
from aligner.replay.reshaping import Form, Sides, forms

PARTS = 0.9
"""How sure it is that parameters are the rows of another one."""

_Ranks = tuple[Mapping[Slot, int], Mapping[Slot, int]]

IGNORED_ROLES = frozenset({"num_batches_tracked"})
"""Counters that a port has no use for."""


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
            if match.by == "parts":
                continue  # of calls that says nothing: one layer here is several there
            pair = (match.reference.slot.layer, match.port.slot.layer)
            pairs[pair] = min(pairs.get(pair, 1.0), match.confidence)
        return [(reference, port, sure) for (reference, port), sure in pairs.items()]

    @property
    def mapping(self) -> list[list[object]]:
        """The same as plain facts; what layers are given told of those with "values" at the end."""
        told = {(m.reference.slot.layer, m.port.slot.layer) for m in self.matches if m.by == "values"}
        return [[one, other, sure] + ["values"] * ((one, other) in told) for one, other, sure in self.layers]

    @property
    def reformed(self) -> list[list[object]]:
        """Plain facts of the parameters that stand in another form in the port: slot and view on either side."""
        sides = [(match.reference, match.port) for match in self.matches if match.reformed]
        return [[[*item.slot, item.view.facts()] for item in pair] for pair in sides]

    @property
    def combined(self) -> list[list[list[object]]]:
        """Plain facts of either side's parameters that are made of several: slot and recipe."""
        sides = [match.reference for match in self.matches], [match.port for match in self.matches]
        return [[[*i.slot, i.recipe.facts()] for i in side if i.recipe is not None] for side in sides]

    @property
    def norms(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """By layer the norm that is taken together with it, on either side."""
        sides = [match.reference for match in self.matches], [match.port for match in self.matches]
        one, other = (
            {
                i.slot.layer: i.recipe.layer("variance")
                for i in side
                if i.recipe is not None and i.recipe.layer("variance")
            }
            for side in sides
        )
        return one, other

    def headed(self, heads: int) -> Transfer:
        """The same with the rows of parts head by head."""

        def seen(item: Item) -> Item:
            return replace(item, view=replace(item.view, heads=heads)) if item.view.stop else item

        matches = [
            m._replace(reference=seen(m.reference), port=seen(m.port)) if m.by == "parts" else m for m in self.matches
        ]
        return replace(self, matches=tuple(matches))

    @property
    def failing(self) -> tuple[list[Item], list[Item]]:
        """What is left over and must not be."""
        return [item for item in self.left_reference if item.required], [i for i in self.left_port if i.required]


def plan(
    reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str], folded: Sequence[Form] = ()
) -> Transfer:
    """Match the port's parameters to the reference's.

    Where that leaves something over, or rests on order alone, other forms are tried one after the other, and kept
    where more fits: those that were `folded`, as a direction and a length, without axes of one, with axes turned,
    several as the rows of one.

    Raises:
        ReplayError: a rename names nothing on one side.
    """
    sides = _counted(reference), _counted(port)
    check_renames(*sides, renames)
    best = _planned(*sides, renames)
    for form in (*folded, *forms(best.failing, any(match.by == "structure" for match in best.matches), sides)):
        other = form(sides)
        found = _planned(*other, renames)
        if _score(found, _ranks(other)) > _score(best, _ranks(sides)):
            best, sides = found, other
    ours, theirs = best.failing
    bound = [Match(one, part, "parts", PARTS) for part, one in fused.parts(theirs, sides[0], ours)]
    bound += [Match(part, one, "parts", PARTS) for part, one in fused.parts(ours, sides[1], theirs)]
    joined = _planned(*sides, renames, bound) if bound else best
    return joined if _score(joined, _ranks(sides)) > _score(best, _ranks(sides)) else best


def _ranks(sides: Sides) -> _Ranks:
    return {item.slot: i for i, item in enumerate(sides[0])}, {item.slot: i for i, item in enumerate(sides[1])}


def _counted(items: Sequence[Item]) -> Sequence[Item]:
    return with_meanings([item for item in items if item.slot.role not in IGNORED_ROLES])


def _score(transfer: Transfer, rank: _Ranks) -> tuple[int, int, float]:
    """Less left over first, then fewer crossings among alike parameters, then surer matches."""
    _, crossings, sure = _quality(transfer.matches, rank)
    return -sum(map(len, transfer.failing)), crossings, sure


def _planned(
    reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str], bound: Sequence[Match] = ()
) -> Transfer:
    """The matches of parameters in the forms given; `bound` are known beforehand."""
    free_reference, free_port = without(reference, port, bound)
    named = by_name(free_reference, free_port, renames)
    rest_reference, rest_port = without(free_reference, free_port, named)
    if rest_reference and rest_port and not renames:
        whole = by_structure(free_reference, free_port, bound)
        joined = named + by_structure(rest_reference, rest_port, [*named, *bound])
        # Names that coincide by chance (two Sequentials numbered differently) leave crossings or gaps behind;
        # then the order of the whole net is the better witness.
        rank = {item.slot: i for i, item in enumerate(reference)}, {item.slot: i for i, item in enumerate(port)}
        matches = whole if _quality(whole, rank) > _quality(joined, rank) else joined
    else:
        matches = named + by_structure(rest_reference, rest_port, [*named, *bound])
    matches = [*matches, *bound]
    position = {item.slot: i for i, item in enumerate(reference)}
    matches.sort(key=lambda match: position[match.reference.slot])
    left_reference, left_port = without(reference, port, matches)
    return Transfer(tuple(matches), tuple(left_reference), tuple(left_port))


def _quality(matches: Sequence[Match], rank: _Ranks) -> tuple[int, int, float]:
    """More matches first, then fewer crossings among alike parameters, then surer ones."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for match in sorted(matches, key=lambda match: rank[0][match.reference.slot]):
        rows.setdefault(match.reference.shape, []).append(rank[1][match.port.slot])
    crossings = sum(1 for row in rows.values() for a, b in zip(row, row[1:]) if a > b)
    return len(matches), -crossings, sum(match.confidence for match in matches)


def left_over(items: Sequence[Item], limit: int = 12) -> str:
    """The names, for a message."""
    names = [f"{item.name or display(item.slot.layer)} {list(item.shape)}" for item in items]
    more = [f"... {len(names) - limit} more"] if len(names) > limit else []
    return ", ".join(names[:limit] + more) or "-"

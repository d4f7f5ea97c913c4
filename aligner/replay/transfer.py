"""Which of the port's parameters gets which of the reference's: by rename, by name, then by structure.

Both sides speak canonical words (adapters translate gamma to weight and squeeze Conv1d's extra axis), so equal nets
match by equal (layer, role, shape). What is left is matched by structure: layers of the same kind with the same
parameters, in the order they are defined; then single parameters of the same shape. Every match says what it rests
on and how sure it is; what fits nowhere is left over and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aligner.record import display
from aligner.replay import fused
from aligner.replay.items import STATISTICS, Item, Match, Slot, with_meanings, without
from aligner.replay.likeness import by_structure
from aligner.replay.naming import by_name, check_renames
from aligner.replay.reshaping import Form, Sides, forms
from aligner.replay.sequenced import in_sequence

PARTS = 0.9
"""How sure it is that parameters are the rows of another one."""

ALONE = 0.5
"""How sure it is of a table that no other is like."""

TORN = 0.25
"""A layer that stands elsewhere than those around it says so much less than two in each other's places."""

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
        """What is left over and must not be. A norm that takes each batch's own statistics needs none: that is a
        setting, and what is wrong with it is told of what it makes.
        """
        layers = {match.reference.slot.layer: match.port.slot.layer for match in self.matches}
        taking = {i.slot.layer for i in (*self.left_port, *(m.port for m in self.matches)) if i.role in STATISTICS}
        ours = [item for item in self.left_reference if item.required]
        idle = {layer for layer, other in layers.items() if other not in taking}
        return (
            [item for item in ours if item.role not in STATISTICS or item.slot.layer not in idle],
            [item for item in self.left_port if item.required],
        )


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
    plain = sides = _counted(reference), _counted(port)
    check_renames(*sides, renames)
    best = _planned(*sides, renames)
    for form in (*folded, *forms(best.failing, any(match.by == "structure" for match in best.matches), sides)):
        other = form(sides)
        found = _planned(*other, renames)
        if _score(found, _ranks(other)) > _score(best, _ranks(sides)):
            best, sides = found, other
    bounds = [_bound(best, sides, port_first) for port_first in (True, False)]
    guessed = any(best.failing) or any(match.by in ("structure", "parts") for match in best.matches)
    bounds += [in_sequence(*sides)] if guessed and not renames else []
    known = [bound for bound in bounds if bound]
    ways = [best, *(_planned(*sides, renames, bound) for bound in known)]
    ways += [_needed(way, sides, renames, bound) for way, bound in zip(ways, ([], *known)) if any(way.failing)]
    return _with_tables(max(ways, key=lambda one: _score(one, _ranks(sides))), plain)


def plainly(reference: Sequence[Item], port: Sequence[Item], renames: Mapping[str, str]) -> Transfer:
    """Match parameters as they stand, but for axes of one: nothing is turned, nothing is rows of another.

    Raises:
        ReplayError: a rename names nothing on one side.
    """
    sides = _counted(reference), _counted(port)
    check_renames(*sides, renames)
    best = _planned(*sides, renames)
    if not all(best.failing):
        return best
    loose = [[replace(item, loose=True) for item in side] for side in sides]
    found = _planned(loose[0], loose[1], renames)
    return found if len(found.matches) > len(best.matches) else best


def _with_tables(found: Transfer, plain: Sides) -> Transfer:
    """With what needs no counterpart and has one as it stands: it need not have the form that the others have."""
    left = {item.slot for item in (*found.left_reference, *found.left_port) if not item.required}
    ours, theirs = ([item for item in side if item.slot in left] for side in plain)
    alike = [(one, [other for other in theirs if other.shape == one.shape]) for one in ours]
    lone = [(one, others[0]) for one, others in alike if len(others) == 1]
    lone = [(one, other) for one, other in lone if sum(each.shape == one.shape for each in ours) == 1]
    if not lone:
        return found
    matches = (*found.matches, *(Match(one, other, "structure", ALONE) for one, other in lone))
    rest = without(found.left_reference, found.left_port, matches)
    return replace(found, matches=matches, left_reference=tuple(rest[0]), left_port=tuple(rest[1]))


def _bound(best: Transfer, sides: Sides, port_first: bool) -> list[Match]:
    """Parameters without a counterpart that are the rows of several; what is part of one is so of no other. A parameter
    that fits a buffer has no counterpart.
    """
    loose = [match for match in best.matches if match.by == "structure"]
    alone = (
        best.failing[0] + [one.reference for one in loose if one.reference.required and not one.port.required],
        best.failing[1] + [one.port for one in loose if one.port.required and not one.reference.required],
    )
    found: list[Match] = []
    pairs = [(match.reference, match.port) for match in best.matches]
    kin = fused.kin(pairs), fused.kin((other, one) for one, other in pairs)
    for of_port in (port_first, not port_first):
        free = without(*alone, found)
        others = without(*sides, found)[not of_port]
        parts = fused.parts(free[of_port], others, free[not of_port], kin[of_port])
        found += [Match(*((one, part) if of_port else (part, one)), "parts", PARTS) for part, one in parts]
    return found


def _needed(best: Transfer, sides: Sides, renames: Mapping[str, str], bound: Sequence[Match]) -> Transfer:
    """The matches without what needs no counterpart and has taken that of something that needs one: a table, which the
    port works out for itself, of the shape of what is learnt.
    """
    odd = [
        match for match in best.matches if match.by == "structure" and match.reference.required != match.port.required
    ]
    idle = {(match.reference if match.port.required else match.port).slot for match in odd}
    ours, theirs = ([item for item in side if item.required or item.slot not in idle] for side in sides)
    found = _planned(ours, theirs, renames, bound)
    left = without(*sides, found.matches)
    return replace(found, left_reference=tuple(left[0]), left_port=tuple(left[1]))


def _ranks(sides: Sides) -> _Ranks:
    return {item.slot: i for i, item in enumerate(sides[0])}, {item.slot: i for i, item in enumerate(sides[1])}


def _counted(items: Sequence[Item]) -> Sequence[Item]:
    return with_meanings([item for item in items if item.slot.role not in IGNORED_ROLES])


def _score(transfer: Transfer, rank: _Ranks) -> tuple[int, float, int, float]:
    """Less left over first, then what `_quality` asks for, then fewer crossings among all, then surer matches."""
    _, crossings, sure = _quality(transfer.matches, rank)
    order = sorted((rank[0][match.reference.slot], rank[1][match.port.slot]) for match in transfer.matches)
    every = sum(1 for (_, a), (_, b) in zip(order, order[1:]) if a > b)
    return -sum(map(len, transfer.failing)), crossings, -every, sure


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
    # What only the bound ones leave without another counterpart is no surer than they are.
    sure = {match.reference.shape: match.confidence for match in bound}
    matches = [m._replace(confidence=min(m.confidence, sure.get(m.reference.shape, 1.0))) for m in matches]
    matches = [*matches, *bound]
    position = {item.slot: i for i, item in enumerate(reference)}
    matches.sort(key=lambda match: position[match.reference.slot])
    left_reference, left_port = without(reference, port, matches)
    return Transfer(tuple(matches), tuple(left_reference), tuple(left_port))


def _quality(matches: Sequence[Match], rank: _Ranks) -> tuple[int, float, float]:
    """More matches first, then fewer crossings among alike parameters, more layers that are called the same, and fewer
    that are torn from others, and statistics for what is learnt; then surer ones."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for match in sorted(matches, key=lambda match: rank[0][match.reference.slot]):
        one = match.reference
        rows.setdefault((one.shape, one.role, one.kind), []).append(rank[1][match.port.slot])
    crossings = sum(1 for row in rows.values() for a, b in zip(row, row[1:]) if a > b)
    called = {(match.reference.place, match.port.place) for match in matches}
    alike = sum(1 for one, other in called if _word(one) == _word(other))
    torn = _strays(called) + _strays((other, one) for one, other in called)
    odd = sum(1 for match in matches if (match.reference.role in STATISTICS) != (match.port.role in STATISTICS))
    return len(matches), alike - crossings - TORN * torn - odd, sum(match.confidence for match in matches)


def _strays(called: Iterable[tuple[str, str]]) -> int:
    """Layers that stand elsewhere than most of those that stand around them on the other side."""
    around: dict[str, Counter[str]] = {}
    for one, other in called:
        around.setdefault(one.rpartition(".")[0], Counter())[other.rpartition(".")[0]] += 1
    return sum(sum(count.values()) - max(count.values()) for count in around.values())


def _word(path: str) -> str:
    """What a layer is called, whatever its number."""
    return next((word for word in reversed(path.split(".")) if not word.isdigit()), "")


def left_over(items: Sequence[Item], limit: int = 12) -> str:
    """The names, for a message."""
    names = [f"{item.name or display(item.slot.layer)} {list(item.shape)}" for item in items]
    more = [f"... {len(names) - limit} more"] if len(names) > limit else []
    return ", ".join(names[:limit] + more) or "-"

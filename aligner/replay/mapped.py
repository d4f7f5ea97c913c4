"""The user's map where weights are loaded: what it says of parameters, and the map that was used, to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aligner.compare.layer_map import Rule, resolved
from aligner.errors import ReplayError
from aligner.record import display
from aligner.replay.items import Item, Match, Slot
from aligner.replay.naming import named_slot
from aligner.replay.transfer import Transfer

WORDS = {
    "name": "by name",
    "rename": "by map",
    "structure": "by type, shape and order",
    "values": "by the values it is given",
    "parts": "as rows of another one",
}
"""What a match rests on, in a written map."""


def given_pairs(
    rules: Sequence[Rule], sides: tuple[Sequence[Item], Sequence[Item]], layers: tuple[Sequence[str], Sequence[str]]
) -> Mapping[str, str]:
    """The rules without stars, for what both sides have; the net itself stands for itself alone.

    Raises:
        UsageError: a name or pattern fits nothing.
    """
    names = ([*own, *(_name(item.slot) for item in items)] for own, items in zip(layers, sides))
    return resolved(rules, *names)


def renames(pairs: Mapping[str, str], sides: tuple[Sequence[Item], Sequence[Item]]) -> Mapping[str, str]:
    """Those that speak of parameters: layers without any are paired at the comparison alone."""
    ours, theirs = ([_name(item.slot) for item in items] for items in sides)

    def speaks(name: str, names: Sequence[str]) -> bool:
        return any(other == name or other.startswith(f"{name}.") for other in names)

    return {a: b for a, b in pairs.items() if a and speaks(a, ours) and speaks(b, theirs)}


def check_followed(transfer: Transfer, wanted: Mapping[str, str], port: Sequence[Item]) -> None:
    """That the map could be followed.

    Raises:
        ReplayError: it pairs parameters whose shapes rule that out.
    """
    theirs = {item.slot: item for item in port}
    followed = {match.reference.slot: match for match in transfer.matches}
    for item in [*(match.reference for match in transfer.matches), *transfer.left_reference]:
        other = theirs.get(named_slot(item.slot, wanted) or Slot("", ""))
        match = followed.get(item.slot)
        if other is None or (match is not None and (match.by == "parts" or match.port.slot == other.slot)):
            continue
        facts = {"wanted": list(item.whole), "found": list(other.whole)}
        raise ReplayError("map-shapes", reference=_name(item.slot), port=_name(other.slot), **facts)


def map_lines(transfer: Transfer, given: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Layers, then the parameters that do not follow from them, then what the map says of layers without any."""
    lines: dict[str, tuple[str, str, str]] = {}
    for reference, port, sure in transfer.layers:
        if reference in lines:
            continue
        of_pair = [m for m in transfer.matches if (m.reference.slot.layer, m.port.slot.layer) == (reference, port)]
        why = ", ".join(dict.fromkeys(WORDS.get(match.by, match.by) for match in of_pair))
        lines[reference] = reference, port, f"{sure:.2f} {why}"
    for match in transfer.matches:
        one, other = match.reference.slot, match.port.slot
        if match.by != "parts" and Slot(lines[one.layer][1], one.role) != other:
            lines[_name(one)] = _name(one), _name(other), _why(match)
    for reference, port in given.items():
        lines.setdefault(reference, (reference, port, f"1.00 {WORDS['rename']}"))
    return list(lines.values())


def left_lines(transfer: Transfer) -> list[str]:
    """What a line cannot say: rows of another parameter, and what has no counterpart."""
    parts = [match for match in transfer.matches if match.by == "parts"]
    lines = [f"{_name(m.reference.slot)} with {_name(m.port.slot)}: {_why(m)}" for m in parts]
    for side, items in (("reference", transfer.left_reference), ("port", transfer.left_port)):
        lines += [f"left over in the {side}: {_name(item.slot)} {list(item.shape)}" for item in items]
    return lines


def _why(match: Match) -> str:
    return f"{match.confidence:.2f} {WORDS.get(match.by, match.by)}"


def _name(slot: Slot) -> str:
    return ".".join(slot).lstrip(".") or display("")

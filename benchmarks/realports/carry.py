"""Weights from a torch net into a port, by what runs when and has which shape, with a table by hand for the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from seen import Array, Seen, Unit


class CarryError(Exception):
    """Parameters that found no partner; the text lists them."""


FORMS: Mapping[str, Any] = {
    "same": lambda parts: parts[0],
    "turned": lambda parts: parts[0].T,
    "joined": lambda parts: np.concatenate(parts, axis=0),
    "first of 2": lambda parts: np.split(parts[0], 2)[0],
    "second of 2": lambda parts: np.split(parts[0], 2)[1],
    "first of 3": lambda parts: np.split(parts[0], 3)[0],
    "second of 3": lambda parts: np.split(parts[0], 3)[1],
    "third of 3": lambda parts: np.split(parts[0], 3)[2],
    "last two of 3": lambda parts: np.concatenate(np.split(parts[0], 3)[1:]),
}


def carried(reference: Seen, port: Seen, table: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, str]]:
    """The port's parameters, filled from the reference, and where each came from.

    `table` is the part by hand: "parameters" (regular expression of the port's name, the reference's, a form),
    "paths" (the same of layers), "own" (of the port alone: buffers that it computes), "unused" (of the reference).

    Raises:
        CarryError: parameters are left over.
    """
    given = _by_form(reference, port, table.get("parameters", ()))
    given.update(_by_shape(reference, port, table.get("paths", ()), given))
    used = {source for sources, _ in given.values() for source in sources}
    left = [f"port {name} {port.values[name].shape}" for name in _left(port, set(given), table.get("own", ()))]
    left += [
        f"reference {name} {reference.values[name].shape}" for name in _left(reference, used, table.get("unused", ()))
    ]
    if left:
        raise CarryError("left over:\n  " + "\n  ".join(left))
    values = {name: np.ascontiguousarray(value).reshape(port.values[name].shape) for name, (_, value) in given.items()}
    return values, {name: sources[0] for name, (sources, _) in given.items()}


Given = dict[str, tuple[list[str], Array]]
"""The port's name, and from which of the reference's which value."""


def _by_form(reference: Seen, port: Seen, rules: Sequence[Sequence[str]]) -> Given:
    """Those that are the same in another form: joined, cut, turned."""
    given: Given = {}
    for pattern, target, form in rules:
        for name in port.values:
            found = re.fullmatch(pattern, name)
            if found:
                sources = [_place(found, one) for one in target.split(" + ")]
                given[name] = sources, FORMS[form]([reference.values[one] for one in sources])
    return given


def _by_shape(reference: Seen, port: Seen, rules: Sequence[Sequence[str]], given: Given) -> Given:
    """Units by hand, then each in the order of running with the first free one of the same shapes."""
    used = {source for sources, _ in given.values() for source in sources}
    found: Given = {}
    by_hand = _by_hand(reference, port, rules)
    taken = {id(unit) for unit in by_hand.values()}
    free = [unit for unit in reference.units if not used & set(unit.names.values())]
    for unit in port.units:
        if set(unit.names.values()) & set(given):
            continue
        fitting = (one for one in free if one.key == unit.key and id(one) not in taken)
        match = by_hand.get(unit.path) or next(fitting, None)
        if match is not None:
            taken.add(id(match))
            found.update(
                {name: ([match.names[word]], reference.values[match.names[word]]) for word, name in unit.names.items()}
            )
    return found


def _by_hand(reference: Seen, port: Seen, rules: Sequence[Sequence[str]]) -> dict[str, Unit]:
    there = {unit.path: unit for unit in reference.units}
    chosen = {}
    for unit in port.units:
        for pattern, target in rules:
            found = re.fullmatch(pattern, unit.path)
            if found:
                chosen[unit.path] = there[_place(found, target)]
                break
    return chosen


def _place(found: re.Match[str], target: str) -> str:
    r"""The target with groups filled in: \\1 as it stands, {1+1} and {1-1} counted on or back."""

    def counted(number: re.Match[str]) -> str:
        return str(int(found[int(number[1])]) + int(number[2]))

    return found.expand(re.sub(r"\{(\d)([+-]\d)\}", counted, target))


def _left(seen: Seen, used: set[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in seen.values if name not in used and not any(re.fullmatch(one, name) for one in patterns)]


def put(net: Any, values: Mapping[str, Array]) -> list[str]:
    """Set the port's parameters by their place in it; the names that it has no place of this shape for."""
    own = {
        f"{path}.{word}" if path else word: parameter
        for path, cell in net.cells_and_names()
        for word, parameter in cell._params.items()
        if parameter is not None
    }
    left = []
    for name, value in values.items():
        if name not in own or tuple(own[name].shape) != value.shape:
            left.append(name)
        else:
            own[name].set_data(ms.Tensor(value, own[name].dtype))
    return left

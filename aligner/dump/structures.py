"""Structures (aligner.structure) out of a dump: looked through once, so that nobody else need doubt them."""

from __future__ import annotations

from typing import Any

from aligner.errors import Reason

HUGE = 1 << 1000
"""No whole number in a dump reaches this: beyond, there is no float beside it."""


def structure_from(value: Any) -> object:
    """The structure of a call's arguments or result, as it was.

    Raises:
        Reason: it is none. One with words that are not known here may be a later aligner's, and is let through.
    """
    if not isinstance(value, dict):
        raise Reason("why-bad-structure")
    if "args" in value:
        named = value.get("kwargs", [])
        good = _is_list(value["args"]) and _is_named(named, str) and len({name for name, _ in named}) == len(named)
    else:
        good = _is_structure(value)
    if not good:
        raise Reason("why-bad-structure")
    return value


def _is_structure(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if "tensor" in value:
        return isinstance(value["tensor"], str)
    if "value" in value:
        return value["value"] is None or isinstance(value["value"], (bool, float, str)) or _is_number(value["value"])
    for word in ("list", "tuple"):
        if word in value:
            return _is_list(value[word])
    if "dict" in value:
        return _is_named(value["dict"], (str, int))
    return "fields" not in value or _is_named(value["fields"], str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < HUGE


def _is_list(items: Any) -> bool:
    return isinstance(items, list) and all(map(_is_structure, items))


def _is_named(items: Any, kind: Any) -> bool:
    """Pairs of a name and a structure."""
    return isinstance(items, list) and all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], kind) and _is_structure(item[1])
        for item in items
    )

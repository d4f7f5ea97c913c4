"""A cell's type and settings in the words of aligner.vocabulary."""

from __future__ import annotations

from functools import cache
from typing import Any, Optional, Union

from mindspore import nn

from aligner.record import Attribute, LayerSpec
from aligner_hooks.mindspore_.kinds import Read, table
from aligner_hooks.mindsporelike.rewritten import written

LONGEST_WORD = 200
LONGEST_TUPLE = 16
MOST_SETTINGS = 64


def spec(cell: nn.Cell) -> LayerSpec:
    """Kind and settings; a class without an entry is named and described by what it holds."""
    entry = _entry(cell)
    if entry is not None:
        word, read = entry
        try:
            return LayerSpec(word, read(cell))
        except _ODD:
            pass  # `unread` tells of it
    return LayerSpec(written(type(cell)).__name__, _own_settings(cell))


def unread(cell: nn.Cell) -> str:
    """Why the settings of a known kind of cell cannot be read (another MindSpore, a changed instance), or ""."""
    entry = _entry(cell)
    if entry is not None:
        try:
            entry[1](cell)
        except _ODD as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


# What reading an attribute that is not there, or is of another form than expected, may raise.
_ODD = (AttributeError, TypeError, ValueError, LookupError)


def _entry(cell: nn.Cell) -> Optional[tuple[str, Read]]:
    """What is known of the cell's class."""
    kind = library_class(cell)
    return None if kind is None else table()[kind]


def library_class(cell: nn.Cell) -> Optional[type]:
    """The class of MindSpore's whose settings are known and as which this cell computes.

    A subclass is what its base is as long as it runs the same `construct`.
    """
    for base in written(type(cell)).__mro__:
        if base in table():
            # A Dense with an activation in it is no Linear.
            is_more = table()[base][0] == "Linear" and getattr(cell, "activation", None) is not None
            return None if is_more else base
        if "construct" in vars(base):
            break
    return None


def type_name(cell: object) -> str:
    """The class as users write it: "mindspore.nn.Conv2d" for the library's, with its module for others."""
    kind = written(type(cell))
    for module, short in (("mindspore.mint.", "mindspore.mint.nn"), ("mindspore.nn.", "mindspore.nn")):
        if kind.__module__.startswith(module):
            return f"{short}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def is_a(cell: nn.Cell, kinds: Union[type, tuple[type, ...]]) -> bool:
    """Whether the user wrote a cell of one of these classes, which a rewritten one need not be for Python."""
    return isinstance(cell, kinds) or issubclass(written(type(cell)), kinds)


@cache
def _common() -> frozenset[str]:
    """What every cell has."""
    return frozenset(vars(nn.Cell())) | {"fp16", "fp32", "bf16", "training"}


def _own_settings(cell: Any) -> dict[str, Attribute]:
    """Public plain values that the class set itself, and short tuples of them."""
    found: dict[str, Attribute] = {}
    for name, value in vars(cell).items():
        if name.startswith("_") or name in _common() or len(found) == MOST_SETTINGS:
            continue
        if isinstance(value, (list, tuple)) and 0 < len(value) <= LONGEST_TUPLE and all(map(_is_plain, value)):
            found[name] = tuple(value)
        elif _is_plain(value):
            found[name] = value
    return found


def _is_plain(value: object) -> bool:
    return type(value) in (bool, int, float) or (type(value) is str and len(value) <= LONGEST_WORD)

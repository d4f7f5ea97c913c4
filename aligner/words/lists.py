"""Lists of numbers in the arguments of a call that are values: an index, a part of what is put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aligner.words.calls import Constant, Opaque, Taken, tensors
from aligner.words.operations import bare

AXES = 8
"""More than values have."""


def listed(name: str, args: Sequence[Any], value: Callable[[tuple[float, ...]], Taken]) -> list[Any]:
    """The arguments of a call, with a value in the place of each such list."""
    found = [*args]
    if bare(name) == "getitem" and len(found) > 1 and isinstance(found[1], tuple) and not _is_word(found[1]):
        whole = len(found[1]) > AXES and _has_only(found[1], int)  # no value has so many axes
        items = (value(item) if _has_only(item, int) else item for item in found[1])
        found[1] = value(found[1]) if whole else tuple(items)
    if bare(name) == "append" and len(found) == 2:
        found = [tuple((one,) if type(one) in (int, float) else one for one in found)]
    together = found[0] if found and bare(name) in ("append", "concatenate") else None
    if isinstance(together, tuple) and not _is_word(together) and [*tensors(together)]:
        found[0] = tuple(value(item) if _has_only(item, int, float) else item for item in together)
    return found


def _has_only(value: object, *kinds: type) -> bool:
    plain = isinstance(value, tuple) and not _is_word(value) and len(value) > 0
    return plain and all(type(one) in kinds for one in value)  # type: ignore[attr-defined]  # it is a tuple


def _is_word(value: object) -> bool:
    return isinstance(value, (Taken, Opaque, Constant))

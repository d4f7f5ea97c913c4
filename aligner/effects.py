"""What a call writes into the dicts, lists and objects that it is given: a cache that grows, a note of what was seen.

Where a call is given others in their place, or is not made again, that is to be done to the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from aligner.structure import MAX_DEPTH

Arguments = tuple[Sequence[object], Mapping[str, object]]
"""Positional ones and those with names."""

Way = tuple[object, ...]
"""How a container is reached from the arguments: a position or a name, then keys."""


class Change(NamedTuple):
    """What one container has got, under its keys, and what it has lost. `size` is that of a list."""

    way: Way
    new: Mapping[Any, object]
    gone: Sequence[Any]
    size: int


class Effects:
    """Of one call; to be made before it."""

    def __init__(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._before = [(way, one, dict(_content(one))) for way, one in _containers(args, kwargs)]

    def found(self) -> list[Change]:
        """What was changed since."""
        changes = []
        for way, one, before in self._before:
            after = dict(_content(one))
            new = {key: value for key, value in after.items() if key not in before or value is not before[key]}
            gone = [key for key in before if key not in after]
            if new or gone:
                changes.append(Change(way, new, gone, len(after)))
        return changes

    def undone(self) -> None:
        """Let all have what they had before."""
        for _, one, before in self._before:
            if isinstance(one, list):
                one[:] = before.values()
            else:
                inside = one if isinstance(one, dict) else vars(one)
                inside.clear()
                inside.update(before)


def repeated(changes: Sequence[Change], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Change other arguments of the same form in the same way."""
    known = dict(_containers(args, kwargs)) if changes else {}
    for change in changes:
        one: Any = known.get(change.way)
        if isinstance(one, list):
            one[:] = [
                change.new[place] if place in change.new else one[place]
                for place in range(change.size)
                if place in change.new or place < len(one)
            ]
        elif one is not None:
            inside = one if isinstance(one, dict) else vars(one)
            for key in change.gone:
                inside.pop(key, None)
            inside.update(change.new)


def _containers(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[Way, Any]]:
    left: list[tuple[Way, object]] = [*(((place,), one) for place, one in enumerate(args))]
    left += [((name,), one) for name, one in kwargs.items()]
    seen = set[int]()
    while left:
        way, one = left.pop(0)
        if id(one) in seen or len(way) > MAX_DEPTH:
            continue
        if isinstance(one, tuple):
            left += [((*way, place), item) for place, item in enumerate(one)]
        elif _is_container(one):
            seen.add(id(one))
            yield way, one
            left += [((*way, key), item) for key, item in _content(one)]


def _is_container(one: object) -> bool:
    """A dict, a list, or an object that a program made for itself."""
    if isinstance(one, (dict, list)):
        return True
    other = isinstance(one, (type, ModuleType)) or callable(one) or hasattr(one, "shape")  # a layer, a tensor
    return hasattr(one, "__dict__") and not other


def _content(one: Any) -> Iterator[tuple[Any, object]]:
    yield from enumerate(one) if isinstance(one, list) else (one if isinstance(one, dict) else vars(one)).items()

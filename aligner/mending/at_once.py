"""What the reference reduces step by step, as the same in one step: axes that were joined before, or reduced before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

from aligner.mending.events import Event

WORDS = ("sum", "mean", "amax", "amin", "prod", "any", "all")
"""What is the same of all axes at once and of one after the other."""


def at_once(event: Optional[Event], makers: Mapping[int, Event], shapes: Sequence[tuple[int, ...]]) -> Optional[Event]:
    """The step on the value before that step which made what it is given; None where it does not reduce such a one."""
    value = event.operands[0] if event is not None and event.word in WORDS and event.operands else None
    before = makers.get(value) if isinstance(value, int) else None
    if event is None or not isinstance(value, int) or before is None or before.results != (value,):
        return None
    whole, given = before.operands[0] if before.operands else None, _axes(event)
    if not isinstance(whole, int) or not given or event.arguments.get("keepdims"):
        return None
    gone = _axes(before) if before.word == event.word and not before.arguments.get("keepdims") else set()
    if before.word == "reshape":
        parts = _joined(shapes[whole], shapes[value])
    else:
        parts = [(axis,) for axis in range(len(shapes[whole])) if axis not in gone] if gone else []
    if len(parts) != len(shapes[value]):
        return None
    axes = sorted(gone.union(*(parts[axis] for axis in given)))
    axis = axes[0] if len(axes) == 1 else tuple(axes)
    return replace(event, operands=(whole, *event.operands[1:]), arguments={**event.arguments, "axis": axis})


def _axes(event: Event) -> set[int]:
    axis = event.arguments.get("axis")
    return {axis} if isinstance(axis, int) else {*axis} if isinstance(axis, tuple) else set()


def _joined(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[int, ...]]:
    """For each axis after a reshape those that it is made of; none at all where one was taken apart."""
    found: list[tuple[int, ...]] = []
    at = 0
    for size in after:
        start, many = at, 1
        while at < len(before) and (many < size or (at == start and size == before[at] == 1)):
            many, at = many * before[at], at + 1
        if many != size:
            return []
        found.append(tuple(range(start, at)))
    if any(size != 1 for size in before[at:]):
        return []
    found[-1:] = [(*found[-1], *range(at, len(before)))] if found else []
    return found

"""Results of layers that end elsewhere than the reference's: a mask behind a norm, which the reference has in
the code around. What the port's code hands on as it is, is to be right where it is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from aligner.compare.checks import Check
from aligner.compare.net import is_input
from aligner.dump.reader import Dump, Entry
from aligner.record import Key, Phase
from aligner.replay.frames import Plan


class _Taken(NamedTuple):
    """What the reference has where the port takes a value; when that was, in the port's run."""

    order: int
    wanted: Entry


def passed_on(checks: Sequence[Check], port: Dump, plan: Plan) -> list[Check]:
    """The checks; those of wrong results that are handed on as they are to layers which take another value in the
    reference are judged by that, and what is taken so comes of it.
    """
    takers: dict[tuple[int, object], list[_Taken]] = {}
    for check in checks:
        own, wanted = port.find(check.port), plan.entries.get(check.port)
        if is_input(check.port.slot) and own is not None and wanted is not None:
            takers.setdefault((check.port.step, own.content), []).append(_Taken(own.order, wanted))
    ends = {(c.step, c.layer, c.number): c.first for c in port.calls if c.phase is Phase.FORWARD}
    judged = [replace(one, passed_on=_taken_as(one, port, plan, takers, ends)) for one in checks]
    found = [(one.port.step, port.find(one.port)) for one in judged if one.passed_on is not None]
    contents = {(step, entry.content) for step, entry in found if entry is not None}
    return [replace(one, follows=True) if _comes_of(one, port, contents) else one for one in judged]


def _comes_of(check: Check, port: Dump, contents: Collection[object]) -> bool:
    own = port.find(check.port) if contents and is_input(check.port.slot) else None
    return own is not None and (check.port.step, own.content) in contents


def _taken_as(
    check: Check,
    port: Dump,
    plan: Plan,
    takers: Mapping[tuple[int, object], Sequence[_Taken]],
    begun: Mapping[tuple[int, str, int], int],
) -> Optional[Key]:
    own, wanted = port.find(check.port), plan.entries.get(check.port)
    asked = check.fails and not is_input(check.port.slot) and check.port.layer
    if not asked or own is None or wanted is None:
        return None
    first = begun.get((check.port.step, check.port.layer, check.port.call), 0)
    taken = takers.get((check.port.step, own.content), ())
    values = {one.wanted.content for one in taken}
    before = any(one.order <= max(own.order, first) for one in taken)  # else it is what the layer was given
    if before or len(values) != 1 or wanted.content in values or taken[0].wanted.shape != wanted.shape:
        return None
    return taken[0].wanted.key

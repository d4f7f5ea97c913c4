"""Results of layers that end elsewhere than the reference's: a mask behind a norm, which the reference has in
the code around. What the port's code hands on as it is, is to be right where it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from aligner.compare.checks import Check
from aligner.compare.net import is_input
from aligner.dump.reader import Dump, Entry
from aligner.record import Key
from aligner.replay.frames import Plan


def passed_on(checks: Sequence[Check], port: Dump, plan: Plan) -> list[Check]:
    """The checks; those of wrong results that are handed on as they are to layers which take another value in the
    reference are judged by that.
    """
    takers: dict[tuple[int, object], list[Entry]] = {}
    for check in checks:
        own, wanted = port.find(check.port), plan.entries.get(check.port)
        if is_input(check.port.slot) and own is not None and wanted is not None:
            takers.setdefault((check.port.step, own.content), []).append(wanted)
    return [replace(one, passed_on=_taken_as(one, port, plan, takers)) for one in checks]


def _taken_as(check: Check, port: Dump, plan: Plan, takers: dict[tuple[int, object], list[Entry]]) -> Optional[Key]:
    own, wanted = port.find(check.port), plan.entries.get(check.port)
    asked = check.fails and not is_input(check.port.slot) and check.port.layer
    if not asked or own is None or wanted is None:
        return None
    taken = takers.get((check.port.step, own.content), [])
    alike = {entry.content for entry in taken} - {wanted.content}
    if len(alike) != 1 or len(alike) != len({entry.content for entry in taken}) or taken[0].shape != wanted.shape:
        return None
    return taken[0].key

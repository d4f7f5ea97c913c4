"""Masks of true and false: which of the two hides, the layer that is given it knows alone; so it does of what the
reference adds to scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.compare.held import held
from aligner.compare.net import is_input
from aligner.compare.worded import hidden
from aligner.dump.reader import Dump
from aligner.record import Array
from aligner.replay.alone import Alone
from aligner.replay.masks import is_additive, says_otherwise

LARGE = 1 << 26
"""Elements of a layer's parameters: a larger one is not copied to see how it reads a mask."""

MOST = 8
"""Masks of which it is asked."""

WRONG = 1e-3
"""What a layer is off by, at least, that reads a mask the other way round."""


def read_otherwise(checks: Sequence[Check], adapter: Adapter, port: Dump, alone: Alone) -> list[Check]:
    """The checks; of a wrong mask whose layer makes something wrong of the reference's, and is right with true for
    false in it, or with what an additive one hides or shows, what the layer makes tells whether an edit is right. So it
    is where others are given the same, and where the layer is wrong with either and most of the mask is the other way
    round: nothing else tells how to read it.
    """
    entries = alone.plan.entries
    asked = islice((one for one in checks if _is_asked(one, port, alone)), MOST)
    turned = {entries[one.port].content for one in asked if _is_turned(one, adapter, port, alone)}
    given = {port for port, entry in entries.items() if turned and is_input(port.slot) and entry.content in turned}
    return [replace(one, by_effect=True) if one.port in given and one.suspicious else one for one in checks]


def _is_asked(check: Check, port: Dump, alone: Alone) -> bool:
    own, wanted = port.find(check.port), alone.plan.entries.get(check.port)
    wrong = check.fails and check.where == "glue" and is_input(check.port.slot) and not check.by_effect
    if not wrong or own is None or wanted is None or own.dtype != "bool":
        return False
    return wanted.dtype == "bool" or (wanted.shape == own.shape and is_additive(wanted.load()))


def _is_turned(check: Check, adapter: Adapter, port: Dump, alone: Alone) -> bool:
    def is_right(mask: Array) -> bool:
        return alone.error(check, others={check.port.slot: adapter.from_numpy(mask, "bool")}) <= WRONG

    wanted, own = held(alone.plan.entries[check.port]), port.find(check.port)
    if alone.size(check.port.layer) > LARGE or own is None:
        return False
    try:
        if wanted.dtype != "bool":
            return is_right(hidden(wanted)) or is_right(~hidden(wanted))
        truths = wanted.raw().astype(bool)
        return not is_right(truths) and (is_right(~truths) or says_otherwise(truths, own.raw().astype(bool)))
    except Exception:  # a layer that cannot be copied, or not run by itself: then the values tell
        return False

"""Masks of true and false: which of the two hides, the layer that is given it knows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.compare.net import is_input
from aligner.dump.reader import Dump
from aligner.replay.alone import Alone
from aligner.replay.masks import says_otherwise

LARGE = 1 << 26
"""Elements of a layer's parameters: a larger one is not copied to see how it reads a mask."""

MOST = 8
"""Masks of which it is asked."""

WRONG = 1e-3
"""What a layer is off by, at least, that reads a mask the other way round."""


def read_otherwise(checks: Sequence[Check], adapter: Adapter, port: Dump, alone: Alone) -> list[Check]:
    """The checks; of a wrong mask whose layer makes something wrong of the reference's, and is right with true for
    false in it, what the layer makes tells whether an edit is right. So it is where others are given the same, and
    where the layer is wrong with either and most of the mask is the other way round: nothing else tells how to read it.
    """
    entries = alone.plan.entries
    asked = islice((one for one in checks if _is_asked(one, port, alone)), MOST)
    turned = {entries[one.port].content for one in asked if _is_turned(one, adapter, port, alone)}
    given = {port for port, entry in entries.items() if turned and is_input(port.slot) and entry.content in turned}
    return [replace(one, by_effect=True) if one.port in given and one.suspicious else one for one in checks]


def _is_asked(check: Check, port: Dump, alone: Alone) -> bool:
    own, wanted = port.find(check.port), alone.plan.entries.get(check.port)
    wrong = check.fails and check.where == "glue" and is_input(check.port.slot) and not check.by_effect
    return wrong and own is not None and wanted is not None and {own.dtype, wanted.dtype} == {"bool"}


def _is_turned(check: Check, adapter: Adapter, port: Dump, alone: Alone) -> bool:
    try:
        if alone.size(check.port.layer) > LARGE or alone.error(check) <= WRONG:
            return False
        wanted, own = alone.plan.entries[check.port].raw().astype(bool), port.find(check.port)
        right = alone.error(check, others={check.port.slot: adapter.from_numpy(~wanted, "bool")}) <= WRONG
        return right or (own is not None and says_otherwise(wanted, own.raw().astype(bool)))
    except Exception:  # a layer that cannot be copied, or not run by itself: then the values tell
        return False

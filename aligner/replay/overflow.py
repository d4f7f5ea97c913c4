"""Values of the reference that the port's float16 cannot hold: wrong where they come up first, and nowhere else.

A layer that is handed such a value gets infinity, in the forced pass as well: what it makes of it is no evidence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.checks import Check
from aligner.compare.held import Held
from aligner.compare.net import is_input
from aligner.replay.frames import Frame

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

TYPE = "float16"
FIRST_INFINITE = 65520.0
"""Numbers from here on are rounded to infinity."""


class Overflow:
    """What has overflown so far in one run."""

    def __init__(self) -> None:
        self._known: set[object] = set()

    def judged(self, check: Check, entry: Entry, wanted: Held, words: tuple[str, Optional[str]], frame: Frame) -> Check:
        """The check, which follows from an earlier one if this value came up there; what is made of it is no evidence.

        `words` are the types that the port has this value in and that it usually computes in.
        """
        known = entry.content in self._known
        if not known and not (TYPE in words and _beyond(check, wanted)):
            return check
        self._known.add(entry.content)
        if is_input(check.key.slot):
            frame.loose = True
            return replace(check, follows=True) if known else check
        if frame.around is not None:
            frame.around.loose = True
        return check


def _beyond(check: Check, wanted: Held) -> bool:
    """Whether the port has NaN or Inf, and the reference numbers that are too large for float16."""
    if check.deviation is None or not check.deviation.nonfinite:
        return False
    values = np.abs(wanted.load())
    return bool((np.isfinite(values) & (values >= FIRST_INFINITE)).any())

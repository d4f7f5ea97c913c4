"""Values of a forced pass of which the port has a part, or of which it has more: the biases of the newest token where
the reference makes all, a whole row that is cut behind the layer and not before it.

Layers that are given indices make of a part a part. Of others, and of what is no index, a part is another thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.checks import OTHER_FORM, Check
from aligner.compare.held import Held
from aligner.compare.net import is_input
from aligner.dtypes import DTYPES
from aligner.replay.judgement import judged

if TYPE_CHECKING:
    from aligner.record import Key
    from aligner.replay.frames import Frame

Call = tuple[str, int]


class Portions:
    """Of one run. A layer that is given a part makes a part; whether that is all that was wanted, the code around tells
    when it has ended: it makes nothing wrong that was not wrong before, nor do those that were given a part. What
    others make wrong, which are given all, they make wrong by themselves. One that is given more makes more: what the
    code around takes of that, the next value tells."""

    def __init__(self, refuted: Set[Key] = frozenset()) -> None:
        self.refuted = {*refuted}
        """Arguments with more than the reference's with which a run did not come to its end: these are held."""
        self._calls: set[Call] = set()
        """Those that were given a part."""
        self._owners: set[str] = set()
        """Their counterparts."""
        self._more: set[Key] = set()
        """Of the arguments those that have more than the reference's."""
        self._waiting: list[tuple[Frame, int, Check]] = []
        """The code around, the place of the check, and what it was."""

    def taken(self, check: Check, wanted: Held, found: Held, frame: Frame, place: int) -> Optional[Check]:
        """The check that goes into this place for such a value; None for others."""
        call, given = (frame.path, frame.number), is_input(check.port.slot)
        if (
            not check.suspicious
            or frame.around is None
            or check.port in self.refuted
            or not (_are_indices(found, frame) if given else call in self._calls)
        ):
            return None
        if not any(_same(check, one, other) for one, other in _parts(wanted, found)):
            return None
        if given:
            self._calls.add(call)
            self._owners |= set() if frame.call is None else {frame.call.layer}
            if math.prod(found.shape) > math.prod(wanted.shape):
                self._more.add(check.port)
            else:
                self._waiting.append((frame.around, place, check))
        return replace(check, error=0.0, deviation=None, reason=OTHER_FORM)

    def left(self, frame: Frame, checks: list[Check]) -> None:
        """A call has ended."""
        mine = [(place, check) for around, place, check in self._waiting if around is frame]
        if not mine:
            return
        self._waiting = [one for one in self._waiting if one[0] is not frame]
        before = {(check.port.layer, check.port.slot) for check in checks[: frame.first] if check.suspicious}
        since = (c for at, c in enumerate(checks) if at >= frame.first and at not in frame.doubtful)
        since = (c for c in since if not (is_input(c.port.slot) and c.port.layer == frame.path))  # none of its making
        around = set() if frame.call is None else {frame.call.layer}
        since = (c for c in since if c.owner in self._owners | around or (c.port.layer, c.port.call) in self._calls)
        if any(check.suspicious and (check.port.layer, check.port.slot) not in before for check in since):
            for place, check in mine:
                checks[place] = check

    def raised(self) -> bool:
        """An exception has ended the run: whether some are held from now on that were not."""
        self.refuted |= (more := self._more - self.refuted)
        return bool(more)


def _are_indices(found: Held, frame: Frame) -> bool:
    return DTYPES[found.dtype].exact and found.dtype != "bool" and not frame.inner


def _parts(wanted: Held, found: Held) -> Iterator[tuple[Held, Held]]:
    """Both as long as the shorter one is, at either end of the axis in which alone it is shorter."""
    if len(wanted.shape) != len(found.shape) or 0 in (*wanted.shape, *found.shape):
        return
    axes = [axis for axis, sizes in enumerate(zip(wanted.shape, found.shape)) if sizes[0] != sizes[1]]
    if len(axes) == 1:
        length = min(wanted.shape[axes[0]], found.shape[axes[0]])
        for end in (slice(None, length), slice(-length, None)):
            part = (slice(None),) * axes[0] + (end,)
            yield _cut(wanted, part), _cut(found, part)


def _cut(whole: Held, part: tuple[slice, ...]) -> Held:
    return Held(whole.key, whole.order, whole.dtype, np.ascontiguousarray(whole.raw()[part]))


def _same(check: Check, wanted: Held, found: Held) -> bool:
    judgement = judged(None, wanted, found, (check.where, check.owner, check.between), same=False)
    return not replace(judgement, expected=check.expected).suspicious

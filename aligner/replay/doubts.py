"""Arguments that a layer of the port gets in another form than the reference's, or not at all: right, or a mistake?"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from aligner.compare.checks import ARGUMENT, OTHER_FORM, OTHER_SHAPE, Check
from aligner.compare.net import CallId, is_input
from aligner.record import Key, Phase
from aligner.replay.frames import Frame
from aligner.replay.handed import lacking, understood
from aligner.replay.judgement import expected
from aligner.replay.prints import BOOL
from aligner.replay.values import NEARLY, Values

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

LOANS = 6
"""Values that are lent one by one."""


class Doubts:
    """Judges them by what is made of them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.turned: set[Key] = set()
        """Arguments in another order of axes to calls that make something else than the reference's of them."""
        self.blamed: set[object] = set()
        """Masks in other words that were taken for what is wrong."""
        self.open: set[Key] = set()
        """Arguments in another form that were taken for what is wrong, and might be right."""
        self.right: set[Key] = set()
        """Of these the ones that are: something right is made of them."""
        self.strange: set[Key] = set()
        """Those that cannot be set against the reference's at all, of layers with code around others in which no shape
        is wrong."""

    def judge(self, step: int, frame: Frame, made: int) -> None:
        """Arguments in another form, or not given at all, are wrong where what was made of them is.

        Then what is wrong inside comes of it. `made` is where the checks of the results begin.
        """
        missing = self._values.plan.missing.get((step, CallId(frame.path, frame.number)), ())
        missing = (
            ()
            if frame.joined or not frame.takes_more or self._taken_elsewhere(frame, missing)
            else lacking(missing, frame.own)
        )
        if not frame.doubtful and not missing:
            return
        mine = [
            (place, check)
            for place, check in enumerate(self._values.checks)
            if place >= frame.first and check.suspicious
        ]
        given = {p for p, check in mine if p < made and _given_to(frame, check)}  # arguments make no others
        mine = [(place, check) for place, check in mine if place not in given.union(frame.doubtful)]
        handed = {self._values.content(self._values.checks[place]) for place in frame.doubtful}
        passed = any(check.where == "glue" and self._values.content(check) in handed for _, check in mine)
        misled = [place for place in frame.misled if place in frame.doubtful]
        turned = passed or bool(misled)
        doubts = [self._values.checks[place] for place in frame.doubtful]
        turned |= any(_is_strange(check, self._values) for check in doubts)
        wrong = any(p >= made or check.deviation is None or (turned and check.where == "glue") for p, check in mine)
        words = [self._values.masks.words.get(check.port) for check in doubts]
        if not mine and not missing and all(words) and made < len(self._values.checks):
            self._values.masks.understood.update(words)
        wrong = wrong and not (words and self._values.masks.understood.issuperset(words))
        self.blamed |= {each for each in words if each is not None} if wrong else set()
        wrong = wrong and not understood(doubts, self._values.checks[frame.first : made], self._values.plan.entries)
        wrong = wrong and (passed or not self._taken_turned(frame, made))
        inside = {self._values.content(c) for c in self._values.checks[frame.first : made] if c.port in self.right}
        self.right |= {check.port for check in doubts if self._values.content(check) in inside}  # it only hands them on
        ports = {check.port for check in doubts}
        wrong = wrong and not (ports and ports <= self.right)
        told = self.right | self._values.turned.mixed  # of these a step that works on each number by itself makes right
        self.open |= ports - told if wrong and not misled and frame.around is not None else set()
        formed = frame.inner and not any(check.reason for _, check in mine)
        others = {self._values.checks[place].port for place in frame.misled}
        masks = {c.port for c in doubts if self._is_mask(c)}
        counted = masks | self._values.indices - others  # each of the reference's is always the same other one
        self.strange |= {c.port for c in doubts if formed and (_is_strange(c, self._values) or c.port in counted)}
        sooner = [place for place in frame.doubtful if self._values.checks[place].port not in masks]
        blamed = misled or sooner or frame.doubtful if wrong else ()  # one that says other things, before other words
        for place in [place for place in frame.doubtful if place not in blamed]:
            self._values.checks[place] = replace(self._values.checks[place], error=0.0, reason=OTHER_FORM)
        within = [p for p, check in mine if p >= made or check.where == "glue" or check.deviation is None]
        if (not wrong or not frame.doubtful) and not (missing and within and frame.around is not None):
            return
        for place in within:
            self._values.checks[place] = replace(self._values.checks[place], follows=True)
        for place in blamed if frame.around is not None else ():
            check = self._values.known_wrong(frame.around, self._values.checks[place])
            odd = _is_strange(check, self._values) or check.port in self._values.indices
            whole = (
                frame.inner or (frame.path, frame.number) in self._values.odd
            )  # it makes its own of what it is given
            self._values.checks[place] = replace(check, by_effect=odd and whole)
        if frame.around is None or frame.around.call is None or frame.call is None or frame.doubtful:
            return
        owner, between = frame.around.call.layer, (frame.before, frame.call.layer)
        for entry in missing:
            address = Key(step, Phase.FORWARD, frame.path, frame.number, entry.key.slot)
            explained = expected(self._values.plan.coarsest(owner), entry.dtype, entry.dtype)
            self._values.checks.append(
                Check(entry.key, address, "glue", owner, between, math.inf, explained, reason=ARGUMENT)
            )

    def moved(self, asked: Set[Key], before: Sequence[Check], after: Sequence[Check]) -> None:
        """Those whose numbers were put in other places are right, if something made of them was right until then, or if
        nothing is made of them."""
        spoiled = {check.port for check in after if check.suspicious}
        hit = {check.port for check in before if _is_clean(check) and check.port in spoiled}
        self.right |= {key for key in asked if any(_comes_of(port, key) for port in hit)}
        for key in asked:
            errors = ({c.port: c.error for c in checks if _comes_of(c.port, key)} for checks in (before, after))
            first, second = errors
            told = key in self._values.moved and any(0.0 < error < math.inf for error in first.values())
            self.right |= {key} if told and first == second else set()

    def parts(self, asked: set[Key]) -> Sequence[set[Key]]:
        """Those to be looked into at once: what is moved inside a layer is none of its own arguments' doing."""
        outer = {key for key in asked if not any(key.layer.startswith(f"{other.layer}.") for other in asked)}
        return [*self.by_value(outer), *self.by_value(asked - outer)]

    def by_value(self, asked: set[Key]) -> Sequence[set[Key]]:
        """Those that are one value of the reference's together; all of them, where that are many."""
        found: dict[object, set[Key]] = {}
        for key in asked:
            entry = self._values.plan.entries.get(key)
            found.setdefault(key if entry is None else entry.content, set()).add(key)
        return [*found.values()] if len(found) <= LOANS else [asked]

    def lent(self, asked: Set[Key], before: Sequence[Check], after: Sequence[Check]) -> None:
        """Those in the place of which the reference's were lent are not to blame, if a layer is as wrong with these:
        of a layer's code and a form that it takes the one that is seen to be wrong is told."""
        wrong = {check.port for check in before if check.suspicious or check.follows}
        for key in asked:
            made = [check for check in after if _comes_of(check.port, key)]
            left = {check.port for check in made if check.suspicious or check.follows}
            mended = bool(made) and (not left or left < {port for port in wrong if _comes_of(port, key)})
            self.right |= set() if mended else {key}

    def _is_mask(self, check: Check) -> bool:
        """Whether it is a mask of true and false, as the reference's is, in other words."""
        return {form for _, form, _ in self._values.masks.words.get(check.port, ())} == {BOOL}

    def _taken_turned(self, frame: Frame, made: int) -> bool:
        """Whether a layer is given its arguments in another order of axes, and so may take them: a norm of the last
        axis.

        What it makes is in that order nearly what it should be. If not, it is asked what it makes of other orders; what
        is in none, and has other sizes along as many axes, is to blame.
        """
        turned = {self._values.checks[place].port for place in frame.doubtful}
        if not turned <= self._values.turned.known.keys():
            return False
        results = [check.deviation for check in self._values.checks[made:]]
        if not all(found is not None and found.rel_l2 < NEARLY for found in results):
            self.turned |= turned
            return not turned <= self._values.turned.mixed
        return True

    def _taken_elsewhere(self, frame: Frame, missing: Sequence[Entry]) -> bool:
        """Whether the port has called for itself what the reference's call hands these arguments on to inside, or has
        them inside of its own call all the same: a table that is its own."""
        if not missing or frame.call is None:
            return False
        inside = f"{frame.call.layer}."
        checks = [c for c in self._values.checks[: frame.first] if c.key.layer.startswith(inside)]
        checks += [
            c for c in self._values.checks[frame.first :] if (c.port.layer, c.port.call) != (frame.path, frame.number)
        ]
        taken = {self._values.content(c) for c in checks if is_input(c.key.slot) and not c.suspicious}
        return all(entry.content in taken for entry in missing)


def _is_strange(check: Check, values: Values) -> bool:
    return check.reason == OTHER_SHAPE and check.port not in values.masks.spread


def _is_clean(check: Check) -> bool:
    return not (check.reason or check.suspicious or check.follows)


def _comes_of(port: Key, argument: Key) -> bool:
    """Whether this value is made in a call of the layer that is given the argument."""
    own = port.layer == argument.layer and port.call == argument.call and not is_input(port.slot)
    return own or port.layer.startswith(f"{argument.layer}.")


def _given_to(frame: Frame, check: Check) -> bool:
    return is_input(check.port.slot) and (check.port.layer, check.port.call) == (frame.path, frame.number)

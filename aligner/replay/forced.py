"""The forced pass: the port runs once more, each layer held to the reference.

    received  -> set against the reference's input: what differs was done by the code around (glue)
    given     <- the reference's input
    made      -> set against the reference's output: what differs was done by this layer
    handed on <- the reference's output

So every place is judged by itself, with no error inherited, however many are wrong. One tensor of each side is in
memory at a time. What is wrong is kept in the port's dump (phase FORCED) for those who look into it later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Optional

from aligner.compare.checks import OTHER_CALL, OTHER_SHAPE, Check
from aligner.compare.net import is_input
from aligner.errors import DumpError
from aligner.noise import Change
from aligner.record import Array, Key
from aligner.replay.frames import Plan
from aligner.replay.holding import Holding
from aligner.replay.judgement import wrong_places

ORDERS = 4
"""Other orders of axes that are tried for what a layer is given."""

FAINT = 30.0
"""What is off by less than so many times what rounding explains may be rounding: it is measured later."""

PARTED = 4
"""Layers that are tried as nobody's counterparts."""

RERUNS = 3
"""Runs of a step in which values are found to be held that had been taken for those of another border."""


class ForcedPass(Holding):
    """Runs of the port in which nothing is inherited; `checks` is the result."""

    def run(self, step: int, call: Callable[[], object]) -> None:
        """One run of the port; `call` makes it. Layers that cannot take the reference's inputs keep their own.

        Code that hands on the wrong one of two right values may go on with it as if it were the other, or use it where
        it belongs as well; what a layer is given may stand at another border, or be wrong. What is so shows in which
        of two readings less is wrong.
        """
        known = len(self.checks)
        self._doubts.blamed.clear()
        self._settled(step, call, known)
        self._recalling(step, call, known)
        self._parting(step, call, known)
        for read in (self._asking, self._doubting, self._exchanging, self._turning, self._owning, self._steering):
            read(step, call, known)
        self._counting(step, call, known)
        if self.values.taken and step not in self.values.spared:
            self.values.spared[step] = True
            self.values.spared[step] = self._better(step, call, known, 1)
        others = self.plan.of_other_calls(self.plan, self.values.borders.like)
        self.checks[known:] = [
            replace(c, reason=OTHER_CALL) if c.port in others and c.fails else c for c in self.checks[known:]
        ]
        elsewhere = {**self.values.borders.elsewhere, **self.values.masks.known}
        self.values.plan = self.plan.learned(elsewhere, self.values.turned.orders)  # type: ignore[arg-type]  # as records

    def _settled(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step, and once more while values turn out to be held that had been left as they were."""
        for _ in range(RERUNS):
            self._held_run(step, call)
            acquitted = self._acquitting(step, call, known)
            if not self.values.borders.learned(self.checks[known:]) and not acquitted:
                break
            del self.checks[known:]
        else:
            self._held_run(step, call)
        if self._doubts.blamed & self.values.masks.understood:  # somebody later on made the right thing of such a mask
            del self.checks[known:]
            self._held_run(step, call)

    def _acquitting(self, step: int, call: Callable[[], object], known: int) -> bool:
        """Where values of another size are told by wrong ones to be what these are made of: run the step with their
        numbers in other places, to see whether they are."""
        borders = self.values.borders
        asked = {*borders.accused}
        if not asked:
            return False
        accused, refuted = {**borders.accused}, {*borders.refuted}
        borders.refuted -= asked
        after = self._tried(step, call, known, asked, lent=False)
        borders.accused, borders.refuted = accused, refuted
        return borders.acquit(self.checks[known:], after)

    def _asking(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where arguments are blamed for their form: run the step with their numbers in other places, to see what is
        made of them; and with the reference's in their stead, to see whether that is what the layer lacks."""
        asked = self._doubts.open - self._answered
        if not asked:
            return
        self._answered |= asked
        for part in self._doubts.parts(asked):
            self._doubts.moved(part, self.checks[known:], self._tried(step, call, known, part, False))
        heard = self.values.own.heard  # what the reference makes anywhere may be what the layer is to be given
        left = {key for key in asked if heard.get(key) or key in self._doubts.strange} - self._doubts.right
        for part in self._doubts.by_value(left):
            after = self._tried(step, call, known, part, lent=True)
            self._doubts.lent({k for k in part if after or heard.get(k) is not False}, self.checks[known:], after)
        if asked & self._doubts.right:
            del self.checks[known:]
            self._held_run(step, call)
        strange = (c for c in self.checks[known:] if c.fails and c.where == "layer" and c.reason == OTHER_SHAPE)
        calls = {(check.port.layer, check.port.call) for check in strange}
        given = {key for key in asked & self._doubts.right if (key.layer, key.call) in calls}
        if given:  # what it makes has another size as it is given such a one: that is wrong after all
            self._doubts.right -= given
            del self.checks[known:]
            self._held_run(step, call)

    def _tried(
        self, step: int, call: Callable[[], object], known: int, asked: Set[Key], lent: Optional[bool]
    ) -> Sequence[Check]:
        """What is found in a run in which these arguments are others; calls that cannot take them keep their own."""
        before, borders = self.checks[known:], self.values.borders
        elsewhere, refuted, like = dict(borders.elsewhere), set(borders.refuted), dict(borders.like)
        words = set(self.values.masks.understood)
        try:
            while asked:
                del self.checks[known:]
                self.values.instead = {} if lent is None else dict.fromkeys(asked, lent)
                try:
                    self._run(step, call)
                    break
                except Exception as error:
                    under_way = {(frame.path, frame.number) for frame in self._stack}
                    left = {key for key in asked if (key.layer, key.call) not in under_way}
                    if isinstance(error, DumpError):
                        raise
                    asked = left if left < asked and lent is not None else set()
            return self.checks[known:] if asked else ()
        finally:
            self.values.instead, self.checks[known:], self.values.masks.understood = {}, before, words
            borders.elsewhere, borders.refuted, borders.like = elsewhere, refuted, like

    def _doubting(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step with those values held that may be wrong after all, if there are any."""
        borders = self.values.borders
        doubted = borders.doubted - self._trusted
        if not doubted:
            return
        borders.refuted |= doubted
        if not self._better(step, call, known, 0, faint=FAINT):
            borders.refuted -= doubted
            self._trusted |= doubted

    def _exchanging(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step with those arguments taken as they are that have axes of one size in each other's places: right
        where less is wrong so. A norm may stand before or behind the line that turns its value."""
        turned = self.values.turned
        asked, self._answered = turned.exchanged - self._answered, self._answered | turned.exchanged
        for fewer, part in turned.readings(asked):
            before = turned.reading(part)
            if not self._better(step, call, known, fewer):
                turned.orders, turned.known, turned.trusted = before
                if not turned.trusted:
                    break

    def _turning(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step with arguments in other orders of axes, where a layer makes something else of those it got."""
        asked = self._doubts.turned - self._answered
        self._answered |= asked
        orders = [self.values.turned.known[address] for address in asked]
        for number in range(min(max(map(len, orders), default=0), ORDERS)):
            self.values.turned.instead.update((a, these[number % len(these)]) for a, these in zip(asked, orders))
            if self._better(step, call, known, 0, whole=True):
                break
            for address in asked:
                del self.values.turned.instead[address]

    def _owning(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where a layer makes something wrong of the reference's argument, and its own is another thing: run the step
        with that left as it is, to see whether the layer is right with it."""
        own, before = self.values.own, set(self.values.own.keys)
        asked = own.asked(self.checks[known:], self.plan) - self._answered
        if asked:
            self._answered |= asked
            own.keys |= asked
            own.keys = before | own.tried(asked, self._tried(step, call, known, asked, None), self.plan)
        if own.keys > before:
            del self.checks[known:]
            self._held_run(step, call)
        self.checks[known:] = own.judged(self.checks[known:], self.plan)

    def _steering(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where something is wrong in layers that are called with other numbers: run the step with the reference's."""
        for layers in self._steered.readings(step, self.checks[known:]):
            self._steered.layers, plan = self._steered.layers | layers, self.plan
            self.values.plan = plan.recounted(plan, layers)
            if self._better(step, call, known, 1, whole=True):
                break
            self._steered.layers, self.values.plan = self._steered.layers - layers, plan

    def _counting(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where something is wrong beside layers that ran more or less often when nothing was held: run the step with
        each of their calls held to the reference's of that number."""
        around = {check.port.layer.rpartition(".")[0] for check in self.checks[known:] if check.fails}
        plan = self.plan
        self.values.plan = plan.recounted(plan, around)
        if self.plan.calls == plan.calls or not self._better(step, call, known, 1, whole=True):
            self.values.plan = plan

    def _recalling(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where calls of a layer are given each other's values: run the step with these held to each other's, and
        without what was learned before."""
        plan, borders = self.plan, self.values.borders
        self.values.plan = plan.recalled(plan, borders.like)
        if self.plan.calls == plan.calls:
            return
        refuted, borders.refuted = borders.refuted, set()
        if not self._better(step, call, known, 1):
            self.values.plan, borders.refuted = plan, refuted

    def _parting(self, step: int, call: Callable[[], object], known: int) -> None:
        """Where a layer is wrong that likeness alone has paired, and in all its calls: run the step with it as nobody's
        counterpart. It is none where less is wrong so, and nothing new: of one that is wrong itself what comes next is.
        """
        checks = [check for check in self.checks[known:] if check.port.layer in self.plan.guessed]
        right = {c.port.layer for c in checks if not (c.suspicious or c.reason or is_input(c.port.slot))}
        wrong = dict.fromkeys(check.port.layer for check in checks if check.fails)
        for layer in [layer for layer in wrong if layer not in right][:PARTED]:
            plan, borders = self.plan, self.values.borders
            refuted, borders.refuted = borders.refuted, set()
            self.values.plan = plan.without(layer)
            if not self._better(step, call, known, 0, others=False):
                self.values.plan, borders.refuted = plan, refuted

    def _better(
        self,
        step: int,
        call: Callable[[], object],
        known: int,
        fewer: int,
        whole: bool = False,
        faint: float = 0.0,
        others: bool = True,
    ) -> bool:
        """Run the step in another reading: it stays where so many fewer places are wrong (`whole`: and all is held;
        without `others`: and less, of what was wrong before); what is as `faint` as rounding does not count."""
        borders, checks = self.values.borders, self.checks[known:]
        elsewhere, refuted, like = dict(borders.elsewhere), set(borders.refuted), dict(borders.like)
        del self.checks[known:]
        try:
            self._run(step, call) if whole else self._settled(step, call, known)
            counts = [wrong_places(c for c in one if c.ratio >= faint) for one in (self.checks[known:], checks)]
            wrong = [{check.port for check in one if check.fails} for one in (self.checks[known:], checks)]
            better = counts[0] <= counts[1] - fewer and (others or wrong[0] < wrong[1])
        except Exception as error:
            if isinstance(error, DumpError) or not whole:
                raise
            better = False
        if not better:
            self.checks[known:] = checks
            borders.elsewhere, borders.refuted, borders.like = elsewhere, refuted, like
        return better

    def disturbed(
        self, step: int, call: Callable[[], object], change: Change, told: Callable[[Check, Array, str], None]
    ) -> None:
        """The same run with what is handed on changed a little; `told` gets each value that comes of it.

        Where the net does not run so (a form that is known by its very values is not known with noise in them), it gets
        those until there.
        """
        known = self.checks
        self.values.checks, self.values.disturb, self.values.watched = [], change, told
        try:
            self.run(step, call)
        except DumpError:
            raise
        except Exception:  # the net's own
            return
        finally:
            self.values.checks, self.values.disturb, self.values.watched = known, None, None

    def errors(self, step: int, call: Callable[[], object], plan: Plan) -> Mapping[Key, float]:
        """How far each value is off, by the port's address, in a run that is held to this plan and leaves no trace."""
        known, own, found = self.checks, self.values.plan, dict[Key, float]()
        self.values.checks, self.values.plan = [], plan
        self.values.watched = lambda check, *_: found.update({check.port: check.error})
        try:
            self._run(step, call)
        finally:
            self.values.checks, self.values.plan, self.values.watched = known, own, None
        return found

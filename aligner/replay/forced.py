"""The forced pass: the port runs once more, each layer held to the reference.

    received  -> set against the reference's input: what differs was done by the code around (glue)
    given     <- the reference's input
    made      -> set against the reference's output: what differs was done by this layer
    handed on <- the reference's output

So every place is judged by itself, with no error inherited, however many are wrong. One tensor of each side is in
memory at a time. What is wrong is kept in the port's dump (phase FORCED) for those who look into it later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.adapter import Adapter, Arguments
from aligner.compare.checks import OTHER_SHAPE, Check
from aligner.compare.net import CallId
from aligner.dtypes import DTYPES
from aligner.errors import DumpError
from aligner.noise import Change
from aligner.record import Array, Key, Phase
from aligner.replay.answering import Answers
from aligner.replay.doubts import Doubts
from aligner.replay.frames import Frame, Plan
from aligner.replay.handed import in_effect, in_one_piece, shape_of, takes_more
from aligner.replay.judgement import Place, wrong_places
from aligner.replay.objects import Objects
from aligner.replay.steered import Steered
from aligner.replay.values import Values
from aligner.replay.written import Written
from aligner.replay.yielding import unweighed, yielding
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.capture.sink import Sink

    Numbers = npt.NDArray[np.float64]

ATTEMPTS = 6
"""Runs of a step until the port gets through what it is held to."""

ORDERS = 4
"""Other orders of axes that are tried for what a layer is given."""

RERUNS = 3
"""Runs of a step in which values are found to be held that had been taken for those of another border."""


class ForcedPass:
    """Runs of the port in which nothing is inherited; `checks` is the result."""

    def __init__(
        self,
        adapter: Adapter,
        model: Any,
        plan: Plan,
        sink: Optional[Sink] = None,
        order: int = 0,
        stopped: Optional[int] = None,
    ) -> None:
        self.values, self._written = Values(adapter, plan, sink, order), Written(adapter)
        self._answers = Answers(adapter, model, plan)
        self._adapter, self._model, self._stopped = adapter, model, stopped
        self._step, self._stack = 0, list[Frame]()
        self._numbers: dict[str, int] = {}
        self._trusted: set[Key] = set()
        """Values that have gone for right at another border, and rightly: held, no less would be wrong."""
        self._doubts = Doubts(self.values)
        self.objects, self._steered = Objects(adapter.is_tensor), Steered(plan)
        self._answered: set[Key] = set()
        """Those of them of which it is known."""

    @property
    def checks(self) -> list[Check]:
        """What was found of each value, in the order of the run."""
        return self.values.checks

    @property
    def left(self) -> list[tuple[str, int]]:
        """Calls that raised on the reference's values, or made other shapes, and were left with their own."""
        return sorted(call for call in self.values.free if CallId(*call) in self.plan.calls)

    @property
    def plan(self) -> Plan:
        """Which values stand for which, as it turned out."""
        return self.values.plan

    def run(self, step: int, call: Callable[[], object]) -> None:
        """One run of the port; `call` makes it. Layers that cannot take the reference's inputs keep their own.

        Code that hands on the wrong one of two right values may go on with it as if it were the other, or use it where
        it belongs as well; what a layer is given may stand at another border, or be wrong. What is so shows in which
        of two readings less is wrong.
        """
        known = len(self.checks)
        self._doubts.blamed.clear()
        self._settled(step, call, known)
        for read in (self._asking, self._doubting, self._exchanging, self._turning, self._owning, self._steering):
            read(step, call, known)
        if self.values.taken and step not in self.values.spared:
            self.values.spared[step] = True
            self.values.spared[step] = self._better(step, call, known, 1)
        elsewhere = {**self.values.borders.elsewhere, **self.values.masks.known}
        self.values.plan = self.plan.learned(elsewhere, self.values.turned.orders)  # type: ignore[arg-type]  # as records

    def _settled(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step, and once more while values turn out to be held that had been left as they were."""
        for _ in range(RERUNS):
            self._held_run(step, call)
            if not self.values.borders.learned(self.checks[known:]):
                break
            del self.checks[known:]
        else:
            self._held_run(step, call)
        if self._doubts.blamed & self.values.masks.understood:  # somebody later on made the right thing of such a mask
            del self.checks[known:]
            self._held_run(step, call)

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

    def _tried(
        self, step: int, call: Callable[[], object], known: int, asked: Set[Key], lent: Optional[bool]
    ) -> Sequence[Check]:
        """What is found in a run in which these arguments are others; calls that cannot take them keep their own."""
        before, borders = self.checks[known:], self.values.borders
        elsewhere, refuted = dict(borders.elsewhere), set(borders.refuted)
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
            borders.elsewhere, borders.refuted = elsewhere, refuted

    def _doubting(self, step: int, call: Callable[[], object], known: int) -> None:
        """Run the step with those values held that may be wrong after all, if there are any."""
        borders = self.values.borders
        doubted = borders.doubted - self._trusted
        if not doubted:
            return
        borders.refuted |= doubted
        if not self._better(step, call, known, 0):
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

    def _better(self, step: int, call: Callable[[], object], known: int, fewer: int, whole: bool = False) -> bool:
        """Run the step in another reading: it stays where so many fewer places are wrong (`whole`: and all is held)."""
        borders, checks = self.values.borders, self.checks[known:]
        elsewhere, refuted = dict(borders.elsewhere), set(borders.refuted)
        del self.checks[known:]
        try:
            self._run(step, call) if whole else self._settled(step, call, known)
            better = wrong_places(self.checks[known:]) <= wrong_places(checks) - fewer
        except Exception as error:
            if isinstance(error, DumpError) or not whole:
                raise
            better = False
        if not better:
            self.checks[known:] = checks
            borders.elsewhere, borders.refuted = elsewhere, refuted
        return better

    def _held_run(self, step: int, call: Callable[[], object]) -> None:
        first: list[Check] = []
        for attempt in range(ATTEMPTS):
            known = len(self.checks)
            try:
                return self._run(step, call)
            except Exception as error:
                if step == self._stopped and not isinstance(error, DumpError):
                    return self._stop()  # as the free run did: what it did until then has been looked at
                first = first or self.checks[known:]
                del self.checks[known:]
                if isinstance(error, DumpError):
                    raise  # a full disk is none of the port's affairs
                if self.values.unheard():  # it may look at its own frame
                    return self._held_run(step, call)
                if attempt == ATTEMPTS - 1 or not self._yielded(attempt == ATTEMPTS - 2):
                    at = next((n for n, check in enumerate(first) if check.fails and check.reason == OTHER_SHAPE), -1)
                    if at < 0:
                        raise
                    self.checks.extend(first[: at + 1])  # with as many numbers as the port has there nothing goes on
                    self.checks.extend(replace(check, follows=check.suspicious) for check in first[at + 1 :])
                    return None
        return None

    def _stop(self) -> None:
        """The calls that are under way will not judge their arguments by what comes of them: the first is wrong, and
        what is wrong inside comes of it."""
        doubtful = [frame.doubtful for frame in self._stack if frame.doubtful]
        for place in [place for places in doubtful[1:] for place in places]:
            self.checks[place] = replace(self.checks[place], follows=True)

    def _yielded(self, last: bool) -> bool:
        """After an exception: hold the port to less of the reference; false if there is nothing left to give way."""
        less = unweighed(self.plan, self._adapter, self._model) if last else yielding(self.values, self._stack)
        known, self.values.free = self.values.free, self.values.free | less
        return bool(less - known)

    def disturbed(
        self, step: int, call: Callable[[], object], change: Change, told: Callable[[Check, Array, str], None]
    ) -> None:
        """The same run with what is handed on changed a little; `told` gets each value that comes of it."""
        known = self.checks
        self.values.checks, self.values.disturb, self.values.watched = [], change, told
        try:
            self.run(step, call)
        finally:
            self.values.checks, self.values.disturb, self.values.watched = known, None, None

    def _run(self, step: int, call: Callable[[], object]) -> None:
        self._step, self._stack, self._numbers, self._written = step, [], {}, Written(self._adapter)
        ports = {call.layer for call in self.plan.calls}
        self.values.begin(step, {id(parameter.tensor) for parameter in self._adapter.parameters(self._model)})
        with ExitStack() as hooks:
            for path, layer in self._adapter.layers(self._model):
                if path in ports:
                    hooks.callback(self._hold(path, layer).remove)
            hooks.callback(self._answers.installed().remove)
            call()
        self.values.ended()
        self._answers.ran(self.checks, self.values.disturb is None)

    def _hold(self, path: str, layer: object) -> Any:
        owner, name = self._adapter.computing(layer)
        written = partial(
            getattr(type(owner), name, getattr(owner, name)), *([owner] if hasattr(type(owner), name) else [])
        )
        return self._adapter.intervene(
            layer, partial(self._enter, path, written), lambda *run: self._leave(path, run[2])
        )

    def _enter(
        self, path: str, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Arguments:
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        around = next((f for f in reversed(self._stack) if f.call is not None), None)
        frame = Frame(path, number, self.plan.calls.get(CallId(path, number)), around, first=len(self.checks))
        self._stack.append(frame)
        if frame.call is None:
            return args, kwargs
        found: Tensors = []
        structure = flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        frame.takes_more = takes_more(function, (args, kwargs), structure)
        if around is None:
            place: Place = ("inputs", frame.call.layer, None)
        else:
            around.inner = True
            frame.before = around.last
            place = ("glue", around.call.layer if around.call else "", (around.last, frame.call.layer))
        self.objects.keep(self._step, CallId(path, number), args, kwargs)
        known = ((self._adapter.to_numpy(t), d) for _, t in found if (d := self._adapter.dtype(t)) in DTYPES)
        frame.joined = in_one_piece(self.plan.missing.get((self._step, CallId(path, number)), ()), known)
        frame.own = [shape_of(tensor) for slot, tensor in found if not self._has_counterpart(frame, slot)]
        others = {**self._replaced(frame, around, found, place)}
        self._answers.asked(self._step, frame, len(found), self.checks[frame.first :])
        others.update(self._steered.given(self._step, frame, structure, self.checks))
        given = substitute_arguments(args, kwargs, others)
        frame.ended = self._written.watching(given, (args, kwargs) if others else given)
        return given

    def _leave(self, path: str, output: object) -> object:
        while self._stack and self._stack[-1].path != path:  # calls whose layer raised, and somebody caught it
            self._stack.pop()
        frame = self._stack.pop()
        if frame.call is None:
            return output
        frame.ended(("glue", frame.call.layer, (frame.last, "")))
        found: Tensors = []
        flatten_result(output, self._adapter.is_tensor, found)
        layer = frame.call.layer
        if frame.inner:
            place: Place = ("glue", layer, (frame.last, ""))
        elif frame.around is not None and frame.around.call is not None and self._stands_in(path, layer):
            place = ("glue", frame.around.call.layer, (frame.before, layer))
        else:
            place = ("layer", layer, None)
        made = len(self.checks)
        others = self._replaced(frame, frame, found, place)
        self.values.left(frame)
        self._doubts.judge(self._step, frame, made)
        self.checks[frame.first :] = in_effect(self.checks[frame.first :], made - frame.first, self.values.free)
        if frame.around is not None:
            frame.around.last = layer
            wrong = [c for c in self.checks[frame.first :] if c.suspicious and not self.values.borders.waits(c)]
            alone = [tensor for slot, tensor in found if not self._has_counterpart(frame, slot)]
            frame.around.loose |= bool(wrong and alone)
            if any(check.owner == layer for check in wrong):  # what is wrong in a layer inside comes of that
                self._written.note(alone, place)
        return substitute_result(output, others)

    def _stands_in(self, path: str, layer: str) -> bool:
        """Whether this layer of the port was called for the reference's `layer`, which the port has as another one."""
        own = self.plan.layers
        if own.get(path, layer) == layer or not any(own[other] == layer for other in own if other != path):
            return False
        return any(parameter.layer == path for parameter in self._adapter.parameters(self._model))

    def _has_counterpart(self, frame: Frame, slot: str) -> bool:
        return Key(self._step, Phase.FORWARD, frame.path, frame.number, slot) in self.plan.entries

    def _replaced(self, frame: Frame, owner: Optional[Frame], found: Tensors, place: Place) -> Mapping[str, object]:
        """Check each tensor, and say what to put in the places of those that differ at all."""
        others: dict[str, object] = {}
        self.values.shared = {number for number, count in Counter(id(one) for _, one in found).items() if count > 1}
        for slot, tensor in found:
            address = Key(self._step, Phase.FORWARD, frame.path, frame.number, slot)
            entry = self.plan.entries.get(address)
            if entry is None:
                continue
            made = self._written.place(tensor, place)
            other = self.values.checked(frame, owner, tensor, entry, address, made)
            if other is not None:
                others[slot] = other
        return others

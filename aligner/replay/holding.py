"""One run of the port in which each layer is held to the reference, and what is found in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter, Arguments
from aligner.compare.checks import OTHER_SHAPE, Check
from aligner.compare.net import CallId
from aligner.dtypes import DTYPES
from aligner.errors import DumpError
from aligner.record import Key, Phase
from aligner.replay.answering import Answers
from aligner.replay.doubts import Doubts
from aligner.replay.frames import Frame, Plan
from aligner.replay.handed import in_effect, in_one_piece, shape_of, takes_more
from aligner.replay.judgement import Place
from aligner.replay.objects import Objects
from aligner.replay.steered import Steered
from aligner.replay.values import Values
from aligner.replay.written import Written
from aligner.replay.yielding import unweighed, yielding
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result

if TYPE_CHECKING:
    from aligner.capture.sink import Sink

ATTEMPTS = 6
"""Runs of a step until the port gets through what it is held to."""


class Holding:
    """Holds the port; `checks` is what is found."""

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
        self.values.borders.chains = stopped is None
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
                if self.values.unheard() or self.values.portions.raised():  # it may look at its own frame
                    return self._held_run(step, call)
                if attempt == ATTEMPTS - 1 or not self._yielded(attempt == ATTEMPTS - 2):
                    at = next((n for n, check in enumerate(first) if check.fails and check.reason == OTHER_SHAPE), -1)
                    if at < 0:
                        raise
                    if self._goes_on(step, call, first[at]):
                        return None
                    self.checks.extend(first[: at + 1])  # with as many numbers as the port has there nothing goes on
                    self.checks.extend(replace(check, follows=check.suspicious) for check in first[at + 1 :])
                    return None
        return None

    def _goes_on(self, step: int, call: Callable[[], object], wrong: Check) -> bool:
        """Whether the run comes to its end where a layer is given the reference's argument: then it takes it so."""
        known, instead = len(self.checks), self.values.instead
        self.values.instead = {**instead, wrong.port: True}
        try:
            self._run(step, call)
        except DumpError:
            raise
        except Exception:  # whatever the port raises
            del self.checks[known:]
            return False
        finally:
            self.values.instead = instead
        self.checks[known:] = [wrong if check.port == wrong.port else check for check in self.checks[known:]]
        return True

    def _stop(self) -> None:
        """The calls that are under way will not judge their arguments by what comes of them: the first is wrong, and
        what is wrong inside comes of it. Values that stand at another border have been told by what came until then."""
        self.values.ended()
        doubtful = [frame.doubtful for frame in self._stack if frame.doubtful]
        for place in [place for places in doubtful[1:] for place in places]:
            self.checks[place] = replace(self.checks[place], follows=True)

    def _yielded(self, last: bool) -> bool:
        """After an exception: hold the port to less of the reference; false if there is nothing left to give way."""
        less = unweighed(self.plan, self._adapter, self._model) if last else yielding(self.values, self._stack)
        known, self.values.free = self.values.free, self.values.free | less
        return bool(less - known)

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

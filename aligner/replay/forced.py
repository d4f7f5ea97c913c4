"""The forced pass: the port runs once more, each layer held to the reference.

    received  -> set against the reference's input: what differs was done by the code around (glue)
    given     <- the reference's input
    made      -> set against the reference's output: what differs was done by this layer
    handed on <- the reference's output

So every place is judged by itself, with no error inherited, however many are wrong. One tensor of each side is in
memory at a time. What is wrong is kept in the port's dump (phase FORCED) for those who look into it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.adapter import Adapter, Arguments
from aligner.compare.checks import LIMIT, OTHER_FORM, Check
from aligner.compare.held import Held
from aligner.compare.net import CallId, is_input
from aligner.compare.reading import read
from aligner.dtypes import DTYPES, decode, encode
from aligner.record import Array, Key, Phase, Record
from aligner.replay import prints
from aligner.replay.forms import laid_out, mask_like, other_form, sees_nothing, squeezed, tells_other_things
from aligner.replay.frames import Frame, Plan
from aligner.replay.handed import understood
from aligner.replay.judgement import RULE, Place, expected, judged, unexcused
from aligner.replay.noise import Change
from aligner.replay.overflow import Overflow
from aligner.replay.precision import SHORT
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.capture.sink import Sink
    from aligner.dump.reader import Entry

    Numbers = npt.NDArray[np.float64]

KEPT = 96
"""Values that are kept in the dump; a port with more places wrong is another net."""

ARGUMENT = "argument-missing"
"""The reason of a check whose value the port's code did not hand over at all."""

EFFECT = 0.01
"""An argument that is off by so much more than what comes of it is meant in another way."""


class ForcedPass:
    """Runs of the port in which nothing is inherited; `checks` is the result."""

    def __init__(self, adapter: Adapter, model: Any, plan: Plan, sink: Optional[Sink] = None, order: int = 0) -> None:
        self.checks: list[Check] = []
        self.order = order
        self.settle: Callable[[], None] = lambda: None  # called before a value of the port's code is overwritten
        self._adapter = adapter
        self._model = model
        self._plan = plan
        self._sink = sink
        self._kept = 0
        self._step = 0
        self._stack: list[Frame] = []
        self._numbers: dict[str, int] = {}
        self._prints: dict[Key, prints.Print] = {}
        """What was kept in the dump."""
        self._right: set[prints.Print] = set()
        """Values of the reference that the port has got into its hands in this run."""
        self._taken = False
        """The port's code handed on another value of those than the one that was due."""
        self._spared: dict[int, bool] = {}
        """By step: whether such a value is left as it is, for those who are to get it."""
        self._overflow = Overflow()
        self._free: set[tuple[str, int]] = set()
        """Calls that raised on the reference's inputs and are left with their own."""
        self._odd: set[tuple[str, int]] = set()
        """Calls of this run that made another shape than the reference's."""
        self._owned: set[int] = set()
        """The model's own tensors, which no pass may write to."""
        self._disturb: Optional[Change] = None
        self._watched: Optional[Callable[[Check, Array, str], None]] = None

    def run(self, step: int, call: Callable[[], object]) -> None:
        """One run of the port; `call` makes it. Layers that cannot take the reference's inputs keep their own.

        Code that hands on the wrong one of two right values may go on with it as if it were the other, or use it where
        it belongs as well. What it does shows in which of the two readings less is wrong.
        """
        known = len(self.checks)
        self._held_run(step, call)
        if not self._taken or step in self._spared:
            return
        mended = self.checks[known:]
        self._spared[step] = True
        del self.checks[known:]
        self._held_run(step, call)
        if _places(self.checks[known:]) >= _places(mended):
            self._spared[step] = False
            self.checks[known:] = mended

    def _held_run(self, step: int, call: Callable[[], object]) -> None:
        for _ in range(4):
            known = len(self.checks)
            try:
                return self._run(step, call)
            except Exception:
                del self.checks[known:]
                if not self._yielded():
                    raise
        return self._run(step, call)

    def _yielded(self) -> bool:
        """After an exception: hold the port to less of the reference; false if there is nothing left to give way."""
        if self._odd - self._free:  # the code may cut off what a layer makes too much
            self._free |= self._odd
            return True
        culprit = next((f for f in reversed(self._stack) if f.call and (f.path, f.number) not in self._free), None)
        if culprit is not None:
            self._free.add((culprit.path, culprit.number))
        return culprit is not None

    def disturbed(
        self, step: int, call: Callable[[], object], change: Change, told: Callable[[Check, Array, str], None]
    ) -> None:
        """The same run with what is handed on changed a little; `told` gets each value that comes of it."""
        known = self.checks
        self.checks, self._disturb, self._watched = [], change, told
        try:
            self.run(step, call)
        finally:
            self.checks, self._disturb, self._watched = known, None, None

    def _run(self, step: int, call: Callable[[], object]) -> None:
        self._step, self._stack, self._numbers = step, [], {}
        self._right, self._taken, self._overflow, self._odd = set(), False, Overflow(), set()
        ports = {call.layer for call in self._plan.calls}
        self._owned = {id(parameter.tensor) for parameter in self._adapter.parameters(self._model)}
        with ExitStack() as hooks:
            for path, layer in self._adapter.layers(self._model):
                if path in ports:
                    hooks.callback(self._hold(path, layer).remove)
            call()

    def _hold(self, path: str, layer: object) -> Any:
        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            return self._leave(path, output)

        return self._adapter.intervene(layer, partial(self._enter, path), made)

    def _enter(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        around = next((f for f in reversed(self._stack) if f.call is not None), None)
        frame = Frame(path, number, self._plan.calls.get(CallId(path, number)), around, first=len(self.checks))
        self._stack.append(frame)
        if frame.call is None:
            return args, kwargs
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        if around is None:
            place: Place = ("inputs", frame.call.layer, None)
        else:
            around.inner = True
            frame.before = around.last
            place = ("glue", around.call.layer if around.call else "", (around.last, frame.call.layer))
        return substitute_arguments(args, kwargs, self._replaced(frame, around, found, place))

    def _leave(self, path: str, output: object) -> object:
        while self._stack and self._stack[-1].path != path:  # calls whose layer raised, and somebody caught it
            self._stack.pop()
        frame = self._stack.pop()
        if frame.call is None:
            return output
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
        self._judge_arguments(frame, made)
        if frame.around is not None:
            frame.around.last = layer
            wrong = any(check.suspicious for check in self.checks[frame.first :])
            frame.around.loose |= wrong and not all(self._has_counterpart(frame, slot) for slot, _ in found)
        return substitute_result(output, others)

    def _judge_arguments(self, frame: Frame, made: int) -> None:
        """Arguments in another form, or not given at all, are wrong where what was made of them is.

        Then what is wrong inside comes of it. `made` is where the checks of the results begin.
        """
        missing = self._plan.missing.get((self._step, CallId(frame.path, frame.number)), ())
        if not frame.doubtful and not missing:
            return
        mine = [(place, check) for place, check in enumerate(self.checks) if place >= frame.first and check.suspicious]
        mine = [(place, check) for place, check in mine if place not in frame.doubtful]
        handed = {self._content(self.checks[place]) for place in frame.doubtful}
        passed = any(check.where == "glue" and self._content(check) in handed for _, check in mine)
        turned = passed or frame.misled
        turned |= any(self.checks[place].reason == "shapes-differ" for place in frame.doubtful)
        wrong = any(p >= made or check.deviation is None or (turned and check.where == "glue") for p, check in mine)
        doubts = [self.checks[place] for place in frame.doubtful]
        wrong = wrong and not understood(doubts, self.checks[frame.first : made], self._plan.entries)
        for place in frame.doubtful if not wrong else ():
            self.checks[place] = replace(self.checks[place], error=0.0, reason=OTHER_FORM)
        inside = [p for p, check in mine if p >= made or check.where == "glue" or check.deviation is None]
        if (not wrong or not frame.doubtful) and not (missing and inside and frame.around is not None):
            return
        for place in inside:
            self.checks[place] = replace(self.checks[place], follows=True)
        for place in frame.doubtful if wrong and frame.around is not None else ():
            self.checks[place] = self._known_wrong(frame.around, self.checks[place])
        if frame.around is None or frame.around.call is None or frame.call is None or frame.doubtful:
            return
        owner, between = frame.around.call.layer, (frame.before, frame.call.layer)
        for entry in missing:
            address = Key(self._step, Phase.FORWARD, frame.path, frame.number, entry.key.slot)
            explained = expected(self._plan.coarsest(owner), entry.dtype, entry.dtype)
            self.checks.append(Check(entry.key, address, "glue", owner, between, math.inf, explained, reason=ARGUMENT))

    def _stands_in(self, path: str, layer: str) -> bool:
        """Whether this layer of the port was called for the reference's `layer`, which the port has as another one."""
        own = self._plan.layers
        if own.get(path, layer) == layer or not any(own[other] == layer for other in own if other != path):
            return False
        return any(parameter.layer == path for parameter in self._adapter.parameters(self._model))

    def _has_counterpart(self, frame: Frame, slot: str) -> bool:
        return Key(self._step, Phase.FORWARD, frame.path, frame.number, slot) in self._plan.entries

    def _replaced(
        self,
        frame: Frame,
        owner: Optional[Frame],
        found: Tensors,
        place: Place,
    ) -> Mapping[str, object]:
        """Check each tensor, and say what to put in the places of those that differ at all."""
        others: dict[str, object] = {}
        for slot, tensor in found:
            address = Key(self._step, Phase.FORWARD, frame.path, frame.number, slot)
            entry = self._plan.entries.get(address)
            if entry is None:
                continue
            other = self._checked(frame, owner, tensor, entry, address, place)
            if other is not None:
                others[slot] = other
        return others

    def _checked(
        self, frame: Frame, owner: Optional[Frame], tensor: object, entry: Entry, address: Key, place: Place
    ) -> Optional[object]:
        dtype = self._adapter.dtype(tensor)
        if dtype not in DTYPES:
            return None
        try:
            array = self._adapter.to_numpy(tensor)
        except ValueError:
            return None
        wanted = Held(entry.key, entry.order, entry.dtype, entry.raw())
        same = dtype == entry.dtype and array.shape == wanted.shape and np.array_equal(array, wanted.raw())
        check = judged(self._plan.coarsest(place[1]), wanted, Held(address, 0, dtype, array), place, same)
        check = replace(check, isolated=not (owner is not None and owner.loose))
        check = self._overflow.judged(check, entry, wanted, (dtype, self._plan.short), frame)
        if is_input(address.slot) and array.ndim == len(wanted.shape) and array.shape != wanted.shape:
            check = replace(check, error=math.inf, deviation=None, reason="shapes-differ")  # axes of one elsewhere
        argument = is_input(address.slot) and place[0] == "glue" and self._watched is None
        blind = argument and not same and not check.suspicious and sees_nothing(wanted, array, dtype)
        check = unexcused(check, wanted, Held(address, 0, dtype, array)) if blind else check
        doubtful = check.suspicious and argument
        if doubtful and (blind or mask_like(wanted)) and self._without_effect(frame, check):
            self.checks.append(replace(check, error=0.0, reason=OTHER_FORM))
            return None
        doubtful = doubtful and (blind or other_form(wanted, array, dtype))
        turned = bool(frame.doubtful) and place[0] == "layer" and check.deviation is None and check.suspicious
        if turned and laid_out(wanted, array, dtype, LIMIT * check.expected):
            self.checks.append(replace(check, error=0.0, reason=OTHER_FORM))
            return None
        if check.suspicious and owner is not None and place[0] == "glue" and not doubtful:
            check = self._settled(owner, check, wanted, array, dtype)
        if check.suspicious and self._watched is None:
            check = self._keep(check, dtype, array)
        if doubtful:
            frame.doubtful.append(len(self.checks))
            frame.misled |= blind or tells_other_things(wanted, array, dtype)
        self.checks.append(check)
        if doubtful:
            return None
        if self._watched is not None:
            self._watched(check, array, dtype)
        if same and self._disturb is None and self._plan.given is None:
            self._right.add(prints.taken(array))
            return None
        if (frame.path, frame.number) in self._free and is_input(address.slot):
            frame.loose = frame.loose or check.suspicious
            return None
        if not self._plan.held and (frame.around is not None or not is_input(address.slot)):
            return None
        odd = array.shape != wanted.shape and not is_input(address.slot)
        self._odd |= {(frame.path, frame.number)} if odd else set()
        free = odd and (frame.path, frame.number) in self._free
        other = None if free else self._other(wanted, array, dtype)
        if other is None:
            target = frame if is_input(address.slot) else frame.around
            if target is not None and check.suspicious:
                target.loose = True
            return None
        if check.suspicious and is_input(address.slot):
            self._mend(tensor, other, array)
        return other

    def _without_effect(self, frame: Frame, check: Check) -> bool:
        """Whether the free run's results agree although this argument does not: the two mean the same by it."""
        pairs = self._plan.results.get((self._step, CallId(frame.path, frame.number)), ())
        readings = [read(pair, RULE) for pair in pairs]
        return bool(readings) and not any(r.over or r.severity > EFFECT * check.error for r in readings)

    def _content(self, check: Check) -> object:
        """What tells the reference's value from others: equal where it is handed on as it is."""
        entry = self._plan.entries.get(check.port)
        return None if entry is None else entry.content

    def _known_wrong(self, owner: Optional[Frame], check: Check) -> Check:
        """The same value handed to another layer is the same mistake."""
        entry = self._plan.entries.get(check.port)
        if owner is None or entry is None:
            return check
        known = entry.content in owner.wrong
        owner.wrong.add(entry.content)
        return replace(check, follows=True) if known else check

    def _settled(self, owner: Frame, check: Check, wanted: Held, array: Array, dtype: str) -> Check:
        """Whether the same code was off by this already: a shortcut carries a mistake past the layers."""
        check = self._known_wrong(owner, check) if check.isolated and is_input(check.key.slot) else check
        if wanted.shape != array.shape or not check.isolated or check.follows:
            return check
        with np.errstate(all="ignore"):
            found, right = decode(array, dtype).reshape(-1), wanted.load().reshape(-1)
            difference: Numbers = np.subtract(found, right, dtype=np.float64)
        return replace(check, follows=True) if owner.mistakes.repeats(difference) else check

    def _keep(self, check: Check, dtype: str, array: Array) -> Check:
        return replace(check, kept=self.keep(check.port, dtype, array))

    def keep(self, key: Key, dtype: str, array: Array) -> bool:
        """Put a value into the port's dump; false if there are too many."""
        if key in self._prints:
            return self._prints[key] == prints.taken(array)
        if self._sink is None or self._kept >= KEPT:
            return False
        self._prints[key] = prints.taken(array)
        self._kept += 1
        self.order += 1
        self._sink.write(Record(key._replace(phase=Phase.FORCED), self.order, dtype, array))
        return True

    def _other(self, wanted: Held, array: Array, dtype: str) -> Optional[object]:
        """The reference's value as the port would have it; None where the two are of another nature."""
        value, word = wanted.raw(), wanted.dtype
        one, other = DTYPES[wanted.dtype], DTYPES[dtype]
        if value.size == array.size and squeezed(value.shape) == squeezed(array.shape):
            value = value.reshape(array.shape)
        if self._disturb is not None and not one.exact:
            value = encode(self._disturb(decode(value, word), word), word)
        if self._plan.given is not None and not one.exact and "complex" not in word:
            value, word = encode(decode(value, word), self._plan.given), self._plan.given
        elif word != dtype:
            if one.exact != other.exact or "complex" in word + dtype or "bool" in (word, dtype):
                return None
            if other.exact or word in SHORT or (dtype in SHORT and dtype == self._plan.short):
                value, word = encode(decode(value, word), dtype), dtype
        self._right.add(prints.taken(value))
        return self._adapter.from_numpy(value, word)

    def _mend(self, tensor: object, other: object, array: Array) -> None:
        """What the code around keeps is made right as well, where it is this very tensor."""
        taken = prints.taken(array) in self._right
        self._taken |= taken
        if id(tensor) not in self._owned and not (taken and self._spared.get(self._step)):
            self.settle()
            with suppress(ValueError):  # it keeps its own; a difference handed on is known again by its values
                self._adapter.overwrite(tensor, other)


def _places(checks: Sequence[Check]) -> int:
    """In how many places something is wrong."""
    return len({(check.key.layer, check.key.call, check.where) for check in checks if check.fails})

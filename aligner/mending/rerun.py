"""A run of one call of a layer of the port that is under way: what its code gives to the layers that it calls is looked
at, and these hand on what the reference's made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.checks import ARGUMENT, OTHER_FORM, OTHER_SHAPE, Check
from aligner.compare.net import CallId, is_input
from aligner.compare.selected import Selected
from aligner.dtypes import DTYPES, decode
from aligner.effects import Change, Effects, repeated
from aligner.fingerprint import Fingerprint, apart, fingerprint, print_of
from aligner.mending.events import RETURN, Event
from aligner.mending.failing import EnoughError, InVainError
from aligner.mending.heard import Heard
from aligner.mending.memory import Arguments
from aligner.mending.sources import Sources
from aligner.record import Array, Key, Phase
from aligner.source.ear import Ear
from aligner.structure import (
    Tensors,
    flatten_arguments,
    flatten_result,
    numbers,
    substitute_arguments,
    substitute_result,
)

if TYPE_CHECKING:
    from aligner.mending.running import Parent

NOTHING: Any = {}
"""No arguments."""

KEPT = 64 << 20
"""Bytes of what layers hand on that are kept from one run to the next."""

SMALL, ALLOWED = 1e-4, 4.0
"""Errors that a kernel of the framework's may make, and how many times as far off others may be for it."""

SAME = 1e-5
"""Fingerprints of a value that edits leave as it is are as near."""

Vain = Callable[[Key, float], bool]
"""Of a value and how far it is off: whether an edit that makes it is none."""


class Rerun:
    """A run that is under way."""

    def __init__(
        self,
        parent: Parent,
        ear: Ear,
        listener: Any,
        vain: Vain,
        arguments: Arguments,
        sources: Sources,
        until: Optional[Key],
        disturb: Optional[Callable[[Tensors], Mapping[str, object]]] = None,
    ) -> None:
        """`disturb` gives other values for some of those that layers hand on."""
        self._vain, self.arguments, self.until = vain, arguments, until
        self._disturb = disturb
        self.last: Optional[Array] = None
        """What was made where the run ends."""
        self._edited = bool(sources.texts)
        more, fewer = (
            {one.layer for one in parent.given if names & {*one.layer.split(".")}}
            for names in (sources.added(), sources.removed())
        )
        self._more_of, self._fewer_of = more, fewer
        """Layers that edits may call once more, or once less."""
        self._taken: set[Optional[CallId]] = set()
        self._turns: list[str] = []
        """Layers that are called in the place of each other, as they are called."""
        self._strays = False
        """An edit calls others."""
        if not self._edited:
            parent.turns = self._turns
        self.call = parent.call
        self.errors: dict[Key, float] = {}
        self.found: dict[Key, int] = {}
        """The numbers of the values that are looked at."""
        self.at: dict[Key, tuple[int, Optional[Event]]] = {}
        """How many events there were when they were, and the one that uses the value: a layer's call, or the return."""
        self.users: dict[CallId, Optional[Event]] = {}
        """The events that are calls of layers which are held."""
        self._parent, self._ear, self.listener = parent, ear, listener
        running = parent.running
        self._adapter, self._ground = running.adapter, running.ground
        self.counts = {**parent.before, parent.call.layer: parent.call.number}
        self._depth = 0
        self._recast = set[Key]()
        self._added = 0
        """Calls that are under way and that edits added."""

    @property
    def is_plain(self) -> bool:
        """Whether the parent's own code is under way, and no edit calls layers otherwise."""
        others = self._added or self._more_of or self._fewer_of or self._parent.running.mixed
        return self._depth == 1 and not others and self._disturb is None

    def _repeat(self, changes: Sequence[Change], args: Any, kwargs: Any, again: bool = True) -> None:
        """What a layer has changed in what it is given is changed in this."""
        if again:
            repeated(changes, args, kwargs)
        for one in self._ear.inside if changes else ():
            one.effects = True

    def called(self, path: str, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A layer is called."""
        number = self.counts.get(path, 0)
        self.counts[path] = number + 1
        this = CallId(path, number)
        if self._added:
            return self._more(inner, args, kwargs)
        if self._depth == 0:
            return self._outermost(this, inner, args, kwargs)
        if self._depth > 1:
            return self._inner(inner, args, kwargs)
        same = self._same(this, args, kwargs)
        if same is None:
            return self._more(inner, args, kwargs)
        same = self._turn(same)
        if same not in self._ground.plan.calls:
            return self._inner(inner, args, kwargs)
        if path in self._parent.running.ending:
            found: Tensors = []
            self._look(same, found, flatten_arguments(args, kwargs, self._adapter.is_tensor, found))
            return self._inner(inner, args, kwargs)
        return self._held(same, inner, args, kwargs)

    def _same(self, this: CallId, args: Any, kwargs: Any) -> Optional[CallId]:
        """Which call of the port's own code this is, where edits call a layer once more, or once less; None for a call
        that they add. It is given other values than any was. Behind one that they take away others may be, too.
        """
        given = self._parent.given
        given.update({} if self._edited else {this: self._mark(args, kwargs)})
        if this.layer not in self._more_of | self._fewer_of:
            return this
        left, mark = [o for o in given if o.layer == this.layer and o not in self._taken], self._mark(args, kwargs)
        same = next((one for one in left if given[one] == mark), None)
        if same is None and this.layer in self._fewer_of:
            same = next((one for one in left if one in self._ground.plan.calls), None)
        self._taken.add(same)
        return same

    def _turn(self, this: CallId) -> CallId:
        """Which call of the port's own code stands for the reference's where an edit calls layers in another turn: from
        there on each is the reference's next one of its layer.
        """
        running, turns = self._parent.running, self._parent.turns
        if this.layer not in running.mixed:
            return this
        at = len(self._turns)
        self._turns.append(this.layer)
        self._strays = self._strays or (self._edited and turns[at : at + 1] != [this.layer])
        own = running.made_for.get(CallId(self._ground.plan.layers[this.layer], this.number))
        return own if self._strays and own is not None else this

    def _mark(self, args: Any, kwargs: Any) -> object:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        return tuple(print_of(self._adapter.to_numpy(tensor)) for _, tensor in found)

    def _more(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that edits add: all of it runs, with what they change inside it."""
        self._added += 1
        try:
            return (self._ear.form(inner) or inner)(*args, **kwargs)
        finally:
            self._added -= 1

    def _outermost(self, this: CallId, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        found: Tensors = []
        self._depth = 1
        try:
            output = self._inner(inner, args, kwargs)
        finally:
            self._depth = 0
        flatten_result(output, self._adapter.is_tensor, found)
        self._look(this, found)
        return output

    def _inner(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Code of the parent's own, or of a layer that the reference has not."""
        form = self._ear.form(inner) if self._depth == 1 else None
        return (form or inner)(*args, **kwargs)

    def _held(self, this: CallId, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        found: Tensors = []
        self._look(this, found, flatten_arguments(args, kwargs, self._adapter.is_tensor, found))
        mine = [check for check in self._parent.checks if (check.port.layer, check.port.call) == this]
        lacking = [check for check in mine if check.reason == ARGUMENT and check.port.slot not in dict(found)]
        asked = [check for check in mine if check.by_effect or check.port in self._recast] + lacking
        if isinstance(self.listener, Heard):
            self.users[this] = self._user(this)
        sized = [one for one in mine if one.reason == OTHER_SHAPE and not one.by_effect and is_input(one.port.slot)]
        if this in self._parent.kept and not asked and not sized:
            output, counts, mark, taken, changes = self._parent.kept[this]
            whole = self._mark((output,), {}) == mark
            if whole and taken in (None, self._mark(args, kwargs)):
                self.counts.update(counts)
                self._repeat(changes, args, kwargs)
                return output
            del self._parent.kept[this]  # the code writes into it, or it makes something of its own of what it gets
            self._parent.changing |= set() if whole else {this}
        before = dict(self.counts)
        taken = None if self._edited else self._parent.given.get(this)
        if self._edited and this in self._parent.lone:
            taken = self._mark(args, kwargs)
        given = self._ground.others(self.call, this, found)
        given = {slot: value for slot, value in given.items() if slot not in {check.port.slot for check in asked}}
        others = substitute_arguments(args, kwargs, given)
        effects = Effects(*others)
        self._depth += 1
        try:
            output = inner(*others[0], **others[1])
        except Exception:
            if len(sized) < 2 or this not in self._parent.kept:
                raise
            return self._parent.kept[this][0]  # of several arguments with other sizes another one may be due
        finally:
            self._depth -= 1
        changes = effects.found()
        self._repeat(changes, args, kwargs, others[0] is not args)
        found = []
        flatten_result(output, self._adapter.is_tensor, found)
        self._look_at_effect(this, asked, found, partial(self._by_itself, this, inner, args, kwargs))
        given = self._ground.others(self.call, this, found)
        given = given if self._disturb is None else {**given, **self._disturb([*given.items()])}
        output = substitute_result(output, given)
        own = any(self._is_own(this, slot, tensor, slot in given) for slot, tensor in found)
        for check in sized if own else ():
            self.note(check.port, math.inf)  # of the reference's value it makes another size: it does not take it so
        if not asked and not own:
            keys = (Key(self.call.step, Phase.FORWARD, *this, slot) for slot, _ in found)
            lone = any(key not in self._ground.plan.entries for key in keys)
            self._parent.lone |= {this} if lone else set()
            if taken is not None or not lone:
                self._keep(this, output, found, before, taken if lone else None, changes)
        return output

    def _is_own(self, this: CallId, slot: str, tensor: object, held: bool) -> bool:
        """Whether a value has another size than its counterpart, or rows beside its: what is made depends on what the
        code gives."""
        entry: Any = self._ground.plan.entries.get(Key(self.call.step, Phase.FORWARD, *this, slot))
        other = entry is not None and math.prod(entry.shape) != math.prod(self._adapter.to_numpy(tensor).shape)
        return isinstance(entry, Selected) or (other and not held)

    def _keep(
        self,
        this: CallId,
        output: Any,
        found: Tensors,
        before: Mapping[str, int],
        taken: object,
        changes: Sequence[Change],
    ) -> None:
        size = sum(self._adapter.to_numpy(tensor).nbytes for _, tensor in found)
        if self._parent.bytes + size <= KEPT and this not in self._parent.changing:
            self._parent.bytes += size
            counts = {path: count for path, count in self.counts.items() if before.get(path, 0) != count}
            self._parent.kept[this] = output, counts, self._mark((output,), {}), taken, changes

    def _user(self, this: CallId) -> Optional[Event]:
        if self._depth == 0:
            return next((one for one in reversed(self.listener.story.events) if one.word == RETURN), None)
        pending = self.listener.pending[-1:]
        return next((one for one in pending if one.layer == self._ground.plan.layers.get(this.layer)), None)

    def _look(self, this: CallId, found: Tensors, structure: object = NOTHING) -> None:
        """`structure` is that of the arguments of a call."""
        tensors = dict(found)
        changed = self._is_renumbered(this, structure)
        for check in self._parent.checks:
            key = check.port
            if (key.layer, key.call) != this or is_input(key.slot) == (self._depth == 0) or key in self.errors:
                continue
            if key.slot in tensors:
                if key == self.until:
                    self.last = self._adapter.to_numpy(tensors[key.slot])
                if isinstance(self.listener, Heard):
                    self.found[key] = self.listener.number(tensors[key.slot])
                    self.at[key] = len(self.listener.story.events), self._user(this)
                if check.by_effect and not self._edited:
                    self._parent.forms[key] = self._print(tensors[key.slot])
                if check.number is not None or changed:
                    self.note(key, math.inf if changed or not self._is_steered(this, structure) else 0.0)
                elif check.reason == OTHER_FORM:
                    self._look_at_form(check, tensors[key.slot])
                elif not check.by_effect and not self._is_recast(key, tensors[key.slot]):
                    self.note(key, self._ground.off(check, tensors[key.slot]))

    def _is_recast(self, key: Key, tensor: object) -> bool:
        """Whether edits give a layer another kind of numbers than it was given: whether it takes them so, it tells."""
        word = self._adapter.dtype(tensor)
        kind = word if word not in DTYPES or word == "bool" else str(DTYPES[word].exact)
        if not self._edited:
            self._parent.kinds[key] = kind
        recast = is_input(key.slot) and self._parent.kinds.get(key, kind) != kind
        self._recast |= {key} if recast else set()
        return recast

    def _is_steered(self, this: CallId, structure: object) -> bool:
        """Whether a call is given the reference's plain numbers, where they were others."""
        own, wanted = numbers(structure), self._ground.plan.numbers.get((self.call.step, this), {})
        return all(own.get(slot) == number for slot, number in wanted.items())

    def _is_renumbered(self, this: CallId, structure: object) -> bool:
        """Whether edits give a call plain numbers that are neither what they were nor the reference's."""
        own, known = numbers(structure), self._parent.numbers
        known.update({} if self._edited else {this: own})
        wanted = self._ground.plan.numbers.get((self.call.step, this), {})
        return any(
            own[slot] not in (one, wanted.get(slot, one)) for slot, one in known.get(this, own).items() if slot in own
        )

    def _look_at_form(self, check: Check, tensor: object) -> None:
        """Of a value that is right in a form of its own: how far off edits make it that make it another one. Where it
        is what is wrong elsewhere, they are to do so: what the layer makes of it tells.
        """
        value = self._print(tensor)
        if not self._edited:
            self._parent.forms[check.port] = value
        known = self._parent.forms.get(check.port)
        wrong = (self._parent.forms.get(one.port) for one in self._parent.checks if one.by_effect)
        if known is None or _is_same(known, value):
            self.note(check.port, 0.0)
        elif is_input(check.port.slot) and any(_is_same(known, one) for one in wrong):
            self._recast.add(check.port)
        else:
            self.note(check.port, self._ground.off(check, tensor))

    def _print(self, tensor: object) -> Optional[Fingerprint]:
        word = self._adapter.dtype(tensor)
        return fingerprint(decode(self._adapter.to_numpy(tensor), word)) if word in DTYPES else None

    def _look_at_effect(
        self, this: CallId, asked: Sequence[Check], found: Tensors, by_itself: Callable[[], Tensors]
    ) -> None:
        """How far off what a call makes of arguments is, but for the little that its kernels make by themselves."""
        for check in asked:
            error = self._effect(this, check, found)
            if 0.0 < error <= SMALL and error <= ALLOWED * self._effect(this, check, by_itself()):
                error = 0.0
            self.note(check.port, error)

    def _effect(self, this: CallId, check: Check, found: Tensors) -> float:
        made = []
        for slot, tensor in found:
            port, own = Key(check.port.step, Phase.FORWARD, *this, slot), check.key._replace(slot=slot)
            entry = self._ground.plan.entries.get(port)
            if entry is not None:
                key = entry.key if entry.key.layer == own.layer else own  # not what it was handed on as
                error = self._ground.off(replace(check, port=port, key=key, against=key, axes=None), tensor)
                made.append(0.0 if error == math.inf and self._is_made_inside(tensor) else error)
        return max(made, default=math.inf)

    def _by_itself(self, this: CallId, inner: Callable[..., Any], args: Any, kwargs: Any) -> Tensors:
        """What a call makes of the reference's arguments alone."""
        given: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, given)
        counts, found = dict(self.counts), list[tuple[str, object]]()
        others = substitute_arguments(args, kwargs, self._ground.others(self.call, this, given))
        self._depth += 1
        try:
            flatten_result(inner(*others[0], **others[1]), self._adapter.is_tensor, found)
        finally:
            self._depth -= 1
            self.counts = counts
        return found

    def _is_made_inside(self, tensor: object) -> bool:
        """Whether the reference's code around makes it: a convolution that pads by itself makes more, which is cut."""
        plan, call = self._ground.plan, self._parent.call
        ours, word = plan.calls.get(CallId(call.layer, call.number)), self._adapter.dtype(tensor)
        exact = word not in DTYPES or DTYPES[word].exact
        return ours is not None and not exact and plan.made(ours, decode(self._adapter.to_numpy(tensor), word))

    def note(self, key: Key, error: float) -> None:
        self.errors[key] = error
        if self._vain(key, error):
            raise InVainError
        if key == self.until:
            raise EnoughError


def _is_same(one: Fingerprint, other: Optional[Fingerprint]) -> bool:
    return other is not None and one.size == other.size and apart(one, other) <= SAME

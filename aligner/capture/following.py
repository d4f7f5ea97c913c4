"""What the code of a layer does step by step: each operation with the line that it stands in and what it made.

Of the values no more than a fingerprint is kept. Of each layer whose class is the user's own the first calls of a run
are followed: the second is the first that has a cache. What a layer of the framework runs inside itself is its own
affair.
"""

from __future__ import annotations

import linecache
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

from aligner.adapter import Adapter, Handle
from aligner.dtypes import DTYPES, decode
from aligner.errors import LateError
from aligner.findings import CODE
from aligner.fingerprint import LARGEST, fingerprint, print_of
from aligner.record import Array
from aligner.source.constructing import Building
from aligner.source.ear import Ear
from aligner.source.owning import is_own
from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values, is_array
from aligner.words.calls import dtype_of
from aligner.words.operations import bare, may_write

MOST, FULL, OFTEN = 6000, 4000, 200
"""Operations of one layer that are kept; from the second number on, those of a line only until there are as many of it
as the third: a long loop leaves room for what follows."""

ALL = 12000
"""Operations of a net that are kept, and as many of second calls, and of all later ones together."""

LATER = 2
"""The first call that is a later one."""

CALLS = 8
"""Calls of each layer."""

LONG = 40
"""Characters of an argument that are kept, ..."""

MANY = 64
"""... items of one that is a list, ..."""

WIDE = 160
"""... and of a line."""

SECONDS = 5.0
"""What building layers again may take."""

HELD = 4 << 20
"""Bytes of values that may wait to be looked at."""

Where = Optional[tuple[Any, ...]]
"""File and line, and maybe more."""


_HANDED, _CAME = " handed", " came"
"""Stand for an operation's name where values only go into a layer or leave a function, or come out of a layer."""


@dataclass
class _Waiting:
    """A step whose values have not been looked at; of those it was given, some have numbers already."""

    name: str
    given: Sequence[object]
    made: Sequence[object]
    arguments: list[str]
    where: Where


class _Cut(dict[tuple[object, ...], int]):
    """Values that parts are taken out of, by their object and their line. `x[i] += y` adds to the part, which belongs
    to x, and then puts it into x: by then x has it already.
    """

    def as_it_was(self, name: str, value: object, where: tuple[Any, ...], numbers: list[int]) -> None:
        """Note the first of the numbers, the value's; or have it be what was noted, where the part is put back."""
        place = id(value), *where[:2]
        if name == "getitem":
            self[place] = numbers[0]
        elif name == "setitem":
            numbers[0] = self.pop(place, numbers[0])


class _Views(dict[int, tuple["weakref.ref[Any]", list[str], int]]):
    """Parts of values that share their numbers with them, as torch tensors tell: `x[i][mask] = y` writes into `x`. By
    the part's object, what it was taken out of, where, and the number that this had.
    """

    def made(self, name: str, part: object, given: Sequence[Any], arguments: list[str], numbers: Sequence[int]) -> None:
        """An operation has made this of values with these numbers."""
        self.pop(id(part), None)
        shares = getattr(part, "_base", None) is not None and bare(name) == "getitem"
        if shares and len(given) == len(numbers) == 1:
            self[id(part)] = weakref.ref(given[0]), [name.replace("get", "set"), *arguments], numbers[0]

    def written(self, part: object, where: Where) -> Iterator[_Waiting]:
        """What was written into with this part, as steps."""
        while id(part) in self and (whole := self[id(part)][0]()) is not None:
            _, (name, *arguments), number = self[id(part)]
            yield _Waiting(name, [number, part], [whole], [*arguments, "*"], where)
            part = whole


@dataclass
class _Code:
    """The code of a layer while it runs."""

    followed: bool
    call: int = 0
    waiting: list[_Waiting] = field(default_factory=list)
    cut: _Cut = field(default_factory=_Cut)
    views: _Views = field(default_factory=_Views)
    held: int = 0
    """Bytes that wait, at most."""
    known: dict[bytes, int] = field(default_factory=dict)
    values: list[list[Any]] = field(default_factory=list)
    steps: list[list[Any]] = field(default_factory=list)
    passed: dict[str, list[list[Any]]] = field(default_factory=lambda: {_HANDED: [], _CAME: []})
    """Values that only go from code to code, each with its line."""
    built: int = 0
    """How many of the steps made its tables."""
    lines: Counter[object] = field(default_factory=Counter)
    """How many operations of each line there were."""

    def has_room(self, where: Where) -> bool:
        """Whether one more operation, of this line, is kept."""
        line, count = where and where[:2], len(self.steps) + len(self.waiting)
        self.lines[line] += 1
        return count < FULL or (count < MOST and self.lines[line] <= OFTEN)

    def begun(self) -> _Code:
        """The layer's code, which begins where its constructor ended."""
        return _Code(True, 0, known={**self.known}, values=[*self.values], steps=[*self.steps], built=len(self.steps))


FUSED = {"TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention"}
"""Layers that torch runs as one kernel as long as nobody is told of its operations: then their last bits are others."""


def follows(wanted: Optional[bool], adapter: Adapter, model: Any) -> bool:
    """Whether a net is followed, where it is not said: if no bit of what it makes is another one for it."""
    if wanted is not None:
        return wanted
    return not any(adapter.spec(layer).kind in FUSED for _, layer in adapter.layers(model))


class Following:
    """Follows the calls of a run as they nest; `tell` gets a finding for each layer."""

    def __init__(self, adapter: Adapter, model: Any, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._adapter, self._model, self._values = adapter, model, Values(adapter)
        self._tell = tell
        self._own = {path for path, layer in adapter.layers(model) if is_own(adapter, layer)}
        self._waits = adapter.name == "mindspore"
        """Its operators run on by themselves, and are told by names that say whether they write in place."""
        self._stack: list[_Code] = []
        self._built: dict[str, _Code] = {}
        self._done: set[tuple[str, int]] = set()
        self._steps = [0] * (LATER + 1)
        self._heard: Optional[Handle] = None
        self._failed = False
        """Something of ours went wrong: the net runs on, and nobody is followed any more."""

    def built(self) -> Following:
        """With how the layers make their tables when they are built: they are built again for that."""
        started = time.monotonic()
        layers = dict(self._adapter.layers(self._model))
        known = {*map(id, layers.values())}
        for path, layer in layers.items():
            building = Building.of(self._adapter, layer) if path in self._own else None
            if building is None or time.monotonic() - started > SECONDS:
                continue
            self._stack.append(_Code(followed=True))
            with suppress(Exception):  # it cannot be built again: then its tables are what they are
                if building.heard(Ear(self._adapter, known, self, {})):
                    self._read(self._stack[-1])
                    self._built[path] = self._stack[-1]
            self._stack.clear()
        return self

    def listen(self, handles: list[Handle]) -> Following:
        """Be told of operations until this is removed, which is added to these."""
        executions = getattr(self._adapter, "executions", None)  # an adapter of others' may not have it
        if executions is not None:
            self._heard = executions(self.begun)
            handles.append(self)
        return self

    def remove(self) -> None:
        """Be told no more."""
        if self._heard is not None:
            self._heard.remove()
            self._heard = None

    def enter(self, path: str, call: int) -> None:
        """A call begins."""
        if self._stack:
            self._read(self._stack[-1])
        due = call < CALLS and self._steps[min(call, LATER)] < ALL
        followed = due and path in self._own and (path, call) not in self._done
        built = self._built.get(path) if followed and not call else None
        self._stack.append(_Code(followed, call) if built is None else built.begun())

    def leave(self, path: str, call: int = 0, step: int = 0) -> None:
        """A call ends."""
        code = self._stack.pop()
        self._read(code)
        if code.followed and (code.steps or any(code.passed.values())):
            self._done.add((path, code.call))
            self._steps[min(code.call, LATER)] += len(code.steps)
            told: dict[str, Any] = {name.strip(): rows for name, rows in code.passed.items() if rows}
            told.update({"built": code.built} if code.built else {})
            told.update({"call": code.call} if code.call else {})
            self._tell(CODE, {"layer": path, "values": code.values, "steps": code.steps, **told})

    def restart(self) -> None:
        """Another run begins, and what was told of the one before is void."""
        self._stack.clear()
        self._done.clear()
        self._steps = [0] * (LATER + 1)

    def unwind(self, depth: int) -> None:
        """Calls above `depth` never came back."""
        del self._stack[depth:]

    def begun(
        self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object], where: Where
    ) -> Optional[Callable[[object], None]]:
        """An operation begins; what is returned is to be called with what it made."""
        code = self._stack[-1] if self._stack else None
        if code is None or not code.followed or self._failed or not code.has_room(where):
            return None
        given = self._found(args, kwargs)
        writes = not self._waits or may_write(name) or bool(kwargs.get("inplace"))
        writes = writes or any(map(is_array, given))
        if writes and self._waits:
            self._read_amid(code)
        before = self._guarded(code, given) if writes else None  # it may write into them
        if before and not self._waits and where is not None and len(before) == len(given):
            code.cut.as_it_was(bare(name), given[0], where, before)
        arguments = [*map(self._word, args), *(f"{key}={self._word(value)}" for key, value in kwargs.items())]

        def made(output: object) -> None:
            results = self._found((output,), {})
            code.waiting.append(_Waiting(name, given if before is None else before, results, arguments, where))
            for part in results if not self._waits else ():
                if any(part is one for one in given):
                    code.waiting += code.views.written(part, where)
                else:
                    code.views.made(name, part, given, arguments, before or ())
            code.held += sum(8 * _count(tensor) for tensor in results)
            if not self._waits or code.held > HELD or any(map(is_array, results)):
                self._read_amid(code)

        return made

    def handed(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], where: Where, to: Optional[object]
    ) -> None:
        """Values go into a layer or leave a function."""
        self._pass(_HANDED, args, kwargs, where)

    def kept(self, args: tuple[object, ...], kwargs: Mapping[str, object], where: Where) -> None:
        """Values go into a list: where they go on from there is heard."""

    def entered(self, args: tuple[object, ...], kwargs: Mapping[str, object], where: Where) -> None:
        """Values go into a function of the user's: what it does with them is heard."""

    def came(self, output: object, where: Where, of: Optional[object]) -> None:
        """Values come out of a layer; what a function of the user's gives was told where it returned it."""
        if of is not None:
            self._pass(_CAME, (output,), {}, where)

    def _pass(self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object], where: Where) -> None:
        code = self._stack[-1] if self._stack else None
        if code is None or not code.followed or self._failed or len(code.passed[name]) + len(code.waiting) >= 2 * MOST:
            return
        code.waiting.append(_Waiting(name, (), self._found(args, kwargs), [], where))
        if not self._waits:
            self._read_amid(code)

    def settle(self) -> None:
        """What was made so far is about to be changed: read it now."""
        for code in self._stack:
            self._read(code)

    def _read_amid(self, code: _Code) -> None:
        """The same in the midst of the net's own code, which gets its kernel's error as it is."""
        try:
            self._read(code)
        except LateError as error:
            raise error.__cause__ or error from None

    def _read(self, code: _Code) -> None:
        """Look at the values that were only kept so far: asking for each at once would stop the device each time."""
        for step in code.waiting:
            given = [one if isinstance(one, int) else self._guarded(code, [one]) for one in step.given]
            numbers = [number for one in given for number in (one if isinstance(one, list) else [one])]
            results = self._guarded(code, step.made)
            if step.name in code.passed:
                code.passed[step.name] += [[number, *_line(step.where)] for number in results]
            elif not set(results) <= set(numbers):  # else nothing was done
                row = [step.name, numbers, results, step.arguments, *_line(step.where)]
                code.steps += [row] if row not in code.steps[-1:] else []  # `x[i] += y` writes twice
        code.waiting.clear()
        code.held = 0

    def _found(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """All tensors in it."""
        found: Tensors = []
        flatten_arguments(args, kwargs, self._values.holds, found)
        return [tensor for _, tensor in found]

    def _guarded(self, code: _Code, tensors: Sequence[object]) -> list[int]:
        """The numbers of tensors."""
        try:
            return self._known(code, tensors)
        except LateError:
            raise
        except Exception:  # a tensor of a kind that cannot be read must not hurt the net
            self._failed, code.followed = True, False
            return []

    def _known(self, code: _Code, tensors: Sequence[object]) -> list[int]:
        numbers = []
        for tensor in tensors:
            dtype = self._values.dtype(tensor)
            if dtype in DTYPES and _count(tensor) > LARGEST:
                numbers.append(len(code.values))  # known to nobody
                code.values.append([list(getattr(tensor, "shape", ()))])
            elif dtype in DTYPES:
                with suppress(ValueError):  # it has no values to read
                    numbers.append(self._number(code, self._values.read(tensor), dtype))
        return numbers

    def _number(self, code: _Code, array: Array, dtype: str) -> int:
        mark = print_of(array)
        number = code.known.setdefault(mark, len(code.values))
        if number == len(code.values):
            taken = fingerprint(decode(array, dtype))
            told = [] if taken is None else [taken.whole, taken.text()]
            code.values.append([list(array.shape), *told])
        return number

    def _word(self, value: object) -> str:
        """An argument as people write it; "*" is a tensor."""
        if self._values.holds(value):
            return "*"
        if isinstance(value, (tuple, list)):
            return "(" + ", ".join(map(self._word, value[:MANY])) + ("," if len(value) == 1 else "") + ")"
        if isinstance(value, slice):
            return "slice(" + ", ".join(map(self._word, (value.start, value.stop, value.step))) + ")"
        if value is None or value is ... or isinstance(value, (bool, int, float, str)):
            return repr(value)[:LONG]
        return dtype_of(str(value)) or type(value).__name__[:LONG]


def _count(tensor: object) -> int:
    """How many elements a tensor has; none where its shape is no plain one, as of rows of different lengths."""
    try:
        return math.prod(int(size) for size in getattr(tensor, "shape", ()))
    except Exception:  # whatever it raises must not hurt the net
        return 0


def _line(where: Where) -> tuple[str, int, str]:
    if where is None:
        return "", 0, ""
    path, number = where[:2]
    return path, number, " ".join(linecache.getline(path, number).split())[:WIDE]

"""Runs the user's code in the form that tells, and tells of each operation that works on tensors.

Functions of the user's are heard inside, wherever they stand; what stands in the framework's packages is an operation.
"""

from __future__ import annotations

import functools
import math
import operator as operators
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Optional

from aligner.adapter import Adapter, Handle
from aligner.patches import together
from aligner.source import functions as forms
from aligner.source.caches import unkept
from aligner.source.listening import Inside, Listener, Place, Plainly, Runner
from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values, is_array

_ENDINGS = re.compile("(_ext|_view)+$")
"""What MindSpore adds to the name of a function that goes by torch's rules."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_NUMPYS = {"repeat": "repeatinterleave"}
"""What numpy calls otherwise than the frameworks do."""

_CONTAINERS = (list, dict, set, deque)
"""Python's own, whose methods only keep values."""

_NEVER = ("numpy", "aligner", "aligner_hooks")
"""Code that is neither the user's nor the framework's, besides Python's own."""

ROWS = 256
"""Of what is unpacked, or gone through, no more are told: each is a value of its own."""

TURNS, SECONDS = 1000, 2.0
"""Of edited code a `while` that has had more turns, and goes on for longer, has no end."""


class EndlessError(Exception):
    """Edited code does not come to an end."""


def listen(
    adapter: Adapter, model: Any, listener: Listener, texts: Mapping[str, str] = MappingProxyType({})
) -> Optional[Handle]:
    """Hear the code of the model's own layers, until removed; None if there is one whose source is not known.

    `texts` stand for those of their files.
    """
    if not hasattr(adapter, "computing"):  # an adapter of others' may not tell
        return None
    layers = [layer for _, layer in adapter.layers(model)]
    ear = Ear(adapter, {*map(id, layers)}, listener, texts)
    methods = []
    for layer in layers:
        owner, name = adapter.computing(layer)
        function = getattr(owner, name)
        form = ear.form(function)
        if form is not None:
            methods.append((owner, name, form))
        elif ear.is_own(function):
            return None
    with together() as handle:
        for owner, name, form in methods:
            handle.add(replaced(owner, name, form))
        return handle


def replaced(owner: Any, name: str, form: Callable[..., object]) -> Callable[[], None]:
    """Put a method on the object itself; gives what takes it away."""
    own = vars(owner)
    known = name in own, own.get(name)
    own[name] = form

    def remove() -> None:
        if own.get(name) is form:
            if known[0]:
                own[name] = known[1]
            else:
                del own[name]

    return remove


class Ear:
    """What rewritten code calls."""

    slice = slice

    def __init__(
        self,
        adapter: Adapter,
        layers: Container[int],
        listener: Listener,
        texts: Mapping[str, str],
        runner: Optional[Runner] = None,
        seconds: float = math.inf,
    ) -> None:
        """`layers` are the identities of the net's layers; a `while` of edited code is left after so many `seconds`."""
        self._seconds = seconds
        self._runner = Plainly() if runner is None else runner
        self._values, self._listener, self._texts = Values(adapter), listener, texts
        self._turns, self._began = 0, time.monotonic()
        self.used: set[FunctionType] = set()
        """The user's functions that there is a form of."""
        self._keeping: dict[int, tuple[Any, Callable[..., Any]]] = {}
        """Forms of functions that keep what they return, by these."""
        self.inside: list[Inside] = []
        """Calls of the user's functions that are under way, if somebody asks."""
        self._layers = layers
        self._layer_class: type = getattr(adapter, "layer_class", object)  # an adapter of others' may not tell
        self._packages = frozenset(adapter.packages)
        files = (getattr(sys.modules.get(name), "__file__", None) for name in adapter.packages)
        self._folders = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)

    def form(self, function: Any) -> Optional[Callable[..., Any]]:
        """The form of a user's function that tells; None for others, and where there is none."""
        if not self.is_own(function):
            return None
        told = self._told(getattr(function, "__func__", function))
        owner = getattr(function, "__self__", None)
        return told if told is None or owner is None else MethodType(told, owner)

    def _told(self, function: FunctionType) -> Optional[FunctionType]:
        """What the framework has wrapped around a function (an autocast, a compiler) stays around it."""
        if not self._wraps(function):
            self.used.add(function)
            for one in self.inside:
                one.used.add(function)
            return forms.told(function, self, self._texts.get(function.__code__.co_filename))
        told = self._told(vars(function)["__wrapped__"])
        return None if told is None else forms.around(function, told)

    def _wraps(self, function: Any) -> bool:
        return isinstance(function, FunctionType) and self._is_framework(function) and hasattr(function, "__wrapped__")

    def is_own(self, function: Any) -> bool:
        """Whether a function is the user's, and not heard yet."""
        plain = self.plain(function)
        return plain is not None and not forms.is_told(plain)

    def plain(self, function: Any) -> Optional[FunctionType]:
        """The user's function in what is called, under what the framework has wrapped around it."""
        found = getattr(function, "__func__", function)
        while self._wraps(found):
            found = found.__wrapped__
        if not isinstance(found, FunctionType) or self._is_framework(found) or _root(found) in _NEVER:
            return None
        file = found.__code__.co_filename
        return None if file.startswith(_STANDARD) and "-packages" not in file[len(_STANDARD) :] else found

    def _is_framework(self, function: Any) -> bool:
        """By its module, or by its file: what MindSpore rewrites imports parts of packages under other names."""
        written = isinstance(function, FunctionType) and function.__code__.co_filename.startswith(self._folders)
        return written or _root(function) in self._packages

    def turn(self, place: Place, value: Any) -> Any:
        """while a"""
        self._turns += 1
        took = time.monotonic() - self._began if self._texts else 0.0
        if took > self._seconds or (self._turns > TURNS and took > SECONDS):
            raise EndlessError(f"{place[0]}:{place[1]}: no end after {self._turns} turns")
        return value

    def call(self, place: Place, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """f(...)"""
        if id(function) in self._layers:
            self._listener.handed(args, kwargs, place, function)
            output = function(*args, **kwargs)
            self._listener.came(output, place, function)
            return output
        if isinstance(function, type):
            built = self._constructor(function)
            if built is not None:
                instance: Any = object.__new__(function)
                for one in self.inside:
                    one.created.append(instance)
                built(instance, *args, **kwargs)
                return instance
            make = partial(function, *args, **kwargs)
            return self._run(place, "cast", function, args, kwargs, make) if self._casts(function, args) else make()
        if isinstance(function, partial):
            return self.call(place, function.func, *function.args, *args, **{**function.keywords, **kwargs})
        if function is sum:
            return self._sum(place, *args, **kwargs)
        if isinstance(vars(type(function)).get("__call__"), FunctionType):
            called = MethodType(vars(type(function))["__call__"], function)
            function = called if self.plain(called) is not None else function
        kept, function = self._kept(function)
        form = kept or self.form(function)
        if form is not None:
            for one in self.inside:
                method, owner = getattr(function, "__func__", function), getattr(function, "__self__", None)
                one.owners[method, id(owner)] = owner
            self._listener.entered(args, kwargs, place)
            output = self._runner.within(self, function, args, kwargs, partial(form, *args, **kwargs))
            self._listener.came(output, place, None)
            return output
        if self.plain(function) is not None:
            return function(*args, **kwargs)
        owner = getattr(function, "__self__", None)
        given = (owner, *args) if self._values.holds(owner) else args
        self._touch(owner)
        if isinstance(owner, _CONTAINERS) and self._given(args, kwargs):
            self._listener.kept(args, kwargs, place)
        if isinstance(owner, _CONTAINERS) or not self._is_operation(function, given, kwargs):
            return function(*args, **kwargs)
        name = self._name(function, owner)
        return self._run(place, name, function, given, kwargs, lambda: function(*args, **kwargs))

    def _kept(self, function: Any) -> tuple[Optional[Callable[..., Any]], Any]:
        """Of a user's function that keeps what it returns, a form that does so for as long as this ear is there, and
        what it runs."""
        inner = unkept(function)
        form = self.form(inner) if inner is not function else None
        if form is None:
            return None, function
        keeping, owner = getattr(function, "__func__", function), getattr(function, "__self__", None)
        if id(keeping) not in self._keeping:
            again = functools.lru_cache(**keeping.cache_parameters())
            self._keeping[id(keeping)] = keeping, again(getattr(form, "__func__", form))
        known = self._keeping[id(keeping)][1]
        return (known if owner is None else partial(known, owner)), inner

    def _touch(self, one: object) -> None:
        """It may be written into."""
        if self.inside and isinstance(one, _CONTAINERS):
            for call in self.inside:
                call.touched[id(one)] = one

    def is_layer(self, value: object) -> bool:
        """Whether this is one of the net's layers."""
        return id(value) in self._layers

    def _constructor(self, kind: Any) -> Optional[Callable[..., Any]]:
        """The form of a class's constructor, if its objects are made by that alone, and are no layers."""
        alone = type(kind) is type and getattr(kind, "__new__", None) is object.__new__
        function = getattr(kind, "__init__", None)
        alone = alone and isinstance(function, FunctionType) and not issubclass(kind, self._layer_class)
        return self.form(function) if alone else None

    def _sum(self, place: Place, values: Iterable[Any], start: Any = 0) -> Any:
        """Python's own, of tensors."""
        for value in values:
            start = self.operator(place, "add", start, value)
        return start

    def _is_operation(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether values are worked on, or may be made by the framework or by numpy."""
        known = (self._is_framework(one) or _is_numpy(one) for one in (function, type(function)))
        return self._given(args, kwargs) or any(known)

    def _casts(self, kind: type, args: tuple[Any, ...]) -> bool:
        """Whether a tensor is made of values."""
        return self._is_framework(kind) and self._given(args[:1], {})

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether there are values among them."""
        found: Tensors = []
        flatten_arguments(args, kwargs, self._values.holds, found)
        return bool(found)

    @staticmethod
    def _name(function: Any, owner: object) -> str:
        """What the framework calls it."""
        name = _ENDINGS.sub("", str(getattr(function, "__name__", None) or type(function).__name__)).lower()
        known = is_array(owner) or _is_numpy(function) or _is_numpy(type(function))
        return _NUMPYS.get(name, name) if known else name

    def back(self, place: Place, value: Any, /) -> Any:
        """return a"""
        self._listener.handed((value,), {}, place, None)
        return value

    def named(self, place: Place, value: Any, /) -> Any:
        """a = b, a = b[i], a.c = b"""
        if self._values.holds(value):
            self._listener.kept((value,), {}, place)
        return value

    def unpacked(self, place: Place, value: Any, /) -> Any:
        """a, b = c"""
        return self._operation(place, "unbind", lambda one: tuple(one), value) if self._has_few(value) else value

    def looped(self, place: Place, value: Any, /) -> Any:
        """for a in c: its rows are told at once, and taken when each is due, as they may change until then."""
        made = self._listener.begun("unbind", (value,), {}, place) if self._has_few(value) else None
        if made is not None:
            made(tuple(value))
        return value

    def _has_few(self, value: Any) -> bool:
        """Whether a value has rows, and no more than are told."""
        return self._values.holds(value) and 0 < int((*value.shape, 0)[0]) <= ROWS

    def operator(self, place: Place, word: str, /, *operands: Any) -> Any:
        """a + b, -a, a < b"""
        return self._operation(place, word.strip("_"), getattr(operators, word), *operands)

    def inplace(self, place: Place, word: str, one: Any, other: Any, /) -> Any:
        """a += b"""
        self._touch(one)
        word = f"i{word.strip('_')}"
        return self._operation(place, word, getattr(operators, word), one, other)

    def turned(self, place: Place, one: Any, word: str, /) -> Any:
        """a.T"""
        return self._operation(place, word, lambda value: getattr(value, word), one)

    def item(self, place: Place, one: Any, index: Any, /) -> Any:
        """a[i]"""
        return self._operation(place, "getitem", operators.getitem, one, index)

    def put(self, place: Place, value: Any, one: Any, index: Any, /) -> None:
        """a[i] = b"""
        self._touch(one)
        self._operation(place, "setitem", operators.setitem, one, index, value)

    def change(self, place: Place, word: str, one: Any, index: Any, value: Any, /) -> None:
        """a[i] += b; of a value as a[i] = a[i] + b: in place, it would have changed before that can be told."""
        item = self.item(place, one, index)
        if self._values.holds(one):
            made = self.operator(place, word, item, value)
            if self._values.holds(made) and self._values.dtype(made) == self._values.dtype(one):
                self.put(place, made, one, index)
                return
        self.put(place, self.inplace(place, word, item, value), one, index)

    def _operation(self, place: Place, word: str, run: Callable[..., Any], /, *operands: Any) -> Any:
        if not any(map(self._values.holds, operands)):
            return run(*operands)
        function = word if isinstance(run, FunctionType) else run
        return self._run(place, word, function, operands, {}, lambda: run(*operands))

    def _run(
        self,
        place: Place,
        word: str,
        function: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        made = self._listener.begun(word, args, kwargs, place)
        output = self._runner.run(word, function, args, kwargs, run)
        if made is not None:
            made(args[0] if output is None and args else output)
        return output


def _is_numpy(function: Any) -> bool:
    return _root(function) == "numpy"


def _root(function: Any) -> str:
    """The package that a function is written in: who wraps another's gives it that one's module."""
    space = function.__globals__ if isinstance(function, FunctionType) else {}
    known = space.get("__name__") or getattr(function, "__module__", None)
    return str(known).partition(".")[0]

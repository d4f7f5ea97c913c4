"""With what the user's layers were built; and one of them built again, for the tables that its constructor makes."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import numpy as np

from aligner.adapter import Adapter
from aligner.fingerprint import print_of
from aligner.patches import Handle, Listeners, patch, together
from aligner.source import functions, sites
from aligner.source.ear import Ear
from aligner.source.owning import is_own
from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values

DEEP = 16
"""Frames between a layer's own constructor and that of all layers."""

LARGE = 1 << 26
"""Values of a layer's parameters: larger ones are not built again."""

KEEPERS = ("_buffers", "_parameters", "_params", "_tensor_list", "_cells", "_modules")
"""Dicts in which frameworks keep the tensors of a layer, and the layers in it."""

Arguments = tuple[tuple[object, ...], dict[str, object]]
_Place = tuple[str, str]
"""The dict in which a layer keeps a value ("": its own), and the value's name."""

Marks = Mapping[_Place, object]
"""What tells a value from others."""

_OF_LAYER: WeakKeyDictionary[Any, Arguments] = WeakKeyDictionary()
_OF_CLASS: WeakKeyDictionary[type, Arguments] = WeakKeyDictionary()
"""The last that was built of it: copies of a layer are not built."""


def noted(adapter: Adapter) -> Handle:
    """Until removed, note what the user's layers are built with, and where they are cast."""
    base = getattr(adapter, "layer_class", None)  # an adapter of others' may not tell
    if base is None:
        return Handle()
    packages = frozenset(adapter.packages)
    with together() as handle:
        handle.add(patch(base, "__init__", _noting, packages).remove)
        for name in filter(partial(hasattr, base), getattr(adapter, "casting", ())):  # as above
            handle.add(patch(base, name, _Casting(name), packages).remove)
    return handle


def _noting(original: Callable[..., None], listeners: Listeners) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for packages in [*listeners.values()]:
            _note(self, packages, sys._getframe(1))
        original(self, *args, **kwargs)

    return __init__


@dataclass(frozen=True)
class _Casting:
    """The same for a method that casts."""

    name: str

    def __call__(self, original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
        name = self.name

        def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
            for packages in [*listeners.values()]:
                sites.note_cast(self, name, sys._getframe(1), packages)
            return original(self, *args, **kwargs)

        return cast


def _note(layer: Any, packages: frozenset[str], frame: Optional[FrameType]) -> None:
    found: Optional[FrameType] = None
    for _ in range(DEEP):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is layer:
            found = frame
        frame = frame.f_back
    if found is None:
        return
    sites.note(layer, found, packages)
    if str(found.f_globals.get("__name__")).partition(".")[0] in packages:
        return
    given = _given(found.f_code, found.f_locals)
    if given is not None:
        _OF_LAYER[layer] = _OF_CLASS[type(layer)] = given


def _given(code: CodeType, known: Mapping[str, Any]) -> Optional[Arguments]:
    names = [*code.co_varnames]
    plain, named = names[1 : code.co_argcount], names[code.co_argcount :][: code.co_kwonlyargcount]
    rest = iter(names[code.co_argcount + code.co_kwonlyargcount :])
    starred = next(rest) if code.co_flags & inspect.CO_VARARGS else None
    doubly = next(rest) if code.co_flags & inspect.CO_VARKEYWORDS else None
    if any(name not in known for name in (*plain, *named, *filter(None, (starred, doubly)))):  # deleted since
        return None
    args = (*(known[name] for name in plain), *(known[starred] if starred else ()))
    return args, {**{name: known[name] for name in named}, **(known[doubly] if doubly else {})}


def given(layer: Any) -> Optional[Arguments]:
    """What this very layer was built with; None where it is not known."""
    return _OF_LAYER.get(layer)


def tables(adapter: Adapter, layer: Any) -> list[object]:
    """All values that a layer keeps itself: tables and parameters, also in lists."""
    found: Tensors = []
    flatten_arguments(tuple(one.value for one in _kept(layer).values()), {}, adapter.is_tensor, found)
    return [value for _, value in found]


class Built(NamedTuple):
    """A layer that was built again, and what tells its values from others."""

    layer: Any
    marks: Marks


class Building:
    """The building of one layer again. What is built has other weights, and the tables that the code makes."""

    def __init__(self, adapter: Adapter, layer: Any, arguments: Arguments) -> None:
        self._adapter, self._values = adapter, Values(adapter)
        self._layer, self._arguments = layer, arguments
        self._plain: Marks = {}
        """Of what the code makes as it stands in its file."""
        self._framework = frozenset(_kept(adapter.layer_class()))
        """What a layer has before it has anything of the user's."""
        self._used: set[FunctionType] = set()
        """Functions of the user's that ran for it."""
        self.has_tables = self._has_tables()
        """Else it has numbers at most: nobody need hear how it is built, until the constructor is edited."""

    @staticmethod
    def of(adapter: Adapter, layer: Any) -> Optional[Building]:
        """None where it is not known what it was built with, it has nothing of the user's, or it is too large."""
        arguments = _OF_LAYER.get(layer, _OF_CLASS.get(type(layer)))
        if arguments is None or not isinstance(getattr(type(layer), "__init__", None), FunctionType):
            return None
        building = Building(adapter, layer, arguments)
        return None if building._is_hard() else building

    def run(self, ear: Ear) -> Built:
        """Another one, as the code says now. All that it keeps was read: MindSpore may raise no sooner.

        Raises:
            LookupError: its source is not known.
            Exception: whatever the code raises.
        """
        kind: Any = type(self._layer)
        form = ear.form(kind.__init__)
        if form is None:
            raise LookupError(kind.__name__)
        args, kwargs = self._arguments
        made = kind.__new__(kind)
        with undrawn(self._adapter):
            form(made, *args, **kwargs)
            return Built(made, self._marks(made))

    def heard(self, ear: Ear) -> bool:
        """Build it with the code as it stands in its file; whether it has tables then that the layer has.

        Raises:
            LookupError: its source is not known.
            Exception: whatever the code raises.
        """
        made = self.run(ear)
        known = self._marks(self._layer)
        self._plain = {place: mark for place, mark in made.marks.items() if known.get(place) == mark}
        self._used = set(ear.used)
        return bool(self._plain)

    def concerns(self, texts: Mapping[str, str]) -> bool:
        """Whether these texts of files have other code for it."""
        used = self._used or {type(self._layer).__init__}
        return any(functions.differs(one, None, texts.get(one.__code__.co_filename)) for one in used)

    @contextmanager
    def instead(self, made: Built) -> Iterator[None]:
        """Let the layer have what another one was built with, where that is not what it was built with."""
        known, new = _kept(self._layer), _kept(made.layer)
        changed = [place for place, mark in self._plain.items() if made.marks.get(place, mark) != mark]
        try:
            for place in changed:
                known[place].inside[place[1]] = self._beside(new[place].value, known[place].value)
            yield
        finally:
            for place in changed:
                known[place].inside[place[1]] = known[place].value

    def _beside(self, value: Any, other: Any) -> Any:
        """The same value where the other one is: what is built is not moved to the device that the net is on."""
        if getattr(value, "device", None) == getattr(other, "device", None) or not self._adapter.is_tensor(value):
            return value
        return self._adapter.from_numpy(self._adapter.to_numpy(value), self._adapter.dtype(value))

    def _has_tables(self) -> bool:
        found: Tensors = []
        flatten_arguments(tuple(one.value for one in _kept(self._layer).values()), {}, self._values.holds, found)
        return any(not getattr(tensor, "requires_grad", False) for _, tensor in found)

    def _is_hard(self) -> bool:
        given: Tensors = []
        flatten_arguments(*self._arguments, self._adapter.is_model, given)
        size = sum(math.prod(one.shape) for one in self._adapter.parameters(self._layer))
        return bool(given) or size > LARGE  # what is built on other layers may change them

    def _marks(self, layer: Any) -> Marks:
        own = ((place, one) for place, one in _kept(layer).items() if place not in self._framework)
        found = ((place, self._mark(one.value)) for place, one in own)
        return {place: mark for place, mark in found if mark is not None}

    def _mark(self, value: Any) -> object:
        """What tells a value from others; None for what is no tensor, plain value, or list or dict of them."""
        if self._values.holds(value):
            with suppress(ValueError):  # it may have no values to read
                return self._values.dtype(value), print_of(self._values.read(value))
            return None
        if value is None or isinstance(value, (bool, int, float, str)):
            return type(value), value
        if self._adapter.is_model(value):
            return self._mark_of_layer(value)
        if isinstance(value, (tuple, list, dict)):
            names = map(repr, value) if isinstance(value, dict) else ()
            marks = tuple(map(self._mark, value.values() if isinstance(value, dict) else value))
            return None if None in marks else (type(value), *names, *marks)
        return None

    def _mark_of_layer(self, layer: Any) -> object:
        """What tells a layer of the framework's from others, where it has no parameters: its plain settings."""
        if is_own(self._adapter, layer) or [*self._adapter.parameters(layer)] or not _has_own(layer):
            return None
        known = self._framework  # by now it has run, and may have more that its class keeps for itself
        own = {n: one for n, one in vars(layer).items() if ("", n) not in known and not n.startswith("_")}
        marks = ((name, self._mark(value)) for name, value in own.items() if not self._adapter.is_model(value))
        return (type(layer), *((name, mark) for name, mark in marks if mark is not None))


class _Kept(NamedTuple):
    """A value of a layer, and the dict that it stands in."""

    inside: dict[str, Any]
    value: Any


def _kept(layer: Any) -> dict[_Place, _Kept]:
    """What a layer keeps, and what objects of the same program's keep that it has: a schedule, a maker of anchors."""
    own = vars(layer)
    inside = {"": own, **{name: own[name] for name in KEEPERS if isinstance(own.get(name), dict)}}
    program = type(layer).__module__.partition(".")[0]
    others = {name: one for name, one in own.items() if type(one).__module__.partition(".")[0] == program}
    inside.update({f"{name}.": vars(one) for name, one in others.items() if type(type(one)) is type and _has_own(one)})
    return {(where, name): _Kept(values, values[name]) for where, values in inside.items() for name in values}


def _has_own(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict)


@contextmanager
def undrawn(adapter: Adapter) -> Iterator[None]:
    """Whatever is drawn in it, the program's random numbers go on as if it had not been."""
    of_framework, of_numpy, of_python = adapter.random_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # MindSpore draws from it
        if of_framework is not None:
            adapter.set_random_state(of_framework)

"""The port's events of a run of one layer's code, heard in its source."""

from __future__ import annotations

import ast
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.casts import is_short
from aligner.dtypes import DTYPES, decode
from aligner.errors import Reason
from aligner.fingerprint import HUGE, LARGEST, Fingerprint, fingerprint, print_of
from aligner.mending.chosen import NO_ROWS, Rows, parts
from aligner.mending.events import HELPER, KEPT, LAYER, RETURN, Event, Site, Story, as_filled, as_segments, pieces
from aligner.mending.memory import Memory
from aligner.mending.sources import Sources
from aligner.source.listening import Place
from aligner.source.rewriting import EAR
from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values, is_array
from aligner.vocabulary import KINDS
from aligner.words.calls import Constant, Opaque, Operand, Taken, operation
from aligner.words.lists import listed
from aligner.words.operations import INVISIBLE, QUESTIONS, bare

MOST = 16000
"""Events of one run that are kept."""

COMPREHENSIONS, OUTER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"), 16
"""Functions that have no name of their own, and frames between one and the function that it is written in."""

ITEMS, DEEP = 64, 2
"""Named values in one that the code has a name for, and how deep they stand in it."""


class Told(NamedTuple):
    """Of a tensor's value."""

    mark: bytes
    fingerprint: Optional[Fingerprint]
    shape: tuple[int, ...]
    rough: bool
    parts: tuple[Fingerprint, ...] = ()
    """Of the rows that the reference takes out of it."""


class Heard:
    """A listener that keeps the port's story; `layers` tells the reference's layer of one of the port's."""

    def __init__(
        self,
        adapter: Adapter,
        sources: Sources,
        layers: Callable[[object], Optional[str]],
        memory: Optional[Memory] = None,
        rows: Rows = NO_ROWS,
    ) -> None:
        self.story, self._rows = Story([], [], []), rows
        self._adapter, self._sources, self._layers = adapter, sources, layers
        self._values, self._memory = Values(adapter), memory
        self._known: dict[bytes, int] = {}
        known = {} if memory is None else memory.reads  # of the first run alone: others make ever new values
        first = memory is None or memory.recording
        self._reads: MutableMapping[tuple[bytes, str], Told] = known if first else ChainMap({}, known)
        self.told: list[Told] = []
        """Its values, by number."""
        self.pending: list[Event] = []
        """Calls of layers that have not come back."""
        self._entered: list[tuple[Place, _Frame, int]] = []
        """Calls of functions of the user's that have not."""

    def begun(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place
    ) -> Optional[Callable[[object], None]]:
        """An operation begins."""
        if len(self.story.events) >= MOST or bare(name) in QUESTIONS:
            return None
        given, named = [*map(self._plain, args)], {key: self._plain(value) for key, value in kwargs.items()}
        given = listed(name, given, lambda numbers: self._plain(np.array(numbers)))
        frame = self._frame(where, args, kwargs)

        def made(output: object) -> None:
            found = self._tensors(output)
            results = [self.number(tensor) for tensor in found]
            if not results:
                return
            shapes = [self.story.shapes[number] for number in results]
            told = operation(name, given, named, shapes, self._values.dtype(found[0]))
            operands = tuple(map(self._constant, told.operands))
            if told.word in INVISIBLE or (told.word == "dropout" and operands[:1] == tuple(results[:1])):
                return
            if told.word == "split" and isinstance(told.arguments["axis"], int) and isinstance(told.operands[0], int):
                rank = len(self.story.shapes[told.operands[0]])
                for index, result in zip(pieces(shapes, told.arguments["axis"], rank), results):
                    event = Event("getitem", operands[:1], (result,), {"index": index}, name=name, part=True)
                    self.story.events.append(_at(event, frame))
                return
            event = _at(Event(told.word, operands, tuple(results), told.arguments, told.places, name), frame)
            for form in (as_segments, as_filled):
                form(event, self.story.events, len(self.story.events), self.story.shapes)
            if frame.node is not None and is_array(found[0]):
                event.arrays = {**event.arrays, frame.node: self._values.dtype(found[0])}
            self.story.events.append(event)

        return made

    def handed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place, to: Optional[object]) -> None:
        """Values go into a layer, or are returned."""
        frame = self._frame(where, args, kwargs)
        given = tuple(self.number(tensor) for tensor in self._given(args, kwargs))
        event = _at(Event(RETURN if to is None else LAYER, given, ()), frame)
        if to is None:
            self.story.events.append(event)
        else:
            event.layer = self._layers(to) or ""
            event.name = type(to).__name__
            self.pending.append(event)

    def kept(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place) -> None:
        """Values go into a list."""
        if len(self.story.events) < MOST:
            given = tuple(self.number(tensor) for tensor in self._given(args, kwargs))
            self.story.events.append(_at(Event(KEPT, given, ()), self._frame(where, args, kwargs, keeps=True)))

    def entered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place) -> None:
        """Values go into a function of the user's."""
        self._entered.append((where, self._frame(where, args, kwargs), len(self.story.events)))

    def came(self, output: object, where: Place, of: Optional[object]) -> None:
        """A layer gives this, or a function of the user's."""
        results = tuple(self.number(tensor) for tensor in self._tensors(output))
        if of is None:
            while self._entered[-1][0] != where:  # it raised, and the code went on
                self._entered.pop()
            _, frame, began = self._entered.pop()
            if results:
                self.story.events.append(_at(Event(HELPER, (), results, began=began), frame))
            return
        event = self.pending.pop()
        event.results = results
        if not event.layer:
            self._as_operation(event, of)
        if event.layer or event.word != LAYER:
            self.story.events.append(event)

    def _as_operation(self, event: Event, layer: object) -> None:
        """A layer of the framework's that the reference has not is an operation with its settings as arguments."""
        spec = self._adapter.spec(layer)
        given = [Taken(one, self.story.shapes[one]) for one in event.operands if isinstance(one, int)]
        shapes = [self.story.shapes[number] for number in event.results]
        told = operation(spec.kind, given, dict(spec.attributes), shapes)
        if spec.kind in KINDS and told.known and told.word not in INVISIBLE:
            event.word, event.arguments, event.operands = told.word, told.arguments, told.operands

    def number(self, tensor: object) -> int:
        """The number of a tensor's value: equal contents are one value, in place or not."""
        return self.adopted(self._told(tensor))

    def adopted(self, told: Told) -> int:
        """The number of a value that is told so."""
        number = self._known.setdefault(told.mark, len(self.story.values))
        if number == len(self.story.values):
            self.told.append(told)
            self.story.values.append(told.fingerprint)
            self.story.shapes.append(told.shape)
            if told.rough:
                self.story.rough.add(number)
            if told.parts:
                self.story.parts[number] = told.parts
        return number

    def _told(self, tensor: object) -> Told:
        keeps = self._memory is not None and self._memory.keeps(tensor)
        if self._memory is None or not keeps:
            return self._read(tensor)
        if id(tensor) not in self._memory.told:
            self._memory.told[id(tensor)] = self._read(tensor)
        told: Told = self._memory.told[id(tensor)]
        return told

    def _read(self, tensor: object) -> Told:
        try:
            array, dtype = self._values.read(tensor), self._values.dtype(tensor)
        except Reason:  # a parameter whose numbers are made when it is first used
            mark = f"unread {len(self.story.values)}".encode()
            return Told(mark, None, tuple(getattr(tensor, "shape", ())), True)
        mark = print_of(array)
        if (mark, dtype) not in self._reads:
            values = decode(array, dtype) if dtype in DTYPES and array.size <= LARGEST else None
            floats = values is not None and not DTYPES[dtype].exact
            rough = values is None or (floats and (is_short(dtype) or bool((np.abs(values) >= HUGE).any())))
            known = None if values is None else fingerprint(values)
            some = () if known is None or values is None else tuple(parts(values, self._rows))
            self._reads[mark, dtype] = Told(mark, known, tuple(array.shape), rough, some)
        return self._reads[mark, dtype]

    def called(self, event: Event) -> Iterator[tuple[str, int, bool]]:
        """What the code called its values where this happened, with their numbers, and whether they are numpy's."""
        for name, value in event.names.items():
            for slot, tensor in self._within(value):
                yield name + slot, self.number(tensor), is_array(tensor)

    def _within(self, value: Any, deep: int = 0) -> Iterator[tuple[str, object]]:
        if self._values.holds(value):
            yield "", value
        elif deep < DEEP and (named := _named(value)):
            for name, item in named:
                for slot, tensor in self._within(item, deep + 1):
                    yield name + slot, tensor
        elif isinstance(value, (tuple, list)) and len(value) <= 16:
            for number, item in enumerate(value):
                grown = isinstance(value, list) and number == len(value) - 1  # in each turn of a loop the last one
                for slot, tensor in self._within(item, deep + 1):
                    yield f"[{-1 if grown else number}]{slot}", tensor

    def _tensors(self, output: object) -> list[object]:
        return self._given((output,), {})

    def _given(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._values.holds, found)
        return [tensor for _, tensor in found]

    def _plain(self, value: Any) -> Any:
        if self._values.holds(value):
            number = self.number(value)
            return Taken(number, self.story.shapes[number])
        if isinstance(value, (tuple, list)):
            return tuple(map(self._plain, value))
        if value is None or value is ... or isinstance(value, (bool, int, float, str, slice)):
            return value
        if isinstance(value, np.generic):
            return value.item()
        return Opaque(str(value)[:80])

    def _constant(self, operand: Operand) -> Operand:
        if not isinstance(operand, int) or (constant := self.story.constant(operand)) is None:
            return operand
        return replace(constant, made=operand)

    def _frame(self, where: Place, args: Sequence[Any], kwargs: Mapping[str, Any], keeps: bool = False) -> _Frame:
        frame = sys._getframe(1)
        while EAR not in frame.f_code.co_freevars and frame.f_back is not None:
            frame = frame.f_back
        site = Site(*where)
        node = self._sources.node(site)
        arrays: dict[ast.AST, str] = {}
        inputs = [*self._inputs(node, args, kwargs, arrays, keeps)]
        known = {**_around(frame), **frame.f_locals}
        names = {name: [*one] if type(one) is list else one for name, one in known.items()}  # lists grow
        return _Frame(site, node, inputs, arrays, names, frame.f_globals)

    def _inputs(
        self,
        node: Optional[ast.AST],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        arrays: dict[ast.AST, str],
        keeps: bool,
    ) -> Iterator[tuple[ast.AST, Operand]]:
        """The expressions of a call or operator with their values; those that are numpy's are added to `arrays`. What
        `keeps` a value under a name is that value's expression.
        """
        nodes: list[ast.AST] = []
        values: list[Any] = [*args, *kwargs.values()]
        if isinstance(node, ast.Call):
            nodes = [*node.args]
            if isinstance(node.func, ast.Attribute) and len(args) > len(nodes):
                nodes.insert(0, node.func.value)
            nodes += [keyword.value for keyword in node.keywords]
        elif isinstance(node, ast.BinOp):
            nodes = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            nodes = [node.operand]
        elif isinstance(node, ast.Compare):
            nodes = [node.left, node.comparators[0]]
        elif isinstance(node, (ast.Subscript, ast.Attribute)):
            nodes = [node.value]
        elif isinstance(node, ast.AugAssign):  # what is written into an item is told by itself
            nodes, values = [node.value], values[1:2] if len(values) == 2 else []
        elif isinstance(node, ast.Assign) and len(values) == 3:
            nodes, values = [node.value], values[2:]
        elif isinstance(node, ast.Return) and node.value is not None:
            nodes = [node.value]
        if keeps and not isinstance(node, ast.Call) and node is not None:
            nodes = [node]
        yield from self._pairs(nodes, values, arrays)

    def _pairs(
        self, nodes: Sequence[ast.AST], values: Sequence[Any], arrays: dict[ast.AST, str]
    ) -> Iterator[tuple[ast.AST, Operand]]:
        for node, value in zip(nodes, values):
            if isinstance(node, ast.Starred):
                break
            if self._values.holds(value):
                arrays.update({node: self._values.dtype(value)} if is_array(value) else {})
                yield node, self._constant(self.number(value))
            elif isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
                yield node, Constant(float(value))
            elif isinstance(value, (tuple, list)) and isinstance(node, (ast.Tuple, ast.List)):
                yield from self._pairs(node.elts, value, arrays)
            elif isinstance(value, Mapping) and isinstance(node, ast.Dict):
                yield from self._pairs(node.values, [*value.values()], arrays)
            elif value is None:
                yield node, None


def _around(frame: types.FrameType) -> Mapping[str, Any]:
    """What has a name in the function around a comprehension, which before Python 3.12 is a function of its own."""
    outer = frame.f_back
    for _ in range(OUTER if frame.f_code.co_name in COMPREHENSIONS else 0):
        if outer is None:
            break
        if frame.f_code in outer.f_code.co_consts:
            return {**_around(outer), **outer.f_locals}
        outer = outer.f_back
    return {}


def _named(value: Any) -> Sequence[tuple[str, object]]:
    """What the code may read in a value by a name: items of a dict, fields of a named tuple or another object."""
    if isinstance(value, Mapping):
        found = [(f'["{key}"]', item) for key, item in value.items() if isinstance(key, str)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        found = [(f".{name}", item) for name, item in zip(value._fields, value)]
    elif callable(value) or isinstance(value, types.ModuleType) or not hasattr(value, "__dict__"):
        return ()  # a layer's own are told otherwise
    else:
        found = [(f".{name}", item) for name, item in vars(value).items() if not name.startswith("_")]
    return found if len(found) <= ITEMS else ()


class _Frame:
    """Where an event's expression stands, and what is known there."""

    def __init__(
        self,
        site: Site,
        node: Optional[ast.AST],
        inputs: Sequence[tuple[ast.AST, Operand]],
        arrays: Mapping[ast.AST, str],
        names: Mapping[str, Any],
        scope: Mapping[str, Any],
    ) -> None:
        self.site, self.node, self.inputs, self.arrays = site, node, inputs, arrays
        self.names, self.scope = names, scope


def _at(event: Event, frame: _Frame) -> Event:
    event.site, event.node, event.inputs, event.arrays = frame.site, frame.node, frame.inputs, frame.arrays
    event.names, event.scope = frame.names, frame.scope
    return event

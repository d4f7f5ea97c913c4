"""The very call of an operation of the framework's: what it is called, what it was given and what the reference made.

It is written into the dump, for a program that shows the operation by itself (`aligner compare --repro`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.dtypes import DTYPES
from aligner.findings import OPERATION
from aligner.mending.events import Event
from aligner.mending.heard import Heard
from aligner.mending.sources import Sources
from aligner.record import Array, Key, Phase, Record
from aligner.source.listening import Place
from aligner.structure import Tensors, flatten_arguments, flatten_result
from aligner.words.homes import METHOD, OPERATOR, homes, operators


@dataclass(frozen=True)
class Witness:
    """A call that can be made again. `expected` is the reference's record of what it should make in the slot `made`."""

    name: str
    """As a program writes it: "ops.erfinv", "Tensor.erfinv", "operator.mod"."""
    arguments: object
    outputs: object
    given: Mapping[str, tuple[str, Array]]
    """By slot: type and bits."""
    made: str
    expected: Key

    def facts(self) -> dict[str, Any]:
        """Plain facts for a dump."""
        step, _, layer, call, slot = self.expected
        return {
            "name": self.name,
            "arguments": self.arguments,
            "outputs": self.outputs,
            "made": self.made,
            "expected": [step, layer, call, slot],
        }

    def records(self, step: int, layer: str, call: int, order: int) -> Iterator[Record]:
        """What it was given, at the call of the port's layer whose code it is."""
        for number, (slot, (dtype, array)) in enumerate(self.given.items(), 1):
            yield Record(Key(step, Phase.FORCED, layer, call, OPERATION + slot), order + number, dtype, array)


class Caught(Heard):
    """Hears a run once more, and keeps one of its operations."""

    def __init__(self, adapter: Adapter, layers: Callable[[object], Optional[str]], wanted: int) -> None:
        super().__init__(adapter, Sources({}), layers)
        self.adapter, self._wanted = adapter, wanted
        self.arguments: object = None
        self.outputs: object = None
        self.made: list[str] = []
        """The slots of what came of it."""
        self.given: dict[str, tuple[str, Array]] = {}

    def begun(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place
    ) -> Optional[Callable[[object], None]]:
        """An operation begins."""
        made = super().begun(name, args, kwargs, where)
        if made is None or len(self.story.events) != self._wanted:
            return made
        found: Tensors = []
        arguments = flatten_arguments(args, kwargs, self.adapter.is_tensor, found)
        given = {slot: (self.adapter.dtype(one), self.adapter.to_numpy(one).copy()) for slot, one in found}

        def told(output: object) -> None:
            made(output)
            if len(self.story.events) > self._wanted:
                self.arguments, self.given = arguments, given
                results: Tensors = []
                self.outputs = flatten_result(output, self.adapter.is_tensor, results)
                self.made = [slot for slot, _ in results]

        return told

    def witness(self, result: int, expected: Key) -> Optional[Witness]:
        """Of this one of its results; None if the operation cannot be written down."""
        name = public(self.story.events[self._wanted], self.adapter) if self.arguments is not None else None
        if name is None or result >= len(self.made) or any(dtype not in DTYPES for dtype, _ in self.given.values()):
            return None
        return Witness(name, self.arguments, self.outputs, self.given, self.made[result], expected)


def public(event: Event, adapter: Adapter) -> Optional[str]:
    """What a program calls an operation of the code's; None if that cannot be told."""
    node = event.node
    if isinstance(node, ast.BinOp):
        return f"{OPERATOR}.{event.name}" if event.name in operators() else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        owner = _object(node.func.value, event.known)
        if not isinstance(owner, ModuleType):
            return f"{METHOD}.{node.func.attr}"
        return _home(getattr(owner, node.func.attr, None), node.func.attr, adapter)
    function = _object(node.func, event.known)
    return _home(function, str(getattr(function, "__name__", "")), adapter)


def _home(function: object, attribute: str, adapter: Adapter) -> Optional[str]:
    """The public place of a function of the framework's."""
    for word, module in homes(adapter.name):
        if function is not None and getattr(module, attribute, None) is function:
            return f"{word}.{attribute}"
    return None


def _object(node: ast.expr, known: Mapping[str, Any]) -> object:
    """What a name stands for, or an attribute of a module's."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    owner = _object(node.value, known) if isinstance(node, ast.Attribute) else None
    return (
        getattr(owner, node.attr, None) if isinstance(node, ast.Attribute) and isinstance(owner, ModuleType) else None
    )

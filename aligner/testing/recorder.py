"""A recorder of what `observe` tells: each event with a copy of every tensor's bits, made at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aligner.adapter import Adapter, After, Before, Handle
from aligner.structure import Tensors, flatten_arguments, flatten_result


@dataclass(frozen=True, eq=False)
class Event:
    """`when` is "before" or "after"; `values` are the tensors by slot, `structure` how they were nested."""

    when: str
    path: str
    values: Mapping[str, Any]
    structure: Any

    @property
    def place(self) -> tuple[str, str]:
        """Which event it is, without its values."""
        return self.when, self.path


class Recorder:
    """Observes every layer of a model between `attach` and `detach`; a context manager that detaches."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.events: list[Event] = []
        self._handles: list[Handle] = []

    def attach(self, model: object) -> Recorder:
        """Observe all layers of `model`."""
        for path, layer in self.adapter.layers(model):
            before, after = self._callbacks(path)
            self._handles.append(self.adapter.observe(layer, before, after))
        return self

    def detach(self) -> None:
        """Remove everything that `attach` installed."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    @property
    def places(self) -> list[tuple[str, str]]:
        """The order of events."""
        return [event.place for event in self.events]

    def only(self, when: str, path: str) -> Event:
        """The one event of that kind."""
        (event,) = [event for event in self.events if event.place == (when, path)]
        return event

    def bits(self, tensor: object) -> Any:
        """A private copy of a tensor's bits."""
        return self.adapter.to_numpy(tensor).copy()

    def arrays(self, value: object) -> dict[str, Any]:
        """Every tensor in a layer's result, by slot."""
        found: Tensors = []
        flatten_result(value, self.adapter.is_tensor, found)
        return {slot: self.bits(tensor) for slot, tensor in found}

    def _callbacks(self, path: str) -> tuple[Before, After]:
        def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            found: Tensors = []
            structure = flatten_arguments(args, kwargs, self.adapter.is_tensor, found)
            self._add("before", path, found, structure)

        def after(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
            found: Tensors = []
            structure = flatten_result(output, self.adapter.is_tensor, found)
            self._add("after", path, found, structure)

        return before, after

    def _add(self, when: str, path: str, found: Tensors, structure: object) -> None:
        values = {slot: self.bits(tensor) for slot, tensor in found}
        self.events.append(Event(when, path, values, structure))

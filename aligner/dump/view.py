"""One layer of a dump as a person walks it: `dump["layer1.0.conv1"].output.array`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aligner.dump.entry import Entry
from aligner.record import Call, Key, LayerSpec, Phase, display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


@dataclass(frozen=True)
class LayerView:
    """A layer and its records."""

    path: str
    type: str
    spec: LayerSpec
    training: bool
    entries: Sequence[Entry]
    calls: Sequence[Call]

    @property
    def parameters(self) -> Mapping[str, Entry]:
        """The layer's own parameters and buffers before the first step, by canonical name."""
        return {entry.key.slot: entry for entry in self.entries if entry.key.phase is Phase.PARAMETER}

    @property
    def inputs(self) -> Sequence[Entry]:
        """The inputs of the first call of the first step."""
        return self._of_first_call("input.")

    @property
    def outputs(self) -> Sequence[Entry]:
        """The outputs of the first call of the first step."""
        return self._of_first_call("output.")

    @property
    def input(self) -> Entry:
        """The first input of the first call; `find("input.1", call=2)` reaches the others.

        Raises:
            LookupError: none was captured.
        """
        return self._first("input", self.inputs)

    @property
    def output(self) -> Entry:
        """The first output of the first call.

        Raises:
            LookupError: none was captured.
        """
        return self._first("output", self.outputs)

    def find(self, slot: str, call: int = 0, step: int = 0, phase: Phase = Phase.FORWARD) -> Entry:
        """The record with this slot.

        Raises:
            KeyError: there is none; names those that are there.
        """
        for entry in self.entries:
            if entry.key == Key(step, phase, self.path, call, slot):
                return entry
        there = ", ".join(sorted({entry.key.slot for entry in self.entries})) or "-"
        raise KeyError(f"{slot!r} was not captured of {display(self.path)}; there are: {there}")

    def _first(self, side: str, entries: Sequence[Entry]) -> Entry:
        if not entries:
            raise LookupError(f"no {side} of {display(self.path)} was captured")
        return entries[0]

    def _of_first_call(self, start: str) -> Sequence[Entry]:
        found = [e for e in self.entries if e.key.phase is Phase.FORWARD and e.key.slot.startswith(start)]
        return [e for e in found if (e.key.step, e.key.call) == (found[0].key.step, found[0].key.call)]

    def __repr__(self) -> str:
        return f"<{display(self.path)}: {self.type}, {len(self.calls)} calls, {len(self.entries)} records>"

    def _repr_html_(self) -> str:
        from aligner.notebook.html import layer_view_html

        return layer_view_html(self)


def layer_view(dump: Dump, path: str) -> LayerView:
    """The view of one layer.

    Raises:
        KeyError: the dump has no such layer; names the closest ones.
    """
    layer = dump.layers.get(path)
    if layer is None:
        close = ", ".join(difflib.get_close_matches(path, list(dump.layers), 3, 0.5))
        hint = f"; close to it are: {close}" if close else f"; there are {len(dump.layers)} layers"
        raise KeyError(f"no layer {path!r} in {dump.path.name}{hint}")
    entries, calls = dump.of_layer(path)
    return LayerView(layer.path, layer.type, layer.spec, layer.training, entries, calls)

"""What a capture says of its net beside the values, each thing once."""

from __future__ import annotations

from typing import Any

from aligner.adapter import Adapter
from aligner.capture.sink import Sink
from aligner.record import Note


class Notes:
    """Those of one capture."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def tell(self, writer: Sink, layer: str, message: str, **facts: Any) -> None:
        """Say once per layer what could not be captured as it should."""
        self._once(writer, Note(layer, message, facts))

    def cautions(self, adapter: Adapter, model: object, writer: Sink) -> None:
        """What cannot be seen: some of it shows only when the net has run."""
        for note in adapter.cautions(model):
            self._once(writer, note)

    def _once(self, writer: Sink, note: Note) -> None:
        if (note.layer, note.message) not in self._known:
            self._known.add((note.layer, note.message))
            writer.note(note)

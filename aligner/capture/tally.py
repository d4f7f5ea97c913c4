"""A sink that only counts: what a dump would hold, without writing it (`aligner capture --estimate`)."""

from __future__ import annotations

from typing import Any

from aligner.record import Call, Layer, Note, Record


class Tally:
    """Stands in the DumpWriter's place."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes_written = 0
        self.bytes_seen = 0

    def layer(self, layer: Layer) -> None:
        """Nothing to count."""

    def write(self, record: Record) -> None:
        """Count the value; one that is seen twice counts twice, though a dump stores it once."""
        self.records += 1
        self.bytes_written += int(record.array.nbytes)
        self.bytes_seen = self.bytes_written

    def call(self, call: Call) -> None:
        """Nothing to count."""

    def note(self, note: Note) -> None:
        """Nothing to count."""

    def update_header(self, **values: Any) -> None:
        """Nothing to count."""

    def close(self, complete: bool = True) -> None:
        """Nothing to close."""

"""A sink that only counts: what a dump would hold, without writing it (`aligner capture --estimate`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aligner.dump.checksum import checksum
from aligner.dump.data import flat_bytes
from aligner.record import Call, Layer, Note, Record


class Tally:
    """Stands in the DumpWriter's place."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes_written = 0
        self.bytes_seen = 0
        self._contents: set[tuple[str, tuple[int, ...], int]] = set()

    def layer(self, layer: Layer) -> None:
        """Nothing to count."""

    def write(self, record: Record) -> None:
        """Count the value; the same one seen again takes no more room, as in a dump."""
        self.records += 1
        size = int(record.array.nbytes)
        self.bytes_seen += size
        content = (record.dtype, record.array.shape, checksum(flat_bytes(record.array, record.dtype)))
        if content not in self._contents:
            self._contents.add(content)
            self.bytes_written += size

    def call(self, call: Call) -> None:
        """Nothing to count."""

    def note(self, note: Note) -> None:
        """Nothing to count."""

    def finding(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Nothing to count."""

    def update_header(self, **values: Any) -> None:
        """Nothing to count."""

    def ending(self) -> None:
        """Nothing is kept ready."""

    def close(self, complete: bool = True) -> None:
        """Nothing to close."""

    def discard(self) -> None:
        """Nothing to take away."""

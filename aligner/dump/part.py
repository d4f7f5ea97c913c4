"""Some of the records of an open dump under other addresses, as a dump: nothing is copied or read for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from aligner.dump.index import Index
from aligner.dump.reader import Dump, Entries
from aligner.dump.sections import Finding
from aligner.record import Call, Key


class Part(Dump):
    """It reads from the whole dump, and can be used for as long as that one is open."""

    addresses: Mapping[Key, Key]
    """Where each of its records stands in the whole."""

    def __init__(
        self, whole: Dump, rows: Sequence[tuple[int, Key]], calls: Sequence[Call], findings: Sequence[Finding]
    ) -> None:
        """`rows` are the records that are taken, by their places among the whole's, in order, with their addresses."""
        self._whole = whole
        self.path, self.header, self.recovered = whole.path, whole.header, whole.recovered
        self._start, self._size, self._notes = whole._start, whole._size, whole._notes
        self._descriptor, self._guard_passed = whole._descriptor, True
        self.layers, self.calls, self.findings = whole.layers, calls, list(findings)
        self._index = _taken(whole._index, rows)
        self.entries = Entries(self)
        self.addresses = {key: whole._index.key(row) for row, key in rows}

    def verify(self) -> None:
        """See that everything in the whole dump which is not record data is as it was written."""
        self._whole.verify()

    def close(self) -> None:
        """Nothing: the file is the whole dump's."""


def _taken(index: Index, rows: Sequence[tuple[int, Key]]) -> Index:
    keys = [key for _, key in rows]
    names = [field.name for field in fields(index) if field.name not in (*_ADDRESS, "made")]
    rest = {name: [getattr(index, name)[row] for row, _ in rows] for name in names}
    columns: dict[str, Any] = {name: [key[place] for key in keys] for place, name in enumerate(_ADDRESS)}
    return replace(index, **{**columns, **rest}, made={})


_ADDRESS = ("steps", "phases", "layers", "calls", "slots")
"""The columns of an address, in its order."""

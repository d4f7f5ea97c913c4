"""Reads a dump: its first 512 bytes, its sections, and record data by their places. HDF5 itself is never asked.

A damaged or hostile file therefore never reaches the HDF5 library. What somebody put into the file by HDF5's
means is not seen here either, so before the first data are read the seal over all that is not data is checked.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Union, overload

import numpy as np

from aligner.dump import columns, header, index, journal, kinds, locks, sections, userblock
from aligner.dump.entry import Entry as Entry
from aligner.dump.hdf5 import BASE, SUPERBLOCK_SIZE
from aligner.dump.opening import descriptor_of, size_of, standing
from aligner.dump.sections import Finding, Row
from aligner.dump.userblock import Section, UserBlock
from aligner.errors import DumpError, Reason, because, form_of
from aligner.record import Array, Call, Key, Layer, Note

if TYPE_CHECKING:
    from aligner.dump.view import LayerView

_PIECE = 1 << 20
_SECTIONS = ("header", "index", "layers", "calls")
_PASSING = ("dump-no-journal", "dump-other-journal", "dump-journal-alone", "dump-longer", "dump-bad", "dump-truncated")
"""What is so for a moment while a dump is closed, or put in another one's place; a block may be met half written."""
_PAUSES = (0.001, 0.01)
"""Between looks at files that nobody has touched since."""


class Entries(Sequence[Entry]):
    """The records in order; each Entry is made when it is asked for."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._count = len(dump._index.orders)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[Entry, list[Entry]]:
        if isinstance(index, slice):
            return [Entry(self._dump, row) for row in range(self._count)[index]]
        return Entry(self._dump, range(self._count)[index])

    def __iter__(self) -> Iterator[Entry]:
        dump = self._dump
        return (Entry(dump, row) for row in range(self._count))

    def __repr__(self) -> str:
        return f"<{self._count} entries>"


class Dump:
    """A dump opened for reading. `dump["layer1.0.conv1"]` is a view of one layer; iterating gives the layers' paths."""

    path: Path
    header: Mapping[str, Any]
    recovered: bool
    entries: Entries
    _descriptor = -1

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        """Open the dump; see `open_dump`."""
        self.path = Path(path)
        self._descriptor = descriptor_of(self.path)
        try:
            self._size = size_of(self._descriptor, self.path)
            block = self._block()
            self._size = size_of(self._descriptor, self.path)  # its writer ends the file, then says that it is closed
            self._guard_passed = False
            self._extra_notes: list[Note] = []
            if block.closed:
                self._open_closed(block)
            else:
                self._open_by_journal(block)
            self.entries = Entries(self)
        except BaseException:
            self.close()
            raise

    def _block(self) -> UserBlock:
        """The user block, or an error that says what the file is instead."""
        head = self._read(0, min(self._size, userblock.SIZE))
        found = userblock.format_of(head)
        if found is None:
            raise kinds.refusal(self.path, head, self._size)
        if found > userblock.FORMAT:
            raise DumpError("dump-newer", path=self.path, found=found, wanted=userblock.FORMAT)
        if len(head) < userblock.SIZE:
            raise DumpError("dump-truncated", path=self.path, found=self._size, wanted=f">= {userblock.SIZE}")
        try:
            return userblock.decode(head)
        except ValueError as error:
            raise self._damaged(error) from error

    def _open_closed(self, block: UserBlock) -> None:
        self._start = block
        self.recovered = False
        if self._size < block.size:
            raise DumpError("dump-truncated", path=self.path, found=self._size, wanted=block.size)
        if self._size > block.size:
            raise self._changed(DumpError("dump-longer", path=self.path, found=self._size, wanted=block.size))
        try:
            for name in _SECTIONS:
                sections.demand(name in block.sections, "why-section-missing", name)
            self.header = header.header_from(self._section("header"))
            content = columns.from_json_with("records", self._bytes("index"))
            self._index = index.decode(content, BASE + SUPERBLOCK_SIZE, block.seal.offset)
            sections.demand(isinstance(content["notes"], list), "why-no-list", "notes")
            self._notes = [sections.note_from(item) for item in content["notes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def _open_by_journal(self, block: UserBlock) -> None:
        beside = journal.path_of(self.path)
        try:
            live = journal.is_live(beside)
            story = journal.read(beside.read_bytes())
        except FileNotFoundError as error:
            raise DumpError("dump-no-journal", path=self.path, journal=beside.name) from error
        except (OSError, Reason) as error:
            reason = because(error) if isinstance(error, Reason) else error.strerror or error
            raise DumpError("dump-bad-journal", path=self.path, journal=beside.name, reason=reason) from error
        if story.token != block.token:
            raise DumpError("dump-other-journal", path=self.path, journal=beside.name)
        self._start = block
        self.recovered = True
        self._guard_passed = True  # there are no HDF5 objects yet
        self._story = story
        try:
            self.header = {**header.header_from(story.content.header), "complete": False}
            story.content.calls = sections.nested(story.content.calls)
        except ValueError as error:
            raise self._damaged(error) from error
        self._index, lost = index.from_rows(story.content.rows, BASE + SUPERBLOCK_SIZE, self._size)
        self._notes = story.content.notes
        if live:
            self._notes = [*self._notes, Note("", "dump-being-written", {"path": str(self.path)})]
        if story.damaged or lost:
            facts = {"lines": story.damaged, "records": lost}
            self._notes = [*self._notes, Note("", "dump-journal-damaged", facts)]

    # --- What is in the dump.

    @property
    def complete(self) -> bool:
        """Closed properly, and the capture ended well."""
        return not self.recovered and self.header.get("complete") is True

    @property
    def notes(self) -> Sequence[Note]:
        """What could not be captured, or was captured in another way."""
        return self._notes

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        """The layers by path, in the order they were defined."""
        if self.recovered:
            return self._story.content.layers
        try:
            return sections.layers_from(self._section("layers"))
        except ValueError as error:
            raise self._damaged(error) from error

    @cached_property
    def calls(self) -> Sequence[Call]:
        """The calls, in the order they began."""
        if self.recovered:
            return self._story.content.calls
        try:
            return sections.calls_from(self._section("calls"))
        except ValueError as error:
            raise self._damaged(error) from error

    @cached_property
    def findings(self) -> list[Finding]:
        """What was found out about the net besides its values, in the order it was found."""
        if self.recovered:
            return self._story.content.findings
        if "findings" not in self._start.sections:
            return []
        try:
            return sections.findings_from(self._section("findings"))
        except ValueError as error:
            raise self._damaged(error) from error

    @property
    def steps(self) -> Sequence[int]:
        """The steps that records were captured in."""
        return sorted(set(self._index.steps))

    @cached_property
    def _rows(self) -> Mapping[Key, int]:
        index = self._index
        keys = map(Key, index.steps, index.phases, index.layers, index.calls, index.slots)
        rows: dict[Key, int] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, row)
        return rows

    @cached_property
    def _by_layer(self) -> Mapping[str, Sequence[int]]:
        rows: dict[str, list[int]] = defaultdict(list)
        for row, layer in enumerate(self._index.layers):
            rows[layer].append(row)
        return rows

    @cached_property
    def _calls_by_layer(self) -> Mapping[str, Sequence[Call]]:
        calls: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            calls[call.layer].append(call)
        return calls

    def of_layer(self, path: str) -> tuple[Sequence[Entry], Sequence[Call]]:
        """The records and calls of one layer, or of a path that is no layer ("loss")."""
        entries = [Entry(self, row) for row in self._by_layer.get(path, ())]
        return entries, self._calls_by_layer.get(path, ())

    @property
    def nbytes(self) -> int:
        """The bytes of all records; those that two share count twice."""
        return sum(self._index.sizes)

    def first_outputs(self) -> Mapping[str, Entry]:
        """Of each layer that ran, the first output of its first call."""
        return {layer: Entry(self, row) for layer, row in self._index.first_outputs().items()}

    def rows(self) -> list[Row]:
        """All that is known of each record; what recovery writes again."""
        return self._index.rows()

    @property
    def token(self) -> str:
        """What a dump and its journal have in common."""
        return self._start.token

    def find(self, key: Key) -> Optional[Entry]:
        """The record with this address."""
        row = self._rows.get(key)
        return None if row is None else Entry(self, row)

    def __getitem__(self, path: str) -> LayerView:
        from aligner.dump.view import layer_view

        return layer_view(self, path)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __contains__(self, path: object) -> bool:
        return path in self.layers

    def __repr__(self) -> str:
        facts = [str(self.header.get(name, "?")) for name in ("framework", "model")]
        state = "complete" if self.complete else "recovered" if self.recovered else "incomplete"
        return f"<Dump {self.path.name}: {' '.join(facts)}, {len(self.entries)} records, {state}>"

    def _repr_html_(self) -> str:
        from aligner.notebook.html import dump_html

        return dump_html(self)

    # --- Its bytes.

    def verify(self) -> None:
        """See that everything which is not record data is as it was written.

        Raises:
            DumpError: it is not; says what was found.
        """
        if self._descriptor < 0:
            raise DumpError("dump-closed", path=self.path)
        if not self.recovered:
            block = self._start
            if os.fstat(self._descriptor).st_size != block.size:
                raise DumpError("dump-truncated", path=self.path, found=self._size, wanted=block.size)
            crc = zlib.crc32(self._read(BASE, SUPERBLOCK_SIZE))
            crc = self._crc(block.seal, crc)
            if crc != block.seal.crc:
                raise self._changed(DumpError("dump-changed", path=self.path))
        self.layers, self.calls, self.findings  # noqa: B018  # reading them checks them
        self._guard_passed = True

    def _changed(self, otherwise: DumpError) -> DumpError:
        """What was put into the file after it was written, if that can be said."""
        from aligner.dump import guard

        ours = locks.stands_at(self._descriptor, self.path)  # else it says nothing of what was read here
        found = guard.inspect(self.path) if ours else None
        return otherwise if found is None else guard.refusal(self.path, found)

    def _guarded(self) -> None:
        if not self._guard_passed:
            self.verify()

    def _section(self, name: str) -> Any:
        return sections.from_json(self._bytes(name))

    def _bytes(self, name: str) -> bytes:
        place = self._start.sections[name]
        if place.offset + place.size > self._size:
            raise Reason("why-section-outside", name)
        data = self._read(place.offset, place.size)
        if zlib.crc32(data) != place.crc:
            raise Reason("why-section-checksum", name)
        return data

    def _crc(self, place: Section, crc: int) -> int:
        for at in range(0, place.size, _PIECE):
            crc = zlib.crc32(self._read(place.offset + at, min(_PIECE, place.size - at)), crc)
        return crc

    def _read(self, offset: int, size: int) -> bytes:
        data = np.empty(size, np.uint8)
        self._read_into(data, offset)
        return data.tobytes()

    def _read_into(self, piece: Array, offset: int) -> None:
        """Fill `piece` with the bytes at `offset`."""
        if self._descriptor < 0:
            raise DumpError("dump-closed", path=self.path)
        done = 0
        while done < piece.size:
            try:
                count = os.preadv(self._descriptor, [piece[done:].data], offset + done)
            except OSError as error:
                raise DumpError("dump-unreadable", path=self.path, reason=error.strerror or error) from error
            if not count:
                raise DumpError("dump-truncated", path=self.path, found=offset + done, wanted=offset + piece.size)
            done += count

    def _damaged(self, error: Exception) -> DumpError:
        reason = error if isinstance(error, Reason) else Reason("why-other-form", form_of(error))
        return DumpError("dump-bad", path=self.path, reason=because(reason))

    def close(self) -> None:
        """Close the file; entries cannot be read afterwards."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Dump:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def open_dump(path: Union[str, os.PathLike[str]]) -> Dump:
    """Open a dump for reading, also one whose capture was killed or is still running.

    Raises:
        DumpError: it is no dump of this format, or is damaged; says what was found and what to do.
    """
    path, before, looks = Path(path), None, 0
    ends = time.monotonic() + locks.PATIENCE
    while True:
        try:
            return Dump(path)
        except DumpError as error:
            now = standing(path)
            looks = looks + 1 if now == before else 0  # where one dump follows another, each may be met at its end
            if error.message not in _PASSING or looks == len(_PAUSES) or time.monotonic() > ends:
                raise
            before = now
        time.sleep(_PAUSES[looks])

"""Writes a dump while a net runs; what was accepted is readable whatever happens next.

A record's data go straight from the array's memory to the end of the file, and a line about it to the journal;
only then does `write` return. Closing adds the sections and the HDF5 objects behind the data and removes the
journal. Equal content is stored once.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np

from aligner import messages
from aligner.dump import closing, journal, locks, names, sections, userblock
from aligner.dump.checksum import checksum
from aligner.dump.data import DataFile, flat_bytes
from aligner.dump.hdf5 import BASE, SUPERBLOCK_SIZE
from aligner.dump.place import check_place
from aligner.dump.reserve import FULL
from aligner.dump.sections import VALUES, Content, Row
from aligner.errors import DumpError, OutputError, because, beside
from aligner.record import Array, Call, Key, Layer, Note, Phase, Record, display

_SPOT = 48  # bytes looked at in three places before a large array's checksum is worked out ahead of writing it
_SMALL = 1 << 18


class DumpWriter:
    """An open dump. Use it as a context manager; safe to call from several threads, not after a fork."""

    def __init__(self, path: Union[str, os.PathLike[str]], header: Mapping[str, Any], *, force: bool = False) -> None:
        """Create the dump.

        Args:
            path: the dump; its journal stands beside it until it is closed.
            header: facts about the run; values that JSON lacks are kept as text.
            force: replace what stands at `path`.

        Raises:
            DumpError: it exists already, or cannot be created there.
        """
        self.path = Path(path)
        self._place = self.path.absolute()  # the user's process may change its working directory
        self.records = 0
        self.bytes_written = 0
        self.bytes_seen = 0
        self._content = Content({"format": userblock.FORMAT, **sections.plain_header(header)}, {}, [], [], [])
        self._complete = True
        self._token = secrets.token_hex(8)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._room = closing.FIXED + closing.LAST
        self._spare = 0
        self._orders: set[int] = set()
        self._groups: set[tuple[int, Phase]] = set()
        self._twins: dict[tuple[str, tuple[int, ...], int], int] = {}
        self._spots: set[tuple[str, tuple[int, ...], bytes]] = set()
        self._words: dict[str, tuple[str, str]] = {}
        check_place(path, force)
        with reported(self.path), locks.alone(self.path):
            check_place(path, force)  # another one may have finished there since
            self._journal = journal.Journal(journal.path_of(self.path), self._token)
            try:
                self._begin()
            except BaseException:
                self._journal.remove()
                raise
        self._open = True

    def _begin(self) -> None:
        """Put a dump in the making in its place, or none: a file is never there without its first lines."""
        new = self.path.with_name(self.path.name + ".new")
        new.unlink(missing_ok=True)
        self._file = DataFile(new, BASE + SUPERBLOCK_SIZE)
        try:
            self._file.put(0, userblock.encode(userblock.UserBlock(self._token, False)))
            self._tell(["header", self._content.header])
            if journal.path_of(self.path).exists():  # an abandoned dump must not come to stand beside our journal
                self.path.unlink(missing_ok=True)
            self._journal.settle()
            new.replace(self.path)
        except BaseException:
            self._file.close()
            new.unlink()
            raise

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.close(complete=kind is None)
        except Exception as ours:
            if error is None:
                raise
            beside(error, ours, messages.language())  # that one matters more, and the journal keeps everything readable

    def layer(self, layer: Layer) -> None:
        """Declare a layer; once more to correct what was said of it."""
        with self._at_work():
            item = sections.layer_json(layer)
            self._tell(["layer", *item])
            kept = sections.layer_from(sections.from_json(sections.to_json(item)))
            self._content.layers[kept.path] = kept

    def call(self, call: Call) -> None:
        """Note that a call is over, or that it raised."""
        with self._at_work():
            layer, last = names.plain(call.layer), -1 if call.last is None else call.last
            numbers = [call.step, call.phase.value, layer, call.number, call.first, last]
            self._tell(["call", *numbers, call.inputs, call.outputs])
            self._content.calls.append(dataclasses.replace(call, layer=layer) if layer != call.layer else call)

    def note(self, note: Note) -> None:
        """Keep a caution with the dump."""
        with self._at_work():
            item = [names.plain(note.layer), names.plain(note.message), dict(note.facts)]
            self._tell(["note", *item])
            self._content.notes.append(sections.note_from(sections.from_json(sections.to_json(item))))

    def finding(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Keep something that was found out about the net: plain facts under a word for their kind."""
        with self._at_work():
            item = sections.from_json(sections.to_json([names.plain(kind), dict(facts)]))
            self._tell(["finding", *item])
            self._content.findings.append(sections.finding_from(item))

    def write(self, record: Record) -> None:
        """Store one record; when this returns, it is readable whatever happens to this process."""
        with self._lock:
            self._check()
            order = int(record.order)
            if order in self._orders or order < 0:
                raise DumpError("dump-order", path=self.path, order=order, layer=display(record.key.layer))
            array = np.asarray(record.array)
            try:
                flat = flat_bytes(array, record.dtype)
                self._accept(record.key, order, record.dtype, array.shape, flat)
            except ValueError as error:
                raise DumpError(
                    "dump-dtype", path=self.path, layer=display(record.key.layer), found=because(error)
                ) from error
            except (OSError, MemoryError) as error:
                raise _trouble(error, self.path, self.records) from error

    def _accept(self, key: Key, order: int, dtype: str, shape: tuple[int, ...], flat: Array) -> None:
        """Store the bytes, then the line about them, then remember them for the index."""
        step, phase = int(key.step), key.phase
        (layer, layer_json), (slot, slot_json) = self._word(key.layer), self._word(key.slot)
        room = self._room + closing.room_of_record(dtype, len(shape)) + len(layer_json) + len(slot_json)
        if (step, phase) not in self._groups:
            room += closing.PER_GROUP
        offset, total = self._store(flat, dtype, shape, room)
        line = (
            f'["record",{step},"{phase.value}",{layer_json},{int(key.call)},{slot_json},{order},"{dtype}",'
            f'{list(shape)},{offset},{flat.size},{total},"{VALUES}"]'
        )
        self._journal.append(line.encode())
        self._room = room
        self._orders.add(order)
        self._groups.add((step, phase))
        kept = Key(step, phase, layer, int(key.call), slot)
        self._content.rows.append(Row(kept, order, dtype, shape, offset, flat.size, total, VALUES))
        self.records += 1
        self.bytes_seen += flat.size

    def _store(self, flat: Array, dtype: str, shape: tuple[int, ...], room: int) -> tuple[int, int]:
        """Where these bytes lie, and their checksum: found again if they were written before, else written now."""
        if not flat.size:
            self._file.keep(room)
            return 0, checksum(flat)
        total = -1
        if flat.size <= _SMALL or self._seen_alike(flat, dtype, shape):
            total = checksum(flat)
            twin = self._twins.get((dtype, shape, total), 0)
            if twin and self._file.holds(flat, twin):
                self._file.keep(room)
                return twin, total
        offset, total = self._file.append(flat, total, room)
        self._twins[dtype, shape, total] = offset
        self.bytes_written += flat.size
        return offset, total

    def _seen_alike(self, flat: Array, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether a large array might have been written before: only then is its checksum needed ahead."""
        middle = flat.size // 2
        spots = b"".join(flat[at : at + _SPOT].tobytes() for at in (0, middle, flat.size - _SPOT))
        alike = (dtype, shape, spots) in self._spots
        self._spots.add((dtype, shape, spots))
        return alike

    def _word(self, word: str) -> tuple[str, str]:
        """A name as the dump keeps it, and as JSON; most names come again and again."""
        found = self._words.get(word)
        if found is None:
            kept = names.plain(word)
            found = self._words[word] = kept, json.dumps(kept)
            self._room += 2 * len(found[1])  # in the tables of the index and the calls
        return found

    def update_header(self, **values: Any) -> None:
        """Add to the header or change it; `complete=False` says that the capture did not end well."""
        with self._at_work():
            plain = sections.plain_header(values)
            if plain.get("complete") is False:
                self._complete = False
            self._tell(["header", plain])
            self._content.header.update(plain)

    def ending(self) -> None:
        """The capture is over: what is told from now on has room on a full disk, too, in the dump if not beside it."""
        self._spare = closing.LAST

    def close(self, complete: bool = True) -> None:
        """Make the dump a complete HDF5 file; harmless when it was closed already.

        Args:
            complete: whether the capture ended well.

        Raises:
            DumpError: it could not be closed; the journal stays, so that everything can still be read. Or somebody
                has deleted or replaced it meanwhile.
        """
        with self._lock, self._last_time() as ours:
            if ours:
                self._finish(complete and self._complete)

    def discard(self) -> None:
        """Take the dump away: there is nothing in it.

        Raises:
            DumpError: it could not be deleted.
        """
        with self._lock, self._last_time() as ours:
            if ours:
                if self._file.stands_at(self._place):
                    self._place.unlink()
                self._journal.remove()

    @contextmanager
    def _last_time(self) -> Iterator[bool]:
        """Files are closed behind it; false where there is nothing to do: it was done, or this is a fork's copy."""
        was_open, self._open = self._open, False
        try:
            with reported(self.path, self.records):
                yield was_open and self._process == os.getpid()
        finally:
            self._file.close()
            self._journal.close()

    def _finish(self, complete: bool) -> None:
        self._content.header["complete"] = complete
        self._content.rows.sort(key=lambda row: row.order)
        self._content.calls.sort(key=lambda call: call.first)
        finish(self._file, self._content, self._token)
        there = self._file.stands_at(self._place)
        self._file.close()  # network file systems tell only now that they are full
        with suppress(OSError):  # nobody reads it any more: the dump says that it is closed
            self._journal.remove()
        if not there:
            raise DumpError("dump-gone", path=self.path)

    def _tell(self, item: list[Any]) -> None:
        """A line for the journal, and room for what it will cost when the dump is closed."""
        data = sections.to_json(item)
        cost = len(data) + closing.PER_LINE
        try:
            self._file.keep(self._room + cost)
            self._journal.append(data)
        except OSError as error:
            if error.errno not in FULL or cost > self._spare:
                raise
            self._spare -= cost  # it will be in the sections
        else:
            self._room += cost

    def _check(self) -> None:
        if not self._open:
            raise DumpError("dump-closed", path=self.path)
        if self._process != os.getpid():
            raise DumpError("dump-forked", path=self.path)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self._check()
            with reported(self.path, self.records):
                yield


def finish(file: DataFile, content: Content, token: str) -> None:
    """Write everything that stands behind the data, and last the block that makes the file a closed dump."""
    end = closing.close(content, token, -(-file.end // 8) * 8)
    file.put(end.block.seal.offset, end.tail)
    file.put(BASE, end.superblock)
    file.cut(end.block.size)
    file.put(0, userblock.encode(end.block))


@contextmanager
def reported(path: Path, captured: int = 0) -> Iterator[None]:
    try:
        yield
    except (OSError, MemoryError) as error:
        raise _trouble(error, path, captured) from error


def _trouble(error: Union[OSError, MemoryError], path: Path, captured: int) -> DumpError:
    """The error in the user's words."""
    folder = path.parent
    if isinstance(error, MemoryError):
        return DumpError("dump-no-memory", path=path, captured=captured)
    if isinstance(error, BlockingIOError):
        return OutputError("dump-in-use", path=path)
    if error.errno in FULL:
        return DumpError("dump-disk-full", path=path, captured=captured, reason=os.strerror(error.errno or 0))
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not folder.is_dir():
        return OutputError("dump-no-folder", path=path, folder=folder)
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return OutputError("dump-not-writable", path=path, folder=folder, reason=os.strerror(error.errno or 0))
    return DumpError("dump-write-failed", path=path, captured=captured, reason=error.strerror or error)

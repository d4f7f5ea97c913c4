"""The journal beside a dump that is being written: one line for each thing, written after its data.

After a crash the journal and the data are all the reader needs. A line is a CRC-32, a space and a JSON list; the
last line may be torn. The writer holds a lock on the file and is named in its first line, so that a reader can tell
a dump in the making from one whose writer died. Closing the dump removes the journal.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aligner.dump import locks, owner, sections
from aligner.dump.reserve import allowed
from aligner.dump.sections import LARGEST, Content, Row
from aligner.dump.structures import structure_from
from aligner.errors import Reason
from aligner.record import Key, Phase

_FIRST = 4096
"""Bytes that the first line fits in."""
_GLANCES = 5
"""How often a beginning writer looks whether another one lives: readers that look have the lock for a moment, too."""
_PAUSE = 0.01


def path_of(dump: Path) -> Path:
    """Where the journal of a dump stands."""
    return dump.with_name(dump.name + ".journal")


def line(content: bytes) -> bytes:
    """The journal's line for a JSON text."""
    return b"%08x %s\n" % (zlib.crc32(content), content)


def is_live(path: Path) -> bool:
    """Whether a living process writes the dump that this journal belongs to."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        free = locks.lock(descriptor, fcntl.LOCK_SH)  # for an exclusive one some systems want to write
        if free:
            return False
        lives = owner.lives(_owner(os.pread(descriptor, _FIRST, 0)))
        return lives is True if free is None else lives is not False
    finally:
        os.close(descriptor)


def _owner(start: bytes) -> object:
    """Who writes it, out of its first line."""
    first = next(_items(start), None)
    return first[3] if isinstance(first, list) and len(first) > 3 else None


class Journal:
    """A journal that is being written, under its lock."""

    def __init__(self, path: Path, token: str) -> None:
        """Begin a journal for `path`; until it is settled, the one that stands there stays as it is.

        Raises:
            BlockingIOError: a living process writes one here.
        """
        _see_abandoned(path)
        self._path = path.absolute()  # the user's process may change its working directory
        self._place = self._path.with_name(path.name + ".new")
        self._torn = -1
        self._place.unlink(missing_ok=True)
        self._file = locks.Locked(self._place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            self.append(sections.to_json(["aligner journal", 1, token, owner.ourselves()]))
        except BaseException:
            self.remove()
            raise

    def settle(self) -> None:
        """Take the place of an abandoned journal."""
        self._place.replace(self._path)
        self._place = self._path

    def append(self, content: bytes) -> None:
        """Add a line, wholly or not at all."""
        self._mend()
        data, descriptor = line(content), self._file.descriptor
        start = os.lseek(descriptor, 0, os.SEEK_END)
        allowed(start + len(data))
        try:
            count = os.write(descriptor, data)
            while count < len(data):  # the disk is nearly full; the next write says so
                count += os.write(descriptor, data[count:])
        except BaseException:
            self._torn = start
            self._mend()
            raise

    def _mend(self) -> None:
        """Take away the part of a line that could not be written: the next one would be damaged by it."""
        if self._torn >= 0:
            os.ftruncate(self._file.descriptor, self._torn)
            self._torn = -1

    def close(self) -> None:
        """Leave the journal to whoever reads the dump."""
        self._file.close()

    def remove(self) -> None:
        """The dump needs its journal no longer. Somebody may have cleared it away, or have put another there."""
        try:
            if self._file.descriptor >= 0 and locks.stands_at(self._file.descriptor, self._place):
                self._place.unlink(missing_ok=True)
        finally:
            self.close()


def _see_abandoned(path: Path) -> None:
    for _ in range(_GLANCES):
        try:
            if not is_live(path):
                return
        except FileNotFoundError:
            return
        time.sleep(_PAUSE)
    raise BlockingIOError(path)


@contextmanager
def held(dump: Path) -> Iterator[None]:
    """The journal of a dump that nobody writes any more, nor begins to write or recovers meanwhile.

    Raises:
        BlockingIOError: a living process does.
    """
    with locks.alone(dump):
        _see_abandoned(path_of(dump))
        yield


@dataclass
class Story:
    """What a journal tells: the content so far, the token it shares with its dump, and lines that were damaged."""

    token: str
    content: Content
    damaged: int


def read(data: bytes) -> Story:
    """The story of a journal's bytes.

    Raises:
        Reason: it is no journal of this format.
    """
    story = Story("", Content({}, {}, [], [], []), 0)
    for number, item in enumerate(_items(data)):
        if number == 0:
            if not (isinstance(item, list) and item[:2] == ["aligner journal", 1] and len(item) in (3, 4)):
                raise Reason("why-journal-start")
            story.token = str(item[2])
        elif item is None:
            story.damaged += 1
        else:
            try:
                _tell(story.content, item)
            except (ValueError, TypeError, IndexError, KeyError, OverflowError):
                story.damaged += 1
    if not story.token:
        raise Reason("why-journal-empty")
    story.content.rows.sort(key=lambda row: row.order)
    return story


def _items(data: bytes) -> Iterator[Any]:
    """Each line's JSON, None for a damaged line; the last line is left out if it is torn."""
    lines = data.split(b"\n")
    for text in lines[:-1]:
        crc, _, content = text.partition(b" ")
        if crc != b"%08x" % zlib.crc32(content):
            yield None
            continue
        try:
            yield sections.from_json(content)
        except ValueError:
            yield None


def _tell(content: Content, item: Any) -> None:
    word, *rest = item
    if word == "record":
        content.rows.append(_row(rest))
    elif word == "call":
        step, phase, layer, number, first, last, *structures = rest
        inputs, outputs = map(structure_from, structures)
        call_ = sections.call_from(step, Phase(phase), sections.path(layer), number, first, last, inputs, outputs)
        content.calls.append(call_)
    elif word == "layer":
        layer_ = sections.layer_from(rest)
        content.layers[layer_.path] = layer_
    elif word == "note":
        content.notes.append(sections.note_from(rest))
    elif word == "finding":
        content.findings.append(sections.finding_from(rest))
    elif word == "header":
        sections.demand(isinstance(rest[0], dict), "why-bad-header")
        content.header.update(rest[0])
    else:
        raise ValueError(word)


def _row(item: Any) -> Row:
    step, phase, layer, call, slot, order, dtype, shape, offset, size, checksum, form = item
    numbers = (step, call, order, offset, size, checksum, *shape)
    sections.demand(all(type(n) is int and 0 <= n < LARGEST for n in numbers), "why-record-number")
    key = Key(step, Phase(phase), sections.path(layer), call, sections.text(slot))
    return Row(key, order, sections.text(dtype), tuple(shape), offset, size, checksum, sections.text(form))

"""The journal beside a dump that is being written: one line for each thing, written after its data.

After a crash the journal and the data are all the reader needs. A line is a CRC-32, a space and a JSON list; the
last line may be torn. The writer holds a lock on the file, so that a reader can tell a dump in the making from one
whose writer died. Closing the dump removes the journal.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aligner.dump import sections
from aligner.dump.sections import Content, Row
from aligner.record import Key, Phase


def path_of(dump: Path) -> Path:
    """Where the journal of a dump stands."""
    return dump.with_name(dump.name + ".journal")


def line(content: bytes) -> bytes:
    """The journal's line for a JSON text."""
    return b"%08x %s\n" % (zlib.crc32(content), content)


def lock(descriptor: int) -> bool:
    """Take the writer's lock; False if a living process holds it. Where locks are not to be had, True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without locks
        return True
    return True


def is_live(path: Path) -> bool:
    """Whether a living process writes the dump that this journal belongs to."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """A journal that is being written, under its lock."""

    def __init__(self, path: Path) -> None:
        """Start a new journal in the place of an abandoned one.

        Raises:
            BlockingIOError: a living process writes one here.
        """
        self._path = path.absolute()  # the user's process may change its working directory
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._size = 0
        if not lock(self._descriptor):
            os.close(self._descriptor)
            raise BlockingIOError(path)
        os.ftruncate(self._descriptor, 0)

    def append(self, content: bytes) -> None:
        """Add a line, wholly or not at all."""
        data = line(content)
        try:
            count = os.write(self._descriptor, data)
            while count < len(data):  # the disk is nearly full; the next write says so
                count += os.write(self._descriptor, data[count:])
        except BaseException:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Leave the journal to whoever reads the dump."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """The dump needs its journal no longer; somebody may have cleared it away."""
        self._path.unlink(missing_ok=True)
        self.close()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """The writer's lock on the journal of a dump that nobody writes any more.

    Raises:
        BlockingIOError: a living process writes it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not lock(descriptor):
            raise BlockingIOError(path)
        yield
    finally:
        os.close(descriptor)


@dataclass
class Story:
    """What a journal tells: the content so far, the token it shares with its dump, and lines that were damaged."""

    token: str
    content: Content
    damaged: int


def read(data: bytes) -> Story:
    """The story of a journal's bytes.

    Raises:
        ValueError: it is no journal of this format.
    """
    story = Story("", Content({}, {}, [], [], []), 0)
    for number, item in enumerate(_items(data)):
        if number == 0:
            if not (isinstance(item, list) and item[:2] == ["aligner journal", 1] and len(item) == 3):
                raise ValueError("the first line is not that of a journal")
            story.token = str(item[2])
        elif item is None:
            story.damaged += 1
        else:
            try:
                _tell(story.content, item)
            except (ValueError, TypeError, IndexError, KeyError, OverflowError):
                story.damaged += 1
    if not story.token:
        raise ValueError("it is empty")
    story.content.rows.sort(key=lambda row: row.order)
    story.content.calls.sort(key=lambda call: call.first)
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
        inputs, outputs = structures
        call_ = sections.call_from(step, Phase(phase), sections.text(layer), number, first, last, inputs, outputs)
        content.calls.append(call_)
    elif word == "layer":
        layer_ = sections.layer_from(rest)
        content.layers[layer_.path] = layer_
    elif word == "note":
        content.notes.append(sections.note_from(rest))
    elif word == "finding":
        content.findings.append(sections.finding_from(rest))
    elif word == "header":
        sections.demand(isinstance(rest[0], dict), "a header is none")
        content.header.update(rest[0])
    else:
        raise ValueError(word)


def _row(item: Any) -> Row:
    step, phase, layer, call, slot, order, dtype, shape, offset, size, checksum, form = item
    numbers = (step, call, order, offset, size, checksum, *shape)
    sections.demand(all(type(n) is int and n >= 0 for n in numbers), "a record's number is none")
    key = Key(step, Phase(phase), sections.text(layer), call, sections.text(slot))
    return Row(key, order, sections.text(dtype), tuple(shape), offset, size, checksum, sections.text(form))

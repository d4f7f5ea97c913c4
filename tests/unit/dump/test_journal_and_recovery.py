from __future__ import annotations

import errno
import os
import re
import zlib

import h5py
import numpy as np
import pytest
from dumps import CONV, HEADER, abandon, every_kind, fill, make, record, same

from aligner.dump import journal
from aligner.dump.journal import path_of
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.messages import text
from aligner.record import Note
from tests.chinese import english


@pytest.fixture
def killed(tmp_path):
    """A dump whose capture was killed after everything had been said."""
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    fill(writer, every_kind())
    abandon(writer)
    return path


def check(dump, records):
    assert len(dump.entries) == len(records)
    assert all(same(entry, one) for entry, one in zip(dump.entries, records))


def test_a_killed_capture_is_readable(killed):
    with open_dump(killed) as dump:
        assert dump.recovered
        assert not dump.complete
        assert dump.header["framework"] == "torch"
        assert dump.header["complete"] is False
        assert list(dump.layers) == ["", CONV]
        assert dump.layers[CONV].spec.attributes["padding"] == ((1, 1), (1, 1))
        assert [call.layer for call in dump.calls] == ["", CONV]
        assert [note.message for note in dump.notes] == ["dump-changed"]
        dump.verify()
        check(dump, every_kind())


def test_recovery_makes_a_plain_dump(killed, tmp_path):
    records = every_kind()
    assert recover(killed) == len(records)
    assert not path_of(killed).exists()
    with open_dump(killed) as dump, h5py.File(killed, "r") as file:
        assert not dump.recovered
        assert not dump.complete
        assert dump.header["recovered"] is True
        dump.verify()
        check(dump, records)
        assert len(file["step-0000/forward"]) == len(records)
        assert [note.message for note in dump.notes] == ["dump-changed"]
    assert recover(killed) == len(records)


def test_recovery_that_was_killed_can_be_done_again(killed, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("aligner.dump.data.DataFile.cut", stop)
        with pytest.raises(KeyboardInterrupt):
            recover(killed)
    with open_dump(killed) as dump:
        assert dump.recovered
        check(dump, every_kind())
    recover(killed)
    with open_dump(killed) as dump:
        check(dump, every_kind())


@pytest.mark.parametrize("torn", range(1, 60, 7))
def test_a_torn_last_line_is_left_out(killed, torn):
    beside = path_of(killed)
    whole = beside.read_bytes()
    beside.write_bytes(whole[:-torn])
    with open_dump(killed) as dump:
        check(dump, every_kind())
        assert dump.notes == []


def test_every_prefix_of_a_journal_tells_what_came_before(tmp_path):
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    ends = []
    records = [record(i, np.full(5, i, "<f4")) for i in range(4)]
    for one in records:
        writer.write(one)
        ends.append(path_of(path).stat().st_size)
    abandon(writer)
    whole = path_of(path).read_bytes()
    start = whole.index(b"\n") + 1
    for size in range(start, len(whole) + 1):
        path_of(path).write_bytes(whole[:size])
        with open_dump(path) as dump:
            check(dump, records[: sum(end <= size for end in ends)])


def test_a_damaged_line_costs_only_itself_and_is_said(killed):
    beside = path_of(killed)
    lines = beside.read_bytes().split(b"\n")
    at = next(i for i, line in enumerate(lines) if b'["record"' in line)
    lines[at + 3] = lines[at + 3].replace(b"forward", b"forwerd")
    beside.write_bytes(b"\n".join(lines))
    records = every_kind()
    with open_dump(killed) as dump:
        check(dump, records[:3] + records[4:])
        note = dump.notes[-1]
        assert (note.message, note.facts) == ("dump-journal-damaged", {"lines": 1, "records": 0})
        assert text(note.message, "en", note.facts)
    recover(killed)
    with open_dump(killed) as dump:
        assert dump.notes[-1].message == "dump-journal-damaged"


def forge(path, *items):
    with open(path_of(path), "ab") as file:
        for item in items:
            file.write(journal.line(item))


@pytest.mark.parametrize(
    "item",
    [
        b'["record",0,"forward","a",0,"output.0",900,"float32",[3],99999999999,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",[3],-5,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",[3],700,13,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"object",[3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",[-3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0","900","float32",[3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",null,"float32",[3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",1e300,"float32",[3],700,12,0,"values"]',
        b'["record",0,"forward","a\\u001b",0,"output.0",900,"float32",[3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",3,700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",[[3]],700,12,0,"values"]',
        b'["record",{},"forward","a",0,"output.0",900,"float32",[3],700,12,0,"values"]',
        b'["record",0,"forward","a",0,"output.0",900,"float32",[3],700,12,0,[]]',
        b'["record"]', b'["nothing"]', b"[]", b"3", b'{"a": 1}', b"null", b'"record"',
        b'["call",0,"forward","a",0,"x",1,{},{}]', b'["call",0,"sideways","a",0,0,1,{},{}]', b'["call"]',
        b'["layer","a"]', b'["note",1,2,3]', b'["header"]', b'["header",3]', b'["header",[[1]]]',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_forged_lines_are_left_out(killed, item):
    forge(killed, item)
    with open_dump(killed) as dump:
        check(dump, every_kind())
        assert dump.notes[-1].message == "dump-journal-damaged"
    recover(killed)
    with open_dump(killed) as dump:
        dump.verify()
        check(dump, every_kind())


def test_an_order_that_stands_twice_in_a_journal(killed):
    line = next(line for line in path_of(killed).read_bytes().split(b"\n") if b'["record"' in line)
    forge(killed, line[9:])
    with open_dump(killed) as dump:
        check(dump, every_kind())
    recover(killed)
    with open_dump(killed) as dump:
        check(dump, every_kind())


def test_a_dump_without_its_journal(killed):
    path_of(killed).unlink()
    with pytest.raises(DumpError, match="is not beside it"):
        open_dump(killed)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"nonsense\n", b"\0" * 5000, journal.line(b"[]"),
                                     journal.line(b'["aligner journal",2,"x"]')])  # fmt: skip
def test_a_journal_that_is_none(killed, content):
    path_of(killed).write_bytes(content)
    with pytest.raises(DumpError, match="cannot be read") as caught:
        open_dump(killed)
    assert english(re.sub(f"{killed}|{path_of(killed).name}", "", caught.value.text("zh"))) == []


def test_the_journal_of_another_dump(killed, tmp_path):
    other = DumpWriter(tmp_path / "y.h5", HEADER)
    abandon(other)
    os.replace(path_of(tmp_path / "y.h5"), path_of(killed))
    with pytest.raises(DumpError, match="of another dump"):
        open_dump(killed)


def test_a_truncated_file_loses_what_is_not_there_and_says_so(killed):
    records = every_kind()
    with open_dump(killed) as dump:
        row = dump.rows()[-1]
    os.truncate(killed, row.offset + row.size - 1)
    with open_dump(killed) as dump:
        check(dump, records[:-1])
        assert dump.notes[-1].facts == {"lines": 0, "records": 1}


def test_a_dump_in_the_making_can_be_read(tmp_path):
    records = every_kind()
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        fill(writer, records[:10])
        with open_dump(tmp_path / "x.h5") as dump:
            assert dump.recovered
            assert dump.notes[-1].message == "dump-being-written"
            check(dump, records[:10])
        with pytest.raises(DumpError, match="another process"):
            recover(tmp_path / "x.h5")
        for one in records[10:]:
            writer.write(one)
    with open_dump(tmp_path / "x.h5") as dump:
        assert dump.complete
        check(dump, records)


def test_a_kill_between_the_last_two_steps_of_closing(tmp_path):
    path = make(tmp_path / "x.h5", every_kind())
    path_of(path).write_bytes(journal.line(b'["aligner journal",1,"another"]'))
    with open_dump(path) as dump:
        assert dump.complete
        check(dump, every_kind())


def test_half_a_line_that_cannot_be_taken_away_damages_no_other(tmp_path, monkeypatch):
    """The next line would begin within it."""
    path, one = tmp_path / "x.h5", record(0, np.zeros(3, "<f4"))
    writer = DumpWriter(path, HEADER)
    write = os.write

    def half(descriptor, data):
        write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, "full")

    def stuck(*_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", stuck)
        with pytest.raises(DumpError, match="Writing"):
            writer.note(Note("", "dump-changed", {"path": "x"}))
        with pytest.raises(DumpError, match="Writing"):
            writer.write(one)
    writer.write(one)
    abandon(writer)
    with open_dump(path) as dump:
        check(dump, [one])
        assert dump.notes == []


def test_lines_carry_their_checksum():
    assert journal.line(b"[1]") == b"%08x [1]\n" % zlib.crc32(b"[1]")

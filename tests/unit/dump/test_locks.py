"""One writer at a time, whoever else begins, ends, reads, recovers or is left behind at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from dumps import HEADER, abandon, make, record, same

from aligner.dump import journal, locks, owner, reader
from aligner.dump.journal import path_of
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError

linux = pytest.mark.skipif(not owner.ourselves(), reason="this system does not tell of processes")


# --- Several writers on one path.

WRITERS = """
import os, sys, time
import numpy as np
from aligner.dump.journal import path_of
from aligner.dump.reader import open_dump
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Key, Phase, Record
from pathlib import Path
path, ends, begun = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < ends:
    try:
        writer = DumpWriter(path, {"who": os.getpid()}, force=True)
    except DumpError as error:
        assert error.message == "dump-in-use", error
        continue
    begun += 1
    writer.write(Record(Key(0, Phase.FORWARD, "a", 0, "output.0"), 0, "float32", np.zeros(3, "<f4")))
    assert writer._token.encode() in path_of(path).read_bytes().split(b"\\n")[0], "the journal is another one's"
    with open_dump(path) as dump:
        assert dump.token == writer._token, "the dump is another one's"
        assert len(dump.entries) == 1
    writer.close()
print(begun)
"""


def run(program, *arguments, count=1):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(count)]


def ended(children):
    said = []
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        said.append(out.split())
    return said


def test_a_writer_keeps_its_journal_while_others_wait_for_its_place(tmp_path):
    """A journal that is locked when its writer has just removed it has no name."""
    said = ended(run(WRITERS, tmp_path / "x.h5", 1, count=3))
    assert sum(int(begun) for (begun,) in said) > 10
    assert [one.name for one in tmp_path.iterdir()] == ["x.h5"]


ONCE = """
import os, sys, time
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
for number in range(int(sys.argv[2])):
    while time.time() < float(sys.argv[3]) + number * 0.01:
        pass
    try:
        DumpWriter(f"{sys.argv[1]}/{number}.h5", {}).close()
    except DumpError as error:
        assert error.message in ("dump-exists", "dump-in-use"), error
    else:
        print(number)
"""


def test_without_force_nobody_replaces_what_another_has_just_finished(tmp_path):
    said = ended(run(ONCE, tmp_path, 100, time.time() + 1.5, count=2))
    begun = sorted(int(number) for one in said for number in one)
    assert begun == list(range(100))


READER = """
import sys, time
from aligner.dump.reader import open_dump
ends, count = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < ends:
    with open_dump(sys.argv[1]) as dump:
        count += dump.recovered
        assert len(dump.layers) == 0
print(count)
"""


def test_a_reader_finds_a_dump_at_any_moment(tmp_path):
    make(tmp_path / "x.h5", [])
    with DumpWriter(tmp_path / "x.h5", {}, force=True):
        pass
    readers = run(READER, tmp_path / "x.h5", 1.5)
    ended(run(WRITERS, tmp_path / "x.h5", 1, count=2))
    ((seen,),) = ended(readers)
    assert int(seen) > 10


def test_a_reader_waits_while_one_dump_follows_another(tmp_path, monkeypatch):
    """However often it comes when the journal of one has just gone."""
    path, kept = tmp_path / "x.h5", []

    def next_one(_seconds):
        path.unlink(missing_ok=True)
        kept.append(DumpWriter(path, HEADER, force=True))
        path_of(path).unlink()
        if len(kept) == 8:
            path.unlink()
            DumpWriter(path, HEADER).close()

    next_one(0)
    monkeypatch.setattr("time.sleep", next_one)
    with open_dump(path) as dump:
        assert not dump.recovered
    assert len(kept) == 8


def test_a_reader_that_comes_while_a_dump_is_closed_and_replaced(tmp_path, monkeypatch):
    """What it knew of the size is not so any more when it reads that the dump is closed."""
    path, sizes, size_of = tmp_path / "x.h5", [], reader.size_of
    writers = [DumpWriter(path, HEADER)]
    writers[0].write(record(0, np.zeros(1 << 18, "<f4")))

    def size(*where):
        sizes.append(size_of(*where))
        if len(sizes) == 1:
            writers[0].close()
            writers.append(DumpWriter(path, HEADER, force=True))
        return sizes[-1]

    monkeypatch.setattr(reader, "size_of", size)
    with open_dump(path) as dump:
        assert dump.token in [one._token for one in writers]
    writers[1].close()


def test_a_reader_does_not_wait_for_a_journal_that_nobody_brings_back(tmp_path):
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    path_of(path).unlink()
    began = time.monotonic()
    with pytest.raises(DumpError, match="never closed"):
        open_dump(path)
    assert time.monotonic() - began < 1
    writer.close()


def test_a_reader_looks_again_at_a_first_block_that_is_half_written(tmp_path, monkeypatch):
    """Some systems show a write of 512 bytes before all of it is there."""
    path, opened = tmp_path / "x.h5", DumpWriter(tmp_path / "x.h5", HEADER)
    half = path.read_bytes()
    opened.close()
    whole, pauses = path.read_bytes(), []
    path.write_bytes(whole[:200] + half[200:512] + whole[512:])

    def written(seconds):
        pauses.append(seconds)
        path.write_bytes(whole)

    monkeypatch.setattr("time.sleep", written)
    with open_dump(path) as dump:
        assert dump.complete
    assert len(pauses) == 1
    path.write_bytes(whole[:200] + half[200:512] + whole[512:])
    monkeypatch.setattr("time.sleep", pauses.append)
    with pytest.raises(DumpError, match="first 512 bytes"):
        open_dump(path)
    assert len(pauses) == 3


def test_the_journal_of_whoever_came_after_us_is_left_alone(tmp_path):
    path = tmp_path / "x.h5"
    first = DumpWriter(path, HEADER)
    path.unlink()
    path_of(path).unlink()  # somebody clears up
    second = DumpWriter(path, HEADER)
    one = record(0, np.zeros(3, "<f4"))
    second.write(one)
    with pytest.raises(DumpError, match="deleted or replaced"):
        first.close()
    assert path_of(path).exists()
    first = DumpWriter(tmp_path / "y.h5", HEADER)
    path_of(tmp_path / "y.h5").unlink()
    DumpWriter(tmp_path / "y.h5", HEADER, force=True).close()
    first.discard()
    assert (tmp_path / "y.h5").exists()
    abandon(second)
    with open_dump(path) as dump:
        assert same(dump.entries[0], one)


def test_recovery_takes_what_was_written_until_the_lock_was_free(tmp_path, monkeypatch):
    """The writer may write on, and die, while recovery waits for its turn."""
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    held = journal.held

    def later(*arguments):
        writer.write(record(0, np.zeros(3, "<f4")))
        abandon(writer)
        return held(*arguments)

    monkeypatch.setattr(journal, "held", later)
    assert recover(path) == 1
    with open_dump(path) as dump:
        assert len(dump.entries) == 1


def test_recovery_of_what_its_writer_has_just_closed(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    writer.write(record(0, np.zeros(3, "<f4")))
    held = journal.held
    monkeypatch.setattr(journal, "held", lambda *arguments: (writer.close(), held(*arguments))[1])
    assert recover(path) == 1
    with open_dump(path) as dump:
        assert dump.complete
        assert "recovered" not in dump.header


def test_a_beginning_that_was_killed_leaves_nothing_in_the_way(tmp_path):
    for name in ("x.h5.lock", "x.h5.new", "x.h5.journal.new"):
        (tmp_path / name).write_bytes(b"left")
    make(tmp_path / "x.h5", [])
    assert [one.name for one in tmp_path.iterdir()] == ["x.h5"]


def test_nobody_begins_while_another_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    with locks.alone(tmp_path / "x.h5"), pytest.raises(DumpError, match="another process"):
        DumpWriter(tmp_path / "x.h5", HEADER)
    assert list(tmp_path.iterdir()) == []


def test_a_beginning_that_fails_leaves_an_abandoned_dump_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    writer, one = DumpWriter(path, HEADER), record(0, np.zeros(3, "<f4"))
    writer.write(one)
    abandon(writer)

    def full(*_):
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr("aligner.dump.data.DataFile.keep", full)
        with pytest.raises(DumpError, match="disk is full"):
            DumpWriter(path, HEADER, force=True)
    with open_dump(path) as dump:
        assert same(dump.entries[0], one)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.h5", "x.h5.journal"]


# --- Left behind by a writer that was killed.

ORPHANED = """
import ctypes, os, signal, sys, time
import numpy as np
from aligner.dump.writer import DumpWriter
from aligner.record import Key, Phase, Record
writer = DumpWriter(sys.argv[1], {"framework": "torch"})
writer.write(Record(Key(0, Phase.FORWARD, "a", 0, "output.0"), 0, "float32", np.arange(3, dtype="<f4")))
child = os.fork() if sys.argv[2] == "python" else ctypes.PyDLL(None).fork()  # C code tells Python nothing
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["python", pytest.param("c", marks=linux)])
def orphaned(request, tmp_path):
    """A dump whose writer was killed, its parent has not looked yet, and a child that it has forked lives on."""
    path = tmp_path / "x.h5"
    (writer,) = run(ORPHANED, path, request.param)
    child = int(writer.stdout.readline())
    with pytest.raises(DumpError, match="another process"):
        recover(path)
    writer.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    yield path
    os.kill(child, signal.SIGKILL)
    writer.communicate()


def test_a_child_that_lives_on_does_not_stand_for_its_killed_parent(orphaned):
    with open_dump(orphaned) as dump:
        assert [note.message for note in dump.notes] == []
        assert len(dump.entries) == 1
    assert recover(orphaned) == 1
    with open_dump(orphaned) as dump:
        assert not dump.recovered


def test_the_dump_of_a_killed_parent_can_be_replaced(orphaned):
    DumpWriter(orphaned, HEADER, force=True).close()
    with open_dump(orphaned) as dump:
        assert len(dump.entries) == 0
    assert [one.name for one in orphaned.parent.iterdir()] == ["x.h5"]


def test_a_child_gives_up_its_copy_and_its_parent_keeps_the_lock(tmp_path):
    writer = DumpWriter(tmp_path / "x.h5", HEADER)
    child = os.fork()
    if child == 0:
        closed = writer._journal._file.descriptor == -1
        writer.close()
        os._exit(0 if closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(DumpError, match="another process"):
        DumpWriter(tmp_path / "x.h5", HEADER, force=True)
    writer.close()


def test_a_reader_that_looks_whether_a_writer_lives_keeps_nobody_from_beginning(tmp_path):
    """For a moment it has the lock, too; and the journal names this process, which lives."""
    path = tmp_path / "x.h5"
    abandon(DumpWriter(path, HEADER))
    looking = locks.Locked(path_of(path), os.O_RDONLY)
    threading.Timer(0.01, looking.close).start()
    DumpWriter(path, HEADER, force=True).close()
    with open_dump(path) as dump:
        assert dump.complete


# --- Who is named in a journal.


@linux
def test_this_process_lives():
    assert owner.lives(owner.ourselves()) is True


@linux
@pytest.mark.parametrize(
    ("change", "lives"),
    [({"started": 1}, False), ({"boot": "another machine"}, None), ({"space": "pid:[1]"}, None), ({"pid": "1"}, None),
     ({"pid": 0}, None), ({"pid": -1}, None), ({"pid": 1 << 40}, None), ({"pid": (1 << 31) - 1}, False)],
)  # fmt: skip
def test_another_process_that_is_not_there_or_not_to_be_seen(change, lives):
    assert owner.lives({**owner.ourselves(), **change}) is lives


@pytest.mark.parametrize("found", [None, {}, [], "x", 3])
def test_a_journal_that_names_nobody(found):
    assert owner.lives(found) is None


@linux
def test_a_process_whose_number_was_given_away(tmp_path):
    """Its lock is held, its number stands for a younger process."""
    path = tmp_path / "x.h5"
    abandon(DumpWriter(path, HEADER))
    lines = path_of(path).read_bytes().split(b"\n")
    mine = str(owner.ourselves()["started"]).encode()
    first = lines[0][9:].replace(mine, b"17")
    path_of(path).write_bytes(b"\n".join([journal.line(first)[:-1], *lines[1:]]))
    holding = locks.Locked(path_of(path), os.O_RDONLY)
    assert holding.taken
    assert not journal.is_live(path_of(path))
    holding.close()

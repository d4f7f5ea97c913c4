"""Hostile files are refused before any data are read, and the refusal names what was found."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from aligner.dump import guard, userblock
from aligner.dump.reader import Dump, open_dump
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Key, Phase, Record
from tests.chinese import english
from tests.endtoend.hostile import KINDS

NAME = "000001 layer1#0 output.0"


@pytest.fixture
def data_reads(monkeypatch):
    """Every place at which a dump's bytes are read."""
    places = []
    read = Dump._read_into

    def spy(self, piece, offset):
        places.append(offset)
        return read(self, piece, offset)

    monkeypatch.setattr(Dump, "_read_into", spy)
    return places


def make(path):
    with DumpWriter(path, {"framework": "torch"}) as writer:
        for order in range(3):
            key = Key(0, Phase.FORWARD, f"layer{order}", 0, "output.0")
            writer.write(Record(key, order, "float32", np.full((1000, 10), order, "<f4")))
    return path


def refusal(path, read):
    with pytest.raises(DumpError) as caught, open_dump(path) as dump:
        read(dump)
    assert caught.value.exit_code == 3
    for language in ("en", "zh"):
        text = caught.value.text(language)
        assert len(text.splitlines()) == 2
        assert all(line.isprintable() for line in text.splitlines())
    return str(caught.value)


def verify(dump):
    dump.verify()


def load(dump):
    dump.entries[0].load()


@pytest.mark.parametrize("kind", KINDS)
def test_files_made_from_scratch(tmp_path, kind):
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        words = KINDS[kind](file, "layer", tmp_path)
    text = refusal(tmp_path / "x.h5", verify)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("kind", KINDS)
def test_dumps_with_something_added(tmp_path, kind, data_reads):
    path = make(tmp_path / "x.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        words = KINDS[kind](file, "layer", tmp_path)
    text = refusal(path, verify)
    assert all(word in text for word in words), text
    assert not [place for place in data_reads if 608 <= place < 100_000]


@pytest.mark.parametrize("kind", KINDS)
def test_dumps_with_a_record_replaced(tmp_path, kind, data_reads):
    path = make(tmp_path / "x.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        del file["step-0000/forward"][NAME]
        words = KINDS[kind](file, f"step-0000/forward/{NAME}", tmp_path)
    text = refusal(path, load)
    assert all(word in text for word in words), text
    assert not [place for place in data_reads if 608 <= place < 100_000]


@pytest.mark.parametrize("kind", ["external_link", "virtual", "bomb", "reference"])
def test_changes_that_keep_the_size(tmp_path, kind):
    """The user block made to fit the longer file: the seal still tells."""
    path = make(tmp_path / "x.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        words = KINDS[kind](file, "layer", tmp_path)
    content = path.read_bytes()
    block = userblock.decode(content[:512])
    forged = userblock.UserBlock(block.token, True, len(content), block.sections, block.seal)
    path.write_bytes(userblock.encode(forged) + content[512:])
    text = refusal(path, load)
    assert all(word in text for word in words), text


def test_a_harmless_change_is_refused_all_the_same(tmp_path):
    path = make(tmp_path / "x.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        file["mine"] = np.arange(3)
    assert "something was added" in refusal(path, load)
    path = make(tmp_path / "y.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        file["step-0000/forward"].move(NAME, "000001 layer1#0 input.0")
    assert "changed after aligner wrote it" in refusal(path, load) or "something was added" in refusal(path, load)


def test_values_changed_by_h5py_are_found(tmp_path):
    path = make(tmp_path / "x.h5")
    with h5py.File(path, "r+", libver="latest") as file:
        file["step-0000/forward"][NAME][3, 3] = 77
    with open_dump(path) as dump:
        dump.entries[0].load()
        with pytest.raises(DumpError, match="do not fit their checksum"):
            dump.entries[1].load()


@pytest.mark.parametrize("spoil", [b"\xff" * 40, b"\0" * 400, b"TREE" * 10, b"SNOD" * 10])
def test_malformed_structure_does_not_crash(tmp_path, spoil):
    path = make(tmp_path / "x.h5")
    whole = path.read_bytes()
    for at in (520, whole.rindex(b"TREE"), whole.rindex(b"SNOD"), whole.rindex(b"HEAP"), len(whole) - 500):
        spoiled = whole[:at] + spoil + whole[at + len(spoil) :]
        if spoiled != whole:
            path.write_bytes(spoiled)
            with pytest.raises(DumpError) as caught:
                load(open_dump(path))
            assert english(caught.value.text("zh").replace(str(path), "").replace(NAME, "")) == []


def test_the_guard_lets_a_good_dump_pass(tmp_path):
    assert guard.inspect(make(tmp_path / "x.h5")) is None


def test_a_script_beside_the_user_does_not_reach_the_guard(tmp_path, monkeypatch):
    (tmp_path / "aligner.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "h5py.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "numpy.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert guard.inspect(make(tmp_path / "x.h5")) is None


def test_a_guard_that_dies_or_hangs_is_a_finding(tmp_path, monkeypatch):
    path = make(tmp_path / "x.h5")
    monkeypatch.setattr(guard, "_PROGRAM", "import os; os.abort()")
    assert guard.inspect(path).what == "guard-crash"
    monkeypatch.setattr(guard, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(guard, "SECONDS", 0.2)
    assert guard.inspect(path).what == "guard-slow"

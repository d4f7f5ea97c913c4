from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from dumps import CONV, HEADER, bits, every_kind, key, make, record

from aligner.dtypes import DTYPES, decode
from aligner.dump import closing, sections, userblock
from aligner.dump.checksum import checksum
from aligner.dump.hdf5 import BASE
from aligner.dump.journal import path_of
from aligner.dump.reader import open_dump
from aligner.dump.sections import Content
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Layer, LayerSpec, Note, Phase
from tests.chinese import english


def read_all(path):
    with open_dump(path) as dump:
        dump.verify()
        return [entry.raw() for entry in dump.entries]


def refused(path, language="en"):
    with pytest.raises(DumpError) as caught:
        read_all(path)
    text = caught.value.text(language)
    assert str(path) in text
    assert len(text.splitlines()) == 2
    return text


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def torch_file():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.h5", b"", "empty"),
        ("x.h5", b"\0" * 4000, "not an aligner dump"),
        ("x.h5", b"hello", "not an aligner dump"),
        ("x.npz", npz(a=np.zeros(3)), "NumPy .npz"),
        ("x.npy", b"\x93NUMPY" + b"\0" * 100, "NumPy .npy"),
        ("x.pt", torch_file(), "PyTorch"),
        ("x.pth", pickle.dumps([1], 2), "PyTorch"),
        ("x.ckpt", b"\n\x12\n\x05conv1\x12", ".ckpt"),
        ("x.csv", b"a,b\n1,2\n", "CSV"),
    ],
)
def test_other_files_are_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    assert says in refused(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path):
    assert "no file" in refused(tmp_path / "x.h5")
    path_of(tmp_path / "x.h5").write_bytes(b"")
    assert "only its journal" in refused(tmp_path / "x.h5")
    assert "folder" in refused(tmp_path)


def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "x.h5")
    refused(tmp_path / "x.h5")


def test_another_programs_hdf5(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(5)
    assert "not written by aligner" in refused(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w", userblock_size=1024) as file:
        file["a"] = np.arange(5)
    assert "not written by aligner" in refused(tmp_path / "y.h5")


@pytest.mark.parametrize("keep", [1, 30, 300, 511, 512, 600, 5000, -1])
def test_truncated(tmp_path, keep):
    path = make(tmp_path / "x.h5", every_kind())
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    text = refused(path)
    if keep >= 30:
        assert f"{len(content[:keep])} bytes found" in text


def test_a_newer_format(tmp_path):
    path = make(tmp_path / "x.h5", [])
    path.write_bytes(path.read_bytes().replace(b"format 1:", b"format 2:", 1))
    text = refused(path)
    assert "format 2" in text
    assert "up to format 1" in text
    assert "Update aligner" in text
    assert "升级" in refused(path, "zh")


def test_a_block_that_names_two_formats(tmp_path):
    path = make(tmp_path / "x.h5", [])
    content = path.read_bytes()
    text = content[:497].replace(b'"format":1', b'"format":2', 1)
    path.write_bytes(text + b"crc32 %08x\n" % zlib.crc32(text) + content[512:])
    assert "format 1 and format 2" in refused(path)


def test_damaged_values_are_found_when_they_are_read(tmp_path):
    path = make(tmp_path / "x.h5", [record(0, np.ones(1000, "<f4")), record(1, np.ones(2000, "<f4"))])
    content = bytearray(path.read_bytes())
    content[2000] ^= 4
    path.write_bytes(content)
    with open_dump(path) as dump:
        dump.verify()
        with pytest.raises(DumpError, match="do not fit their checksum"):
            dump.entries[0].load()
        with pytest.raises(DumpError, match="do not fit their checksum"):
            list(dump.entries[0].stream(np.empty(64, np.uint8)))
        assert dump.entries[1].load().sum() == 2000


@pytest.mark.parametrize("section", ["header", "index"])
def test_damaged_sections_are_found_at_once(tmp_path, section):
    path = make(tmp_path / "x.h5", every_kind())
    content = bytearray(path.read_bytes())
    content[userblock.decode(bytes(content[:512])).sections[section].offset + 5] ^= 1
    path.write_bytes(content)
    assert f"section {section}" in refused(path)


def test_damaged_structure_is_found_before_data_are_read(tmp_path):
    path = make(tmp_path / "x.h5", [record(0, np.ones(1000, "<f4"))])
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with open_dump(path) as dump, pytest.raises(DumpError):
        dump.entries[0].raw()


# --- A dump that somebody wrote by hand, with checksums that fit.


def forge(path, content, spoil):
    """A dump whose sections `spoil` changed before they were sealed."""
    start = BASE + 96 + 4096
    closed = closing.close(content, "token", start)
    parts = {name: json.loads(data) for name, data in sections.encode(content).items()}
    spoil(parts)
    tail, places = bytearray(), {}
    for name, part in parts.items():
        data = part if isinstance(part, bytes) else sections.to_json(part)
        places[name] = userblock.Section(start + len(tail), len(data), zlib.crc32(data))
        tail += data
    seal = userblock.Section(start, len(tail), zlib.crc32(bytes(tail), zlib.crc32(closed.superblock)))
    block = userblock.UserBlock("token", True, start + len(tail), places, seal)
    path.write_bytes(userblock.encode(block) + closed.superblock + bytes(4096) + bytes(tail))
    return path


ZEROS = checksum(np.zeros(16, np.uint8))


def row(**changed):
    values = dict(zip(sections.Row._fields, (key(0), 0, "float32", (4,), 608, 16, ZEROS, "values")))
    return sections.Row(**{**values, **changed})


def forged(path, spoil, rows=None):
    return forge(path, Content(dict(HEADER), {}, rows or [row()], [], []), spoil)


def put(*where, value):
    """Set a place deep inside the sections."""

    def spoil(parts):
        inside = parts
        for step in where[:-1]:
            inside = inside[step]
        inside[where[-1]] = value

    return spoil


def test_a_forged_dump_without_tricks_opens(tmp_path):
    with open_dump(forged(tmp_path / "x.h5", lambda parts: None)) as dump:
        assert dump.entries[0].load().tolist() == [0, 0, 0, 0]


COLUMN = ("index", "records")
TABLE = ("index", "tables")


@pytest.mark.parametrize(
    "spoil",
    [
        put(*COLUMN, "offset", value=[1 << 40]),
        put(*COLUMN, "offset", value=[0]),
        put(*COLUMN, "offset", value=[5000]),
        put(*COLUMN, "offset", value=[-8]),
        put(*COLUMN, "offset", value=[608.5]),
        put(*COLUMN, "offset", value=["608"]),
        put(*COLUMN, "offset", value=[[608]]),
        put(*COLUMN, "offset", value=[None]),
        put(*COLUMN, "offset", value=[1 << 70]),
        put(*COLUMN, "offset", value=[(1 << 63) - 1]),
        put(*COLUMN, "offset", value=[608, 608]),
        put(*COLUMN, "offset", value={}),
        put(*COLUMN, "size", value=[17]),
        put(*COLUMN, "size", value=[1 << 61]),
        put(*COLUMN, "shape", value=[1]),
        put(*COLUMN, "layer", value=[3]),
        put(*COLUMN, "slot", value=[-1]),
        put(*COLUMN, "dtype", value=[1]),
        put(*COLUMN, "phase", value=[True, False]),
        put(*COLUMN, value={}),
        put("index", "records", value=[]),
        put("index", "tables", value=None),
        put(*TABLE, "shape", value=[[-4]]),
        put(*TABLE, "shape", value=[[1 << 62, 1 << 62]]),
        put(*TABLE, "shape", value=[[0, 1 << 41]]),
        put(*TABLE, "shape", value=[[2.0, 2]]),
        put(*TABLE, "shape", value=[[True, 4]]),
        put(*TABLE, "shape", value=[[1] * 33]),
        put(*TABLE, "shape", value=["4"]),
        put(*TABLE, "dtype", value=["object"]),
        put(*TABLE, "dtype", value=["float64"]),
        put(*TABLE, "dtype", value=[None]),
        put(*TABLE, "phase", value=["sideways"]),
        put(*TABLE, "phase", value=[["file", "x" * 500]]),
        put(*TABLE, "layer", value=["a\x1b[2Jb"]),
        put(*TABLE, "layer", value=["a\u202eb"]),
        put(*TABLE, "layer", value=[5]),
        put(*TABLE, "slot", value=["a\nb"]),
        put("index", "notes", value=[["a", "b"]]),
        put("index", "notes", value=3),
        put("index", value=[]),
        put("index", value=b"{"),
        put("index", value=b"\xff\xfe"),
        put("index", value=b"[" * 100_000 + b"]" * 100_000),
        put("header", value=[]),
        put("header", value=b"nonsense"),
        put("layers", value={}),
        put("layers", value=[["a"]]),
        put("layers", value=[["a\nb", "t", "k", {}, False, False]]),
        put("layers", value=[["a", "t", "k", {"x": {"y": 1}}, False, False]]),
        put("layers", value=[["a", "t", "k", [], False, False]]),
        put("calls", value=[]),
        put("calls", "calls", "step", value=[1]),
        lambda parts: parts.pop("calls"),
        lambda parts: parts["index"]["records"].pop("form"),
    ],
)  # fmt: skip
def test_forged_sections_are_refused(tmp_path, spoil):
    path = forged(tmp_path / "x.h5", spoil)
    assert "damaged" in refused(path)
    assert english(refused(path, "zh").replace(str(path), "")) == []


def test_records_out_of_order_are_refused(tmp_path):
    assert "not in order" in refused(forged(tmp_path / "x.h5", lambda parts: None, [row(), row()]))


def test_a_form_of_a_later_aligner_is_listed_but_not_loaded(tmp_path):
    later = row(form="sketch-1", size=3, shape=(1000, 1000), dtype="bfloat16")
    with open_dump(forged(tmp_path / "x.h5", lambda parts: None, [later, row(order=1)])) as dump:
        assert dump.entries[0].form == "sketch-1"
        assert dump.entries[0].shape == (1000, 1000)
        for look in (dump.entries[0].load, dump.entries[0].statistics, dump.entries[0].raw, dump.entries[0].sample):
            with pytest.raises(DumpError, match="sketch-1"):
                look()
        assert dump.entries[1].load().size == 4


@pytest.mark.parametrize("spoiled", [b"{}", b"[]", b"nonsense", b'{"state":"closed"}', b'{"state":"open"}',
                                     b'{"state":"closed","token":"t","size":1,"sections":{"a":[1]},"seal":[0,0,0]}',
                                     b'{"state":"closed","token":"t","size":1,"sections":{},"seal":[-1,0,0]}',
                                     b'{"state":"closed","token":"t","size":"x","sections":{},"seal":[0,0,0]}',
                                     b"[" * 400])  # fmt: skip
def test_forged_user_blocks_are_refused(tmp_path, spoiled):
    path = make(tmp_path / "x.h5", [])
    content = path.read_bytes()
    text = (content.split(b"\n")[0] + b"\n" + spoiled).ljust(496) + b"\n"
    path.write_bytes(text + b"crc32 %08x\n" % zlib.crc32(text) + content[512:])
    refused(path)


# --- Entries and views.


@pytest.mark.parametrize("size", [16, 17, 100, 4096, 65_536, 70_000, 1 << 20])
def test_streams_are_whole_in_any_buffer(tmp_path, size):
    records = every_kind()
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        buffer = np.empty(size, np.uint8)
        for entry, one in zip(dump.entries, records):
            pieces = [piece.copy() for piece in entry.stream(buffer)]
            assert b"".join(piece.tobytes() for piece in pieces) == one.array.tobytes()
            assert all(piece.dtype == DTYPES[entry.dtype].storage for piece in pieces)


@pytest.mark.parametrize("buffer", [np.empty(8, np.uint8), np.empty(64, np.float32), np.empty((4, 64), np.uint8)])
def test_a_buffer_that_will_not_do(tmp_path, buffer):
    with open_dump(make(tmp_path / "x.h5", [record(0, np.zeros(3, "<f4"))])) as dump, pytest.raises(ValueError):
        list(dump.entries[0].stream(buffer))


def test_load_gives_numbers(tmp_path):
    one = record(0, bits("bfloat16", (50,)), "bfloat16")
    with open_dump(make(tmp_path / "x.h5", [one])) as dump:
        entry = dump.entries[0]
        assert np.array_equal(entry.load(), decode(one.array, "bfloat16"), equal_nan=True)
        assert entry.array.dtype == np.float32
        assert np.array_equal(entry[3:7], entry.load()[3:7], equal_nan=True)
        entry.load()[:] = 0  # what is given out is the caller's own
        assert np.array_equal(entry.load(), decode(one.array, "bfloat16"), equal_nan=True)


def test_statistics(tmp_path):
    values = np.random.default_rng(0).standard_normal(1_000_000).astype("<f4")
    odd = np.array([np.nan, np.inf, -np.inf, 1, 2], "<f4")
    empty, flags = np.zeros((0, 3), "<f4"), np.array([True, False])
    records = [record(0, values), record(1, odd), record(2, empty), record(3, flags, "bool")]
    records += [record(4, np.array([3 + 4j], "<c8"), "complex64"), record(5, np.full(3, np.nan, "<f2"), "float16")]
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        found = [entry.statistics() for entry in dump.entries]
    wide = values.astype(np.float64)
    assert found[0].minimum == wide.min()
    assert found[0].maximum == wide.max()
    assert found[0].mean == pytest.approx(wide.mean(), rel=1e-9)
    assert found[0].rms == pytest.approx(np.sqrt((wide**2).mean()), rel=1e-9)
    assert (found[1].nan, found[1].inf, found[1].minimum, found[1].maximum, found[1].count) == (1, 2, 1, 2, 5)
    assert (found[2].count, np.isnan(found[2].mean)) == (0, True)
    assert (found[3].mean, found[3].count) == (0.5, 2)
    assert found[4].maximum == 5
    assert (found[5].nan, np.isnan(found[5].maximum)) == (3, True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 70000])
def test_a_sample_is_all_of_a_small_value_and_runs_of_a_large_one(tmp_path, dtype, count):
    values = np.arange(count).astype(DTYPES[dtype].storage)
    with open_dump(make(tmp_path / "x.h5", [record(0, values.reshape(-1, 1), dtype)])) as dump:
        found = dump.entries[0].sample()
        every = dump.entries[0].load().reshape(-1)
    assert found.shape == (min(count, 1024),)
    if count <= 1024:
        assert np.array_equal(found, every)
    else:
        assert np.array_equal(found[:64], every[:64])
        assert np.array_equal(found[-64:], every[-64:])


def test_find_and_lists(tmp_path):
    records = every_kind()
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        assert [dump.find(one.key).order for one in records] == [one.order for one in records]
        assert dump.find(key(0, phase=Phase.BACKWARD)) is None
        assert [entry.order for entry in dump.entries[2:5]] == [2, 3, 4]
        assert dump.entries[-1].order == len(records) - 1
        with pytest.raises(IndexError):
            dump.entries[len(records)]
        assert list(dump) == ["", CONV]
        assert CONV in dump
        assert len(dump) == 2
        assert [call.layer for call in dump.calls] == ["", CONV]
        assert dump.steps == [0]
        for shown in (dump, dump.entries, dump.entries[0], dump[CONV]):
            assert len(repr(shown).splitlines()) == 1


def test_a_view_of_a_layer(tmp_path):
    values = np.arange(3, dtype="<f4")
    records = [record(0, values, slot="weight", phase=Phase.PARAMETER)]
    for call, step in ((0, 0), (1, 0), (0, 1)):
        for slot in ("input.0", "input.mask", "output.0", "output.1"):
            order = len(records)
            one = record(order, values + order, slot=slot, step=step)
            records.append(type(one)(one.key._replace(call=call), order, "float32", one.array))
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        view = dump[CONV]
        assert (view.path, view.type, view.spec.kind, view.training) == (CONV, "torch.nn.Conv2d", "Conv2d", False)
        assert {role: entry.order for role, entry in view.parameters.items()} == {"weight": 0}
        assert [entry.order for entry in view.inputs] == [1, 2]
        assert [entry.order for entry in view.outputs] == [3, 4]
        assert view.output.order == 3
        assert view.input.order == 1
        assert view.find("input.mask").order == 2
        assert view.find("input.0", call=1).order == 5
        assert view.find("input.0", step=1).order == 9
        assert view.find("output.1", step=1).order == 12
        assert len(view.calls) == 1
        with pytest.raises(KeyError, match=r"input\.mask"):
            view.find("input.1")
        with pytest.raises(KeyError, match="close to it"):
            dump["layer1.conv1"]
        with pytest.raises(LookupError, match="no output"):
            dump[""].output
        with pytest.raises(LookupError, match="no input"):
            dump[""].input


def test_reading_needs_no_h5py(tmp_path):
    path = make(tmp_path / "x.h5", every_kind())
    code = (
        "import sys; sys.modules['h5py'] = None\n"
        "from aligner.dump.reader import open_dump\n"
        "with open_dump(sys.argv[1]) as dump:\n"
        "    dump.verify(); print(sum(entry.raw().nbytes for entry in dump.entries))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == sum(one.array.nbytes for one in every_kind())


def test_a_closed_dump_cannot_be_read(tmp_path):
    dump = open_dump(make(tmp_path / "x.h5", [record(0, np.zeros(3, "<f4"))]))
    entry = dump.entries[0]
    dump.close()
    dump.close()
    with pytest.raises(DumpError, match="closed"):
        entry.load()


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = make(tmp_path / "x.h5", [record(0, np.zeros(3000, "<f4"))])
    with open_dump(path) as dump:
        os.truncate(path, 5000)
        with pytest.raises(DumpError, match="truncated"):
            dump.entries[0].load()


def test_an_old_journal_beside_a_closed_dump_is_of_no_account(tmp_path):
    path = make(tmp_path / "x.h5", [record(0, np.zeros(3, "<f4"))])
    path_of(path).write_bytes(b"left over")
    with open_dump(path) as dump:
        assert dump.complete


def test_descriptors_are_given_back(tmp_path):
    path = make(tmp_path / "x.h5", every_kind())
    broken = tmp_path / "y.h5"
    broken.write_bytes(path.read_bytes()[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with open_dump(path) as dump:
            dump.entries[3].load()
        with pytest.raises(DumpError):
            open_dump(broken)
        with pytest.raises(DumpError):
            DumpWriter(path, {})
        DumpWriter(tmp_path / "z.h5", {}, force=True).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_later_aligner_adds_is_left_alone(tmp_path):
    def more(parts):
        parts["index"]["records"]["sketch"] = ["x"]
        parts["index"]["tables"]["new"] = {"a": 1}
        parts["index"]["also"] = None
        parts["calls"]["calls"]["new"] = []
        parts["further"] = b"\0\1"

    with open_dump(forged(tmp_path / "x.h5", more)) as dump:
        dump.verify()
        assert dump.entries[0].load().size == 4


def test_texts_of_a_stranger_cannot_write_into_a_terminal(tmp_path):
    evil = "\x1b[2J\nall is well"
    path = tmp_path / "x.h5"
    with DumpWriter(path, {"model": evil, "deep": [{evil: evil}]}) as writer:
        writer.layer(Layer("a", "t", LayerSpec("k", {"mode": evil, "more": (evil,)}), False, False))
        writer.note(Note("a", "dump-changed", {"path": evil}))
    with open_dump(path) as dump:
        shown = [repr(dump), str(dump.header), str(dump.layers), str(dump.notes)]
        assert dump.header["model"] == dump.notes[0].facts["path"] == "\\x1b[2J\\nall is well"
        assert dump.layers["a"].spec.attributes["more"] == ("\\x1b[2J\\nall is well",)
        assert all(text.isprintable() for text in shown)


def test_an_entry_is_an_array_to_numpy(tmp_path):
    with open_dump(make(tmp_path / "x.h5", [record(0, np.arange(6, dtype="<f4").reshape(2, 3))])) as dump:
        entry = dump.entries[0]
        assert np.asarray(entry).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert np.asarray(entry, dtype=np.int64).dtype == np.int64
        assert [row.tolist() for row in entry] == [[0, 1, 2], [3, 4, 5]]
        assert entry[1, 2] == 5


@pytest.mark.skipif(not shutil.which("h5dump"), reason="h5dump is not installed")
def test_h5dump_shows_it(tmp_path):
    path = make(tmp_path / "x.h5", every_kind())
    done = subprocess.run(["h5dump", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'GROUP "step-0000"' in done.stdout
    assert "torch" in done.stdout

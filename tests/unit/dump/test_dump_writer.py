from __future__ import annotations

import os
import threading

import h5py
import numpy as np
import pytest
from dumps import CONV, HEADER, abandon, bits, every_kind, key, make, record, same

from aligner.dtypes import DTYPES
from aligner.dump.journal import path_of
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record

# h5py 3.1 warns about itself when it reads a scalar.
pytestmark = pytest.mark.filterwarnings("ignore:Passing None into shape:DeprecationWarning")


def test_every_dtype_and_shape_comes_back_exactly(tmp_path):
    records = every_kind()
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        assert dump.complete
        assert not dump.recovered
        assert all(same(entry, one) for entry, one in zip(dump.entries, records))
        assert len(dump.entries) == len(records)


def test_plain_h5py_reads_every_record_by_its_name(tmp_path):
    records = every_kind()
    make(tmp_path / "x.h5", records)
    with h5py.File(tmp_path / "x.h5", "r") as file:
        names = list(file["step-0000/forward"])
        assert names[7] == f"000007 {CONV}#7 output.0"
        for name, one in zip(names, records):
            found = file["step-0000/forward"][name]
            assert found.shape == one.array.shape
            if DTYPES[one.dtype].decode is None:
                assert found.dtype == one.array.dtype
                assert found[()].tobytes() == one.array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_h5py_sees_numbers_where_numpy_has_no_type(tmp_path, dtype):
    storage = DTYPES[dtype].storage
    array = np.arange(1 << 8 * storage.itemsize, dtype=storage)
    make(tmp_path / "x.h5", [record(0, array, dtype)])
    with h5py.File(tmp_path / "x.h5", "r") as file, open_dump(tmp_path / "x.h5") as dump:
        found = file["step-0000/forward"][f"000000 {CONV}#0 output.0"][()].astype(np.float32)
        assert np.array_equal(found, dump.entries[0].load(), equal_nan=True)


def test_names_say_where_a_value_stood(tmp_path):
    values = np.arange(3, dtype="<f4")
    records = [
        Record(Key(0, Phase.PARAMETER, CONV, 0, "weight"), 0, "float32", values),
        Record(Key(0, Phase.FORWARD, "", 0, "input.0"), 1, "float32", values + 1),
        Record(Key(12, Phase.BACKWARD, "编码器/a%b", 3, "output.0.hidden"), 2, "float32", values + 2),
    ]
    make(tmp_path / "x.h5", records)
    found = []
    with h5py.File(tmp_path / "x.h5", "r") as file:
        file.visit(found.append)
    assert "step-0000/parameter/000000 layer1.0.conv1 weight" in found
    assert "step-0000/forward/000001 (net)#0 input.0" in found
    assert "step-0012/backward/000002 编码器%2Fa%25b#3 output.0.hidden" in found


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="<f4").reshape(2, 3, 4).transpose(2, 0, 1),
        np.asfortranarray(np.arange(12, dtype="<f4").reshape(3, 4)),
        np.arange(100, dtype="<f4")[::7],
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.float32(2.5),
        np.arange(8, dtype="<f4")[::-1],
        np.frombuffer(b"x" + np.arange(4, dtype="<f4").tobytes(), np.uint8)[1:].view("<f4"),
    ],
    ids=["transposed", "fortran", "strided", "big-endian", "broadcast", "scalar", "reversed", "unaligned"],
)
def test_arrays_of_any_layout(tmp_path, array):
    one = record(0, array)
    with open_dump(make(tmp_path / "x.h5", [one])) as dump:
        assert same(dump.entries[0], one)


def test_the_same_content_is_stored_once(tmp_path):
    for size in (3, 100_000, 2_000_000):
        path = tmp_path / f"{size}.h5"
        values = np.random.default_rng(0).standard_normal(size).astype("<f4")
        nearly = values.copy()
        nearly[size // 3] += 1
        reshaped = values.reshape(1, -1)
        with DumpWriter(path, HEADER) as writer:
            for order, array in enumerate((values, nearly, values.copy(), reshaped, nearly, values.view("<u4"))):
                writer.write(record(order, array, "uint32" if array.dtype == "<u4" else "float32"))
            assert writer.bytes_written == 4 * values.nbytes
            assert writer.bytes_seen == 6 * values.nbytes
            assert writer.records == 6
        with h5py.File(path, "r") as file, open_dump(path) as dump:
            group = file["step-0000/forward"]
            first, _, third, *_ = (group[name] for name in group)
            assert first == third
            assert h5py.h5o.get_info(first.id).rc == 2
            assert dump.entries[0].place == dump.entries[2].place
            assert dump.entries[0].place != dump.entries[3].place
            assert dump.entries[0].content == dump.entries[2].content != dump.entries[1].content


def test_a_checksum_alone_links_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("aligner.dump.writer.checksum", lambda flat: 7)
    records = [record(i, np.full(4, i, "<f4")) for i in range(3)]
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        for one in records:
            writer.write(one)
        assert writer.bytes_written == 48


@pytest.mark.parametrize("place", [0, 6, 9, 12])
def test_any_byte_makes_another_content(tmp_path, monkeypatch, place):
    """Words are compared, and the bytes that are left over."""
    monkeypatch.setattr("aligner.dump.writer.checksum", lambda flat: 7)
    values = np.arange(13, dtype="u1")
    other = values.copy()
    other[place] += 100
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        for order, array in enumerate((values, other, values)):
            writer.write(record(order, array, "uint8"))
        assert writer.bytes_written == 39  # the last one is looked for where the second lies


def test_what_was_said_comes_back(tmp_path):
    layer = Layer("a.b", "torch.nn.Conv2d", LayerSpec("Conv2d", {"padding": ((1, 2), (3, 4)), "x": None}), False, True)
    structure = {"dict": [["k", {"tensor": "output.0.k"}], [3, {"value": float("-inf")}]]}
    call = Call(0, Phase.FORWARD, "a.b", 2, 5, None, {"args": []}, structure)
    note = Note("a.b", "dump-changed", {"path": "图", "n": 3, "none": None})
    with DumpWriter(tmp_path / "x.h5", {**HEADER, "seed": 3}) as writer:
        writer.layer(layer)
        writer.call(call)
        writer.note(note)
        writer.update_header(steps=7, dropout=None)
    with open_dump(tmp_path / "x.h5") as dump:
        assert dict(dump.layers) == {"a.b": layer}
        assert list(dump.calls) == [call]
        assert list(dump.notes) == [note]
        wanted = {"format": 1, "steps": 7, "seed": 3, "dropout": None, "complete": True, "model": "Net"}
        assert dump.header.items() >= wanted.items()
        assert dump.steps == []


class Stubborn:
    def __str__(self):
        raise RuntimeError("no")


def test_a_header_that_json_lacks_costs_nothing(tmp_path):
    loop: list[object] = []
    loop.append(loop)
    odd = {
        "number": np.float32(2.5),
        "count": np.int64(3),
        "flag": np.bool_(True),
        "set": {2, 1},
        "path": tmp_path,
        "bytes": b"\xff",
        "array": np.arange(3),
        "stubborn": Stubborn(),
        "loop": loop,
        "half": "\udc80",
        "keys": {(1, 2): 3},
        5: "five",
    }
    with DumpWriter(tmp_path / "x.h5", odd) as writer:
        writer.write(record(0, np.zeros(3, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert dump.header["number"] == 2.5
        assert dump.header["count"] == 3
        assert dump.header["flag"] is True
        assert dump.header["set"] == [1, 2]
        assert dump.header["path"] == str(tmp_path)
        assert dump.header["half"] == "\\udc80"
        assert dump.header["5"] == "five"
        assert len(dump.entries) == 1


def test_names_that_would_write_into_a_terminal_are_spelled_out(tmp_path):
    path = tmp_path / "x.h5"
    evil = "a\x1b[31m\nb\u202ec\udc80"
    with DumpWriter(path, HEADER) as writer:
        writer.layer(Layer(evil, evil, LayerSpec(evil, {evil: 1}), False, False))
        writer.write(record(0, np.zeros(3, "<f4"), layer=evil, slot=f"output.0.{evil}"))
        writer.call(Call(0, Phase.FORWARD, evil, 0, 0, 1, {"args": []}, {"none": True}))
        writer.note(Note(evil, "dump-changed", {"path": "x"}))
    with open_dump(path) as dump:
        spelled = "a\\x1b[31m\\nb\\u202ec\\udc80"
        assert list(dump.layers) == [spelled]
        assert dump.entries[0].key.layer == dump.calls[0].layer == dump.notes[0].layer == spelled
        assert dump.entries[0].key.slot == f"output.0.{spelled}"
    with h5py.File(path, "r") as file:
        assert all(name.isprintable() for name in file["step-0000/forward"])


def test_an_exception_closes_and_says_incomplete(tmp_path):
    def capture():
        with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
            writer.write(record(0, np.zeros(3, "<f4")))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture()
    with open_dump(tmp_path / "x.h5") as dump:
        assert not dump.complete
        assert not dump.recovered
        assert dump.header["complete"] is False
        assert len(dump.entries) == 1
    assert not path_of(tmp_path / "x.h5").exists()


def test_an_incomplete_capture_is_said(tmp_path):
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        writer.update_header(complete=False)
    with open_dump(tmp_path / "x.h5") as dump:
        assert not dump.complete


def test_an_empty_dump_is_a_dump(tmp_path):
    DumpWriter(tmp_path / "x.h5", {}).close()
    with open_dump(tmp_path / "x.h5") as dump, h5py.File(tmp_path / "x.h5", "r") as file:
        dump.verify()
        assert (len(dump), len(dump.entries), dump.steps) == (0, 0, [])
        assert sorted(file) == ["calls", "header", "index", "layers"]


def test_records_come_in_order_whatever_order_they_were_written_in(tmp_path):
    records = [record(order, np.full(3, order, "<f4")) for order in (5, 0, 3)]
    with open_dump(make(tmp_path / "x.h5", records)) as dump:
        assert [entry.order for entry in dump.entries] == [0, 3, 5]
        assert [entry.load()[0] for entry in dump.entries] == [0, 3, 5]


@pytest.mark.parametrize("order", [0, -1])
def test_an_order_number_is_given_once(tmp_path, order):
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        writer.write(record(0, np.zeros(3, "<f4")))
        with pytest.raises(DumpError, match="order number"):
            writer.write(record(order, np.zeros(3, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert len(dump.entries) == 1


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(np.zeros(3, "<f4"), "float7"), (np.zeros(3, "<f8"), "float32"), (np.zeros(3, "<f4"), "bfloat16"),
     (np.array(["a"]), "float32"), (np.array([None]), "float32")],
)  # fmt: skip
def test_a_value_that_is_not_what_it_is_called(tmp_path, array, dtype):
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        with pytest.raises(DumpError, match=f"{CONV} cannot be stored"):
            writer.write(record(0, array, dtype))
        writer.write(record(0, np.zeros(3, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert len(dump.entries) == 1


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = make(tmp_path / "x.h5", [record(0, np.zeros(3, "<f4"))])
    before = path.read_bytes()
    with pytest.raises(DumpError, match="exists already"):
        DumpWriter(path, HEADER)
    assert path.read_bytes() == before
    assert not path_of(path).exists()
    DumpWriter(path, HEADER, force=True).close()
    with open_dump(path) as dump:
        assert len(dump.entries) == 0


def test_a_dump_in_the_making_is_not_replaced(tmp_path):
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        writer.write(record(0, np.zeros(3, "<f4")))
        with pytest.raises(DumpError, match="another process"):
            DumpWriter(tmp_path / "x.h5", HEADER, force=True)
        writer.write(record(1, np.zeros(3, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert len(dump.entries) == 2


def test_an_abandoned_dump_can_be_replaced(tmp_path):
    abandon(DumpWriter(tmp_path / "x.h5", HEADER))
    DumpWriter(tmp_path / "x.h5", HEADER, force=True).close()
    with open_dump(tmp_path / "x.h5") as dump:
        assert not dump.recovered


@pytest.mark.parametrize("force", [False, True])
def test_places_where_no_dump_can_stand(tmp_path, force):
    with pytest.raises(DumpError, match="no folder"):
        DumpWriter(tmp_path / "none" / "x.h5", HEADER, force=force)
    with pytest.raises(DumpError, match="is a folder"):
        DumpWriter(tmp_path, HEADER, force=force)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DumpError, match="no folder"):
        DumpWriter(tmp_path / "file" / "x.h5", HEADER, force=force)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DumpError, match=r"exists already|not a regular file"):
        DumpWriter(tmp_path / "pipe", HEADER, force=force)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]


def test_closing_twice_is_harmless_and_nothing_is_taken_afterwards(tmp_path):
    writer = DumpWriter(tmp_path / "x.h5", HEADER)
    writer.close()
    writer.close(complete=False)
    with pytest.raises(DumpError, match="closed already"):
        writer.write(record(0, np.zeros(3, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert dump.complete


def test_a_fork_does_not_disturb_the_dump(tmp_path):
    writer = DumpWriter(tmp_path / "x.h5", HEADER)
    writer.write(record(0, np.zeros(3, "<f4")))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.write(record(1, np.ones(3, "<f4")))
        except DumpError:
            writer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(record(1, np.full(3, 2, "<f4")))
    writer.close()
    with open_dump(tmp_path / "x.h5") as dump:
        assert [entry.load()[0] for entry in dump.entries] == [0, 2]


def test_threads_may_write_together(tmp_path):
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:

        def some(first):
            for order in range(first, 400, 4):
                writer.write(record(order, np.full(1000, order, "<f4")))

        threads = [threading.Thread(target=some, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_dump(tmp_path / "x.h5") as dump:
        assert [entry.order for entry in dump.entries] == list(range(400))
        assert all(bool((entry.load() == entry.order).all()) for entry in dump.entries)


def test_the_first_lines_are_for_people(tmp_path):
    path = make(tmp_path / "x.h5", [])
    head = path.read_bytes()[:512].decode("ascii")
    assert head.startswith("aligner dump, format 1: an HDF5 file behind this block of 512 bytes")
    assert head.endswith("\n")


def test_values_are_those_of_the_moment(tmp_path):
    values = np.zeros(1000, "<f4")
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        writer.write(record(0, values))
        values += 1
        writer.write(record(1, values))
    with open_dump(tmp_path / "x.h5") as dump:
        assert [entry.load()[5] for entry in dump.entries] == [0, 1]


def test_key_of_numpy_numbers(tmp_path):
    where = Key(np.int64(1), Phase.FORWARD, "a", np.int64(2), "output.0")
    with DumpWriter(tmp_path / "x.h5", HEADER) as writer:
        writer.write(Record(where, np.int64(4), "float32", np.zeros(2, "<f4")))
    with open_dump(tmp_path / "x.h5") as dump:
        assert dump.find(Key(1, Phase.FORWARD, "a", 2, "output.0")).order == 4
        assert dump.find(key(9)) is None
        assert bits("float32", (2,)).shape == (2,)


@pytest.mark.parametrize("name", ["l%d", "编码器.层%d", "\u200bx%d", "very.long." * 20 + "%d"])
@pytest.mark.parametrize(("dtype", "shape"), [("float32", ()), ("complex128", (1,) * 12), ("bool", (2, 3))])
@pytest.mark.parametrize("steps", [1, 7, 300])
def test_the_room_that_was_kept_is_enough_to_close(tmp_path, name, dtype, shape, steps):
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    for i in range(300):
        layer = name % i
        writer.layer(Layer(layer, "torch.nn.Linear", LayerSpec("Linear", {"in_features": i}), False, False))
        where = Key(i % steps, Phase.FORWARD, layer, 0, f"output.{i}")
        writer.write(Record(where, i, dtype, np.full(shape, i, DTYPES[dtype].storage)))
        writer.call(Call(i % steps, Phase.FORWARD, layer, 0, i, i, {"args": [{"value": i}]}, {"tensor": "output.0"}))
        writer.note(Note(layer, "dump-changed", {"path": "x"}))
    kept, end = writer._room, writer._file.end
    writer.close()
    assert path.stat().st_size - end <= kept


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "by its journal"])
def test_findings_are_kept_beside_the_records(tmp_path, closed):
    writer = DumpWriter(tmp_path / "net.h5", {})
    writer.finding("check", {"layer": "conv", "error": 1.5e-3, "inf": float("inf"), "between": ["a", ""]})
    writer.finding("trial", {"cause": "eps\x1b"})
    if closed:
        writer.close()
    with open_dump(tmp_path / "net.h5") as dump:
        assert dump.recovered is not closed
        dump.verify()
        first, second = dump.findings
    assert first == ("check", {"layer": "conv", "error": 1.5e-3, "inf": float("inf"), "between": ["a", ""]})
    assert second[0] == "trial"
    assert "\x1b" not in second[1]["cause"]
    writer.close()


def test_findings_survive_recovery(tmp_path):
    writer = DumpWriter(tmp_path / "net.h5", {})
    writer.finding("check", {"layer": "conv"})
    writer._file.close()
    writer._journal.close()
    recover(tmp_path / "net.h5")
    with open_dump(tmp_path / "net.h5") as dump:
        assert not dump.recovered
        assert dump.findings == [("check", {"layer": "conv"})]

"""A .pth is read without torch, and nothing that it names is run."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from aligner.errors import CheckpointError
from aligner.weights.opening import open_checkpoint
from tests.unit.weights import written


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_a_file_names_is_not_run(tmp_path, protocol):
    mark = tmp_path / "mark"
    path = written.pickle_zip(tmp_path / "evil.pth", pickle.dumps({"a": Evil(mark)}, protocol))
    with pytest.raises(CheckpointError, match=r"it names (posix|nt|os)\.system"):
        open_checkpoint(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists(), "the test would see it"


@pytest.mark.parametrize(
    "name", ["builtins eval", "builtins getattr", "torch load", "torch.hub load", "numpy.f2py.diagnose run", "x y"]
)
def test_only_listed_names_are_taken(tmp_path, name):
    text = f"\x80\x02}}X\x01\x00\x00\x00ac{name.replace(' ', chr(10))}\n)Rs.".encode("latin1")
    with pytest.raises(CheckpointError, match=name.replace(" ", r"\.")):
        open_checkpoint(written.pickle_zip(tmp_path / "a.pth", text))


OPCODES = {
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "unknown": b"\x80\x02\xfe.",
    "old": b"(I1\nI2\nd.",
    "short": b"\x80\x02}X\xff\xff\xff\x7fabc",
    "empty": b"",
    "no-stop": b"\x80\x02}",
    "get": b"\x80\x02h\x07.",
    "odd": b"\x80\x02}(K\x01u.",
    "mark": b"\x80\x02u.",
    "long": b"\x80\x02\x8b\xff\xff\xff\xffab.",
    "call": b"\x80\x02K\x01)R.",
    "id": b"\x80\x02K\x01Q.",
}


@pytest.mark.parametrize("data", OPCODES.values(), ids=OPCODES)
def test_damaged_pickles_are_refused(tmp_path, data):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(written.pickle_zip(tmp_path / "a.pth", data))
    assert caught.value.exit_code == 3


def nested_wrappers(depth):
    inner = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    head = b"\x80\x02" + inner + (b"(" + inner + b"ctorch\nTensor\n") * depth
    return head + b")" + b"}t" * depth + b"R."


@pytest.mark.parametrize(
    "data",
    [
        nested_wrappers(5000),
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        # a key that would take 2 ** 60 steps to hash
        b"\x80\x02})q\x01" + b"".join(b"h\x01h\x01\x86q\x01" for _ in range(60)) + b"K\x01s.",
    ],
    ids=["wrappers", "lists", "key"],
)
def test_deep_pickles_end_at_once(tmp_path, data):
    with pytest.raises(CheckpointError):
        open_checkpoint(written.pickle_zip(tmp_path / "a.pth", data))


def tensor(start, shape, strides, count=6, storage=b"FloatStorage"):
    def numbers(values):
        return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"

    place = b"(X\x07\x00\x00\x00storagectorch\n%s\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" % storage
    place += b"\x8a\x08" + struct.pack("<q", count) + b"tQ"
    rest = b"\x8a\x08" + struct.pack("<q", start) + numbers(shape) + numbers(strides)
    table = b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
    return table + place + rest + b"\x89}tRs."


@pytest.mark.parametrize(
    ("start", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (5, (2,), (1,)),
        (-1, (2,), (1,)),
        (0, (2, 2), (4, 3)),
        (0, (2,), (-1,)),
        (0, (1 << 40, 1 << 40), (0, 0)),
        (0, (1 << 62,), (1,)),
        (0, (2, 3), (3,)),
        (0, (1,) * 40, (1,) * 40),
    ],
)
def test_tensors_outside_their_storage_are_refused(tmp_path, start, shape, strides):
    path = written.pickle_zip(tmp_path / "a.pth", tensor(start, shape, strides), data__0=bytes(24))
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("start", "shape", "strides"),
    [
        (0, (2, 3), (3, 1)),
        (0, (3, 2), (1, 3)),
        (1, (2, 2), (3, 1)),
        (2, (), ()),
        (0, (4, 3), (0, 1)),
        (0, (0, 9), (9, 1)),
    ],
)
def test_views_are_what_numpy_makes_of_them(tmp_path, start, shape, strides):
    data = np.arange(6, dtype="<f4")
    path = written.pickle_zip(tmp_path / "a.pth", tensor(start, shape, strides), data__0=data.tobytes())
    (weight,) = open_checkpoint(path).weights
    wanted = np.lib.stride_tricks.as_strided(data[start:], shape, [4 * step for step in strides])
    assert np.array_equal(weight.load(), wanted)
    pieces = [piece.copy() for piece in weight.stored.stream(np.empty(16, np.uint8))]
    assert np.array_equal(np.concatenate([*pieces, np.empty(0, np.float32)]), wanted.reshape(-1))


def test_a_storage_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="beyond its storage"):
        open_checkpoint(written.pickle_zip(tmp_path / "a.pth", tensor(0, (2,), (1,))))


def test_archives_that_are_compressed_or_cut_are_refused(tmp_path):
    path = written.write(tmp_path / "a.pth", written.random(w=(50, 50)))
    whole = (tmp_path / "a.pth").read_bytes()
    for size in (0, 10, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pth").write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(str(tmp_path / "cut.pth"))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "z.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(CheckpointError, match="compressed"):
        open_checkpoint(str(tmp_path / "z.pth"))


def test_damage_anywhere_is_an_error_or_another_value(tmp_path):
    """Any byte may be wrong: either the file is refused, or its tensors can be read."""
    written.write(tmp_path / "a.pth", written.random(w=(3, 4), b=(4,)))
    whole = (tmp_path / "a.pth").read_bytes()
    draw = np.random.default_rng(zlib.crc32(b"pth"))
    for _ in range(400):
        data = bytearray(whole)
        for place in draw.integers(0, len(whole), draw.integers(1, 4)):
            data[place] = draw.integers(0, 256)
        (tmp_path / "b.pth").write_bytes(data)
        try:
            opened = open_checkpoint(str(tmp_path / "b.pth"))
        except CheckpointError:
            continue
        for weight in opened.weights:
            assert weight.stored.raw().nbytes == weight.stored.nbytes
        opened.close()


TORCH_OBJECTS = ["plain", "wrapped", "lightning", "two", "old", "parameters", "numbers"]


@pytest.mark.parametrize("kind", TORCH_OBJECTS)
def test_what_torch_saves_is_read(tmp_path, kind):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net[2](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    table = net.state_dict()
    saved = {
        "plain": table,
        "wrapped": {"epoch": 3, "model_state_dict": table, "optimizer": optimizer.state_dict(), "best": np.float64(1)},
        "lightning": {"state_dict": table, "pytorch-lightning_version": "2.0", "optimizer_states": []},
        "two": {"generator_net": table, "critic": table, "optim_g": optimizer.state_dict()},
        "old": table,
        "parameters": dict(net.named_parameters()),
        "numbers": {**table, "note": "text", "count": 3},
    }[kind]
    torch.save(saved, tmp_path / "a.pth", **({"_use_new_zipfile_serialization": False} if kind == "old" else {}))
    opened = open_checkpoint(str(tmp_path / "a.pth"))
    names = {weight.name: weight for weight in opened.weights}
    if kind == "two":
        assert set(names) == {f"{part}.{name}" for part in ("generator_net", "critic") for name in table}
        table = {f"critic.{name}": value for name, value in table.items()}
    wanted = dict(net.named_parameters()) if kind == "parameters" else table
    for name, value in wanted.items():
        assert np.array_equal(names[name].load(), value.detach().numpy())
    assert "optimizer" not in names
    assert {"wrapped": 3, "lightning": 2, "two": 1, "numbers": 2}.get(kind, 0) == len(opened.left)


@pytest.mark.parametrize("old", [False, True])
def test_every_type_of_torch_is_read(tmp_path, old):
    torch = pytest.importorskip("torch")
    words = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "complex64",
        "complex128",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
    ]
    words += [word for word in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, word)]
    table = {word: torch.arange(6.0).reshape(2, 3).to(getattr(torch, word)) for word in words}
    table["turned"] = torch.arange(6.0).reshape(2, 3).t()
    table["scalar"] = torch.tensor(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table["quantized"] = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    table["sparse"] = torch.eye(2).to_sparse()
    torch.save(table, tmp_path / "a.pth", _use_new_zipfile_serialization=not old)
    opened = open_checkpoint(str(tmp_path / "a.pth"))
    assert [entry.name for entry in opened.left] == ["quantized", "sparse"]
    for weight in opened.weights:
        assert np.array_equal(weight.load(), table[weight.name].to(wide(torch, table[weight.name])).numpy())
        assert weight.dtype == str(table[weight.name].dtype).split(".")[1]


def wide(torch, value):
    return torch.float32 if "float8" in str(value.dtype) or value.dtype is torch.bfloat16 else value.dtype


def test_what_is_no_table_is_told(tmp_path):
    torch = pytest.importorskip("torch")
    for saved, found in (
        (torch.ones(2), "it holds tensor"),
        ([torch.ones(2)], "it holds list"),
        ({"a": 1}, "no tensors"),
    ):
        torch.save(saved, tmp_path / "a.pth")
        with pytest.raises(CheckpointError, match=found):
            open_checkpoint(str(tmp_path / "a.pth"))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"it names torch\.nn\.modules\.linear\.Linear"):
        open_checkpoint(str(tmp_path / "a.pth"))
    (tmp_path / "b.pth").write_bytes(pickle.dumps({"a": 1}, 2))
    with pytest.raises(CheckpointError, match="has not written"):
        open_checkpoint(str(tmp_path / "b.pth"))

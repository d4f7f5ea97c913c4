"""safetensors, MindSpore's .ckpt, and folders of shards: read as they are, refused where they are damaged."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from aligner.errors import CheckpointError, ConvertError
from aligner.weights import ckpt, output
from aligner.weights.opening import is_weights, open_checkpoint
from tests.unit.weights import written

NAMES = {"a.weight": (3, 4), "a.bias": (4,), "n": ()}


def arrays():
    return written.random(a__weight=(3, 4), a__bias=(4,), n=())


@pytest.mark.parametrize("ending", [".pth", ".ckpt", ".safetensors", ".bin"])
def test_what_we_write_we_read(tmp_path, ending):
    path = written.write(tmp_path / f"a{ending}", arrays())
    opened = open_checkpoint(path)
    assert is_weights(path)
    assert {weight.name: weight.shape for weight in opened.weights} == NAMES
    for weight in opened.weights:
        assert np.array_equal(weight.load(), arrays()[weight.name])
    opened.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"a{ending}"], "nothing is left beside it"


@pytest.mark.parametrize("ending", [".pth", ".ckpt", ".safetensors"])
def test_damage_is_an_error_or_another_value(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    written.write(path, arrays())
    whole, draw = path.read_bytes(), np.random.default_rng(3)
    for number in range(400):
        data = bytearray(whole[: draw.integers(0, len(whole))] if number % 4 == 0 else whole)
        for place in draw.integers(0, max(len(data), 1), draw.integers(0, 4)):
            if data:
                data[place] = draw.integers(0, 256)
        path.write_bytes(data)
        try:
            opened = open_checkpoint(str(path))
        except CheckpointError:
            continue
        for weight in opened.weights:
            assert weight.stored.raw().nbytes == weight.stored.nbytes
        opened.close()


HEADERS = {
    "overlap": {"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [4, 12])},
    "hole": {"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [12, 16])},
    "outside": {"a": ("F32", [4], [0, 16]), "b": ("F32", [4], [16, 32])},
    "more": {"a": ("F32", [2], [0, 8])},
    "size": {"a": ("F32", [3], [0, 8]), "b": ("F32", [2], [8, 16])},
    "turned": {"a": ("F32", [2], [8, 0])},
    "negative": {"a": ("F32", [-2], [0, 16])},
    "words": {"a": ("F32", "2", [0, 16])},
    "huge": {"a": ("U8", [1 << 60], [0, 1 << 60])},
}


def safetensors(path, header, data=bytes(16)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_places_that_are_none_are_refused(tmp_path, header):
    table = {name: dict(zip(("dtype", "shape", "data_offsets"), said)) for name, said in header.items()}
    with pytest.raises(CheckpointError):
        open_checkpoint(safetensors(tmp_path / "a.safetensors", table))


@pytest.mark.parametrize(
    "text",
    [
        b"{}x",
        b"{" * 5000,
        b'{"a":1,"a":2}',
        b'{"a":[]}',
        b'{"a":{"dtype":"F32"}}',
        b'{"\\ud800":1}',
        b'{"a":' + b"9" * 9000 + b"}",
    ],
)
def test_headers_that_are_none_are_refused(tmp_path, text):
    with pytest.raises(CheckpointError):
        open_checkpoint(safetensors(tmp_path / "a.safetensors", text, b""))


def test_a_type_that_is_not_known_is_left_out(tmp_path):
    table = {
        "a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
    opened = open_checkpoint(safetensors(tmp_path / "a.safetensors", table))
    assert ([w.name for w in opened.weights], [entry.name for entry in opened.left]) == (["b"], ["a"])


def test_a_large_tensor_of_a_ckpt_lies_in_several_values(tmp_path, monkeypatch):
    monkeypatch.setattr(ckpt, "SLICE", 100)
    path = written.write(tmp_path / "a.ckpt", written.random(w=(20, 7), v=(25,), b=(1,)))
    data = (tmp_path / "a.ckpt").read_bytes()
    assert data.count(b"\x0a\x01w") == 6
    opened = open_checkpoint(path)
    for weight in opened.weights:
        assert np.array_equal(weight.load(), written.random(w=(20, 7), v=(25,), b=(1,))[weight.name])
        pieces = [piece.copy() for piece in weight.stored.stream(np.empty(64, np.uint8))]
        assert [piece.size for piece in pieces[:-1]] == [16] * (len(pieces) - 1)


def value(name, kind, dims, content):
    def run(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    sizes = b"".join(b"\x08" + ckpt._varint(size) for size in dims)
    return run(1, run(1, name) + run(2, sizes + run(2, kind) + run(3, content)))


def test_strings_optimizers_and_numbers_of_a_training_are_left_out(tmp_path):
    data = value(b"a.w", b"Float32", [2], bytes(8)) + value(b"note", b"str", [0], bytes(8))
    data += value(b"moment1.a.w", b"Float32", [2], bytes(8)) + value(b"moment1.b", b"Float32", [2], bytes(8))
    data += value(b"epoch_num", b"Int32", [], bytes(4)) + value(b"old", b"Float32", [0], bytes(4))
    (tmp_path / "a.ckpt").write_bytes(data)
    opened = open_checkpoint(str(tmp_path / "a.ckpt"))
    assert [(w.name, w.shape) for w in opened.weights] == [("a.w", (2,)), ("moment1.b", (2,)), ("old", ())]
    assert [entry.name for entry in opened.left] == ["note", "moment1.a.w", "epoch_num"]


@pytest.mark.parametrize(
    "data",
    [
        value(b"a", b"Float32", [3], bytes(8)),
        value(b"a", b"Float32", [2], bytes(8))
        + value(b"b", b"Int8", [1], b"1")
        + value(b"a", b"Float32", [2], bytes(8)),
        value(b"a", b"Float32", [4], bytes(8)) + value(b"a", b"Float16", [4], bytes(8)),
        value(b"a", b"Float32", [1 << 62], bytes(8)),
        value(b"\xff", b"Float32", [2], bytes(8)),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x0a\x80",
        b"\x0a\x02\x0b\x00",
    ],
)
def test_a_ckpt_that_is_damaged_is_refused(tmp_path, data):
    (tmp_path / "a.ckpt").write_bytes(data)
    with pytest.raises(CheckpointError):
        open_checkpoint(str(tmp_path / "a.ckpt"))


def shards(folder, index=True):
    folder.mkdir()
    table = {}
    for number, name in enumerate(("a.weight", "b.weight"), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        written.write(folder / shard, written.random(number, **{name.replace(".", "__"): (2, 2)}))
        table[name] = shard
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return table


def test_shards_are_one_checkpoint(tmp_path):
    for number, index in enumerate((True, False)):
        shards(tmp_path / str(number), index)
        opened = open_checkpoint(str(tmp_path / str(number)))
        assert [weight.name for weight in opened.weights] == ["a.weight", "b.weight"]
        opened.close()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"b.weight": "../other.safetensors"}, "another form|header"),
        ({"b.weight": "none.safetensors"}, "lacks none.safetensors"),
        ({"c.weight": "model-00001-of-00002.safetensors"}, "no shard holds"),
        ({"b.weight": 3}, "header"),
    ],
)
def test_an_index_that_does_not_fit_is_told(tmp_path, change, found):
    table = {**shards(tmp_path / "a"), **change}
    (tmp_path / "a" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(str(tmp_path / "a"))


def test_other_folders_are_told(tmp_path):
    (tmp_path / "rank_0").mkdir()
    with pytest.raises(CheckpointError, match="distributed"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "rank_0").rmdir()
    with pytest.raises(CheckpointError, match="no shards"):
        open_checkpoint(str(tmp_path))
    written.write(tmp_path / "a.pth", arrays())
    written.write(tmp_path / "b.pth", arrays())
    with pytest.raises(CheckpointError, match=r"two files hold a tensor called a\.weight"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "found"),
    [(b"", "is empty"), (b"GGUF1234", "GGUF"), (b"\x93NUMPY\x01", "npy"), (b"hello, world", "known here")],
)
def test_what_is_no_checkpoint_is_named(tmp_path, data, found):
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(str(tmp_path / "a.pth"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(str(tmp_path / "none.pth"))


def test_nothing_is_written_over_and_nothing_half(tmp_path, monkeypatch):
    path = written.write(tmp_path / "a.ckpt", arrays())
    with pytest.raises(ConvertError, match="--force"):
        output.check_place(path, str(tmp_path / "b.pth"), False)
    with pytest.raises(ConvertError, match="is what is to be converted"):
        output.check_place(path, path, True)
    with pytest.raises(ConvertError, match="no folder"):
        output.check_place(str(tmp_path / "x" / "a.ckpt"), path, True)
    before = (tmp_path / "a.ckpt").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "_written", fail)
    with pytest.raises(ConvertError, match="No space left"):
        written.write(path, written.random(w=(2,)))
    assert [each.name for each in tmp_path.iterdir()] == ["a.ckpt"]
    assert (tmp_path / "a.ckpt").read_bytes() == before


def test_a_file_is_what_its_bytes_say(tmp_path):
    """Lightning calls a .pth a .ckpt."""
    written.write(tmp_path / "a.pth", arrays())
    (tmp_path / "a.pth").rename(tmp_path / "a.ckpt")
    opened = open_checkpoint(str(tmp_path / "a.ckpt"))
    assert (opened.form, len(opened.weights)) == ("pth", 3)
    opened.close()


@pytest.mark.parametrize("kind", ["Adam", "Momentum", "RMSProp", "AdamWeightDecay"])
def test_what_an_optimizer_of_mindspore_keeps_is_left_out(tmp_path, kind):
    mindspore = pytest.importorskip("mindspore")
    nn = mindspore.nn
    net = nn.SequentialCell(nn.Dense(4, 3), nn.BatchNorm1d(3), nn.Dense(3, 2))
    optimizer = getattr(nn, kind)(net.trainable_params(), *((0.1, 0.9) if kind == "Momentum" else ()))
    training = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    own = {p.name for p in net.get_parameters()}
    mindspore.save_checkpoint(training, str(tmp_path / "a.ckpt"), append_dict={"epoch_num": 1, "step_num": 3})
    opened = open_checkpoint(str(tmp_path / "a.ckpt"))
    assert {weight.name for weight in opened.weights} == own
    assert len(opened.left) > 4
    opened.close()


def test_what_mindspore_writes_is_read(tmp_path):
    mindspore = pytest.importorskip("mindspore")
    net = mindspore.nn.SequentialCell(
        mindspore.nn.Conv1d(3, 4, 3), mindspore.nn.BatchNorm2d(4), mindspore.nn.Dense(4, 2)
    )
    number = mindspore.Parameter(mindspore.Tensor(np.arange(3), mindspore.bfloat16), name="short")
    net.insert_param_to_cell("short", number)
    held = {p.name: p.asnumpy().copy() for _, p in net.parameters_and_names() if p.name != "short"}
    ways = [("a.ckpt", {}), ("crc.ckpt", {"crc_check": True}), ("a.safetensors", {"format": "safetensors"})]
    for name, options in ways:
        path = str(tmp_path / name)
        mindspore.save_checkpoint(net, path, append_dict={"epoch": 3} if name == "a.ckpt" else None, **options)
        opened = open_checkpoint(path)
        found = {weight.name: weight for weight in opened.weights}
        assert set(found) == {*held, "short"}
        assert found["short"].dtype == "bfloat16"
        assert np.array_equal(found["short"].load(), [0, 1, 2])
        for each, values in held.items():
            assert np.array_equal(found[each].load(), values)
    data = bytearray((tmp_path / "crc.ckpt").read_bytes())
    data[60] ^= 1
    (tmp_path / "bad.ckpt").write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum"):
        open_checkpoint(str(tmp_path / "bad.ckpt"))
    mindspore.save_checkpoint(net, str(tmp_path / "enc.ckpt"), enc_key=b"0123456789abcdef")
    with pytest.raises(CheckpointError, match="is encrypted"):
        open_checkpoint(str(tmp_path / "enc.ckpt"))

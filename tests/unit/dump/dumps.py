"""Dumps made for tests, and what is in them."""

from __future__ import annotations

import json
import zlib

import numpy as np

from aligner.dtypes import DTYPES
from aligner.dump import userblock
from aligner.dump.writer import DumpWriter
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record

HEADER = {"framework": "torch", "model": "Net", "steps": 1}
CONV = "layer1.0.conv1"
SHAPES = ((), (0, 3), (2, 3), (5,), (70, 300))


def key(number, layer=CONV, slot="output.0", phase=Phase.FORWARD, step=0):
    return Key(step, phase, layer, number, slot)


def record(order, array, dtype="float32", **where):
    return Record(key(order, **where), order, dtype, array)


def bits(dtype, shape, seed=0):
    """Random bits of a dtype: every pattern may occur, NaN and Inf too."""
    storage = DTYPES[dtype].storage
    count = int(np.prod(shape)) * storage.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count, dtype=np.uint8)
    return raw.view(storage).reshape(shape)


def every_kind():
    """One record of each dtype and shape."""
    return [
        record(number, bits(dtype, shape, number), dtype)
        for number, (dtype, shape) in enumerate((dtype, shape) for dtype in DTYPES for shape in SHAPES)
    ]


def fill(writer, records):
    """Layers, the records, a call and a note."""
    writer.layer(Layer("", "Net", LayerSpec("Net"), True, False))
    spec = LayerSpec("Conv2d", {"kernel_size": (3, 3), "padding": ((1, 1), (1, 1)), "bias": True, "groups": 1})
    writer.layer(Layer(CONV, "torch.nn.Conv2d", spec, False, False))
    for one in records:
        writer.write(one)
    structure = {"args": [{"tensor": "input.0"}, {"value": float("inf")}, {"none": True}]}
    writer.call(Call(0, Phase.FORWARD, CONV, 0, 1, len(records), structure, {"tensor": "output.0"}))
    writer.call(Call(0, Phase.FORWARD, "", 0, 0, None, {"args": []}, {"none": True}))
    writer.note(Note(CONV, "dump-changed", {"path": "x"}))


def make(path, records, **header):
    with DumpWriter(path, {**HEADER, **header}) as writer:
        fill(writer, records)
    return path


def same(entry, one):
    """Exact bits, type and shape."""
    raw = entry.raw()
    wanted = np.asarray(one.array)
    return (
        raw.tobytes() == wanted.astype(DTYPES[one.dtype].storage).tobytes()
        and raw.shape == wanted.shape
        and (entry.key, entry.order, entry.dtype, entry.shape) == (one.key, one.order, one.dtype, wanted.shape)
    )


def abandon(writer):
    """Leave a dump as `kill -9` leaves it: nothing more is written, and the lock is gone."""
    writer._open = False
    writer._file.close()
    writer._journal.close()


def forged(path, name, text):
    """Put other text into a section of a closed dump, or take it all away; every checksum fits again."""
    whole = path.read_bytes()
    block = userblock.decode(whole[: userblock.SIZE])
    out, places = bytearray(whole[: block.seal.offset]), {}
    for word, place in block.sections.items():
        data = text if word == name else whole[place.offset : place.offset + place.size]
        places[word] = userblock.Section(len(out), len(data), zlib.crc32(data))
        out += data
    start = block.seal.offset
    seal = userblock.Section(start, len(out) - start, zlib.crc32(out[start:], zlib.crc32(out[512:608])))
    out[:512] = userblock.encode(userblock.UserBlock(block.token, True, len(out), places, seal))
    path.write_bytes(out)
    return path


def section(path, name):
    """A section's JSON."""
    whole = path.read_bytes()
    place = userblock.decode(whole[: userblock.SIZE]).sections[name]
    return json.loads(whole[place.offset : place.offset + place.size])

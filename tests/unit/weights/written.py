"""Small checkpoints for the tests, written by us without a framework."""

from __future__ import annotations

import zipfile

import numpy as np

from aligner.dtypes import DTYPES, encode
from aligner.dtypes import decode as decode
from aligner.weights import output


class Array:
    """An array as something that is stored."""

    def __init__(self, values, dtype="float32"):
        self.dtype = dtype
        self.bits = np.ascontiguousarray(encode(np.asarray(values), dtype), DTYPES[dtype].storage)
        self.bits = self.bits.reshape(np.shape(values))
        self.shape = tuple(self.bits.shape)
        self.nbytes = self.bits.nbytes

    def raw(self):
        return self.bits

    def stream(self, buffer, verify=True):
        step = buffer.size // self.bits.itemsize
        flat = self.bits.reshape(-1)
        for at in range(0, flat.size, step):
            yield flat[at : at + step].copy()


def write(path, tensors, dtype="float32", words="torch"):
    """A checkpoint of the form that the ending says; `tensors` are arrays, or Arrays, by name."""
    stored = {name: each if isinstance(each, Array) else Array(each, dtype) for name, each in tensors.items()}
    entries = [output.Entry(name, one.shape, one) for name, one in stored.items()]
    output.write(str(path), output.form_of(str(path)), words, entries)
    return str(path)


def pickle_zip(path, pickle, **members):
    """A zip as torch writes it, with this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/version", "3\n")
        for name, data in members.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", data)
    return str(path)


def random(seed=0, **shapes):
    """Arrays of these shapes."""
    draw = np.random.default_rng(seed)
    return {name.replace("__", "."): draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

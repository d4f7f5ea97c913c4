"""The encoder against the HDF5 library itself."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from h5py import h5t

from aligner.dtypes import DTYPES
from aligner.dump import hdf5

# h5py 3.1 warns about itself when it reads a scalar.
pytestmark = pytest.mark.filterwarnings("ignore:Passing None into shape:DeprecationWarning")


def library_type(name):
    """The type as the HDF5 library encodes it."""
    if name == "bfloat16":
        made = h5t.IEEE_F16LE.copy()
        made.set_fields(15, 7, 8, 0, 7)
        made.set_ebias(127)
        return made
    if name.startswith("float8"):
        made = h5t.IEEE_F16LE.copy()
        exponent, bias = (4, 7) if "e4m3" in name else (5, 15)
        made.set_fields(7, 7 - exponent, exponent, 0, 7 - exponent)
        made.set_ebias(bias)
        made.set_precision(8)
        made.set_size(1)
        return made
    return h5t.py_create(np.dtype(name).newbyteorder("<"), logical=True)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_types_are_those_of_the_library(name):
    assert h5t.decode(b"\x03\x00" + hdf5.types()[name]).equal(library_type(name))


def test_every_dtype_has_a_type():
    assert set(hdf5.types()) == set(DTYPES)


def write(path, count):
    """A file with a group of `count` datasets that share four numbers, an empty dataset and a text."""
    data = np.arange(4, dtype="<f4")
    start = hdf5.BASE + hdf5.SUPERBLOCK_SIZE
    structure = hdf5.Structure(start + data.nbytes)
    members = {
        b"%06d layer.%d" % (i, i): structure.place(hdf5.dataset(hdf5.types()["float32"], (2, 2), start, 16, 1))
        for i in range(count)
    }
    text = '{"a": "标杆"}'.encode()
    at = structure.place(text) + hdf5.BASE
    root = {
        b"group": structure.group(members)[0],
        b"text": structure.place(hdf5.dataset(hdf5.text_type(len(text)), (), at, len(text), 1)),
        b"empty": structure.place(hdf5.dataset(hdf5.types()["bfloat16"], (0, 3), 0, 0, 1)),
    }
    group = structure.group(root)
    end = structure.start + len(structure.content)
    content = bytes(hdf5.BASE) + hdf5.superblock(group, end) + data.tobytes() + bytes(structure.content)
    path.write_bytes(content)
    return data.reshape(2, 2), text


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 64, 255, 256, 257, 8191, 8192, 8193])
def test_the_library_finds_every_name(tmp_path, count):
    data, text = write(tmp_path / "x.h5", count)
    with h5py.File(tmp_path / "x.h5", "r") as file:
        names = list(file["group"])
        assert names == sorted(f"{i:06d} layer.{i}" for i in range(count))
        for name in names[:: max(1, count // 100)]:
            assert np.array_equal(file["group"][name][()], data)
        assert "000007 layer.8" not in file["group"]
        assert file["text"][()] == text
        assert file["empty"].shape == (0, 3)


@pytest.mark.parametrize("count", [1, 33, 3000])
def test_the_library_can_change_the_file(tmp_path, count):
    write(tmp_path / "x.h5", count)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        first = next(iter(file["group"]))
        del file["group"][first]
        file["group"]["zz"] = np.arange(3)
        file["group"].attrs["note"] = "added"
        for i in range(200):
            file[f"group/more {i}"] = i
    with h5py.File(tmp_path / "x.h5", "r") as file:
        assert len(file["group"]) == count + 200
        assert file["group"].attrs["note"] == "added"
        assert file["group/more 150"][()] == 150

"""Files with holes: gigabytes that take no room on the disk take no memory either, and terabytes are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from aligner.cli import main
from aligner.dump.reader import open_dump
from aligner.ingest import holes, npy
from tests.unit.ingest.folder import small

NAME = "Default_extra-Tanh_Tanh-op0"

PEAK = """
import resource, sys
from aligner.cli import main
from aligner.ingest import npy
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
if sys.argv[1] == "load":
    word, array = npy.load(sys.argv[2], sys.argv[3])
    assert not array.reshape(-1)[1 << 20:].any()
else:
    assert main(["import", sys.argv[2], "-o", sys.argv[3], "-q"]) == 0
print(peak() - before)
"""


def hollow(path, count, descr="<f4", fortran=False, first=(), last=()):
    """An array of `count` elements of which only these are written."""
    shape = (count // 1024, 1024)
    body = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode().ljust(117) + b"\n"
    data = np.array(first, descr).tobytes(), np.array(last, descr).tobytes()
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + data[0])
        file.seek(len(body) + 10 + count * np.dtype(descr).itemsize - len(data[1]))
        file.write(data[1])
        file.truncate(len(body) + 10 + count * np.dtype(descr).itemsize)
    return path


def grown(*arguments):
    """MB that a process takes for this."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, arguments)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize(("descr", "named"), [("<f4", "Float32"), ("<f4", "BFloat16"), (">f4", "Float32")])
def test_two_gigabytes_of_holes_take_no_memory(tmp_path, descr, named):
    """It was their apparent size, and three times that where numbers were converted."""
    path = hollow(tmp_path / "x.npy", 1 << 29, descr, first=[1.5])
    if os.stat(path).st_blocks * 512 > 1 << 20:
        pytest.skip("this disk has no holes")
    assert grown("load", path, named) < 64


def test_an_import_takes_memory_for_what_the_disk_holds(tmp_path):
    folder, _ = small(tmp_path / "ms")
    hollow(folder.value("Tanh", NAME, "output", 0, np.zeros(1, np.float32)), 1 << 26)
    out = tmp_path / "port.h5"
    assert grown("import", tmp_path / "ms", out) < 128
    with open_dump(out) as dump:
        (entry,) = (entry for entry in dump.entries if entry.key.layer == "extra" and entry.nbytes == 1 << 28)
        assert entry.statistics().maximum == 0


@pytest.mark.parametrize("descr", ["<f4", "<f2", "<i8", "<c8", "|b1", ">f8"])
def test_what_is_not_a_hole_is_read_as_ever(tmp_path, descr):
    first, last = [1, 0, 1], [0, 1]
    path = hollow(tmp_path / "x.npy", 1 << 20, descr, first=first, last=last)
    word, array = npy.load(str(path), "")
    wanted = np.load(path)
    assert array.shape == wanted.shape == (1024, 1024)
    assert np.array_equal(array, wanted)
    assert word == wanted.dtype.newbyteorder("=").name


def test_minus_zero_is_no_hole(tmp_path):
    path = hollow(tmp_path / "x.npy", 1 << 20, "<f4", first=[-0.0])
    _, bits = npy.load(str(path), "BFloat16")
    assert bits.reshape(-1)[0] == 0x8000


def test_a_disk_that_cannot_tell_holes_is_read_as_a_whole(tmp_path, monkeypatch):
    path = hollow(tmp_path / "x.npy", 1 << 20, "<f4", first=[1, 2], last=[3])
    wanted = np.load(path)

    def untold(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "lseek", untold)
    assert np.array_equal(npy.load(str(path), "")[1], wanted)
    monkeypatch.delattr(os, "SEEK_DATA")
    assert np.array_equal(npy.load(str(path), "")[1], wanted)


def test_a_large_array_by_columns_is_not_turned(tmp_path):
    path = hollow(tmp_path / "x.npy", 1 << 25, "<f4", fortran=True)
    with pytest.raises(ValueError, match="columns come before its rows"):
        npy.load(str(path), "")
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(tmp_path / "y.npy", array)
    assert npy.load(str(tmp_path / "y.npy"), "")[1].tolist() == array.tolist()


def test_a_folder_of_terabytes_on_a_few_blocks_is_refused(tmp_path, capsys):
    folder, _ = small(tmp_path / "ms")
    hollow(folder.value("Tanh", NAME, "output", 0, np.zeros(1, np.float32)), 1 << 40)
    assert main(["import", str(tmp_path / "ms"), "-o", str(tmp_path / "port.h5")]) == 2
    assert "nearly all of it is holes" in capsys.readouterr().err
    assert not (tmp_path / "port.h5").exists()


def test_what_a_disk_may_leave_out():
    """A folder of zeros that was copied with holes, or lies on a disk that compresses, is imported."""
    assert not holes.hollow(3 << 30, 4096)
    assert not holes.hollow(100 << 30, 2 << 30)
    assert not holes.hollow(100 << 30, 0)
    assert holes.hollow(100 << 30, 1 << 20)

"""Room taken ahead never costs what stands before it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from dumps import HEADER, abandon, record, same

from aligner.dump.reader import open_dump
from aligner.dump.reserve import Reserve
from aligner.dump.writer import DumpWriter

LIMITED = """
import errno, os, resource, signal, sys
from aligner.dump.reserve import Reserve
if sys.argv[2] == "signal":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python has switched it off; a program around it may not
limit = 600 << 10
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(descriptor, b"written")
reserve = Reserve(descriptor)
reserve.reach(limit - 9)  # and a step more would be too much
print(os.fstat(descriptor).st_size == limit - 9)
try:
    reserve.reach(limit + 1)
except OSError as error:
    print(error.errno == errno.EFBIG, os.fstat(descriptor).st_size == limit - 9)
os.lseek(descriptor, 0, os.SEEK_SET)
print(os.read(descriptor, 8))
"""


@pytest.mark.parametrize("signals", ["no signal", "signal"])
def test_what_was_written_first_is_not_cut_off(tmp_path, signals):
    """The step that is taken ahead does not fit, what is asked for does."""
    command = [sys.executable, "-c", LIMITED, tmp_path / "x", signals]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert (done.returncode, done.stdout.splitlines()) == (0, ["True", "True True", "b'written\\x00'"])


def test_what_cannot_be_allocated_is_filled_behind_what_is_there(tmp_path, monkeypatch):
    """As on macOS, and on file systems that do not know how."""

    def unknown(*_):
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    one = record(0, np.arange(3, dtype="<f4"))
    writer = DumpWriter(tmp_path / "x.h5", HEADER)
    writer.write(one)
    abandon(writer)
    with open_dump(tmp_path / "x.h5") as dump:
        assert same(dump.entries[0], one)


def test_bytes_that_came_without_asking_are_kept(tmp_path):
    descriptor = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    try:
        reserve = Reserve(descriptor)
        reserve.reach(10)
        size = os.fstat(descriptor).st_size
        os.pwrite(descriptor, b"behind", size)
        reserve.reach(size + 3)
        assert os.pread(descriptor, 9, size) == b"behind\0\0\0"[: os.fstat(descriptor).st_size - size]
        assert os.fstat(descriptor).st_size >= size + 6
    finally:
        os.close(descriptor)

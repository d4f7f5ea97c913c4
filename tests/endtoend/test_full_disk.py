"""A full disk: a clear error, the process lives, and what was captured is readable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import h5py
import pytest

from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError

LIMIT = 4 << 20

CAPTURE = """
import os, resource, signal, sys
import numpy as np
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record
path, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python has switched off what would end the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
accepted, error = 0, None
with DumpWriter(path, {"framework": "torch"}) as writer:
    while error is None:
        name = f"layer{accepted}"
        array = np.full(count, accepted, "<f4")
        try:
            writer.layer(Layer(name, "torch.nn.Linear", LayerSpec("Linear", {"in_features": 4}), False, False))
            writer.write(Record(Key(accepted // 9, Phase.FORWARD, name, 0, "output.0"), accepted, "float32", array))
            accepted += 1
            writer.call(Call(0, Phase.FORWARD, name, 0, accepted, accepted, {"args": []}, {"tensor": "output.0"}))
        except DumpError as caught:
            error = caught
    refused = 0
    for order in range(accepted, accepted + 20):  # whoever goes on in spite of it does no harm
        try:
            writer.write(Record(Key(0, Phase.FORWARD, "more", order, "output.0"), order, "float32", array[:3] + order))
            accepted += 1
        except DumpError:
            refused += 1
            break
print(accepted, "|".join(str(error).splitlines()))
"""


def capture(path, count, limit=0):
    """Capture until the disk is full; returns how many records were accepted."""
    done = subprocess.run(
        [sys.executable, "-c", CAPTURE, str(path), str(count), str(limit)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    accepted, _, error = done.stdout.partition(" ")
    assert "The disk is full" in error
    assert str(path) in error
    assert "Make room" in error
    return int(accepted)


def check(path, accepted, count):
    """Closed properly, everything there."""
    with open_dump(path) as dump:
        dump.verify()
        assert not dump.recovered
        assert len(dump.entries) == accepted
        for entry in dump.entries:
            if entry.key.layer != "more":
                assert entry.shape == (count,)
                assert bool((entry.load() == entry.order).all())
    with h5py.File(path, "r") as file:
        assert sum(len(file[step]["forward"]) for step in file if step.startswith("step")) == accepted


SIZES = [1, 1000, 16_384, 300_000]


@pytest.mark.parametrize("count", SIZES)
def test_a_limit_on_the_size_of_files(tmp_path, count):
    path = tmp_path / "x.h5"
    accepted = capture(path, count, LIMIT)
    check(path, accepted, count)
    stored = accepted * count * 4
    assert stored > (LIMIT - (1 << 20) if count > 1000 else LIMIT // 300)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB, where one may be mounted."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "tmpfs", str(place)], capture_output=True, check=False)  # fmt: skip  # noqa: E501  # one line for one command
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("count", SIZES)
def test_a_small_disk(small_disk, count):
    path = small_disk / "x.h5"
    accepted = capture(path, count)
    check(path, accepted, count)


def fill_up(path):
    """Take all that is left of a disk."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_recovery_on_a_full_disk_keeps_everything(small_disk):
    path = small_disk / "x.h5"
    code = CAPTURE.replace("    refused = 0", "    os._exit(0)  # as if it were killed")
    code = code.partition("    for order in")[0]
    subprocess.run([sys.executable, "-c", code, str(path), "16384", "0"], check=True, timeout=60)
    rest = small_disk / "rest"
    fill_up(rest)
    with open_dump(path) as dump:
        before = [entry.load().tobytes() for entry in dump.entries]
        assert before
    recover(path)
    with open_dump(path) as dump:
        assert not dump.recovered
        assert [entry.load().tobytes() for entry in dump.entries] == before


def test_a_folder_that_may_not_be_written(tmp_path, request):
    place = tmp_path / "locked"
    if os.geteuid() == 0:  # root may write everywhere but on a disk that is read-only
        place = request.getfixturevalue("small_disk")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    else:
        place.mkdir(mode=0o500)
    with pytest.raises(DumpError, match="Cannot write"):
        DumpWriter(place / "x.h5", {})


def test_a_disk_that_is_full_from_the_start(small_disk):
    fill_up(small_disk / "rest")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from aligner.dump.writer import DumpWriter; DumpWriter(sys.argv[1], {})",
         str(small_disk / "x.h5")], capture_output=True, text=True, check=False)  # fmt: skip
    assert "The disk is full" in done.stderr
    assert sorted(p.name for p in small_disk.iterdir()) == ["rest"]

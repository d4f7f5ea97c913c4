"""`kill -9` at random moments of a capture: whatever was reported is readable, and every file opens."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover

KILLS = int(os.environ.get("ALIGNER_KILLS", "50" if os.environ.get("ALIGNER_LONG") else "10"))

CAPTURE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
import numpy as np
from aligner.dump.writer import DumpWriter
from aligner.record import Key, Phase, Record
order = 0
for file in range(1000):
    with DumpWriter(f"{sys.argv[1]}/{file:04d}.h5", {"framework": "torch"}) as writer:
        for _ in range(int(sys.argv[2])):
            array = np.full((1 + order % 3000, 1 + order % 5), order % 1000, "<f4")
            key = Key(order // 50, Phase.FORWARD, f"layer{order % 50}", 0, "output.0")
            writer.write(Record(key, order, "float32", array))
            os.write(1, b"%d %d\\n" % (file, order))
            order += 1
"""


def kill_at_random(folder, records_per_file, seconds):
    """Capture into files of a folder, kill it, and return what it had reported: (file, order)."""
    child = subprocess.Popen(
        [sys.executable, "-c", CAPTURE, str(folder), str(records_per_file)], stdout=subprocess.PIPE, bufsize=0
    )
    first = child.stdout.readline()
    ends = time.monotonic() + seconds
    os.set_blocking(child.stdout.fileno(), False)
    told = [first]
    while time.monotonic() < ends:
        told.append(child.stdout.read() or b"")
        time.sleep(0.0005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    os.set_blocking(child.stdout.fileno(), True)
    told.append(child.stdout.read())
    child.stdout.close()
    return [tuple(map(int, line.split())) for line in b"".join(told).split(b"\n")[:-1]]


def check(path, orders):
    """All of `orders` are there with their values; returns whether the dump was closed."""
    with open_dump(path) as dump:
        dump.verify()
        found = {entry.order: entry for entry in dump.entries}
        assert set(orders) <= set(found)
        for order, entry in found.items():
            array = entry.load()
            assert array.shape == (1 + order % 3000, 1 + order % 5)
            assert bool((array == order % 1000).all())
            assert entry.key.layer == f"layer{order % 50}"
        return not dump.recovered


@pytest.mark.parametrize("records_per_file", [10**9, 7])
def test_nothing_reported_is_lost(tmp_path, records_per_file):
    chance = random.Random(records_per_file)
    states = set()
    for kill in range(KILLS // 2):
        folder = tmp_path / str(kill)
        folder.mkdir()
        told = kill_at_random(folder, records_per_file, chance.uniform(0.0, 0.15))
        assert told
        for path in sorted(folder.glob("*.h5")):
            orders = [order for file, order in told if file == int(path.stem)]
            closed = check(path, orders)
            states.add(closed)
            assert recover(path) >= len(orders)
            assert check(path, orders)
            with h5py.File(path, "r") as file:
                names = [name for step in file if step.startswith("step") for name in file[step]["forward"]]
                assert {int(name[:6]) for name in names} >= set(orders)
    assert False in states
    if records_per_file == 7:
        assert True in states


def test_an_interrupted_capture_is_closed(tmp_path):
    folder = tmp_path
    child = subprocess.Popen([sys.executable, "-c", CAPTURE, str(folder), "1000000000"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)  # fmt: skip
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    try:
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert b"KeyboardInterrupt" in err
    assert child.returncode != 0
    assert check(folder / "0000.h5", range(1 + out.count(b"\n")))
    with open_dump(folder / "0000.h5") as dump:
        assert not dump.complete
        assert np.all(np.diff([entry.order for entry in dump.entries]) == 1)

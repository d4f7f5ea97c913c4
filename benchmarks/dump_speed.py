"""How fast dumps are written, opened and listed, next to their limits.

    python benchmarks/dump_speed.py [FOLDER ...]

Figures are CPU time (the machine may be shared), the best of some runs; writing is set against `os.write` of the
same arrays into a fresh file, taken in turn with it. Without folders, /dev/shm and the folder for temporary files.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aligner.dump.reader import open_dump
from aligner.dump.writer import DumpWriter
from aligner.record import Call, Key, Layer, LayerSpec, Phase, Record

RUNS = 5
SMALL, RATIO, LISTING = 30e-6, 0.8, 0.100
SIZES = ((16 << 10, 3000), (1 << 20, 300), (64 << 20, 8))
RECORDS = 50_000

Line = tuple[str, str, str, bool]


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def writing(folder: Path, size: int, count: int) -> list[Line]:
    """Seconds for each array: written raw, and by DumpWriter.write with its journal and checksum."""
    base = np.random.default_rng(0).standard_normal(size // 4, dtype=np.float32)
    arrays = [base + np.float32(number + 1) for number in range(count)]
    records = [
        Record(Key(0, Phase.FORWARD, f"model.layers.{number}.mlp", 0, "output.0"), number, "float32", array)
        for number, array in enumerate(arrays)
    ]
    path = folder / "speed.h5"
    raw, wrote, closed, over = [], [], [], 0.0

    def write_raw() -> None:
        with open(path, "wb", buffering=0) as file:
            for array in arrays:
                os.write(file.fileno(), array.data)

    def write_all(writer: DumpWriter) -> None:
        for record in records:
            writer.write(record)

    for _ in range(RUNS):
        raw.append(cpu(write_raw))
        path.unlink()
        with DumpWriter(path, {}) as writer:
            wrote.append(cpu(lambda: write_all(writer)))
            closed.append(cpu(writer.close))
        over = path.stat().st_size / (size * count) - 1
        path.unlink()
    each, ratio, label = min(wrote) / count, min(raw) / min(wrote), f"{folder} {size >> 10} KiB"
    return [
        (f"{label}: raw write / dump write", f"{ratio:.2f}", f">= {RATIO}" if size > SIZES[0][0] else "",
         ratio >= RATIO or size == SIZES[0][0]),
        (f"{label}: time of a record", f"{each * 1e6:.1f} us", f"<= {SMALL * 1e6:.0f} us" if each < 1e-4 else "",
         each <= SMALL or size != SIZES[0][0]),
        (f"{label}: closing, for each record", f"{min(closed) / count * 1e6:.1f} us", "", True),
        (f"{label}: file larger than its values by", f"{over:.2%}", "", True),
    ]  # fmt: skip


def make_large(path: Path) -> None:
    """A dump of 50,000 records, four of each layer."""
    with DumpWriter(path, {"framework": "torch"}, force=True) as writer:
        for number in range(RECORDS):
            name = f"model.layers.{number // 500}.block.{number % 500 // 4}.mlp"
            if number % 4 == 0:
                spec = LayerSpec("Linear", {"in_features": 4, "out_features": 4, "bias": True})
                writer.layer(Layer(name, "torch.nn.Linear", spec, False, False))
            key = Key(0, Phase.FORWARD, name, 0, f"output.{number % 4}")
            writer.write(Record(key, number, "float32", np.full((4, 4), number, np.float32)))
            if number % 4 == 3:
                structure = {"args": [{"tensor": "input.0"}]}
                writer.call(Call(0, Phase.FORWARD, name, 0, number - 3, number, structure, {"tensor": "output.0"}))


def list_all(path: Path) -> int:
    """Open a dump and look at each record's address, type and shape."""
    with open_dump(path) as dump:
        return sum(1 for entry in dump.entries if (entry.key, entry.dtype, entry.shape))


def verify(path: Path) -> None:
    with open_dump(path) as dump:
        dump.verify()


def listing(folder: Path) -> list[Line]:
    path = folder / "large.h5"
    made = cpu(lambda: make_large(path))
    listed = min(cpu(lambda: list_all(path)) for _ in range(2 * RUNS))
    opened = min(cpu(lambda: open_dump(path).close()) for _ in range(RUNS))
    verified = min(cpu(lambda: verify(path)) for _ in range(RUNS))
    size = path.stat().st_size
    path.unlink()
    label = f"{folder} {RECORDS:,} records"
    return [
        (f"{label}: opening and listing", f"{listed * 1e3:.0f} ms", f"< {LISTING * 1e3:.0f} ms", listed < LISTING),
        (f"{label}: opening alone", f"{opened * 1e3:.0f} ms", "", True),
        (f"{label}: opening and verifying", f"{verified * 1e3:.0f} ms", "", True),
        (f"{label}: making it, for each", f"{made / RECORDS * 1e6:.1f} us", "", True),
        (f"{label}: bytes besides the values, for each", f"{size / RECORDS - 64:.0f}", "", True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders or [
        place for place in (Path("/dev/shm"), Path(tempfile.gettempdir())) if os.access(place, os.W_OK)
    ]
    good = True
    for above in folders:
        with tempfile.TemporaryDirectory(dir=above) as name:
            folder = Path(name)
            lines = [line for size, count in SIZES for line in writing(folder, size, count)] + listing(folder)
        for what, figure, limit, kept in lines:
            good &= kept
            state = "" if not limit else "  ok" if kept else "  OVER"
            print(f"{what.replace(name, str(above)):64} {figure:>10}  {limit:10}{state}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

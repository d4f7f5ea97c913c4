"""How fast two dumps are compared, next to what reading them alone takes, and how much memory it needs.

    python benchmarks/compare_speed.py [--megabytes 512] [--folder /dev/shm] [--large]

Figures are bytes of both files per second of CPU time (the machine may be shared), the best of some runs, each run
doing the measured thing and its limit in turn. --large also compares two dumps of 4 GB for the peak memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ALIGNED, FAR = 1e-6, 1e-2
RUNS = 7
LIMIT, SHARE, LARGE = 4.0, 0.2, 4 << 20
MEMORY_LIMIT = 200


def write(path: Path, megabytes: int, tensor: int, noise: float) -> None:
    """A dump of float32 tensors of `tensor` bytes; `noise` relative to the values."""
    from aligner.dump.writer import DumpWriter
    from aligner.record import Call, Key, Layer, LayerSpec, Phase, Record

    rng = np.random.default_rng(0)
    count = tensor // 4
    base = rng.standard_normal(count + (1 << 16), dtype=np.float32)
    error = rng.standard_normal(count, dtype=np.float32) * np.float32(noise)
    with DumpWriter(path, {"model": "Bench"}, force=True) as writer:
        for number in range(megabytes * 1_000_000 // tensor):
            layer = f"layer{number}"
            start = number * 16 % (1 << 16)
            values = base[start : start + count]
            values = values * (1 + error) if noise else values
            values[0] = number  # no two records alike
            writer.layer(Layer(layer, "bench.Layer", LayerSpec("Linear"), False, False))
            key = Key(0, Phase.FORWARD, layer, 0, "output.0")
            writer.write(Record(key, 3 * number + 2, "float32", values))
            writer.call(
                Call(0, Phase.FORWARD, layer, 0, 3 * number + 1, 3 * number + 3, {"args": []}, {"tensor": "output.0"})
            )


def read_only(paths: list[Path]) -> None:
    """The limit: every byte of both files into one buffer, and looked at once."""
    buffer = np.empty(1 << 18, np.uint8)
    words = buffer.view(np.int64)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer) == buffer.size:
                words.max()


def compared(paths: list[Path]) -> object:
    from aligner.compare.comparison import compare

    return compare(paths[0], paths[1])


def timed(action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def speed(folder: Path, megabytes: int) -> bool:
    """Prints a line for each size and difference; whether the large tensors kept the limit.

    The limit is 4 GB/s, or a fifth of what reading alone reaches, whichever is less. It is set for tensors from 4 MiB
    up; for small ones the cost of a pair is what counts.
    """
    good = True
    print(
        f"{'tensors':>12} {'difference':>10} {'compare GB/s':>13} {'reading GB/s':>13}"
        f" {'ratio':>6} {'us/pair':>8}  limit"
    )
    for tensor in (64 << 20, 4 << 20, 64 << 10, 4 << 10):
        for noise in (ALIGNED, FAR):
            size = max(1, min(megabytes, 2000 * tensor // 1_000_000))
            paths = [folder / "reference.h5", folder / "port.h5"]
            write(paths[0], size, tensor, 0.0)
            write(paths[1], size, tensor, noise)
            total = sum(path.stat().st_size for path in paths)
            best = [float("inf"), float("inf")]
            for _ in range(RUNS):
                best[0] = min(best[0], timed(lambda paths=paths: compared(paths)))
                best[1] = min(best[1], timed(lambda paths=paths: read_only(paths)))
            figures = [total / seconds / 1e9 for seconds in best]
            pairs = max(1, size * 1_000_000 // tensor)
            limit = min(LIMIT, SHARE * figures[1])
            verdict = "-"
            if tensor >= LARGE:
                verdict = f">= {limit:.2f}  {'ok' if figures[0] >= limit else 'MISSED'}"
                good = good and figures[0] >= limit
            print(
                f"{tensor / 1024:>8.0f} KiB {noise:>10.0e} {figures[0]:>13.2f} {figures[1]:>13.2f}"
                f" {figures[0] / figures[1]:>6.2f} {best[0] / pairs * 1e6:>8.0f}  {verdict}"
            )
    return good


MEMORY = """
import re, sys
from pathlib import Path
from aligner.compare.comparison import compare

def peak():  # of this process alone: ru_maxrss also remembers the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024

before = peak()
result = compare(sys.argv[1], sys.argv[2])
print(f"{peak() - before:.0f} MiB above import ({before:.0f} MiB); {result!r}")
"""


def memory(folder: Path, megabytes: int) -> bool:
    """Prints the peak above import; whether it is below MEMORY_LIMIT MiB."""
    paths = [folder / "reference.h5", folder / "port.h5"]
    write(paths[0], megabytes, 64 << 20, 0.0)
    write(paths[1], megabytes, 64 << 20, ALIGNED)
    print(f"peak memory, two dumps of {megabytes} MB: ", end="", flush=True)
    done = subprocess.run([sys.executable, "-c", MEMORY, *map(str, paths)], check=True, capture_output=True, text=True)
    print(f"{done.stdout.strip()}  limit {MEMORY_LIMIT} MiB")
    return float(done.stdout.split()[0]) < MEMORY_LIMIT


def alignment() -> None:
    """5,000 calls without a common name on each side."""
    from aligner.compare.sequence import Feature, align

    rng = np.random.default_rng(0)
    kinds = ["Linear", "ReLU", "LayerNorm", "Conv2d"]

    def row(seed: int) -> list[Feature]:
        names = np.random.default_rng(seed).integers(0, 1 << 30, 5000)
        return [Feature(k, k, (int(s),), (int(s),), (), (f"n{n}", "")) for k, s, n in zip(chosen, sizes, names)]

    chosen = [kinds[i] for i in rng.integers(0, 4, 5000)]
    sizes = rng.integers(1, 9, 5000)
    one, other = row(1), row(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    pairs = align(one, other)
    taken = time.process_time() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"aligning 5000 x 5000 calls: {taken:.2f} s, {(after - before) / 1024:.0f} MiB more, {len(pairs)} pairs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512, help="size of each dump for the speed figures")
    parser.add_argument("--folder", help="where the dumps are written (default: the temporary folder)")
    parser.add_argument("--large", action="store_true", help="peak memory with two dumps of 4 GB")
    options = parser.parse_args()
    alignment()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        fast = speed(Path(folder), options.megabytes)
        small = memory(Path(folder), 4000 if options.large else options.megabytes)
    return 0 if fast and small else 1


if __name__ == "__main__":
    sys.exit(main())

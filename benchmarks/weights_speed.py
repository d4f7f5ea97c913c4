"""Converting and comparing checkpoints: seconds next to a plain copy of the file, and the most memory it takes.

python benchmarks/weights_speed.py [GIGABYTES]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from aligner.weights import output

SLOWER = 6.0
"""How many times a plain copy a conversion may take, with the start of the program."""

MEMORY = 150.0
"""MB of the whole process."""

ROWS = 2816


class Layer:
    """A matrix that is made when it is written."""

    dtype, shape = "float32", (ROWS, 1024)
    nbytes = 4 * ROWS * 1024

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def raw(self):
        return np.random.default_rng(self.seed).random(self.shape, np.float32)

    def stream(self, buffer, verify=True):
        flat = self.raw().reshape(-1)
        step = buffer.size // 4
        yield from (flat[at : at + step] for at in range(0, flat.size, step))


def run(*arguments: str) -> tuple[float, float]:
    """Seconds, and MB that the process took at most."""
    script = "import resource, sys; from aligner.cli import main; code = main(sys.argv[1:]);"
    script += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *arguments, "-q"], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stderr.split()[-1]) / (1 if sys.platform != "darwin" else 1024) / 1000


def main() -> int:
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    good = True
    with tempfile.TemporaryDirectory() as folder:
        pth, ckpt, safetensors = (str(Path(folder) / f"a{end}") for end in (".pth", ".ckpt", ".safetensors"))
        layers = [Layer(n) for n in range(max(1, round(size * 1e9 / Layer.nbytes)))]
        output.write(
            pth, "pth", "torch", [output.Entry(f"h.{n}.fc.weight", one.shape, one) for n, one in enumerate(layers)]
        )
        start = time.perf_counter()
        shutil.copyfile(pth, f"{pth}.copy")
        with open(f"{pth}.copy", "rb") as file:
            os.fsync(file.fileno())
        plain = time.perf_counter() - start
        os.unlink(f"{pth}.copy")
        print(f"{os.path.getsize(pth) / 1e9:.2f} GB in {len(layers)} tensors; a plain copy takes {plain:.1f} s")
        for arguments in (
            ("convert", pth, "-o", ckpt),
            ("convert", ckpt, "-o", safetensors),
            ("convert", ckpt, "-o", f"{folder}/b.pth"),
            ("compare", pth, ckpt),
            ("compare", safetensors, pth),
        ):
            seconds, memory = run(*arguments)
            limit = SLOWER * plain + 2.0
            good = good and seconds <= limit and memory <= MEMORY
            names = " ".join(os.path.basename(word) for word in arguments)
            print(f"{names:38} {seconds:5.1f} s (limit {limit:.1f})   {memory:5.0f} MB (limit {MEMORY:.0f})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Nets of real size through all three commands: the time of each and its peak memory; right ports and wrong ones.

    python benchmarks/whole_nets.py [--net resnet50|transformer12]

Each command is a process of its own, as a user runs it; importing the frameworks is part of the time and of the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent / "whole"
NETS = ("resnet50", "transformer12")
LIMIT = 2.0
"""The forced pass and the trials may take this many times the free run with capture."""


def run(*words: str) -> tuple[float, float, str]:
    """Seconds, peak memory in MiB and standard output of `aligner WORDS`."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "aligner", *words], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    seconds = time.monotonic() - started
    if process.returncode not in (0, 1):
        raise SystemExit(f"aligner {' '.join(words)} ended with {process.returncode}")
    return seconds, peak(process.pid), output


def peak(pid: int) -> float:
    """The largest resident size of any child so far, in MiB: read after each child, in a process of its own."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def apart(*words: str) -> tuple[float, float, str]:
    """The same in a fork, so that each command's peak memory is its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(run(*words)).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    seconds, memory, output = json.loads(text)
    return seconds, memory, output


def told(step: str, seconds: float, memory: float, more: str = "") -> None:
    print(f"| {step} | {seconds:.1f} s | {memory:,.0f} MiB | {more} |")


def net(name: str, folder: Path) -> bool:
    """All commands of one net; whether the forced pass kept its limit."""
    reference, good = str(folder / "ref.h5"), True
    print(f"\n| {name} | time | peak memory | |\n|---|---|---|---|")
    seconds, memory, _ = apart("capture", f"{HERE / name}_torch.py:build", "-o", reference, "-q")
    told("capture the reference", seconds, memory, f"{os.path.getsize(reference) / 2**20:,.0f} MiB dump")
    for factory in ("build", "build_wrong"):
        port = str(folder / f"{factory}.h5")
        target = f"{HERE / name}_mindspore.py:{factory}"
        seconds, memory, _ = apart("capture", target, "--from", reference, "-o", port, "-q")
        timing = header(port)["timing"]
        ratio = (timing["forced_s"] + timing["trials_s"]) / timing["free_s"]
        good = good and ratio <= LIMIT
        more = f"forced pass {timing['forced_s']:.1f} s, trials {timing['trials_s']:.1f} s: {ratio:.2f} of the free run"
        told(f"capture the port ({factory})", seconds, memory, f"{more} ({timing['free_s']:.1f} s)")
        seconds, memory, output = apart("compare", reference, port, "--json")
        answer = json.loads(output)
        places = [f"{o['layer']} ({o['where']})" for o in answer["origins"] + answer["suspects"]]
        told(f"compare ({factory})", seconds, memory, f"{answer['outcome']}; {', '.join(places) or 'no origin'}")
    return good


def header(path: str) -> dict:
    import aligner

    with aligner.open(path) as dump:
        return dict(dump.header)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS)
    chosen = parser.parse_args().net
    good = True
    for name in (chosen,) if chosen else NETS:
        with tempfile.TemporaryDirectory() as folder:
            good = net(name, Path(folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""What it costs to explain nets that are large and wrong: CPU seconds and peak memory of `aligner compare`.

    python benchmarks/compare_bounds.py [--case NAME]... [--folder FOLDER] [--port NAME]... [--package FOLDER]

The dumps of the Llama take 6.7 GB in all. With --folder they are kept there and used again by the next run; --package
compares with the aligner of another working tree, to set two versions side by side on the same dumps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

HERE = Path(__file__).resolve().parent
LLAMA = HERE / "portbugs" / "nets" / "llama"
INCEPTION = HERE / "whole"

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """A reference, its ports by name, and the CPU seconds and MiB above import that comparing them may take."""

    reference: str
    ports: Mapping[str, str]
    seconds: float
    above: float


def edited(text: str, *edits: tuple[str, str]) -> str:
    """The text with each piece replaced.

    Raises:
        ValueError: a piece is not there.
    """
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{old!r} is not there")
        text = text.replace(old, new)
    return text


def llama() -> Case:
    """250 million parameters in 16 layers, on 2 x 128 words: the net of the port-bug benchmark in earnest."""
    sizes = "vocabulary: int = 130, width: int = 48, heads: int = 6, shared: int = 2, depth: int = 2"
    large = "vocabulary: int = 32000, width: int = 1024, heads: int = 16, shared: int = 4, depth: int = 16"
    grown: Edits = ((sizes, large), ("shared, 128)", "shared, 2816)"), ("heads, 64)", "heads, 128)"))
    reference = edited(
        (LLAMA / "reference.py").read_text(),
        *grown,
        ("torch.randint(0, 130, (2, 18))", "torch.randint(0, 32000, (2, 128))"),
    )
    port = edited((LLAMA / "port.py").read_text(), *grown)
    back = "mixed.swapaxes(1, 2).reshape(batch, length, width)"
    cut = "self.q_proj(x).reshape(batch, length, self.heads, self.head).swapaxes(1, 2)"
    return Case(
        reference,
        {
            "right": port,
            "reshape": edited(port, (back, "mixed.reshape(batch, length, width)")),
            "cut": edited(port, (cut, "self.q_proj(x).reshape(batch, self.heads, length, self.head)")),
            "tile": edited(
                port,
                (
                    "ops.repeat_interleave(key, self.heads // self.shared, 1)",
                    "ops.tile(key, (1, self.heads // self.shared, 1, 1))",
                ),
            ),
        },
        6.0,
        256.0,
    )


def inception() -> Case:
    """Inception v3 with the mistakes that people make in it, and with two in a line that runs 94 times."""
    port = (INCEPTION / "inception3_mindspore.py").read_text()
    wrong = edited(
        port,
        ("eps=0.001", "eps=1e-5"),
        ("ops.cat([one, five, three, pooled], 1)", "ops.cat([one, three, five, pooled], 1)"),
        ("stride=1, padding=1)", "stride=1, padding=1, count_include_pad=False)"),
        (
            "ops.cat([self.branch3_a(three), self.branch3_b(three)]",
            "ops.cat([self.branch3_b(three), self.branch3_a(three)]",
        ),
    )
    line = "return ops.relu(self.bn(self.conv(x)))"
    everywhere = edited(port, (line, "return ops.leaky_relu(self.bn(1.1 * self.conv(x)), 0.02)"))
    ports = {"right": port, "wrong": wrong, "everywhere": everywhere}
    return Case((INCEPTION / "inception3_torch.py").read_text(), ports, 30.0, 448.0)


LARGE_REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(32, 1024), nn.GELU(), nn.Linear(1024, 8)

    def forward(self, x):
        x = self.act(self.up(x))
        x = x.reshape(16, 1024, 16, 64).transpose(1, 2).reshape(16, 1024, 1024)
        return self.down(x)


def build():
    torch.manual_seed(1)
    return Net().eval(), (torch.randn(16, 1024, 32),)
"""

LARGE_PORT = """
from mindspore import nn


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Dense(32, 1024), nn.GELU(approximate=False), nn.Dense(1024, 8)

    def construct(self, x):
        x = self.act(self.up(x))
        x = x.reshape(16, 1024, 16, 64).swapaxes(1, 2).reshape(16, 1024, 1024)
        return self.down(x)


def build():
    return Net()
"""


def large() -> Case:
    """Single origins of 64 MiB: a layer, and the code between two."""
    turned = (".swapaxes(1, 2).reshape(16, 1024, 1024)", ".swapaxes(1, 2).swapaxes(2, 3).reshape(16, 1024, 1024)")
    return Case(
        LARGE_REFERENCE,
        {
            "right": LARGE_PORT,
            "layer": edited(LARGE_PORT, ("approximate=False", "approximate=True")),
            "glue": edited(LARGE_PORT, turned),
            "unknown": edited(
                LARGE_PORT,
                ("x = self.act(self.up(x))", "x = self.act(self.up(x)) + (x.mean() * x).sum(-1, keepdims=True).sinh()"),
            ),
        },
        10.0,
        192.0,
    )


LINES = 240


def wide() -> Case:
    """Hundreds of lines of one net, all of them wrong, each in its own way."""

    def text(line: str, frame: str) -> str:
        return frame.replace("        # lines\n", "".join(line_of(number, line) for number in range(LINES)))

    def line_of(number: int, line: str) -> str:
        return f"        {line.format(n=number, c=1.0 + 0.01 * number, d=1.5 + 0.01 * number)}\n"

    torch = f"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(96, 96) for _ in range({LINES})])

    def forward(self, x):
        # lines
        return x


def build():
    torch.manual_seed(1)
    return Net().eval(), (torch.randn(64, 96),)
"""
    port = f"""
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.steps = nn.CellList([nn.Dense(96, 96) for _ in range({LINES})])

    def construct(self, x):
        # lines
        return x


def build():
    return Net()
"""
    right = "x = ops.sin({c} * self.steps[{n}](x)) + 0.5 * x * ops.tanh(x)"
    wrong = "x = ops.sin({d} * self.steps[{n}](x)) + 0.5 * x * ops.tanh(0.7 * x)"
    return Case(
        text(right.replace("ops.", "torch."), torch),
        {"right": text(right, port), "wrong": text(wrong, port)},
        30.0,
        64.0,
    )


STEPS = 334


def operations() -> Case:
    """2,000 operations in the code of one layer: with one wrong line in the middle, and with three."""

    def text(frame: str, wrong: tuple[int, ...] = ()) -> str:
        called = ("cos" if n in wrong else "sin" for n in range(STEPS))
        pair = "        p = p + 0.02 * ops.{}(x + {:.2f})\n        x = x - 0.02 * p\n"  # keeps what went wrong before
        lines = (pair.format(name, 0.01 * n) for n, name in enumerate(called))
        return frame.replace("        # lines\n", "".join(lines))

    torch = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.turned, self.last = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        x, p = self.first(x), self.turned(x)
        # lines
        return self.last(x)


def build():
    torch.manual_seed(1)
    return Net().eval(), (torch.randn(16, 32),)
"""
    port = """
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.turned, self.last = nn.Dense(32, 64), nn.Dense(32, 64), nn.Dense(64, 8)

    def construct(self, x):
        x, p = self.first(x), self.turned(x)
        # lines
        return self.last(x)


def build():
    return Net()
"""
    ports = {"right": text(port), "wrong": text(port, (150,)), "three": text(port, (50, 150, 250))}
    return Case(text(torch).replace("ops.", "torch."), ports, 6.0, 192.0)


CASES = {"llama": llama, "inception": inception, "large": large, "wide": wide, "operations": operations}

COMPARE = """
import re, sys, time
from pathlib import Path

def peak():  # of this process alone: ru_maxrss also remembers the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024

from aligner import cli
import aligner.compare.comparison, aligner.explain.code, aligner.explain.patterns, aligner.report.json_
before, started = peak(), time.process_time()
code = cli.main(["compare", sys.argv[1], sys.argv[2], "--json"])
print(code, time.process_time() - started, before, peak(), file=sys.stderr)
"""


def compared(reference: Path, port: Path, package: Optional[str]) -> tuple[float, float, dict]:
    """CPU seconds, MiB above import, and the answer."""
    environment = {**os.environ, **({"PYTHONPATH": package} if package else {})}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(reference), str(port)],
        check=True, capture_output=True, text=True, env=environment, cwd=reference.parent,
    )  # fmt: skip
    _, seconds, before, after = map(float, done.stderr.strip().splitlines()[-1].split())
    return seconds, after - before, json.loads(done.stdout)


def captured(text: str, place: Path, *more: str) -> float:
    """Seconds of capturing the net of this text into PLACE.h5; 0 where it stands there already."""
    place.with_suffix(".py").write_text(text, encoding="utf-8")
    dump = place.with_suffix(".h5")
    if dump.exists():
        return 0.0
    started = time.monotonic()
    line = [sys.executable, "-m", "aligner", "capture", f"{place}.py:build", "-o", str(dump), "-q", *more]
    done = subprocess.run(line, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}")
    return time.monotonic() - started


def told(answer: dict) -> str:
    origins = answer["origins"] + answer["suspects"]
    first = [cause["id"] for origin in origins for cause in origin["causes"][:1]]
    proved = sum(cause["confirmed"] for origin in origins for cause in origin["causes"][:1])
    rules = dict.fromkeys(rule for origin in origins for rule in origin.get("untried") or ())
    left = f"; not tried to the end: {', '.join(rules)}" if rules else ""
    return f"{len(origins)} origins, {proved} proved: {', '.join(dict.fromkeys(first)) or 'no cause'}{left}"


def told_of_capture(taken: float, timing: dict) -> str:
    parts = ", ".join(f"{name[:-2]} {seconds:.1f} s" for name, seconds in timing.items())
    return f"capture {taken:.0f} s ({parts})" if taken else f"captured before ({parts})"


def run(name: str, folder: Path, chosen: Optional[list[str]], package: Optional[str]) -> Iterator[bool]:
    case = CASES[name]()
    folder.mkdir(exist_ok=True, parents=True)
    reference = folder / "ref"
    captured(case.reference, reference)
    for port, text in case.ports.items():
        if chosen and port not in chosen:
            continue
        taken = captured(text, folder / port, "--from", str(reference.with_suffix(".h5")))
        seconds, above, answer = compared(reference.with_suffix(".h5"), (folder / port).with_suffix(".h5"), package)
        good = seconds <= case.seconds and above <= case.above
        timing = answer["port"].get("timing") or {}
        print(
            f"| {name} {port} | {seconds:.1f} s (limit {case.seconds:.0f}) | {above:.0f} MiB (limit {case.above:.0f}) "
            f"| {told(answer)} | {told_of_capture(taken, timing)} | {'ok' if good else 'MISSED'} |",
            flush=True,
        )
        yield good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="only this one (repeatable)")
    parser.add_argument("--port", action="append", help="only this port of it (repeatable)")
    parser.add_argument("--folder", type=Path, help="where the dumps are kept for the next run")
    parser.add_argument("--package", help="the working tree whose aligner compares")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        good = [
            kept for name in options.case or CASES for kept in run(name, folder / name, options.port, options.package)
        ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

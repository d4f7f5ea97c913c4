"""Kills: programs that capture a small torch net are ended by `kill -9` at random moments.

Of each kill is asked: every file opens, nobody is said to write it any more, and it holds every value that was
reported as captured, bit by bit; recovery makes a whole HDF5 file of it that holds the same; where several write on
one path, none of them writes on when another one has begun.

    python benchmarks/abuse/kills.py                  # 1,000 kills
    python benchmarks/abuse/kills.py --count 50 --seed 7 --kind forking
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
from forks import HERE, Moment, Value, mark, read

from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.errors import AlignerError

SHARES = {"block": 25, "forking": 20, "shared": 20, "replayed": 10, "factory": 10, "script": 10, "recovering": 5}
"""Of 100 kills."""
BEGUN = 0.9
"""Of how many a dump has begun before the moment is chosen; the rest is killed as early as it comes."""
SHARED = 3
"""Writers on one path."""


class Source:
    """A process that has imported torch and forks the programs."""

    def __init__(self) -> None:
        command = [sys.executable, "-B", os.fspath(HERE / "writing.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, kind: str, folder: Path, seed: int) -> int:
        """Start a program; its number."""
        assert self._process.stdin
        print(json.dumps([kind, os.fspath(folder), seed]), file=self._process.stdin, flush=True)
        return int(self._answer())

    def ended(self) -> int:
        """The exit code of the program, when it has ended."""
        return int(self._answer().split()[1])

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


class Bench:
    """Kills, and looks at what is left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._sources = [Source() for _ in range(SHARED)]
        self._number = 0
        self._left: list[int] = []
        self._make()

    def _make(self) -> None:
        """A reference, and a dump that was never closed."""
        for name, is_open in (("reference.h5", False), ("open.h5", True)):
            found: list[Path] = []
            while not found:
                place, groups, _ = self._run("block", 1, self._chance.uniform(0.2, 2))
                self._end(groups)
                found = [path for path in sorted(place.glob("*.h5")) if _is_open(path) is is_open]
                for path in found[:1]:
                    shutil.copy(path, self._folder / name)
                    if is_open:
                        shutil.copy(f"{path}.journal", self._folder / f"{name}.journal")
                shutil.rmtree(place)

    def _run(self, kind: str, writers: int, seconds: float) -> tuple[Path, list[int], list[int]]:
        """Let programs run for a while, and kill them; the folder, their numbers, and their exit codes."""
        self._number += 1
        place = self._folder / f"{self._number:05}"
        place.mkdir()
        sources = self._sources[:writers]
        groups = [source.begin(kind, place, self._chance.randrange(10**6)) for source in sources]
        self._left += groups
        if self._chance.random() < BEGUN:
            _wait_for(place, "forked" if kind == "forking" else "*.h5")
        time.sleep(seconds)
        for group in self._chance.sample(groups, len(groups)):
            with suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
            if writers > 1 and self._chance.random() < 0.5:
                time.sleep(self._chance.uniform(0, 0.05))  # the others go on for a while
        return place, groups, [source.ended() for source in sources]

    def kill(self, kind: str) -> tuple[Counter[str], list[str]]:
        """One kill (of one kind, of several at once), and what it has cost."""
        most = self._chance.choice((0.02, 0.1, 0.5)) * (3 if kind == "shared" else 1)
        seconds = self._chance.uniform(0, most)
        place, groups, codes = self._run(kind, SHARED if kind == "shared" else 1, seconds)
        try:
            counts, wrong = self._judge(kind, place)
            counts["kills"] = sum(code == -signal.SIGKILL for code in codes)
            if any(code != -signal.SIGKILL for code in codes):
                wrong.append(f"it ended by itself: {(place / 'err').read_text()[-500:]}")
        finally:
            self._end(groups)
        if not wrong:
            shutil.rmtree(place)
        return counts, wrong

    def _end(self, groups: list[int]) -> None:
        """What a program has left behind."""
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._left.remove(group)

    def _judge(self, kind: str, place: Path) -> tuple[Counter[str], list[str]]:
        told = read((place / "told").read_text() if (place / "told").exists() else "")
        counts: Counter[str] = Counter()
        wrong = [*in_turn(told)] if kind == "shared" else []
        wanted: dict[str, dict[int, str]] = {one.token: {} for one in told if isinstance(one, Moment)}
        for one in told:
            if isinstance(one, Value):
                wanted[one.token][one.order] = one.mark
        if kind == "recovering":
            wanted = {}
        seen: set[str] = set()
        for path in sorted(place.glob("*.h5")):
            counts["dumps"] += 1
            wrong += looked(path, kind, wanted, seen, counts, self._folder / "open.h5")
        if kind != "shared":  # there the others have replaced what was finished
            lost = {token: values for token, values in wanted.items() if token not in seen}
            counts["lost"] += sum(map(len, lost.values()))
            wrong += [f"a dump with {len(values)} values is gone" for values in lost.values()]
        return counts, wrong

    def close(self) -> None:
        """End all processes."""
        self._end(list(self._left))
        for source in self._sources:
            source.close()


def _wait_for(place: Path, pattern: str) -> None:
    """Until the first dump has begun, or a child has been forked."""
    ends = time.monotonic() + 60
    while not any(place.glob(pattern)) and time.monotonic() < ends:
        time.sleep(0.001)


def _is_open(path: Path) -> bool:
    with open_dump(path) as dump:
        return dump.recovered


def in_turn(told: list[Any]) -> Iterator[str]:
    """Nobody writes on when another one has begun in the same place."""
    last = ""
    over: set[str] = set()
    for one in told:
        if isinstance(one, Moment) and one.sign == "+":
            over.add(last)
            last = one.token
        elif isinstance(one, Value) and one.token in over:
            yield "a writer went on when another one had begun in its place"
            return


def looked(
    path: Path, kind: str, wanted: dict[str, dict[int, str]], seen: set[str], counts: Counter[str], original: Path
) -> Iterator[str]:
    """Look at a dump as it was left, recover it, and look again."""
    with suppress(OSError):
        counts["journals"] += Path(f"{path}.journal").exists()
    try:
        token, found, by_journal, notes = content(path)
    except (AlignerError, OSError) as error:
        yield f"{path.name}: {str(error).splitlines()[0]}"
        return
    seen.add(token)
    values = content(original)[1] if kind == "recovering" else wanted.get(token, {})
    counts["values"] += len(values)
    counts["by journal" if by_journal else "closed"] += 1
    lost = [order for order, value in values.items() if found.get(order) != value]
    counts["lost"] += len(lost)
    if lost:
        yield f"{path.name}: {len(lost)} of {len(values)} values are missing or wrong"
    if "dump-being-written" in notes:
        yield f"{path.name}: it is said to be written still"
    try:
        number = recover(path)
        again = content(path)
        with h5py.File(path, "r") as file:
            sizes = [len(group) for name, step in file.items() if name.startswith("step") for group in step.values()]
    except (AlignerError, OSError) as error:
        yield f"{path.name}: after recovery: {str(error).splitlines()[0]}"
        return
    if again[2] or again[1] != found or number != len(found) or sum(sizes) != number:
        yield f"{path.name}: recovery has changed it"
    if Path(f"{path}.journal").exists() and by_journal:
        yield f"{path.name}: its journal is still there"
    if kind == "forking":
        try:
            DumpWriter(path, {}, force=True).close()
        except AlignerError as error:
            yield f"{path.name}: it cannot be replaced: {str(error).splitlines()[0]}"


def content(path: Path) -> tuple[str, dict[int, str], bool, list[str]]:
    """A dump's token, the marks of its values, whether they were found by its journal, and its notes."""
    with open_dump(path) as dump:
        dump.verify()
        found = {entry.order: mark(entry.raw().tobytes()) for entry in dump.entries}
        return dump.token, found, dump.recovered, [note.message for note in dump.notes]


def main() -> int:
    """Kill, print the table; 1 if anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=SHARES, action="append")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is left behind is cleared away then, too
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    kinds = options.kind or list(SHARES)
    rows: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    failures = 0
    bench = Bench(folder, options.seed)
    try:
        chance = random.Random(options.seed)
        while sum(row["kills"] for row in rows.values()) < options.count:
            kind = chance.choices(kinds, [SHARES[kind] for kind in kinds])[0]
            counts, wrong = bench.kill(kind)
            rows[kind].update(counts)
            rows[kind]["wrong"] += bool(wrong)
            failures += bool(wrong)
            for what in wrong:
                print(f"{kind}: {what}", flush=True)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    table(rows)
    return 1 if failures else 0


def table(rows: dict[str, Counter[str]]) -> None:
    """One line for each kind of program."""
    columns = ("kills", "dumps", "closed", "by journal", "values", "lost", "wrong")
    print(f"\n{'':12}" + "".join(f"{column:>12}" for column in columns))
    for kind, row in rows.items():
        print(f"{kind:12}" + "".join(f"{row[column]:>12,}" for column in columns))
    total = sum(rows.values(), Counter())
    print(f"{'all':12}" + "".join(f"{total[column]:>12,}" for column in columns))


if __name__ == "__main__":
    raise SystemExit(main())

"""Full disks: a small net is captured on disks (and under limits on the size of files) of 300 to 1,700 KiB.

Of each run is asked: the file opens and holds every value that the capture had accepted, bit by bit; it is closed,
unless the process was killed; what the capture says of it is true; and where the user's own code has raised, that
error comes through, with its exit code.

    python benchmarks/abuse/disks.py                  # 71 sizes x 2 kinds x 5 doors, one end each by chance
    python benchmarks/abuse/disks.py --count 40       # a sample
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
from forks import HERE, Done, Forks, mark

from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.errors import AlignerError
from aligner.record import Phase

SIZES = range(300, 1701, 20)
KINDS = ("disk", "limit")
DOORS = ("factory", "script", "block", "replayed", "from")
ENDS = ("", "error", "kill")
OWN = "ValueError: the user's own"
FULL = "The disk is full"
NUMBERS = (r"the (\d+) records captured so far are readable", r"(\d+) values of", r"(\d+) values up to there")
CODES = {"factory": 2, "from": 2, "script": 1, "block": 1, "replayed": 1}
"""Exit codes after the user's own error."""
NAMESPACE = "ABUSE_NAMESPACE"


@dataclass(frozen=True)
class Case:
    """One run: so many KiB, of a disk or as a limit; through which door; how the net ends."""

    size: int
    kind: str
    door: str
    end: str


def cases(seed: int, count: int) -> list[Case]:
    """All runs, or a sample of them."""
    chance = random.Random(seed)
    found = [Case(size, kind, door, chance.choice(ENDS)) for size in SIZES for kind in KINDS for door in DOORS]
    return found if count >= len(found) else chance.sample(found, count)


@contextmanager
def disk(kib: int, place: Path) -> Iterator[None]:
    """A file system of so many KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", os.fspath(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", os.fspath(place)], check=True)


def arguments(door: str, path: str, reference: str) -> list[str]:
    """The program that goes through this door."""
    nets = HERE / "nets"
    if door == "factory":
        return ["-m", "aligner", "capture", f"{nets}/reference.py:build", "-o", path]
    if door == "from":
        return ["-m", "aligner", "capture", f"{nets}/port.py:build", "--from", reference, "-o", path]
    if door == "script":
        return ["-m", "aligner", "capture", "-o", path, f"{nets}/script.py"]
    if door == "block":
        return [f"{nets}/block.py", path]
    return [f"{nets}/replayed.py", reference, path]


class Bench:
    """Runs cases and judges them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = folder / "disk"
        self._place.mkdir()
        self._forks = {framework: Forks(framework, folder) for framework in ("torch", "mindspore")}
        self._whole: dict[tuple[str, str], int] = {}
        self.reference = os.fspath(folder / "ref.h5")
        done = self._run("factory", self.reference, "", 0)
        assert done.code == 0, done.err

    def close(self) -> None:
        """End all processes."""
        for forks in self._forks.values():
            forks.close()

    def _run(self, door: str, path: str, end: str, limit: int) -> Done:
        forks = self._forks["mindspore" if door == "from" else "torch"]
        return forks.run(self._folder, arguments(door, path, self.reference), limit, ABUSE_END=end)

    def expected(self, door: str, end: str) -> int:
        """How many values are accepted where there is room."""
        if (door, end) not in self._whole:
            path = self._folder / f"{door}-{end}.h5"
            self._whole[door, end] = len(self._run(door, os.fspath(path), end, 0).told)
        return self._whole[door, end]

    def judge(self, case: Case) -> tuple[Counter[str], list[str]]:
        """Run it; what was counted, and what is wrong."""
        whole = self.expected(case.door, case.end)
        path = self._place / "x.h5"
        if case.kind == "disk":
            with disk(case.size, self._place):
                done = self._run(case.door, os.fspath(path), case.end, 0)
                return judged(case, path, done, whole)
        done = self._run(case.door, os.fspath(path), case.end, case.size << 10)
        try:
            return judged(case, path, done, whole)
        finally:
            for left in self._place.iterdir():
                left.unlink()


def judged(case: Case, path: Path, done: Done, whole: int) -> tuple[Counter[str], list[str]]:
    """What was counted of a run, and what is wrong with it."""
    wrong = [*told(case, done, whole)]
    counts = Counter(runs=1, values=len(done.told), full=len(done.told) < whole)
    counts["errors"] = case.end == "error" and OWN in done.err
    counts["kills"] = killed = done.code == -9
    if not path.exists():
        if done.told:
            wrong.append(f"no file, and {len(done.told)} values had been accepted")
        if not killed and list(path.parent.iterdir()):
            wrong.append(f"left behind: {[one.name for one in path.parent.iterdir()]}")
        return counts, wrong
    wrong += kept(path, done, counts, killed)
    if killed and not wrong:
        try:
            recover(path)
        except AlignerError as error:
            if FULL not in str(error):
                wrong.append(f"recover: {error}")
        wrong += kept(path, done, Counter(), True)
    return counts, wrong


def kept(path: Path, done: Done, counts: Counter[str], killed: bool) -> Iterator[str]:
    """Look for every value in the file."""
    try:
        with open_dump(path) as dump:
            dump.verify()
            found = {entry.order: mark(entry.raw().tobytes()) for entry in dump.entries}
            closed = not dump.recovered
            records = len(dump.entries)
            values = sum(entry.key.phase is not Phase.FORCED for entry in dump.entries)  # what the net's own run gave
    except AlignerError as error:
        counts["lost"] += len(done.told)
        yield str(error).splitlines()[0]
        return
    lost = [one for one in done.told if found.get(one.order) != one.mark]
    counts["lost"] += len(lost)
    counts["closed" if closed else "by journal"] += 1
    if lost:
        yield f"{len(lost)} of {len(done.told)} values are missing or wrong"
    if not closed and not killed:
        yield "it was not closed"
    if closed:
        with h5py.File(path, "r") as file:
            if "index" not in file:
                yield "h5py finds no index"
        if not killed and len(list(path.parent.iterdir())) > 1:
            yield f"left behind: {sorted(one.name for one in path.parent.iterdir())}"
    for pattern in NUMBERS:
        number = values if "there" in pattern else records  # a net that raises is told what it gave until then
        for said in re.findall(pattern, done.err):
            if int(said) != number:
                yield f"it said {said} values, and there are {number}"


def told(case: Case, done: Done, whole: int) -> Iterator[str]:
    """Whether what it said, and how it ended, is true."""
    full, reached = len(done.told) < whole, "reached" in done.out
    if case.end == "kill" and reached:
        if done.code != -9:
            yield f"exit code {done.code} of a process that was killed"
        return
    if full and FULL not in done.err:
        yield f"the disk was full ({len(done.told)} of {whole} values), and nothing said so"
    if "internal" in done.err or "itself failed" in done.err:
        yield "an internal error"
    own = case.end == "error" and reached
    if own and OWN not in done.err:
        yield "the user's own error did not come out"
    aligner = case.door not in ("block", "replayed")
    code = CODES[case.door] if own else 0 if FULL not in done.err else 3 if aligner else 1
    if done.code != code:
        yield f"exit code {done.code}, {code} wanted"
    last = [line for line in done.err.splitlines() if re.match(r"[\w.]*Error: ", line)][-1:]
    if own and not aligner and last != [OWN]:
        yield f"what comes out of the block is {last}"


def main() -> int:
    """Run, print the table; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10**9, help="runs (all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--door", choices=DOORS, action="append")
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is left behind is cleared away then, too
    wanted = [case for case in cases(options.seed, 10**9) if case.door in (options.door or DOORS)]
    wanted = [case for case in wanted if case.kind in (options.kind or KINDS)]
    if options.count < len(wanted):
        wanted = random.Random(options.seed).sample(wanted, options.count)
    folder = Path(tempfile.mkdtemp(prefix="disks-"))
    bench = Bench(folder)
    try:
        return table(bench, wanted)
    finally:
        bench.close()
        shutil.rmtree(folder)


def table(bench: Bench, wanted: list[Case]) -> int:
    """One line for each kind and door."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    failures = 0
    for case in wanted:
        counts, wrong = bench.judge(case)
        row = rows.setdefault((case.kind, case.door), Counter())
        row.update(counts)
        row["wrong"] += bool(wrong)
        failures += bool(wrong)
        for what in wrong:
            print(f"{case.size} KiB {case.kind} {case.door} {case.end or 'plain'}: {what}", flush=True)
    columns = ("runs", "full", "errors", "kills", "closed", "by journal", "values", "lost", "wrong")
    print(f"\n{'':8}{'':10}" + "".join(f"{column:>11}" for column in columns))
    for (kind, door), row in sorted(rows.items()):
        print(f"{kind:8}{door:10}" + "".join(f"{row[column]:>11,}" for column in columns))
    total = sum(rows.values(), Counter())
    print(f"{'all':18}" + "".join(f"{total[column]:>11,}" for column in columns))
    return 1 if failures else 0


def unshared() -> None:
    """Go on where a mounted disk is nobody else's, and ends with this process."""
    if os.environ.get(NAMESPACE):
        return
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *own, "--mount", "--"]
    if shutil.which("unshare") and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        os.environ[NAMESPACE] = "1"
        os.execvp("unshare", [*command, sys.executable, *sys.argv])
    print("no small disk can be mounted here: only limits on the size of files (--kind limit)")
    sys.argv += ["--kind", "limit"]


if __name__ == "__main__":
    unshared()
    raise SystemExit(main())

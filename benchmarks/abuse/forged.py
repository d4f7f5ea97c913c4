"""Damaged and forged dumps through every command: each works or is refused, and nothing else happens.

    python benchmarks/abuse/forged.py --count 20000 --seed 1 --jobs 2

Every dump goes through open (and its values), show, show LAYER, show --json, compare, compare --json, compare --repro
and show --recover, in processes with little memory and a watchdog for each dump. Allowed are an answer (exit code 0 or
1) and a refusal (3); not an exception, another code, a hang, a text that writes into the terminal, JSON that is none, a
file outside the folder, or a program with anything in it but what aligner.programs.building lets through. Exit code 1
if anything else happened; `--only N` with the same seed does one dump again and says all.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import program
from forgeries import KINDS, Spoiled
from subjects import Pair, pairs

from aligner.cli import main as command
from aligner.dump import guard, journal
from aligner.dump.reader import open_dump
from aligner.errors import DumpError

SECONDS = 60
"""A dump that takes longer hangs: these take a tenth of a second, and the machine may be busy."""
MEGABYTES = 600
"""Of address space above what a process begins with; a good dump of these takes less than 10."""
BATCH = 200


class Wrong(Exception):
    """Something that must not happen."""


def spoiled(seed: int, number: int, subjects: dict[str, Pair]) -> tuple[str, str, int, Spoiled]:
    """What is done to which pair's which side, and the bytes."""
    rng = random.Random(f"{seed} {number}")
    kinds, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
    kind = rng.choices(kinds, weights)[0]
    name, at = rng.choice(sorted(subjects)), rng.choice([0, 1, 1])
    return kind, name, at, KINDS[kind][1](rng, subjects[name][at])


def lay(folder: Path, good: Pair, at: int, made: Spoiled) -> tuple[Path, Path, Path]:
    """Both dumps as files; the spoiled one is the last."""
    paths = folder / "ref.h5", folder / "port.h5"
    for path, side in zip(paths, good):
        path.write_bytes(side.closed)
    paths[at].write_bytes(made[0])
    beside = journal.path_of(paths[at])
    beside.unlink(missing_ok=True)
    if made[1] is not None:
        beside.write_bytes(made[1])
    return (*paths, paths[at])


def run(*arguments: str) -> int:
    """One command in this process; its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command([*arguments, "-v"])
    told = out.getvalue() + err.getvalue()
    if code not in (0, 1, 3):
        raise Wrong(f"aligner {arguments[0]}: exit code {code}\n{told[-3000:]}")
    refused = code == 3 and not out.getvalue().startswith(("INCOMPARABLE", "{\n"))
    if refused and (out.getvalue() or len(err.getvalue().splitlines()) != 2):
        raise Wrong(f"aligner {arguments[0]}: refused in {told[:2000]!r}")
    harmful = {
        c for c in set(told) - {"\n"} if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in names_turning()
    }
    if harmful:
        raise Wrong(f"aligner {arguments[0]} printed {harmful}")
    if "Warning" in err.getvalue():
        raise Wrong(f"aligner {arguments[0]}: warned {err.getvalue()[:2000]!r}")
    if "--json" in arguments and not refused:
        json.loads(out.getvalue(), parse_constant=lambda word: (_ for _ in ()).throw(Wrong(f"{word} in JSON")))
    return code


def names_turning() -> frozenset[str]:
    from aligner.dump import names

    return names._TURNING


def opened(path: Path) -> bool:
    """Read everything by hand; whether it was a dump."""
    try:
        with open_dump(path) as dump:
            repr(dump), dump.steps, dump.complete, list(dump.notes)
            repr(dump.layers), repr(dump.calls), repr(dump.findings)
            for entry in [*dump.entries[:40], *dump.entries[-5:]]:
                repr(entry)
                with contextlib.suppress(DumpError):
                    entry.load()
                    entry.statistics()
            for layer in list(dump)[:5]:
                repr(dump[layer])
            dump._repr_html_()
    except DumpError as error:
        error.text("zh")
        return False
    return True


def tried(folder: Path, good: Pair, at: int, made: Spoiled) -> bool:
    """One dump through everything; whether it could be opened."""
    reference, port, changed = lay(folder, good, at, made)
    fine = opened(changed)
    run("show", str(changed))
    layer = next((name for name in good[at].layers if name), "")
    if fine:
        with open_dump(changed) as dump:
            layer = next((name for name in dump.layers if name and not name.startswith("-")), "(net)")
            layer = layer if layer in dump.layers or "" in dump.layers else ""
    if fine and layer:
        run("show", str(changed), layer)
    run("show", "--json", str(changed))
    run("compare", str(reference), str(port))
    run("compare", "--json", str(reference), str(port))
    run("compare", str(reference), str(port), "--repro", str(folder / "repro"))
    if made[1] is not None:
        run("show", "--recover", str(changed))
        if run("show", str(changed)) == 0 and not opened(changed):
            raise Wrong("what was recovered cannot be opened")
    for script in (folder / "repro").glob("*.py"):
        program.check(script)
    strange = {path.name for path in folder.rglob("*") if path.is_file()}
    strange = {name for name in strange if not name.endswith((".h5", ".h5.journal", ".repro.py", ".repro.npz"))}
    if strange:
        raise Wrong(f"files were written: {strange}")
    return fine


def quick_guard(path: Path) -> Any:
    """guard.inspect in a fork: the same look under the same limits, without 0.3 s for starting Python."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as sys.stdout:
            guard.main(os.fspath(path))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    _, status = os.waitpid(child, 0)
    try:
        found = json.loads(told)
    except ValueError:
        return guard.Finding("guard-crash", {"status": status})
    return guard.Finding(found[0], found[1]) if found else None


def work(subjects: dict[str, Pair], seed: int, numbers: list[int]) -> None:
    """In a process of its own: a line of JSON before and after each dump."""
    import h5py  # noqa: F401  # the guard's forks have it then

    faulthandler.enable()
    if len(numbers) > 1:
        guard.inspect = quick_guard
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (MEGABYTES << 20), resource.RLIM_INFINITY))
    stream = os.fdopen(os.dup(1), "w", buffering=1)
    for number in numbers:
        sys.setrecursionlimit(20_000)  # of the forger, who copies what he has nested
        kind, name, at, made = spoiled(seed, number, subjects)
        sys.setrecursionlimit(1000)
        print(json.dumps(["begin", number, kind]), file=stream)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                state = "opened" if tried(Path(folder), subjects[name], at, made) else "refused"
                reason = ""
            except BaseException as error:
                state, reason = "wrong", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-2500:]}"
            os.chdir("/")
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(["end", number, kind, state, time.monotonic() - start, reason]), file=stream)


def batch(cache: Path, seed: int, numbers: list[int]) -> Iterator[list[Any]]:
    """The results of some dumps; a process that dies is a result, and another one goes on behind it."""
    while numbers:
        text = ",".join(map(str, numbers))
        process = subprocess.run(
            [sys.executable, __file__, "--worker", str(cache), "--seed", str(seed), "--numbers", text],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('["')]
        ended = [line[1:] for line in lines if line[0] == "end"]
        yield from ended
        numbers = numbers[len(ended) :]
        if numbers:
            kind = lines[-1][2] if lines and lines[-1][0] == "begin" else "?"
            yield [numbers[0], kind, "died", SECONDS, f"status {process.returncode}\n{process.stderr[-2500:]}"]
            numbers = numbers[1:]


def table(results: list[list[Any]], seconds: float) -> str:
    """One row for each kind."""
    kinds: dict[str, list[list[Any]]] = defaultdict(list)
    for result in results:
        kinds[result[1]].append(result)
    rows = [("what was done", "dumps", "opened", "refused", "wrong", "slowest")]
    for kind, found in [*((kind, kinds[kind]) for kind in [*KINDS, "?"] if kind in kinds), ("all", results)]:
        counts = [sum(one[2] == state for one in found) for state in ("opened", "refused")]
        wrong = len(found) - sum(counts)
        rows.append((kind, *map(str, (len(found), *counts, wrong)), f"{max(one[3] for one in found):.1f} s"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---|" + "--:|" * 5)
    return "\n".join([*lines, "", f"{seconds / 60:.0f} minutes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with open(options.worker, "rb") as file:
            work(pickle.load(file), options.seed, [int(number) for number in options.numbers.split(",")])
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "subjects"
        cache.write_bytes(pickle.dumps(pairs(Path(folder))))
        numbers = list(range(options.count)) if options.only is None else [options.only]
        parts = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        results: list[list[Any]] = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for found in pool.map(lambda part: list(batch(cache, options.seed, part)), parts):
                results += found
                for number, kind, state, seconds, reason in found:
                    if state in ("wrong", "died") or options.only is not None:
                        print(f"--only {number}: {kind}: {state}, {seconds:.1f} s: {reason}", flush=True)
                if sys.stderr.isatty():
                    print(f"\r{len(results)} of {len(numbers)}", end="", file=sys.stderr)
    print("\n" + table(results, time.monotonic() - start))
    return int(any(state in ("wrong", "died") for _, _, state, _, _ in results))


if __name__ == "__main__":
    sys.exit(main())

"""Real ports: how right aligner is on nets that other people wrote.

    python benchmarks/realports/run.py [--pair NAME]... [--planted] [--mend] [--case ID]... [--held-out] [--json FILE]

Prints one line for each miss, then the tables. The exit code is 1 if a pair could not be asked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pairs
import sheet
from verdicts import Verdict


def run_pair(name: str, folder: Path, options: argparse.Namespace) -> list[Verdict]:
    """One pair in a process of its own; says each miss.

    Raises:
        RuntimeError: the process ended without a result.
    """
    result = folder / f"{name}.json"
    line = [sys.executable, str(Path(__file__).with_name("one_pair.py")), name, str(result)]
    line += ["--planted"] * (options.planted or bool(options.case))
    line += ["--mend"] * options.mend
    for case in options.case or ():
        line += ["--case", case]
    if options.texts:
        line += ["--texts", str(options.texts.resolve())]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip()[-2000:]}")
    verdicts = [Verdict(**entry) for entry in json.loads(result.read_text(encoding="utf-8"))]
    for one in verdicts:
        print("\n".join([f"{one.id}: {sheet.summary(one)}", *(f"  MISS {miss}" for miss in one.misses)]), flush=True)
    return verdicts


def chosen(options: argparse.Namespace) -> list[str]:
    """The pairs to ask: those that are held out only if that is asked for."""
    names = [name for name in pairs.names() if options.held_out or name not in pairs.held_out()]
    names = [name for name in names if not options.pair or name in options.pair]
    if options.case:
        names = [
            name
            for name in names
            if {name, f"{name}-mended", *(one.id for one in pairs.pair(name).planted)} & set(options.case)
        ]
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description="The benchmark of real ports.")
    parser.add_argument("--pair", action="append", help="only this pair (repeatable)")
    parser.add_argument(
        "--case", action="append", help="only this port: NAME, NAME-mended or a planted mistake (repeatable)"
    )
    parser.add_argument(
        "--planted", action="store_true", help="also wrong ports when they are mended, and planted mistakes"
    )
    parser.add_argument("--mend", action="store_true", help="run planted ports again with the edits that are told")
    parser.add_argument("--held-out", action="store_true", help="also the pairs that nobody looks at until the end")
    parser.add_argument("--jobs", type=int, default=1, help="pairs at a time (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict to FILE")
    parser.add_argument(
        "--texts", type=Path, metavar="FOLDER", help="write each answer to FOLDER, and the report of each miss"
    )
    options = parser.parse_args()
    names = chosen(options)
    if not names:
        parser.error("no pair fits (held-out ones need --held-out)")
    if options.texts:
        options.texts.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    verdicts: list[Verdict] = []
    failed: list[str] = []

    def ask(name: str) -> list[Verdict]:
        try:
            return run_pair(name, Path(temporary), options)
        except RuntimeError as error:
            failed.append(str(error))
            return []

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        for part in pool.map(ask, names):
            verdicts += part
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in verdicts], indent=1), encoding="utf-8")
    took = f"{len(names)} pairs, {len(verdicts)} cases, {time.monotonic() - started:.0f} s"
    print(f"\n{sheet.report(verdicts)}\n\n{took}")
    if failed:
        print("\n".join(["", "Could not be asked:", *failed]))
    broken = [one.id for one in verdicts if one.promised]
    if broken:
        print(f"\nALIGNED with an origin: {', '.join(broken)}")
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())

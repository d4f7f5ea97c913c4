"""The port-bug benchmark: how often aligner names the place and the cause of a planted bug, and cries wolf.

python benchmarks/portbugs/run.py [--nets FOLDER] [--net NAME]... [--case ID]... [--json FILE] [--jobs 2] [--mend]

Prints one line for each miss, then the tables. The exit code is 1 if a case could not be asked.
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
from typing import Optional

import corpus
import table
from judge import Alarm, Judgement


def run_net(
    net: Path, folder: Path, cases: Optional[list[str]], mend: bool = False
) -> tuple[list[Alarm], list[Judgement]]:
    """One net in a process of its own; says each miss.

    Raises:
        RuntimeError: the process ended without a result.
    """
    result = folder / f"{net.name}.json"
    line = [sys.executable, str(Path(__file__).with_name("one_net.py")), str(net), str(result)]
    for case in cases or ():
        line += ["--case", case]
    line += ["--mend"] if mend else []
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{net.name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found = json.loads(result.read_text(encoding="utf-8"))
    alarms = [Alarm(**entry) for entry in found["alarms"]]
    judged = [Judgement(**entry) for entry in found["judgements"]]
    tell(alarms, judged)
    return alarms, judged


def tell(alarms: list[Alarm], judged: list[Judgement]) -> None:
    """One line for each miss."""
    lines = [
        f"FALSE ALARM {one.net} {one.precision} (exit code {one.exit_code}): {said}"
        for one in alarms
        if one.false
        for said in one.named or ("nothing named",)
    ]
    for one in judged:
        lines += [f"FAULT {one.id}  {fault}" for fault in one.faults]
        lines += [f"MISS {one.id}  {miss}" for miss in one.misses]
    if lines:
        print("\n".join(lines), flush=True)


def report(alarms: list[Alarm], judged: list[Judgement]) -> str:
    """All tables."""
    parts = ["## aligner", table.answers(judged), "## Lines of code", table.code_lines(judged)]
    parts += [table.code_edits(judged)]
    parts += [table.patches(judged)] if any(one.mended is not None for one in judged) else []
    parts += ["## The plain rule", table.plain_rule(judged)]
    if alarms:
        parts += ["## Correct ports", table.clean_nets(alarms)]
    return "\n\n".join([*parts, "## Times", table.times(judged, alarms)])


def main() -> int:
    parser = argparse.ArgumentParser(description="The port-bug benchmark.")
    parser.add_argument("--nets", type=Path, default=corpus.NETS, metavar="FOLDER", help="other nets in this form")
    parser.add_argument("--net", action="append", help="only this net (repeatable)")
    parser.add_argument("--case", action="append", help="only this bug, and no clean port (repeatable)")
    parser.add_argument("--mend", action="store_true", help="run each port again with the edits that are told")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every judgement to FILE")
    parser.add_argument("--jobs", type=int, default=2, help="nets at a time (2)")
    options = parser.parse_args()
    nets = [net for net in corpus.nets(options.nets) if not options.net or net.name in options.net]
    if options.case:
        nets = [net for net in nets if any(bug.id in options.case for bug in corpus.bugs(net))]
    if not nets:
        parser.error("no net of the corpus fits")
    started = time.monotonic()
    done, lost = [], []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_net, net, Path(temporary), options.case, options.mend) for net in nets]
        for run in runs:
            try:
                done.append(run.result())
            except RuntimeError as error:  # what the others said stands
                lost.append(str(error))
                print(f"LOST {error}", flush=True)
    alarms = [one for part, _ in done for one in part]
    judged = [one for _, part in done for one in part]
    print(f"\n{report(alarms, judged)}\n\n{len(nets)} nets, {len(judged)} bugs, {time.monotonic() - started:.0f} s")
    if options.json:
        found = {"alarms": [asdict(one) for one in alarms], "judgements": [asdict(one) for one in judged]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if lost or any(one.faults for one in judged) else 0


if __name__ == "__main__":
    sys.exit(main())

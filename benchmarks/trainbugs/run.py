"""The benchmark of wrong trainings: is the right stage named, in the right step, and why?

    python benchmarks/trainbugs/run.py [--trainings FOLDER] [--case ID]... [--jobs N] [--json FILE] [--texts FOLDER]

Each case is asked as a user asks: two unchanged scripts are captured, the port's with `--from`, and compared; each
command is a process of its own. Prints a line for each miss, then the tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
STEPS = 10
UPDATES = {"gan": 2}
"""How many a turn of a training's loop makes, each of another net; bugs.json counts turns."""
STAGES = ("data", "forward", "loss", "backward", "clip", "update")
CAUSES = 2
"""Causes of an origin among which the right one must be."""


@dataclass
class Case:
    """A port: right, or with a mistake. `stages` are those that are wrong, none where it is right."""

    id: str
    edits: Sequence[tuple[str, str]] = ()
    stages: tuple[str, ...] = ()
    step: int = 0
    words: tuple[str, ...] = ()


@dataclass
class Verdict:
    """What was said of a case."""

    id: str
    training: str
    right: bool
    stages: tuple[str, ...]
    outcome: str = ""
    named: bool = False
    """Each wrong stage is that of an origin."""
    first: bool = False
    """The first origin's stage is wrong."""
    alone: bool = False
    """No origin's stage is right."""
    stepped: bool = False
    """The step in which it is wrong first is told."""
    caused: bool = False
    confirmed: bool = False
    plain: str = ""
    """The stage of the first value over 1e-3."""
    said: list[str] = field(default_factory=list)
    fault: str = ""
    seconds: float = 0.0


def cases(folder: Path) -> Iterator[Case]:
    """The right port, and each mistake."""
    yield Case(f"{folder.name}-right")
    for row in json.loads((folder / "bugs.json").read_text(encoding="utf-8")):
        stages = row["stage"] if isinstance(row["stage"], list) else [row["stage"]]
        edits = [(old, new) for old, new in row["edits"]]
        yield Case(row["id"], edits, tuple(stages), int(row.get("step", 0)), tuple(row.get("words", ())))


def planted(text: str, case: Case) -> str:
    """The port's script with the case's mistake.

    Raises:
        ValueError: what is to be replaced does not stand there once.
    """
    for old, new in case.edits:
        if text.count(old) != 1:
            raise ValueError(f"{case.id}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    return text


def stage_of(where: str, phase: str, slot: str) -> str:
    """The stage of an origin or of a record, in the words of the corpus."""
    if where == "loss" and phase == "backward":  # the loss is right, and what is differentiated is another value
        return "backward"
    if where in ("data", "loss", "clip", "update"):
        return where
    if where == "inputs":
        return "data"
    if where == "program":  # the corpus takes it for a part of the update
        return "update"
    if phase == "backward":
        return "backward"
    if phase == "update":  # a running statistic: the layer's own doing
        return "forward"
    return "forward"


def asked(folder: Path, case: Case, reference: Path, texts: Optional[Path]) -> Verdict:
    """Capture and compare one port."""
    verdict = Verdict(case.id, folder.name, not case.stages, case.stages)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        script, port = Path(place) / "train_ms.py", Path(place) / "port.h5"
        script.write_text(planted((folder / "train_ms.py").read_text(encoding="utf-8"), case), encoding="utf-8")
        words = ["capture", "-o", port, "--gradients", "--from", reference, "--search", "0", script]
        done = command(*words, cwd=place)
        if not port.exists():
            verdict.fault = done.stderr[-400:]
            return verdict
        answer = json.loads(command("compare", reference, port, "--json", cwd=place).stdout)
        if texts is not None:
            texts.mkdir(parents=True, exist_ok=True)
            told = command("compare", reference, port, cwd=place).stdout
            (texts / f"{case.id}.txt").write_text(done.stderr[-1500:] + "\n" + told, encoding="utf-8")
            (texts / f"{case.id}.json").write_text(json.dumps(answer), encoding="utf-8")
    verdict.seconds = time.monotonic() - started
    judge(verdict, case, answer)
    return verdict


def judge(verdict: Verdict, case: Case, answer: dict[str, Any]) -> None:
    """What is right of an answer."""
    origins = answer["origins"]
    told = [stage_of(one["where"], one["phase"], one["slot"]) for one in origins]
    verdict.outcome = answer["outcome"]
    verdict.said = [
        f"{stage}@{one['steps'][0] if one['steps'] else one['step']}: "
        + "; ".join(f"{c['id']}{'!' if c['confirmed'] else ''}" for c in one["causes"][:CAUSES])
        for stage, one in zip(told, origins)
    ]
    first = answer["first_divergence"]
    verdict.plain = (
        "" if first is None else stage_of((first["layer"] == "(loss)" and "loss") or "", first["phase"], first["slot"])
    )
    if verdict.right:
        verdict.alone = verdict.named = verdict.first = answer["outcome"] == "aligned" and not origins
        return
    verdict.named = all(stage in told for stage in case.stages)
    verdict.first = bool(told) and told[0] in case.stages
    verdict.alone = bool(told) and all(stage in case.stages for stage in told)
    mine = [one for stage, one in zip(told, origins) if stage in case.stages]
    steps = [min(one["steps"] or [one["step"]]) for one in mine]
    verdict.stepped = bool(steps) and min(steps) // UPDATES.get(verdict.training, 1) == case.step
    causes = [cause for one in mine for cause in one["causes"][:CAUSES]]
    sentences = " ".join(f"{c['summary']} {c['evidence']} {c['fix']}".lower() for c in causes)
    verdict.caused = bool(causes) and all(word.lower() in sentences for word in case.words)
    verdict.confirmed = any(cause["confirmed"] for cause in causes)


def command(*words: object, cwd: str) -> subprocess.CompletedProcess[str]:
    """One command of aligner's, as a user gives it."""
    line = [sys.executable, "-m", "aligner", *map(str, words)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


def training(folder: Path, wanted: Sequence[str], texts: Optional[Path]) -> list[Verdict]:
    """All cases of one training."""
    with tempfile.TemporaryDirectory() as place:
        reference = Path(place) / "ref.h5"
        script = folder / "train_torch.py"
        steps = STEPS * UPDATES.get(folder.name, 1)
        done = command("capture", "-o", reference, "--gradients", "--steps", steps, script, cwd=place)
        if done.returncode != 0:
            return [Verdict(folder.name, folder.name, False, (), fault=done.stderr[-400:])]
        found = [case for case in cases(folder) if not wanted or case.id in wanted]
        return [asked(folder, case, reference, texts) for case in found]


def share(part: int, whole: int) -> str:
    """A count and its share."""
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "-"


def tables(verdicts: Sequence[Verdict]) -> str:
    """What came of all cases."""
    wrong = [one for one in verdicts if not one.right]
    right = [one for one in verdicts if one.right]
    rows = [("right trainings that read aligned", share(sum(one.named for one in right), len(right)))]
    for name, value in (
        ("each wrong stage named", "named"),
        ("the first that is named is wrong", "first"),
        ("nothing else named", "alone"),
        ("in the right step", "stepped"),
        (f"with the right cause among the first {CAUSES}", "caused"),
        ("confirmed", "confirmed"),
    ):
        rows.append((name, share(sum(getattr(one, value) for one in wrong), len(wrong))))
    plain = sum(one.plain in one.stages for one in wrong)
    rows.append(("by the plain rule (first value over 1e-3)", share(plain, len(wrong))))
    rows.append(("no answer", str(sum(bool(one.fault) for one in verdicts))))
    lines = ["| trainings | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += ["| stage | mistakes | named | cause | confirmed |", "|---|---|---|---|---|"]
    for stage in STAGES:
        mine = [one for one in wrong if one.stages == (stage,)]
        counts = (sum(getattr(one, name) for one in mine) for name in ("named", "caused", "confirmed"))
        lines.append(f"| {stage} | {len(mine)} | " + " | ".join(share(count, len(mine)) for count in counts) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=Path, default=HERE / "trainings", help="folder of trainings")
    parser.add_argument("--training", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--case", action="append", default=[], help="only this case (repeatable)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument("--texts", type=Path, help="write each answer to this folder")
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.trainings.glob("*/bugs.json"))
    folders = [path for path in folders if not options.training or path.name in options.training]
    texts = options.texts.resolve() if options.texts else None
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = [one for some in pool.map(lambda path: training(path, options.case, texts), folders) for one in some]
    for one in verdicts:
        missing = [name for name in ("named", "first", "alone", "stepped", "caused") if not getattr(one, name)]
        if one.fault or (missing and (not one.right or not one.named)):
            print(f"MISS {one.id} {one.stages}: {', '.join(missing)}; said {one.said or one.outcome} {one.fault}")
    print(f"\n{tables(verdicts)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in verdicts], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

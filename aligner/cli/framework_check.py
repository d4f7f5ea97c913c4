"""What an adapter says of its framework, asked in a process of its own: one that crashes is a line and not the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

SECONDS = 180
Row = tuple[str, bool, dict[str, Any]]
"""Message, whether it is good, and its facts."""
PROGRAM = """
import json, sys
sys.path += [place for place in json.loads(sys.argv[1])["path"] if place not in sys.path]
from aligner.cli import framework_check
framework_check.answer()
"""


@dataclass
class Asked:
    """A process that was started and will answer."""

    name: str
    process: subprocess.Popen[str]

    def rows(self) -> list[Row]:
        """The answer, or what became of the process."""
        try:
            out, errors = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return [("doctor-framework-slow", False, {"name": self.name, "seconds": SECONDS})]
        try:
            rows = [(str(message), bool(good), dict(facts)) for message, good, facts in json.loads(out)]
        except ValueError:
            return [("doctor-framework-crashed", False, {"name": self.name, "reason": self._fate(errors)})]
        return rows

    def _fate(self, errors: str) -> str:
        code = self.process.returncode
        said = (errors.strip().splitlines() or [""])[-1][:200]
        try:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            how = f"signal {-code}"
        return f"{how}; {said}" if said else how


def ask(point: EntryPoint) -> Asked:
    """Start asking the adapter at this entry point; several can be asked at once."""
    question = {"path": sys.path, "name": point.name, "value": point.value, "group": point.group}
    process = subprocess.Popen(
        # Isolated, and what is on the path here comes last there: no file at hand stands in for one of Python's.
        [sys.executable, "-I", "-c", PROGRAM, json.dumps(question)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    return Asked(point.name, process)


def answer() -> None:
    """The asked process: what frameworks print while they are imported goes to stderr, the answer alone to stdout."""
    question = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        out.write(json.dumps(told(EntryPoint(question["name"], question["value"], question["group"])), default=str))
        out.flush()
        os._exit(0)  # what frameworks do on their way out is of no interest, and some of them crash there


def told(point: EntryPoint) -> list[Row]:
    """All findings of the adapter, or how it failed."""
    from aligner.errors import AlignerError

    rows: list[Row] = []
    try:
        adapter = point.load()()
        rows.append(("doctor-adapter", True, {"name": point.name, "version": adapter.version()}))
        rows += [(one.message, one.good, dict(one.facts)) for one in adapter.doctor()]
    except AlignerError as error:
        rows.append((error.message, False, {key: str(fact) for key, fact in error.facts.items()}))
    except Exception as error:  # the point of this command is to say what is broken
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        rows.append(("doctor-adapter-failed", False, {"name": point.name, "reason": reason}))
    return rows

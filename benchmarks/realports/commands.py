"""A program in a process of its own, as a user runs it: what it said, its time, its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Done:
    """One command that has ended; seconds of processor time, importing the frameworks included."""

    words: tuple[str, ...]
    code: int
    seconds: float
    peak_mib: float
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The beginning of what it complained about last."""
        return " ".join([line.strip() for line in self.err.splitlines() if line.strip()][-4:])[:400]


def aligner(*words: object, package: Optional[Path] = None) -> Done:
    """Run `aligner WORDS`; `package` is a folder whose packages go before the installed ones."""
    return program("-m", "aligner", *words, package=package)


def program(*words: object, package: Optional[Path] = None) -> Done:
    """The same of any Python program."""
    line = [sys.executable, *map(str, words)]
    environment = {**os.environ, "ALIGNER_LANG": "en"}
    if package is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        process = subprocess.Popen(line, stdout=out, stderr=err, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # its own usage; getrusage would mix all children
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        seconds = round(used.ru_utime + used.ru_stime, 2)
        peak = round(used.ru_maxrss / 1024, 1)
        return Done(tuple(map(str, words)), process.returncode, seconds, peak, out.read(), err.read())

"""`aligner doctor`: what is usable here and what is wrong; works without any framework."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Optional

from aligner import messages, registry
from aligner.cli import framework_check, surroundings
from aligner.cli import parser as parsing
from aligner.record import Scalar
from aligner.report import lines
from aligner.report.figures import size
from aligner.report.terminal import terminal
from aligner.report.words import say

HELP = (
    "Check this environment: Python, numpy, h5py, disk space, variables, the frameworks and their adapters.\n"
    "Exit code: 0 all is well, 2 something is wrong; each problem comes with what to do.",
    "检查当前环境：Python、numpy、h5py、磁盘空间、环境变量、各框架及其适配器。\n"
    "退出码：0 一切正常，2 存在问题；每个问题都附有处理方法。",
)
EXAMPLES = (
    ("aligner doctor", "what works here", "查看当前环境"),
    ("aligner doctor --json", "for a bug report or a script", "用于问题反馈或脚本"),
    ("aligner doctor --lang zh", "in Chinese", "以中文显示"),
)
LITTLE_DISK = 1e9
MINDTORCHS_OWN = ("torch-imitated", "mindtorch-batch-norm", "mindtorch-hooks-silent", "mindtorch-shim-put-in")


@dataclass(frozen=True)
class Line:
    """One finding: how it stands ("good", "note", "bad"), about what, and the message."""

    state: str
    subject: str
    message: str
    facts: Mapping[str, Scalar]


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    parser.add_argument(
        "--json", action="store_true", help=parser.pick("one JSON document on stdout", "在标准输出给出一份 JSON")
    )


def run(options: argparse.Namespace) -> int:
    """Print all findings; 2 if one of them is a problem."""
    found = list(findings())
    if options.json:
        print(json.dumps(_document(found), indent=1))
    else:
        shape = terminal(sys.stdout, os.environ, options.lang, options.color)
        styles = {"good": ("green",), "note": ("yellow",), "bad": ("bold", "red")}
        label = max(lines.width(say(state, shape.language)) for state in styles)
        subject = max(len(line.subject) for line in found)
        for line in found:
            word = say(line.state, shape.language)
            text = " ".join(messages.text(line.message, shape.language, line.facts).splitlines())
            head = f"{lines.pad(word, label)}  {line.subject:<{subject}}"
            rows = lines.hang(head, lines.printable(text), shape.width, label + subject + 4)
            rows[0] = shape.paint(word, *styles[line.state]) + rows[0][len(word) :]
            print("\n".join(rows))
    return 2 if any(line.state == "bad" for line in found) else 0


def findings() -> Iterator[Line]:
    """Everything there is to say, ours first, then each adapter's own."""
    points = registry.available()
    asked = {
        name: None if find_spec(name) is None else framework_check.ask(point) for name, point in sorted(points.items())
    }
    yield _python()
    yield from _libraries()
    yield _disk(os.getcwd())
    yield from _surroundings()
    if not points:
        yield Line("bad", "adapters", "doctor-no-adapters", {})
    usable = 0
    for name, one in asked.items():
        rows = list(_adapter(name, one))
        usable += any(row.message == "doctor-adapter" for row in rows)
        yield from rows
    if points and not usable:
        yield Line("note", "adapters", "doctor-compare-only", {})


def _python() -> Line:
    facts = {"version": platform.python_version(), "platform": platform.platform(), "path": sys.executable}
    return Line("good" if sys.version_info >= (3, 9) else "bad", "python", "doctor-python", facts)


def _libraries() -> Iterator[Line]:
    for name, least in (("numpy", (1, 20)), ("h5py", (3, 1))):
        try:
            importlib.import_module(name)
            found = version(name)
        except Exception as error:  # a broken binary wheel raises whatever it likes
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Line("bad", name, "doctor-library-broken", {"name": name, "reason": reason})
            continue
        wanted = ".".join(str(part) for part in least)
        facts = {"name": name, "version": found, "wanted": wanted}
        good = _numbers(found) >= least
        yield Line("good" if good else "bad", name, "doctor-library" if good else "doctor-library-old", facts)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def _surroundings() -> Iterator[Line]:
    for message, facts in surroundings.variables(os.environ):
        yield Line("note", "environment", message, facts)
    encoding = getattr(sys.stdout, "encoding", None)
    if not surroundings.terminal_speaks(encoding):
        yield Line("note", "terminal", "doctor-no-chinese", {"encoding": str(encoding)})


def _disk(folder: str) -> Line:
    free = shutil.disk_usage(folder).free
    facts = {"folder": folder, "free": size(free)}
    if not os.access(folder, os.W_OK):
        return Line("note", "disk", "doctor-disk-readonly", facts)
    return Line(
        "good" if free >= LITTLE_DISK else "note",
        "disk",
        "doctor-disk" if free >= LITTLE_DISK else "doctor-disk-little",
        facts,
    )


def _adapter(name: str, asked: Optional[framework_check.Asked]) -> Iterator[Line]:
    """One framework: absent (no problem), broken, or usable with its own findings."""
    if asked is None:
        yield Line("note", name, "doctor-absent", {"name": name})
        return
    for message, facts in surroundings.unmet(name):
        yield Line("bad", name, message, facts)
    if name == "mindspore" and _numbers(_installed("numpy")) >= (2, 0):
        yield Line("bad", name, "doctor-mindspore-numpy", {"version": _installed("numpy")})
    for message, good, told in asked.rows():
        if message != "mindspore-old" or find_spec("mindtorch") is None:  # which needs an old one
            yield Line(_state(good, message), name, message, told)


def _state(good: bool, message: str) -> str:
    """ "note" for what a MindTorch brings with it, and nobody here can mend."""
    if message in MINDTORCHS_OWN and find_spec("mindtorch") is not None:
        return "note"
    return "good" if good else "bad"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"


def _document(found: list[Line]) -> dict[str, object]:
    rows = [
        {
            "state": line.state,
            "subject": line.subject,
            "id": line.message,
            "facts": dict(line.facts),
            "text": messages.text(line.message, "en", line.facts),
        }
        for line in found
    ]
    return {"schema": "aligner.doctor/1", "good": all(line.state != "bad" for line in found), "findings": rows}

"""`aligner demo`: the three commands on a small torch net and its MindSpore port, which has one mistake in it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys

from aligner import messages
from aligner.cli import parser as parsing
from aligner.errors import AdapterError, UsageError

HELP = (
    "Find a planted bug in a small port, from capture to answer.\n"
    "Writes a PyTorch net and its MindSpore port into FOLDER, captures both and compares them. "
    "Mend the port there and run it again: it is left as you edited it.",
    "在一个小型移植网络中找出预埋的错误，完整演示。\n"
    "在 FOLDER 中写入一个 PyTorch 网络及其 MindSpore 移植，分别采集并比对。"
    "在那里修正移植代码后可再次运行：你修改过的文件会被保留。",
)
EXAMPLES = (
    ("aligner demo", "into ./aligner-demo", "写入 ./aligner-demo"),
    ("aligner demo /tmp/demo", "into another folder", "写入其他目录"),
    ("aligner demo --lang zh", "in Chinese", "以中文演示"),
)

NETS = ("net_torch.py", "net_mindspore.py")
PLANTED = "blocks.1.bn1"


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    parser.add_argument(
        "folder",
        nargs="?",
        default="aligner-demo",
        metavar="FOLDER",
        help=parser.pick("where to write the nets and dumps (aligner-demo)", "写入网络和转储的目录（aligner-demo）"),
    )


def run(options: argparse.Namespace) -> int:
    """0 when the planted bug is found, or when the port has been mended; compare's own code otherwise."""
    missing = [name for name in ("torch", "mindspore") if importlib.util.find_spec(name) is None]
    if missing:
        raise AdapterError("demo-frameworks", missing=", ".join(missing))
    folder = options.folder
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError("demo-folder", folder=folder)
    os.makedirs(folder, exist_ok=True)
    home = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo_nets")
    edited = False
    for name in NETS:
        target = os.path.join(folder, name)
        if os.path.exists(target):
            edited = edited or _read(target) != _read(os.path.join(home, name))
        else:
            shutil.copy(os.path.join(home, name), target)
    for command in (
        ["capture", "net_torch.py:build", "-o", "ref.h5", "--force"],
        ["capture", "net_mindspore.py:build", "--from", "ref.h5", "-o", "port.h5", "--force"],
    ):
        code = _show(command, folder, options.lang)
        if code:
            return code
    code = _show(["compare", "ref.h5", "port.h5"], folder, options.lang)
    origins = _origins(folder)
    facts = {"folder": folder, "planted": PLANTED, "found": ", ".join(origins) or "-"}
    if origins == [PLANTED]:
        print("\n" + messages.text("demo-found", options.lang, facts))
        return 0
    if code == 0 and edited:
        print("\n" + messages.text("demo-mended", options.lang, facts))
        return 0
    print("\n" + messages.text("demo-other", options.lang, facts))
    return code or 1


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _show(command: list[str], folder: str, language: str) -> int:
    """Run one command as a user would, under its own prompt."""
    print(f"\n$ aligner {shlex.join(command)}", flush=True)
    return subprocess.run([*_python(language), *command], cwd=folder, check=False).returncode


def _python(language: str) -> list[str]:
    return [sys.executable, "-m", "aligner", "--lang", language]


def _origins(folder: str) -> list[str]:
    command = [*_python("en"), "compare", "ref.h5", "port.h5", "--json"]
    answer = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout
    return [origin["port_layer"] for origin in json.loads(answer)["origins"]] if answer.strip() else []

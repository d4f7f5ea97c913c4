"""What the README says is what happens: its blocks are run in an empty folder, in both languages' versions."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = ["README.md", "README.zh-CN.md"]

FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


def commands(text):
    """(command, lines it must print) of every console block."""
    for block in CONSOLE.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *wanted = part.strip().splitlines()
            yield first, wanted


def scrubbed(text):
    """Without the figures of round-off, which another processor has otherwise."""
    return re.sub(r"\b\d\.\de-(0[6-9]|1\d)\b", "round-off", text)


@pytest.mark.parametrize("name", READMES)
def test_its_commands_print_what_it_shows(tmp_path, name):
    pytest.importorskip("torch", reason="the README's reference is a torch net")
    pytest.importorskip("mindspore", reason="the README's port is a MindSpore net")
    text = (ROOT / name).read_text(encoding="utf-8")
    for file, content in FILE.findall(text):
        (tmp_path / file).write_text(content, encoding="utf-8")
    listed = list(commands(text))
    assert len(listed) == 4
    for command, wanted in listed:
        program, *arguments = shlex.split(command)
        assert program == "aligner"
        done = subprocess.run(
            [sys.executable, "-m", "aligner", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "ALIGNER_LANG": "en"},
        )
        assert done.returncode in (0, 1), done.stderr
        for line in wanted:
            assert scrubbed(line) in scrubbed(done.stdout), done.stdout + done.stderr


def test_both_languages_have_the_same_blocks():
    english, chinese = (BLOCK.findall((ROOT / name).read_text(encoding="utf-8")) for name in READMES)
    assert english == chinese


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/**/*.md")]), ids=str
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name}: {target}"

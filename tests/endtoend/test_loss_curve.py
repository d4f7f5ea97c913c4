"""The page "My loss curve differs": its commands are run, each answer on it is real, each line stands in the script.

An answer's block has its mistake before it, `<!-- answer: ID -->`, one of benchmarks/trainbugs/trainings. Without the
end, it is what `compare` prints in 80 columns. `pytest --accept` writes blocks and drawing anew, in both languages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

import aligner
from aligner.messages import LANGUAGES
from aligner.notebook.step_curve import step_curve
from aligner.report.terminal import Terminal
from aligner.report.text import report_lines
from aligner.report.words import WORDS
from tests.endtoend.test_training_samples import rounded

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

ROOT = Path(__file__).resolve().parents[2]
TRAININGS = ROOT / "benchmarks" / "trainbugs" / "trainings"
PAGES = {"en": ROOT / "docs" / "loss-curve.md", "zh": ROOT / "docs" / "loss-curve.zh-CN.md"}
FIRST = "cnn-nesterov-missing"
"""The mistake that the page begins with."""

CAPTURES = (
    "capture -o ref.h5 --gradients --steps 10 train_torch.py",
    "capture -o port.h5 --from ref.h5 --gradients train_mindspore.py",
)
BLOCK = "<!-- answer: {} -->\n```text\n"
MISTAKES = re.findall("<!-- answer: (.*) -->", PAGES["en"].read_text(encoding="utf-8"))
DIFF = re.compile(r"<!-- line: (\S+) -->\n```diff\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
HEAD = (
    "<svg xmlns='http://www.w3.org/2000/svg' ",
    "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>",
)


def planted(mistake):
    """The port's script with a mistake, and without."""
    folder = TRAININGS / mistake.partition("-")[0]
    right = (folder / "train_ms.py").read_text(encoding="utf-8")
    (row,) = (row for row in json.loads((folder / "bugs.json").read_text(encoding="utf-8")) if row["id"] == mistake)
    wrong = right
    for old, new in row["edits"]:
        wrong = wrong.replace(old, new)
    return wrong, right


def run(folder, *words, language="en"):
    done = subprocess.run(
        [sys.executable, "-m", "aligner", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "ALIGNER_LANG": language, "COLUMNS": "80"},
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A folder for each mistake, with both scripts and both dumps under the page's names."""

    @cache
    def reference(training):
        folder = tmp_path_factory.mktemp(training)
        (folder / "train_torch.py").symlink_to(TRAININGS / training / "train_torch.py")
        run(folder, *CAPTURES[0].split())
        return folder / "ref.h5"

    @cache
    def port(mistake):
        training = mistake.partition("-")[0]
        folder = tmp_path_factory.mktemp(mistake)
        (folder / "train_mindspore.py").write_text(planted(mistake)[0], encoding="utf-8")
        (folder / "ref.h5").symlink_to(reference(training))
        run(folder, *CAPTURES[1].split())
        return folder

    return port


def answer(comparison, language):
    """What is answered, without what was compared."""
    ends = tuple(WORDS[name][LANGUAGES.index(language)].partition("{")[0].strip() for name in ("worst", "compared"))
    lines = report_lines(comparison, Terminal(80, language=language))
    shown = takewhile(lambda line: not line.strip().startswith(ends), lines)
    return "\n".join(shown).rstrip() + "\n"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_answer_is_what_is_answered(mistake, captured, request, monkeypatch):
    monkeypatch.chdir(captured(mistake))
    comparison = aligner.compare("ref.h5", "port.h5")
    for language, page in PAGES.items():
        text, start, found = page.read_text(encoding="utf-8"), BLOCK.format(mistake), answer(comparison, language)
        assert text.count(start) == 1
        before, _, rest = text.partition(start)
        shown, _, after = rest.partition("```")
        if request.config.getoption("--accept"):
            page.write_text(before + start + found + "```" + after, encoding="utf-8")
            shown = found
        assert rounded(shown) == rounded(found)


@pytest.mark.parametrize("language", PAGES)
def test_its_commands_print_what_it_shows(language, captured, request):
    """Those that capture are the ones that its answers are made with."""
    page = PAGES[language]
    text = page.read_text(encoding="utf-8")
    first, *others = CONSOLE.findall(text)
    *before, last = first.split("\n$ ")
    assert [line.removeprefix("$ ").removeprefix("aligner ") for line in before] == [*CAPTURES]
    for command, _, shown in (block.removeprefix("$ ").partition("\n") for block in (last, *others)):
        found = run(captured(FIRST), *command.split()[1:], language=language).splitlines(keepends=True)
        wanted = "".join([*found[: shown.count("\n") - 1], "...\n"])
        if request.config.getoption("--accept"):
            page.write_text(page.read_text(encoding="utf-8").replace(shown, wanted), encoding="utf-8")
            shown = wanted
        assert rounded(shown) == rounded(wanted)


@pytest.mark.parametrize("language", PAGES)
def test_the_curves_are_those_of_the_scripts(language, captured, request):
    """Run from the same weights, each by its own steps."""
    folder = captured(FIRST)
    words = ("capture", "-f", "-o", "free.h5", "--from", "ref.h5", "--gradients", "--free-only", "train_mindspore.py")
    run(folder, *words)
    steps = aligner.compare(folder / "ref.h5", folder / "free.h5").steps
    first, *_, last = (port - reference for reference, port in (row.loss for row in steps))
    assert abs(first) < 1e-5
    assert f"{last:.2f}" in PAGES[language].read_text(encoding="utf-8")
    drawn = step_curve([replace(row, first=None, inherited=0) for row in steps], language)
    drawn = drawn.replace("<svg ", HEAD[0], 1).replace("</title>", "</title>" + HEAD[1], 1) + "\n"
    path = PAGES[language].with_suffix(".svg")
    if request.config.getoption("--accept"):
        path.write_text(drawn, encoding="utf-8")
    kept = path.read_text(encoding="utf-8")
    number = r"-?\d+\.?\d*"
    assert re.sub(number, "", kept) == re.sub(number, "", drawn)
    assert [*map(float, re.findall(number, kept))] == pytest.approx([*map(float, re.findall(number, drawn))], abs=1)


@pytest.mark.parametrize("language", PAGES)
def test_each_line_that_is_changed_is_one_of_the_script(language):
    found = DIFF.findall(PAGES[language].read_text(encoding="utf-8"))
    assert [mistake for mistake, _ in found] == MISTAKES
    for mistake, shown in found:
        wrong, right = ({line.strip() for line in text.splitlines()} for text in planted(mistake))
        for line in shown.splitlines():
            assert line[1:].strip() in (right if line.startswith("+") else wrong), line
            assert line[1:].strip() not in (wrong - right if line.startswith("+") else right - wrong), line


def test_both_languages_tell_of_the_same():
    english, chinese = (PAGES[name].read_text(encoding="utf-8") for name in ("en", "zh"))
    assert DIFF.findall(english) == DIFF.findall(chinese)
    commands = [
        [re.findall(r"^\$ (.*)", block, re.MULTILINE) for block in CONSOLE.findall(t)] for t in (english, chinese)
    ]
    assert commands[0] == commands[1]
    assert re.findall("<!-- answer: .* -->", english) == re.findall("<!-- answer: .* -->", chinese)

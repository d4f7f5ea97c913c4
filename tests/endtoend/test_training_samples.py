"""The trainings among the samples: right ports are aligned, each planted mistake is told at its stage and step."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import aligner
from aligner.report.terminal import Terminal
from aligner.report.text import report_lines
from tests.endtoend.test_samples import scrubbed

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {path.parent.name: path.parent for path in sorted(ROOT.glob("samples/training/*/expected.json"))}
EXPECTED = {name: json.loads((path / "expected.json").read_text(encoding="utf-8")) for name, path in FOLDERS.items()}
CASES = [pytest.param(name, port, id=f"{name}-{port[:-3]}") for name, ports in EXPECTED.items() for port in ports]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Each port captured and compared by the README's commands, when it is first asked for."""

    def captured(name, script, *options):
        dump = tmp_path_factory.mktemp(name) / "dump.h5"
        words = ["capture", "-o", dump, "--gradients", *options, FOLDERS[name] / script]
        command = [sys.executable, "-m", "aligner", *map(str, words)]
        environ = {**os.environ, "ALIGNER_LANG": "en"}
        done = subprocess.run(command, cwd=dump.parent, env=environ, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return dump

    @cache
    def reference(name):
        return captured(name, "train_torch.py", "--steps", 6)

    @cache
    def answer(name, port):
        return aligner.compare(reference(name), captured(name, port, "--from", reference(name)))

    return answer


@pytest.mark.parametrize(("name", "port"), CASES)
def test_the_stage_and_the_step_that_are_wrong_are_told(name, port, answers):
    wanted, found = EXPECTED[name][port], answers(name, port)
    assert found.outcome == wanted["outcome"]
    assert [row.step for row in found.steps] == [*range(6)]
    if wanted["outcome"] == "aligned":
        assert (found.origins, found.counts["unmatched"]) == ((), 0)
        return
    first = found.origins[0]
    assert first.where == wanted["where"]
    assert first.steps[0] == wanted["step"]
    assert first.layer == wanted.get("origin", first.layer)
    assert first.causes[0].id == wanted.get("cause", first.causes[0].id)
    assert [origin.layer for origin in found.origins[1:]] == wanted.get("also", [])


@pytest.mark.parametrize("name", FOLDERS)
def test_readme_shows_the_answer(name, answers, request):
    """What the README says that the port it runs is answered with; `pytest --accept` writes it anew."""
    readme = FOLDERS[name] / "README.md"
    told = readme.read_text(encoding="utf-8")
    (port,) = re.findall(rf"--from ref\.h5 --gradients samples/training/{name}/(\w+\.py)", told)
    shown = told[told.index("```text\n") + len("```text\n") : told.rindex("```\n")]
    report = report_lines(answers(name, port), Terminal(width=80))
    end = next(i for i, line in enumerate(report) if line.startswith("  worst by the rule at"))
    answer = "\n".join([*report[:end], "  ...", ""])
    if request.config.getoption("--accept"):
        readme.write_text(told.replace(f"```text\n{shown}```", f"```text\n{answer}```"), encoding="utf-8")
        shown = answer
    assert rounded(shown) == rounded(answer)


def rounded(text):
    """With three digits of each number: losses have other last ones on another processor."""
    return re.sub(r"\b\d+\.\d+\b(?!e)", lambda number: f"{float(number[0]):.3g}", scrubbed(text))


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_is_complete(name):
    """Each script is expected and told of, says its mistake, and needs its own framework only."""
    folder = FOLDERS[name]
    told = (folder / "README.md").read_text(encoding="utf-8")
    scripts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    assert {*scripts} == {*EXPECTED[name], "train_torch.py"}
    for script, text in scripts.items():
        assert script in told
        assert ("planted:" in text) == script.startswith("port_")
        assert ast.get_docstring(ast.parse(text))
        assert re.findall(r"^(?:import|from) (torch|mindspore)\b", text, re.MULTILINE)
        assert ("import torch" in text) == (script == "train_torch.py")

"""`aligner capture --estimate` of trainings: what it says by a few steps is about what all come to."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the training is torch's")

SCRIPT = """
import torch
from tests.unit.training import small_tasks

net = small_tasks.Net()
optimizer = torch.optim.Adam(net.parameters())
for step, (images, labels) in enumerate(small_tasks.batches(40)):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
    optimizer.step()
    print("step", step)
"""
FACTORY = """
from tests.unit.training import small_tasks

def build():
    return small_tasks.task(small_tasks.of("Adam"), count=12)
"""
SIZES = {"B": 1, "kB": 1e3, "MB": 1e6}


@pytest.fixture
def capture(tmp_path, request):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "task.py").write_text(FACTORY, encoding="utf-8")

    def call(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "aligner", "capture", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            env={**__import__("os").environ, "ALIGNER_LANG": "en", "PYTHONPATH": str(request.config.rootpath)},
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return call


def bytes_of(told):
    number, unit = re.search(r"values, ([\d.]+) (\w+)", told).groups()
    return float(number) * SIZES[unit]


@pytest.mark.parametrize(
    "words", [["--gradients", "--steps", "12", "train.py"], ["task.py:build"]], ids=["script", "factory"]
)
def test_about_what_it_comes_to(capture, words, tmp_path):
    told = capture("--estimate", *words)
    assert "a dump of 12 steps of training" in told
    assert "by the first 2" in told
    assert re.search(r"take \d+:\d\d:\d\d \(h:mm:ss\)", told)
    assert [*tmp_path.glob("*.h5")] == []
    assert [int(step) for step in re.findall(r"^step (\d+)", told, re.MULTILINE)][3:] == []  # it stops then
    capture("-o", "all.h5", *words)
    assert bytes_of(told) == pytest.approx((tmp_path / "all.h5").stat().st_size, rel=0.35)


def test_a_script_that_ends_before(capture, tmp_path):
    (tmp_path / "short.py").write_text(SCRIPT.replace("batches(40)", "batches(1)"), encoding="utf-8")
    assert "by the first 1;" in capture("--estimate", "--gradients", "--steps", "5", "short.py")


def test_a_script_without_a_training(capture):
    told = capture("--estimate", "--steps", "3", "train.py")
    assert re.search(r"^Net: a dump of 3 step\(s\) would hold", told, re.MULTILINE)

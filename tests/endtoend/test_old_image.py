"""The port's side as it is on NPU hosts: Python 3.9, MindSpore 2.9, numpy 1.x, no torch.

tests/environments.sh captures the references with torch in the main environment and names their folder in
ALIGNER_REFERENCES; this file replays ports of them in whatever environment runs it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = os.environ.get("ALIGNER_REFERENCES", "")
SAMPLES = ["conv_valid", "lenet_bn", "transformer", "lstm", "renamed"]

pytestmark = pytest.mark.skipif(
    not REFERENCES, reason="references come from the main environment: run it by tests/environments.sh"
)


def aligner(*arguments, cwd):
    command = [sys.executable, "-m", "aligner", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_reference_from_torch_is_replayed(tmp_path, sample):
    if importlib.util.find_spec("mindspore") is None:
        pytest.skip("no MindSpore here: the bare environments compare, they do not replay")
    assert importlib.util.find_spec("torch") is None, "this environment must have no torch"
    reference = Path(REFERENCES) / f"{sample}.h5"
    port = ROOT / "samples" / sample / "port.py"
    done = aligner("capture", f"{port}:build", "--from", reference, "-o", "port.h5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = aligner("compare", reference, "port.h5", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    result = json.loads(answer.stdout)
    assert result["outcome"] == "aligned"
    assert max(pair["error"] for pair in result["pairs"] if pair["error"] is not None) < 1e-5


@pytest.mark.parametrize("sample", SAMPLES[:2])
def test_a_dump_of_another_environment_is_read_and_compared(tmp_path, sample):
    reference = Path(REFERENCES) / f"{sample}.h5"
    shown = aligner("show", reference, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    answer = aligner("compare", reference, Path(REFERENCES) / f"{sample}_again.h5", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert json.loads(answer.stdout)["outcome"] == "aligned"

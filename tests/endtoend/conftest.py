"""Running the command as users do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture
def aligner(tmp_path):
    """Run `aligner ARGUMENTS` in an empty folder, in English; the finished process comes back."""

    def call(*arguments, env=None, cwd=tmp_path):
        command = [sys.executable, "-m", "aligner", *map(str, arguments)]
        environ = {**os.environ, "ALIGNER_LANG": "en", **(env or {})}
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, env=environ)

    return call

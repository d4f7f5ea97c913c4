"""Running the command as users do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.endtoend.warm import Warm


@pytest.fixture
def aligner(tmp_path):
    """Run `aligner ARGUMENTS` in an empty folder, in English; the finished process comes back."""

    def call(*arguments, env=None, cwd=tmp_path):
        command = [sys.executable, "-m", "aligner", *map(str, arguments)]
        environ = {**os.environ, "ALIGNER_LANG": "en", **(env or {})}
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, env=environ)

    return call


@pytest.fixture(scope="module")
def torch_at_hand(tmp_path_factory):
    """A process that has imported torch."""
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture
def warm(torch_at_hand, tmp_path):
    """`aligner`, but in a process that has torch from the start: sooner, and not quite what a user starts."""

    def call(*arguments, env=None, cwd=tmp_path):
        return torch_at_hand.run(cwd, *map(str, arguments), **(env or {}))

    return call

"""Commands of aligner in processes that have torch already: they are forked off one that has imported it.

Importing torch is nine tenths of what a small capture costs. What a command says and writes does not depend on it;
how aligner starts does, and is tried with processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# The parent reads one order a line and answers with the exit code; each child leaves the loop and is the command.
_PROGRAM = """
import json, os, runpy, sys
import torch

for line in sys.stdin:
    folder, environment, arguments = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.environ.clear()
os.environ.update(environment)
for number, path in enumerate((os.devnull, "stdout", "stderr")):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
os.chdir(folder)
sys.argv = ["aligner", *arguments]
try:
    runpy.run_module("aligner", run_name="__main__", alter_sys=True)
except SystemExit as left:
    code = left.code
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # taking torch down takes long, too
"""


class Warm:
    """The process that has torch; its standard streams end in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `aligner ARGUMENTS` in a folder, in English, and wait for its end."""
        environment = {**os.environ, "ALIGNER_LANG": "en", **variables}
        orders, answers = self._process.stdin, self._process.stdout
        assert orders
        assert answers
        print(json.dumps([os.fspath(folder), environment, arguments]), file=orders, flush=True)
        try:
            code = int(answers.readline())
        except BaseException:  # a test that ran out of time: its answer is not the next one's
            self._process.kill()
            raise
        said, complained = ((self._folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(arguments, code, said, complained)

    def close(self) -> None:
        """End it."""
        with self._process:  # closes its streams, and waits
            pass

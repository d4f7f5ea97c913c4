"""Programs in processes that have their framework already: each is forked off one that has imported it.

What a program does to its dump does not depend on that, and importing is nine tenths of what a small capture costs.
A program may be told to report each value that its dump has accepted, and may get a limit on the size of files.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Union

HERE = Path(__file__).resolve().parent
SECONDS = 300
"""What no program takes."""


def mark(raw: bytes) -> str:
    """What is reported of a value."""
    return blake2b(raw, digest_size=12).hexdigest()


class Value(NamedTuple):
    """A value that was accepted by the dump with this token."""

    token: str
    order: int
    mark: str


class Moment(NamedTuple):
    """A dump has begun ("+"), or is about to be closed ("-")."""

    sign: str
    token: str
    path: str


def read(told: str) -> list[Union[Value, Moment]]:
    """What was reported; a report is written at once, or not at all."""
    rows = [line.split(" ", 2) for line in told.splitlines()]
    return [Moment(*row) if row[0] in ("+", "-") else Value(row[0], int(row[1]), row[2]) for row in rows]


@dataclass(frozen=True)
class Done:
    """How a program ended: its exit code (-9: killed), what it printed, and what it reported of accepted values."""

    code: int
    out: str
    err: str
    told: list[Value]


class Forks:
    """A process that has imported a framework, and forks."""

    def __init__(self, framework: str, folder: Path) -> None:
        self._folder = folder / framework
        self._folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-B", os.fspath(HERE / "forks.py"), framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, arguments: list[str], limit: int = 0, **variables: str) -> Done:
        """Run `python ARGUMENTS` in a folder: `-m MODULE ...` or `FILE ...`."""
        streams = {name: os.fspath(self._folder / name) for name in ("out", "err", "told")}
        environment = {**os.environ, "ALIGNER_LANG": "en", **variables}
        order = [os.fspath(folder), environment, arguments, limit, streams]
        orders, answers = self._process.stdin, self._process.stdout
        assert orders
        assert answers
        print(json.dumps(order), file=orders, flush=True)
        if not select.select([answers], [], [], SECONDS)[0]:
            raise TimeoutError(f"{arguments} took more than {SECONDS} s")
        code = int(answers.readline())
        out, err, told = (Path(path).read_text(errors="replace") for path in streams.values())
        values = [report for report in read(told) if isinstance(report, Value)]
        return Done(code, out, err, values)

    def close(self) -> None:
        """End it; a program that still runs is ended with it."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# --- In the process that forks.


def serve(framework: str) -> None:
    """Read one order a line, and answer with the exit code; each child leaves the loop and is the program."""
    __import__(framework)
    import aligner.capture.session
    import aligner.replay.replay  # noqa: F401  # what the programs would import one by one

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            os._exit(_be(*order))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _be(folder: str, environment: dict[str, str], arguments: list[str], limit: int, streams: dict[str, str]) -> int:
    import runpy

    os.environ.clear()
    os.environ.update(environment)
    kept = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    for number, path in enumerate((os.devnull, streams["out"], streams["err"])):
        os.dup2(os.open(path, kept, 0o600), number)
    report(os.open(streams["told"], kept | os.O_APPEND, 0o600))
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.chdir(folder)
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException as error:  # what Python does at its end
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def report(descriptor: int) -> None:
    """Have each value that a dump accepts in this process told there when it is accepted; beginnings and ends, too."""
    from aligner.dump.data import flat_bytes
    from aligner.dump.writer import DumpWriter

    begin, write, close = DumpWriter.__init__, DumpWriter.write, DumpWriter.close

    def tell(line: str) -> None:
        os.write(descriptor, f"{line}\n".encode())

    def beginning(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, path, *args, **kwargs)
        tell(f"+ {self._token} {os.path.abspath(path)}")

    def writing(self: Any, record: Any) -> None:
        write(self, record)
        tell(f"{self._token} {record.order} {mark(flat_bytes(record.array, record.dtype).tobytes())}")

    def closing(self: Any, complete: bool = True) -> None:
        tell(f"- {self._token} {self._place}")
        close(self, complete)

    DumpWriter.__init__ = beginning  # type: ignore[method-assign]  # told of
    DumpWriter.write = writing  # type: ignore[method-assign]  # told of
    DumpWriter.close = closing  # type: ignore[method-assign]  # told of


if __name__ == "__main__":
    serve(sys.argv[1])

"""What is killed: programs that capture a small torch net again and again, until they are.

python writing.py KIND...     reads orders, see `main`; kills.py starts it
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import torch
from forks import HERE, report
from torch.utils.data import DataLoader

import aligner
from aligner.cli import main as command
from aligner.dump.recovery import recover
from aligner.errors import DumpError

NETS = HERE / "nets"
LEFT = 30.0
"""Seconds that a forked child lives on."""


def net() -> tuple[torch.nn.Module, torch.Tensor]:
    from reference import build

    found: tuple[torch.nn.Module, torch.Tensor] = build()
    return found


def inputs(number: int) -> torch.Tensor:
    """Other ones in each capture."""
    return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(number))


def block(folder: Path, seed: int) -> None:
    """The with block, a dump after the other."""
    model, _ = net()
    for number in count():
        with aligner.capture(model, folder / f"{number:04}.h5"):
            model(inputs(seed + number))


def replayed(folder: Path, seed: int) -> None:
    """replay.capture: a free run, a forced pass, trials."""
    model, _ = net()
    with aligner.replay(folder.parent / "reference.h5", model) as replay:
        with torch.no_grad():
            next(iter(model.parameters())).mul_(1 + seed % 100 / 1e4)
        for number in count():
            with replay.capture(folder / f"{number:04}.h5"):
                replay.run()


def factory(folder: Path, seed: int) -> None:
    """The command with a factory."""
    for number in count():
        command(["capture", f"{NETS}/reference.py:build", "-o", f"{folder}/{number:04}.h5", "-q"])


def script(folder: Path, seed: int) -> None:
    """The command with a script."""
    for number in count():
        with suppress(SystemExit):
            command(["capture", "-q", "-o", f"{folder}/{number:04}.h5", f"{NETS}/script.py"])


def shared(folder: Path, seed: int) -> None:
    """Several of these have one path; each replaces what the others have finished."""
    model, _ = net()
    for number in count():
        try:
            with aligner.capture(model, folder / "one.h5", force=True):
                model(inputs(seed + number))
        except DumpError as error:
            if error.message != "dump-in-use":
                raise


def recovering(folder: Path, seed: int) -> None:
    """Recovers copies of a dump that was never closed."""
    whole = folder.parent / "open.h5"
    for number in count():
        path = folder / f"{number:04}.h5"
        shutil.copy(f"{whole}.journal", f"{path}.journal")
        shutil.copy(whole, folder / "copy")
        (folder / "copy").rename(path)
        recover(path)


def forking(folder: Path, seed: int) -> None:
    """In mid-forward a child is forked that lives on when this process is killed; in one of four ways."""
    model, _ = net()
    forked: list[object] = []

    def fork(*_: object) -> None:
        if not forked:
            forked.append(True)
            FORKS[seed % len(FORKS)](forked)
            (folder / "forked").touch()

    model.get_submodule("stage.1").register_forward_hook(fork)
    for number in count():
        forked.clear()
        with aligner.capture(model, folder / f"{number:04}.h5"):
            model(inputs(seed + number))


def _python(_: list[object]) -> None:
    if os.fork() == 0:
        time.sleep(LEFT)
        os._exit(0)


def _c(_: list[object]) -> None:
    if ctypes.PyDLL(None).fork() == 0:  # of which Python is told nothing
        time.sleep(LEFT)
        os._exit(0)


def _process(forked: list[object]) -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LEFT,), daemon=True)
    child.start()
    forked.append(child)


def _workers(forked: list[object]) -> None:
    loader = DataLoader(list(range(8)), num_workers=1, persistent_workers=True)
    rows = iter(loader)
    next(rows)
    forked.append(rows)


FORKS: tuple[Callable[[list[object]], None], ...] = (_python, _c, _process, _workers)
KINDS: dict[str, Callable[[Path, int], None]] = {
    "block": block,
    "replayed": replayed,
    "factory": factory,
    "script": script,
    "shared": shared,
    "recovering": recovering,
    "forking": forking,
}


def main() -> None:
    """For each line [kind, folder, seed]: fork a program of this kind, print its number, and "ended" at its end.

    Each leads a group of processes, so that whatever it leaves behind can be ended.
    """
    sys.path.insert(0, os.fspath(NETS))
    os.environ["ALIGNER_LANG"] = "en"
    torch.set_num_threads(1)  # a net that has run in threads before a fork does not run behind it
    import aligner.capture.session
    import aligner.replay.replay  # noqa: F401  # what the programs would import one by one

    for line in sys.stdin:
        kind, folder, seed = json.loads(line)
        child = os.fork()
        if not child:
            _be(KINDS[kind], Path(folder), seed)
        print(child, flush=True)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _be(program: Callable[[Path, int], None], folder: Path, seed: int) -> None:
    os.setsid()
    err = os.open(folder / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDWR), err, err)):
        os.dup2(descriptor, number)
    report(os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    try:
        program(folder, seed)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()

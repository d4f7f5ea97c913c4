"""The script door: run a user's unchanged script as Python would, and capture the model that runs in it.

Python sets up sys.argv, sys.path[0] and `__main__`, so that is what this file does; the script's exit code, its
output and its traceback (without our frames) are the script's own. Nothing heavy is imported before the script
runs: a script may set environment variables before it imports numpy or a framework.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Optional

from aligner.capture.tracebacks import forget_us
from aligner.errors import CaptureError

OURS = ("aligner", "aligner_hooks")


@dataclass(frozen=True)
class Script:
    """A script and its arguments; with `module`, `name` is what follows `python -m`."""

    name: str
    arguments: Sequence[str] = ()
    module: bool = False

    @property
    def folder(self) -> str:
        """What Python puts first on sys.path: the script's folder, or the working directory for -m."""
        if self.module:
            return os.getcwd()
        path = os.path.realpath(self.name)
        return path if os.path.isdir(path) else os.path.dirname(path)


def check(script: Script) -> None:
    """Refuse what cannot run before anything does.

    Raises:
        CaptureError: no such script, or a file or folder `aligner` beside it, which would hide this tool.
    """
    if not script.module and not os.path.exists(script.name):
        raise CaptureError("script-missing", path=script.name)
    if not script.module and os.path.isdir(script.name):
        main = os.path.join(script.name, "__main__.py")
        if not os.path.isfile(main):
            raise CaptureError("script-folder", path=script.name)
    for name in OURS:
        for shadow in (os.path.join(script.folder, f"{name}.py"), os.path.join(script.folder, name, "__init__.py")):
            if os.path.exists(shadow) and not _is_ours(shadow):
                raise CaptureError("script-shadow", path=shadow, name=name)


def _is_ours(path: str) -> bool:
    import aligner

    here = os.path.realpath(os.path.dirname(aligner.__file__))
    return os.path.realpath(path).startswith(here + os.sep)


def run(script: Script) -> None:
    """Run the script; SystemExit and every other exception of it come out (`tracebacks.forget_us` cleans them)."""
    _set_up(script)
    if script.module:
        _run_module(script.name)
    elif os.path.isdir(script.name):
        _run_file(os.path.join(script.folder, "__main__.py"), in_folder=True)
    elif zipfile.is_zipfile(script.name):
        runpy.run_path(script.name, run_name="__main__")
    else:
        _run_file(os.path.join(os.getcwd(), script.name))  # absolute, and otherwise as it was given


def _set_up(script: Script) -> None:
    """What a script can see. It stays so: its threads and its functions for the exit may still look at it."""
    sys.argv = [script.name, *script.arguments]  # for -m, runpy puts the module's file in the first place
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [script.folder]  # ours is the folder of the `aligner` command, or the working directory


def _run_module(name: str) -> None:
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except ImportError as error:
        forget_us(error)
        if error.__traceback__ is None:  # runpy found no such module: Python says so in one line
            raise SystemExit(f"{sys.executable}: {error}") from None
        raise


def _run_file(path: str, in_folder: bool = False) -> None:
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    module = ModuleType("__main__")
    # As in a module that Python starts itself.
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None, __annotations__={})
    if in_folder:
        module.__spec__ = importlib.util.spec_from_file_location("__main__", path)
        module.__package__ = ""
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def wait_for_threads() -> None:
    """Python goes on until the script's threads have ended; so a net that runs in one of them is seen."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # What the interpreter itself calls at its end, a second time for nothing. To join the threads would be to
        # wait for ever for those of an executor: this also tells them to stop.
        threading._shutdown()  # type: ignore[attr-defined]  # see above


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Calls `on_import(name)` right after one of `names` has been imported for the first time, by whomever.

    Right before it is, `before(name)` is called.
    """

    def __init__(
        self, names: Sequence[str], on_import: Callable[[str], None], before: Callable[[str], None] = lambda name: None
    ) -> None:
        self._names = set(names)
        self._on_import = on_import
        self._before = before
        self._sought: set[str] = set()

    def __enter__(self) -> ImportWatcher:
        for name in sorted(self._names & set(sys.modules)):
            self._names.discard(name)
            self._on_import(name)
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname not in self._names or fullname in self._sought:
            return None
        self._sought.add(fullname)  # keeps the search below from coming back here
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._sought.discard(fullname)
        if spec is not None and spec.loader is not None:
            self._tell_after(spec.loader, fullname)
        return spec

    def _tell_after(self, loader: Any, name: str) -> None:
        """Let this one loader object tell us when the module's code has run, and then be as it was."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            self._names.discard(name)  # not earlier: who looks for a module need not import it
            self._before(name)
            execute(module)
            self._on_import(name)

        loader.exec_module = exec_module

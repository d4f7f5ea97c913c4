"""The script door: run a user's unchanged script as Python would, and capture the model that runs in it.

Python sets up sys.argv, sys.path[0] and `__main__`, so that is what this file does; the script's exit code, its
output and its traceback (without our frames) are the script's own. Nothing heavy is imported before the script
runs: a script may set environment variables before it imports numpy or a framework.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Optional

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
    """Run the script; SystemExit and every other exception of it come out (see `forget_us` for their tracebacks)."""
    with _as_python_would(script):
        if script.module:
            runpy.run_module(script.name, run_name="__main__", alter_sys=True)
        elif os.path.isdir(script.name):
            runpy.run_path(script.name, run_name="__main__")
        else:
            _run_file(os.path.abspath(script.name))  # Python makes it absolute too


def _run_file(path: str) -> None:
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    module = ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]  # as in a module that Python starts itself
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__loader__ = loader
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


@contextmanager
def _as_python_would(script: Script) -> Iterator[None]:
    saved = sys.argv, sys.path[:], sys.modules.get("__main__")
    sys.argv = [script.name, *script.arguments]  # for -m, runpy puts the module's file in the first place
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [script.folder]  # ours is the folder of the `aligner` command, or the working directory
    try:
        yield
    finally:
        sys.argv, sys.path[:] = saved[0], saved[1]
        if saved[2] is not None:
            sys.modules["__main__"] = saved[2]


def forget_us(error: BaseException) -> None:
    """Take our frames out of the error's traceback and out of those of the errors it came from."""
    seen: set[int] = set()
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = without_our_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__]


def without_our_frames(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback without frames of aligner, its hooks, and the runpy that started the script."""
    kept = []
    while traceback is not None:
        if not _foreign(traceback.tb_frame.f_code.co_filename):
            kept.append(traceback)
        traceback = traceback.tb_next
    result: Optional[TracebackType] = None
    for frame in reversed(kept):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _foreign(filename: str) -> bool:
    if filename in ("<frozen runpy>", runpy.__file__):
        return True
    import aligner

    roots = [os.path.dirname(os.path.abspath(aligner.__file__))]
    hooks = sys.modules.get("aligner_hooks")
    if hooks is not None and hooks.__file__ is not None:
        roots.append(os.path.dirname(os.path.abspath(hooks.__file__)))
    return any(os.path.abspath(filename).startswith(root + os.sep) for root in roots)


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Calls `on_import(name)` right after one of `names` has been imported for the first time, by whomever."""

    def __init__(self, names: Sequence[str], on_import: Callable[[str], None]) -> None:
        self._names = set(names)
        self._on_import = on_import

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
        if fullname not in self._names:
            return None
        self._names.discard(fullname)  # also keeps the search below from coming back here
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._tell_after(spec.loader, fullname)
        return spec

    def _tell_after(self, loader: Any, name: str) -> None:
        """Let this one loader object tell us when the module's code has run, and then be as it was."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._on_import(name)

        loader.exec_module = exec_module

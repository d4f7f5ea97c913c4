"""The factory door: `FILE.py:NAME` or `package.module:NAME` -> the function, loaded as Python would import it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Optional

from aligner.errors import CaptureError


@dataclass(frozen=True)
class Target:
    """Where a factory stands: `place` is a file or a module's dotted name."""

    place: str
    name: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def parse(text: str) -> Optional[Target]:
    """The target that `text` names, or None when it is not of the form PLACE:NAME (then it is a script)."""
    place, colon, name = text.rpartition(":")
    if not (colon and place and name.isidentifier()) or ".py:" in place:
        return None
    target = Target(place, name)
    return target if target.is_file or ":" not in place else None


def check_form(text: str) -> None:
    """Refuse what was meant as a factory and is not written as one; a script's own name may hold a colon.

    Raises:
        CaptureError: shows how a factory is written.
    """
    if ":" in text and not os.path.exists(text):
        found = re.match(r"(?P<place>[^:]*\.py):+(?P<name>[^\W\d]\w*)?", text)
        example = f"{found['place']}:{found['name'] or 'build'}" if found else "net.py:build"
        raise CaptureError("target-form", text=text, example=example)


def load(target: Target) -> Callable[[], object]:
    """The factory itself.

    Errors while the user's file runs pass through untouched.

    Raises:
        CaptureError: no such file, module or function; says which functions there are.
    """
    module = _load_file(target.place) if target.is_file else _load_module(target.place)
    if getattr(module, "__file__", None) is None and os.path.isdir(target.place):
        raise CaptureError("target-folder", path=target.place, name=target.name)
    found: Any = getattr(module, target.name, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]
        close = difflib.get_close_matches(target.name, names, n=1) or names[:5]
        facts = {"target": str(target), "name": target.name, "names": ", ".join(close) or "-"}
        if hasattr(module, target.name):
            raise CaptureError("factory-not-callable", kind=type(found).__name__, **facts)
        raise CaptureError("factory-missing", **facts)
    if not isinstance(found, type) and (hasattr(found, "construct") or hasattr(found, "forward")):
        raise CaptureError("factory-is-model", target=str(target), name=target.name, kind=type(found).__name__)
    _check_arguments(target, found)
    factory: Callable[[], object] = found
    return factory


def _check_arguments(target: Target, function: Callable[..., object]) -> None:
    try:
        needed = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # builtins have no signature: calling tells
        return
    if needed:
        raise CaptureError("factory-arguments", target=str(target), needed=", ".join(needed))


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise CaptureError("file-missing", path=path)
    folder, stem = os.path.split(os.path.abspath(path))
    sys.path.insert(0, folder)
    name = stem[: -len(".py")]
    if name in sys.modules:  # a file called like a module that is loaded already must not replace it
        name = f"_aligner_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CaptureError("file-missing", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing: Any = error.name
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            if os.path.isfile(name):
                raise CaptureError("target-not-python", path=name) from error
            if os.path.isdir(name):
                raise CaptureError("target-folder", path=name.rstrip(os.sep), name="build") from error
            raise CaptureError("module-missing", module=name) from error
        raise

"""Adapters by entry point "aligner.adapters": ours and third parties' alike; nothing is loaded until asked."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Optional, cast

from aligner.adapter import Adapter
from aligner.errors import AdapterError

GROUP = "aligner.adapters"
BEFORE = "aligner.before_import"
"""Functions without arguments, by the framework that they are for: without them it could not be imported."""


def available() -> dict[str, EntryPoint]:
    """Every adapter that is installed, by name; nothing is imported. The first of two with one name wins."""
    found: dict[str, EntryPoint] = {}
    for point in _points(GROUP):
        found.setdefault(point.name, point)
    return found


def _points(group: str) -> Iterable[EntryPoint]:
    if sys.version_info >= (3, 10):
        points = entry_points(group=group)
    else:  # Python 3.9 returns a dict
        points = entry_points().get(group, ())
    return points


def load(name: str) -> Adapter:
    """The adapter called `name`.

    Raises:
        AdapterError: no such adapter (says which there are), or its framework does not import, or is an imitation.
    """
    points = available()
    if name not in points:
        raise AdapterError("adapter-unknown", name=name, known=", ".join(sorted(points)) or "-")
    try:
        return cast("Adapter", points[name].load()())
    except AdapterError:
        raise
    except Exception as error:  # a broken framework may raise anything at import
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise AdapterError("adapter-broken", name=name, reason=reason) from error


def prepare(name: str) -> None:
    """Let whoever has something to do right before the framework `name` is imported do it now."""
    for point in _points(BEFORE):
        if point.name == name:
            point.load()()


def of(value: object) -> Adapter:
    """The adapter whose framework `value` (a model) belongs to.

    The framework of a live object is imported already, so only adapters of imported frameworks are loaded. One that
    does not load is passed over (MindTorch can stand in sys.modules as torch), unless the object comes from there.

    Raises:
        AdapterError: no adapter knows it, or the one that should does not load.
    """
    bases = {base.__module__.partition(".")[0] for base in type(value).__mro__}
    points = available()
    broken: Optional[AdapterError] = None
    for name in sorted(points, key=lambda name: name not in bases):
        if name in sys.modules:
            try:
                adapter = load(name)
            except AdapterError as error:
                broken = broken or (error if name in bases else None)
                continue
            if adapter.is_model(value):
                return adapter
    if broken is not None:
        raise broken
    raise AdapterError(
        "model-unknown",
        type=f"{type(value).__module__}.{type(value).__qualname__}",
        known=", ".join(sorted(points)) or "-",
    )

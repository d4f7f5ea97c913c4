"""The installed packages: how torchvision is imported beside a CPU torch, how edited copies of mindcv are made."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PORT = "mindcv"


def timm_net(name: str, **settings: Any) -> Any:
    """A net of timm, for ten classes."""
    _torchvision()
    import timm

    return timm.create_model(name, num_classes=10, **settings)


def torchvision_net(name: str, **settings: Any) -> Any:
    """A net of torchvision, for ten classes."""
    return getattr(_torchvision(), name)(num_classes=10, **settings)


def _torchvision() -> Any:
    """Its nets need none of its operators, which a CPU torch cannot load; timm imports it where it is installed."""
    sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))
    from torchvision import models

    return models


@cache
def installed() -> Path:
    """The folder of the port's package, as the package manager left it; asked before a copy of it is imported."""
    spec = find_spec(PORT)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PORT} is not here: sh benchmarks/realports/install.sh, then .venv-realports/bin/python")
    return Path(spec.origin).parent


def patched_copy(folder: Path, edits: Sequence[Any], source: Path) -> None:
    """A copy of an edited package in `folder`, with what aligner told of its lines done to it."""
    shutil.copytree(source / PORT, folder / PORT, ignore=shutil.ignore_patterns("__pycache__"))
    lines = {(line["file"], line["line"], line["before"]): line for edit in edits for line in edit["lines"]}
    for (file, first, before), line in sorted(lines.items(), reverse=True):
        path = folder / Path(file).resolve().relative_to(source.resolve())
        rows = path.read_text(encoding="utf-8").split("\n")
        rows[first - 1 : first - 1 + len(before.splitlines())] = line["after"].splitlines()
        path.write_text("\n".join(rows), encoding="utf-8")


def edited_copy(folder: Path, edits: Sequence[Any], source: Path) -> None:
    """A copy of the port's package in `folder`, with the edits in it.

    Raises:
        ValueError: a piece to be replaced does not occur as often as it should.
    """
    shutil.copytree(source, folder / PORT, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        path = folder / PORT / edit.file
        text = path.read_text(encoding="utf-8")
        found = text.count(edit.old)
        if found != edit.count:
            raise ValueError(f"{edit.old!r} occurs {found} times in {edit.file}, not {edit.count}")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")

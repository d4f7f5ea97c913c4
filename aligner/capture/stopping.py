"""Where a net stopped that raised: its layer, the error, and the line of the user's, as plain facts for the header."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.capture.tracebacks import is_ours
from aligner.errors import AlignerError

FRAMEWORKS = frozenset({"torch", "torch_npu", "mindspore", "mindtorch", "mindnlp", "numpy"})
"""Packages in which no mistake of the port's is to be looked for."""

LONG = 300
"""Characters of an error's text and of a line that are kept."""

_AT_ONCE = ("raise ", "raise\n", "assert ")


def stop_facts(
    error: Optional[BaseException], adapter: Adapter, model: object, open_call: tuple[int, str, int], before: str
) -> Mapping[str, Any]:
    """What is known of the stop. `open_call` is step, path and number of the innermost call that did not end, `before`
    the layer that ended last inside it. Without an error the program caught it, and nothing is known of it.
    """
    error = _own(error)
    step, path, number = open_call
    facts: dict[str, Any] = {"step": step, "layer": path, "call": number, "after": before}
    if error is None:
        return {**facts, "error": "", "said": "", "file": "", "line": 0, "text": "", "late": False}
    file, line = _place(error, adapter, model)
    text = " ".join(linecache.getline(file, line).split())[:LONG]
    told = next((row.strip() for row in str(error).splitlines() if row.strip()), "")[:LONG]
    return {
        **facts,
        "error": type(error).__name__,
        "said": told,
        "file": file,
        "line": line,
        "text": text,
        "late": _late(adapter, model) and not f"{text} ".startswith(_AT_ONCE) and isinstance(error, Exception),
    }


def _own(error: Optional[BaseException]) -> Optional[BaseException]:
    """The net's error behind one of ours that tells of it."""
    return error.__cause__ or error if isinstance(error, AlignerError) else error


def _late(adapter: Adapter, model: object) -> bool:
    """Whether kernels run behind the code that calls them, so that an error may come out of a later line."""
    return adapter.name != "torch" or str(adapter.environment(model).get("device", "cpu")).lower() != "cpu"


def _place(error: BaseException, adapter: Adapter, model: object) -> tuple[str, int]:
    """File and line: the innermost frame of code that is the net's, else of code that is no framework's, if any.

    A framework's own frames say where it noticed, and not what was asked of it.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not is_ours(frame)]
    layers = {id(layer) for _, layer in adapter.layers(model)}
    inside = FRAMEWORKS | {adapter.name}
    own = [(frame, line) for frame, line in frames if _home(frame) not in inside and not _is_library(frame)]
    homes = {_home(frame) for frame, _ in own if id(frame.f_locals.get("self")) in layers}
    chosen = [place for place in own if _home(place[0]) in homes or not _is_installed(place[0])] or own
    if not chosen:
        return "", 0
    frame, line = chosen[-1]
    return frame.f_code.co_filename, line


def _home(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    return any(name in frame.f_code.co_filename for name in ("site-packages", "dist-packages"))


def _is_library(frame: FrameType) -> bool:
    """Python's own code: contextlib around a decorated function, functools, the importer."""
    file = frame.f_code.co_filename
    inside = file.startswith((sysconfig.get_path("stdlib"), "<frozen")) and not _is_installed(frame)
    return inside and _home(frame) != "__main__"

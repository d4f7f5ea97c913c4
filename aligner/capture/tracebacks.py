"""A user's tracebacks without our frames: an error of his net looks as it does when nobody observes it.

Observing a layer puts a frame of the adapter into every call of it, and the script door stands below everything. What
is raised through them is shown in three ways: by us or by Python when it ends the program (`forget_us`), and by
whatever the script prints, logs or leaves to a thread meanwhile (`hidden`).
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import FrameType, TracebackType
from typing import Any, Optional

from aligner.patches import Listeners, patch, together


def forget_us(error: BaseException) -> None:
    """Take our frames out of the error's traceback and out of those of the errors it came from or holds."""
    seen: set[int] = set()
    waiting: list[Optional[BaseException]] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = without_our_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__]
            if isinstance(getattr(one, "exceptions", None), tuple):  # an ExceptionGroup
                waiting += [inner for inner in one.exceptions if isinstance(inner, BaseException)]  # type: ignore[attr-defined]  # asked above


def torch_is_elsewhere(error: BaseException) -> bool:
    """Whether torch itself raised while another package is imported under its name: it looks itself up as it runs."""
    elsewhere = getattr(sys.modules.get("torch"), "__name__", "torch") != "torch"
    return elsewhere and _raised_in(error).startswith("torch.")


def mixed_mindtorchs(error: BaseException) -> str:
    """The distributions that overwrite each other's `mindtorch`, if there are two and it raised there; else ""."""
    if _raised_in(error).partition(".")[0] != "mindtorch":
        return ""
    found = [(name, _installed(name)) for name in ("mindtorch", "mindnlp")]
    told = [f"{name} {number}" for name, number in found if number and number >= _SINCE.get(name, "")]
    return " and ".join(told) if len(told) > 1 else ""


_SINCE = {"mindnlp": "0.5"}
"""Before this one it brings no `mindtorch`."""


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _raised_in(error: BaseException) -> str:
    """The module whose code raised it."""
    here, last = error.__traceback__, ""
    while here is not None:
        last = str(here.tb_frame.f_globals.get("__name__"))
        here = here.tb_next
    return last


def without_our_frames(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback without frames of aligner, its hooks, and the runpy that started the script.

    It is changed in place: an interpreter that is about to raise the error again holds on to the first entry.
    """
    while trace is not None and (is_ours(trace.tb_frame) or _starts_scripts(trace.tb_frame)):
        trace = trace.tb_next
    here = trace
    while here is not None:
        following = here.tb_next
        while following is not None and is_ours(following.tb_frame):
            following = following.tb_next
        here.tb_next = following
        here = following
    return trace


def is_ours(frame: FrameType) -> bool:
    """Whether it is code of aligner or of its hooks."""
    return os.path.abspath(frame.f_code.co_filename).startswith(_roots())


def _starts_scripts(frame: FrameType) -> bool:
    return frame.f_code.co_filename in ("<frozen runpy>", runpy.__file__)


def _roots() -> tuple[str, ...]:
    import aligner

    packages = (aligner, sys.modules.get("aligner_hooks"))
    files = (getattr(package, "__file__", None) for package in packages)
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file is not None)


@contextmanager
def hidden() -> Iterator[None]:
    """Whatever shows a traceback or a stack in here shows it without our frames."""
    with together() as handle:
        for owner, name, make in (
            (traceback.TracebackException, "__init__", _shown_without),
            (traceback, "extract_tb", _listed_without),
            (traceback, "walk_tb", _listed_without),
            (traceback, "walk_stack", _walked_without),
            (threading, "excepthook", _reported_without),
        ):
            handle.add(patch(owner, name, make).remove)
    try:
        yield
    finally:
        handle.remove()


def _shown_without(original: Any, listeners: Listeners) -> Any:
    # All of traceback's printing and formatting, and logging's, ends here, once for each error of a chain or a group.
    def __init__(self: Any, kind: Any, value: Any, trace: Any, *args: Any, **kwargs: Any) -> None:
        original(self, kind, value, without_our_frames(trace) if listeners else trace, *args, **kwargs)

    return __init__


def _listed_without(original: Any, listeners: Listeners) -> Any:
    def listed(tb: Any, *args: Any, **kwargs: Any) -> Any:
        return original(without_our_frames(tb) if listeners else tb, *args, **kwargs)

    return listed


def _walked_without(original: Any, listeners: Listeners) -> Any:
    def walk_stack(f: Any) -> Any:
        # Without a frame it looks for its caller's by counting frames, and ours would be one more.
        return original(f) if f is None or not listeners else _down_to_the_script(original(f))

    return walk_stack


def _down_to_the_script(steps: Iterable[Any]) -> Iterator[Any]:
    """The frames of a stack without ours; a script's stack ends where the script begins."""
    from aligner.capture import script

    for step in steps:
        if step[0].f_code.co_filename == script.__file__:
            return
        if not is_ours(step[0]):
            yield step


def _reported_without(original: Any, listeners: Listeners) -> Any:
    def excepthook(args: Any) -> None:
        if args.exc_value is not None and listeners:
            forget_us(args.exc_value)
        original(args)

    return excepthook

"""aligner: find the layer of a port that differs from its PyTorch reference.

Everything public is loaded on first use, so that `aligner --help` starts without numpy or h5py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aligner.capture.block import capture as capture
    from aligner.capture.task import Task as Task
    from aligner.compare.comparison import Comparison as Comparison
    from aligner.compare.comparison import compare as compare
    from aligner.dump.reader import Dump as Dump
    from aligner.dump.reader import open_dump as open
    from aligner.errors import AlignerError as AlignerError
    from aligner.replay.replay import Replay as Replay
    from aligner.replay.replay import replay as replay

__version__ = "0.1.0"

__all__ = ["AlignerError", "Comparison", "Dump", "Replay", "Task", "capture", "compare", "open", "replay"]

# `capture`, `compare` and `replay` are packages that can be called (see callable_package.py).
_HOME = {
    "AlignerError": ("aligner.errors", "AlignerError"),
    "Comparison": ("aligner.compare.comparison", "Comparison"),
    "Dump": ("aligner.dump.reader", "Dump"),
    "Replay": ("aligner.replay.replay", "Replay"),
    "Task": ("aligner.capture.task", "Task"),
    "capture": ("aligner.capture", None),
    "compare": ("aligner.compare", None),
    "open": ("aligner.dump.reader", "open_dump"),
    "replay": ("aligner.replay", None),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'aligner' has no attribute {name!r}")
    module, attribute = _HOME[name]
    loaded = import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

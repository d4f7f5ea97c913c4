"""In which precision a net computes: what switches say, and how they are taken back.

OpenI's MindTorch has MindSpore's switches: `to_float`, and `auto_mixed_precision`, which rewrites the classes of a net
at O1, O2 and O3 alike. Level "auto" puts a strategy around `construct`, which MindTorch calls where gradients are
wanted and not otherwise. mindnlp's autocast is the same strategy, for as long as it is entered.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, Optional

from aligner.record import Note
from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindsporelike.rewritten import is_rewritten, written
from aligner_hooks.mindtorch_ import parameters, tensors
from aligner_hooks.mindtorch_.layers import LAYERS
from aligner_hooks.mindtorch_.modules import AnyModule
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.mindtorch_.spec import SPECS

# Kinds of layers whose operators a strategy always lowers.
_PRODUCTS = ("Conv", "Linear", "Bilinear", "MultiheadAttention", "LSTM", "GRU", "RNN")
LEVEL = "_amp_level"


def told(model: Any, layer: Any) -> Optional[tuple[str, str]]:
    """The dtype that a call of this layer is told to compute in, and by what; see aligner.adapter.Adapter.precision.

    Of a rewritten class only whether it casts is known here; which of its operators do, they tell when they run.
    """
    module = LAYERS.unwrapped(layer)
    word = casts.cast_of(module) if package().maker == OPENI else ""
    if word:
        return word, "to_float"
    kind: Any = type(module)
    word = _cast_in(kind) if is_rewritten(kind) else ""
    if word:
        return word, level(model) or "custom"
    word = _strategy()
    if word and SPECS.read(module).kind.startswith(_PRODUCTS):
        return word, "auto" if package().maker == OPENI else "autocast"
    return None


def level(model: Any) -> str:
    """ "O2", "auto" ... as auto_mixed_precision notes it on the net, "custom" for lists of the user's own, "to_float"
    for casts set by hand, or "".
    """
    net = LAYERS.unwrapped(model)
    known = str(vars(net).get(LEVEL) or "")
    if known:
        return known if known != "O0" else ""
    if is_rewritten(type(net)):
        return "custom"
    if package().maker == OPENI and any(casts.cast_of(place.content) for place in LAYERS.walk(model)):
        return "to_float"
    return ""


def cautions(model: Any) -> Iterator[Note]:
    """A level that does nothing in a run like this one."""
    net = LAYERS.unwrapped(model)
    if casts.STRATEGY in vars(net) and not net.requires_grad:
        yield Note("", "mindtorch-auto-idle", {})


def cast(model: Any, dtype: str) -> None:
    """Put a net into this dtype and have it compute so, whatever its casts were.

    Raises:
        ValueError: MindSpore has no such floating dtype.
    """
    parameters.cast(model, dtype)
    undo(model)


def undo(model: Any) -> None:
    """Take back every cast that was put around or into the net, in place; weights stay as they are."""
    if package().maker != OPENI:
        return
    for place in list(LAYERS.walk(model)):
        module = place.content
        casts.undo_strategy(module)
        for cell in with_parts(module):
            casts.flag(cell, "")
        if LEVEL in vars(module):
            object.__setattr__(module, LEVEL, "")
        module._modules.update(LAYERS.children(module))
        if is_rewritten(type(module)):
            module.__class__ = written(type(module))


def with_parts(module: Any) -> Iterator[Any]:
    """A module, and the cells of MindSpore's that it computes with: an LSTM has one, which has a flag of its own."""
    yield module
    for child in module._cells.values():
        if child is not None and not isinstance(child, AnyModule):
            yield from with_parts(child)


def _strategy() -> str:
    """The dtype of the strategy in whose surroundings this thread is now, or ""."""
    current = _CURRENT() if _CURRENT is not None else None
    if current is None or "Auto" not in str(current.get_amp_level()):
        return ""
    return tensors.word(str(current.get_amp_dtype()))


def _find_current() -> Any:
    try:
        return import_module("mindspore._c_expression.amp").get_curr_amp_strategy
    except (ImportError, AttributeError):
        return None


_CURRENT = _find_current()


@cache
def _cast_in(kind: type) -> str:
    """The dtype that a rewritten class casts to in what its `forward` reaches, or ""."""
    names: set[str] = set()
    for code in _reached(getattr(kind, "forward", None), kind, set()):
        names.update(code.co_names)
    if "amp_cast" not in names:
        return ""
    return "bfloat16" if "bfloat16" in names else "float16"


def _reached(function: Any, kind: type, seen: set[CodeType]) -> Iterator[CodeType]:
    """The code of a function, and of those in the same file and class that it may call."""
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return
    seen.add(function.__code__)
    yield function.__code__
    for name in function.__code__.co_names:
        for found in (function.__globals__.get(name), getattr(kind, name, None)):
            if getattr(found, "__module__", None) == kind.__module__:
                yield from _reached(found, kind, seen)

"""The surroundings of a run: mode, device, seeds, compiled code, and what is wrong with MindSpore here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore import nn
from mindspore._c_expression import MixedPrecisionType

from aligner.adapter import Finding
from aligner.patches import Listeners, patch
from aligner.record import Scalar
from aligner_hooks.mindspore_ import devices
from aligner_hooks.mindsporelike import modes
from aligner_hooks.mindsporelike.compiler import graph_api, in_graph_mode
from aligner_hooks.mindsporelike.rewritten import is_rewritten


def stay_interruptible() -> None:
    """Let Ctrl-C be an exception again.

    When it compiles its first operation, and other ones later, MindSpore's runtime puts a handler of its own below
    Python's, which ends the process: nothing could be said and no dump closed.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if handler is not None:  # else it was not set from Python
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _casts_ended() -> Iterator[None]:
    """Afterwards no cast of `to_float` is left on, also where a cell inside raised.

    MindSpore keeps them on a stack, and a cell that raises leaves its own there: whatever ran next, of any net, would
    be computed in float16. An operator that raises has emptied the stack, and taking one off then ends the process
    later on; so "no cast" is put on top of what may be left.
    """
    executor = graph_api("_pynative_executor")
    if executor is None:
        yield
        return
    put: list[int] = []
    handle = patch(executor, "set_mixed_precision_type", _counting, put)
    try:
        yield
    finally:
        handle.remove()
        if sum(put) > 0:
            executor.set_mixed_precision_type(MixedPrecisionType.NOTSET)


def _counting(original: Any, listeners: Listeners) -> Any:
    def set_mixed_precision_type(kind: object, is_push: bool = True) -> object:
        for put in list(listeners.values()):
            put.append(1 if is_push else -1)
        return original(kind, is_push)

    return set_mixed_precision_type


@contextmanager
def running(mode: Optional[str]) -> Iterator[None]:
    """ "pynative": eagerly and layer by layer, @ms.jit code as the plain Python it is. "graph": compiled as a whole.
    None: as the program itself has set it.

    MindSpore records gradients only for what `value_and_grad` calls: nothing needs to be turned off for that.
    """
    with modes.held(mode), _casts_ended():
        yield


def seed(number: int) -> None:
    """Seed both of MindSpore's kinds of random numbers.

    `set_seed` is for nn and ops and seeds numpy too, from which MindSpore draws initial weights (nn.LSTM);
    `manual_seed` is for mint.
    """
    mindspore.set_seed(number)
    if hasattr(mindspore, "manual_seed"):
        mindspore.manual_seed(number)


def environment(model: Optional[nn.Cell]) -> Mapping[str, Scalar]:
    """Header facts: where and how this net runs."""
    level = amp_level(model) if model is not None else ""
    return {
        **devices.facts(),
        "mode": "graph" if in_graph_mode() else "pynative",
        "amp": level or None,
        "numpy_supported": numpy_supported(),
    }


def amp_level(model: nn.Cell) -> str:
    """ "O2", "auto" ... as auto_mixed_precision notes it on the net, "custom" for lists of the user's own, "to_float"
    for casts set by hand, or "".
    """
    level = str(vars(model).get("_amp_level") or "")
    if level:
        return level if level != "O0" else ""
    if is_rewritten(type(model)):
        return "custom"
    return "to_float" if any(cell.mixed_precision_type is not None for _, cell in model.cells_and_names()) else ""


def numpy_supported() -> bool:
    """MindSpore is built against numpy 1: with numpy 2 some operators raise a SystemError once."""
    return int(np.__version__.partition(".")[0]) < 2


def doctor() -> Iterator[Finding]:
    """What is usable and what is wrong here."""
    version = str(mindspore.__version__)
    here = devices.target()
    yield Finding(True, "mindspore-usable", {"version": version, "device": here})
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 7):
        yield Finding(False, "mindspore-old", {"version": version})
    if not numpy_supported():
        yield Finding(False, "mindspore-numpy", {"version": version, "numpy": np.__version__})
    yield from devices.doctor()
    problem = _broken_operator()
    if problem:
        yield Finding(False, "mindspore-operators", {"reason": problem})


def _broken_operator() -> str:
    """The first line of what goes wrong in a tiny run, or ""."""
    try:
        value: Any = (mindspore.ops.relu(mindspore.Tensor([[1.0, -2.0]], mindspore.float32)) + 1).asnumpy()
    except Exception as error:  # whatever a broken installation raises is the finding
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "" if value.tolist() == [[2.0, 1.0]] else f"relu([1, -2]) + 1 is {value.tolist()}"

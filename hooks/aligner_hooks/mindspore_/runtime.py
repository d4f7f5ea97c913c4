"""The surroundings of a run: mode, device, seeds, compiled code, and what is wrong with MindSpore here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore import nn
from mindspore._c_expression import MixedPrecisionType

from aligner.adapter import Finding
from aligner.record import Scalar
from aligner_hooks.mindspore_ import devices
from aligner_hooks.mindsporelike.rewritten import is_rewritten

# Set to "0", MindSpore runs @ms.jit functions as the plain Python they are. It is read at each call.
JIT_SWITCH = "MS_JIT"
# Names of modules, with commas between. Functions of an installed package that is not among them are left to Python by
# MindSpore 2.5, and by newer ones if it lies in the standard library's folder. Read for each function.
JIT_MODULES = "MS_JIT_MODULES"
# In a graph's nodes: a line of the user's that runs as Python. (Dicts and lists are put together by Python as well.)
LEFT_TO_PYTHON = b"__py_exec_index"
# Dicts and lists that Python puts together, which are of no type that an operator of ours could be given.
PUT_TOGETHER = b"__internal_"
# What a second run would leave behind: written parameters, other random numbers, words on a screen, Python's doings.
TRACES = (b"side_effect_mem", b"side_effect_hidden", b"Print", LEFT_TO_PYTHON)
# The same: `self.step = ...` in a construct.
ATTRIBUTE_WRITTEN = b"_jit_fallback_set_attr("


def in_graph_mode() -> bool:
    """Whether cells are compiled as a whole; `MS_JIT=0` turns that off as well."""
    return mindspore.get_context("mode") == mindspore.GRAPH_MODE and os.environ.get(JIT_SWITCH) != "0"


def stay_interruptible() -> None:
    """Let Ctrl-C be an exception again.

    When it compiles its first operation, and other ones later, MindSpore's runtime puts a handler of its own below
    Python's, which ends the process: nothing could be said and no dump closed.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if handler is not None:  # else it was not set from Python
            signal.signal(signal.SIGINT, handler)


@cache
def _graph_api(name: str) -> Any:
    """What MindSpore keeps beside its compiler, or None if this MindSpore has it elsewhere."""
    for module in ("mindspore.graph.api", "mindspore.common.api"):  # 2.8 moved it
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


@contextmanager
def compiling_ours() -> Iterator[None]:
    """Functions of this package are compiled into a graph, wherever it is installed."""
    package = __name__.split(".", maxsplit=1)[0]
    before = os.environ.get(JIT_MODULES)
    os.environ[JIT_MODULES] = f"{before},{package}" if before else package
    try:
        yield
    finally:
        if before is None:
            del os.environ[JIT_MODULES]
        else:
            os.environ[JIT_MODULES] = before


def synchronize() -> None:
    """Wait until everything that was asked for has run."""
    executor = _graph_api("_pynative_executor")
    if executor is not None:
        executor.sync()


def nodes(function: Any, graph: str) -> Optional[bytes]:
    """What a compiled graph is made of, if MindSpore tells.

    `function` is the compiled function; None for a net that is compiled as a whole.
    """
    try:
        executor = function or _graph_api("_cell_graph_executor")
        found: bytes = executor._graph_executor.get_func_graph_proto(graph, "anf_ir", False)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return found


def left_to_python(nodes: Optional[bytes]) -> str:
    """Why a graph of these nodes cannot run with Python operators in it, or ""."""
    waits = "Python runs inside the graph, for which this MindSpore would wait for ever" if version() < (2, 10) else ""
    if nodes is None:
        return waits
    if ATTRIBUTE_WRITTEN in nodes:
        return f"the graph sets {_written(nodes)}, and operators of ours do not run beside that"
    return waits if LEFT_TO_PYTHON in nodes else ""


def put_together(nodes: Optional[bytes]) -> bool:
    """Whether Python puts values together in such a graph, and it may be run once more without a trace."""
    return nodes is not None and PUT_TOGETHER in nodes and not any(trace in nodes for trace in TRACES)


def _written(nodes: bytes) -> str:
    """The attributes that a graph sets, by name; MindTorch's torch.zeros, arange and the like set requires_grad."""
    _, *calls = nodes.split(ATTRIBUTE_WRITTEN)
    names = {call.split(b",")[1].strip().decode(errors="replace") for call in calls if call.count(b",") > 1}
    if names == {"requires_grad"}:
        return "requires_grad of tensors that the code makes (torch.zeros, torch.arange ...)"
    word = "attributes that are no Parameters" if len(names) > 1 else "an attribute that is no Parameter"
    return f"{word} ({', '.join(sorted(names))})" if names else word


def version() -> tuple[int, ...]:
    """The first two numbers of MindSpore's version."""
    return tuple(int(part) for part in str(mindspore.__version__).split(".")[:2])


def jit_executor() -> Optional[type]:
    """The class whose instances compile and run @ms.jit functions, or None if this MindSpore has it elsewhere."""
    found = _graph_api("_JitExecutor") or _graph_api("_MindsporeFunctionExecutor")  # as it was called up to 2.5
    return found if isinstance(found, type) else None


def bytecode_context() -> Optional[type]:
    """The class inside whose instances @ms.jit(capture_mode="bytecode") functions are compiled, where there is one."""
    try:
        found = import_module("mindspore.graph._utils.pijit_context").PIJitCaptureContext
    except (ImportError, AttributeError):
        found = None
    return found if isinstance(found, type) else None


def cell_executor() -> Optional[type]:
    """The class whose instance compiles nets as a whole, or None if this MindSpore has it elsewhere."""
    found = _graph_api("_CellGraphExecutor")
    return found if isinstance(found, type) else None


@contextmanager
def _casts_ended() -> Iterator[None]:
    """Afterwards no cast of `to_float` is left on, also where a cell inside raised.

    MindSpore keeps them on a stack, and a cell that raises leaves its own there: whatever ran next, of any net, would
    be computed in float16. Taking one off an empty stack is no better, so they are counted.
    """
    executor = _graph_api("_pynative_executor")
    if executor is None:
        yield
        return
    stood, put = executor.set_mixed_precision_type, 0

    def counted(kind: object, is_push: bool = True) -> object:
        nonlocal put
        put += 1 if is_push else -1
        return stood(kind, is_push)

    known = vars(executor).get("set_mixed_precision_type")
    executor.set_mixed_precision_type = counted
    try:
        yield
    finally:
        if known is None:
            del executor.set_mixed_precision_type
        else:  # one run inside another
            executor.set_mixed_precision_type = known
        for _ in range(put):
            stood(MixedPrecisionType.NOTSET, False)


@contextmanager
def running(mode: Optional[str]) -> Iterator[None]:
    """ "pynative": eagerly and layer by layer, @ms.jit code as the plain Python it is. "graph": compiled as a whole.
    None: as the program itself has set it.

    MindSpore records gradients only for what `value_and_grad` calls: nothing needs to be turned off for that.
    """
    before = mindspore.get_context("mode"), os.environ.get(JIT_SWITCH)
    wanted = {"pynative": mindspore.PYNATIVE_MODE, "graph": mindspore.GRAPH_MODE}.get(mode or "")
    try:
        if wanted is not None and wanted != before[0]:
            mindspore.set_context(mode=wanted)
        if mode == "pynative":
            os.environ[JIT_SWITCH] = "0"
        elif mode == "graph" and before[1] == "0":
            del os.environ[JIT_SWITCH]
        with _casts_ended():
            yield
    finally:
        if mindspore.get_context("mode") != before[0]:
            mindspore.set_context(mode=before[0])
        if before[1] is not None:
            os.environ[JIT_SWITCH] = before[1]
        elif mode is not None:
            os.environ.pop(JIT_SWITCH, None)


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

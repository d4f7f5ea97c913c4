"""What MindSpore's compiler is asked and told: whether it is on, what it made, which classes do the work.

MindSpore has no public doors to most of this and has moved it from version to version: it is looked for here and
nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Optional

import mindspore

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


@cache
def graph_api(name: str) -> Any:
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
    executor = graph_api("_pynative_executor")
    if executor is not None:
        executor.sync()


def nodes(function: Any, graph: str) -> Optional[bytes]:
    """What a compiled graph is made of, if MindSpore tells.

    `function` is the compiled function; None for a net that is compiled as a whole.
    """
    try:
        executor = function or graph_api("_cell_graph_executor")
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
    found = graph_api("_JitExecutor") or graph_api("_MindsporeFunctionExecutor")  # as it was called up to 2.5
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
    found = graph_api("_CellGraphExecutor")
    return found if isinstance(found, type) else None

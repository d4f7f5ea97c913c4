"""MindSpore's functions that drop, told to keep everything: nobody's module is looked into, no function is replaced.

The code of such a function is exchanged for its own with one line more, which sets the argument that switches
dropout off. So it does not matter under which name and when somebody has imported the function, what is compiled into
a graph is without dropout as well, and afterwards the function has the very code that it had.

The operators of which MindSpore's own cells are made are reached in their classes. Graphs are compiled under a name of
their own meanwhile: the program's own ones stay as they are, and drop.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, Optional

import mindspore
from mindspore import ops

from aligner.patches import Handle, Listeners, hold, patch, together
from aligner_hooks.mindsporelike.graphs import compiled

# Arguments that switch dropout off, and the values that do; the first that a function has counts.
_SWITCHES: Mapping[str, object] = {"dropout_p": 0.0, "keep_prob": 1.0, "training": False, "is_training": False}
_NAMES = (
    *("dropout", "dropout_ext", "dropout1d", "dropout2d", "dropout2d_ext", "dropout3d", "_inner_dropout"),
    *("scaled_dot_product_attention", "flash_attention_score", "speed_fusion_attention"),
)
CLASSES = (ops.Dropout, ops.Dropout2D, ops.Dropout3D)

_LOCK = threading.Lock()


def silence(*more: FunctionType) -> Handle:
    """Keep everything until removed: in what MindSpore's functions, operators and these do, whoever calls them."""
    with together() as handle:
        for function in (*_functions(), *more):
            with _LOCK:  # made once, of the code that is the function's own
                code = _undropped(function)
            if code is not None:
                handle.add(hold(function, "__code__", code).remove)
        for kind in CLASSES:
            handle.add(patch(kind, "__call__", _keeping).remove)
        handle.add(compiled.renamed(".aligner.undropped").remove)
        return handle


def _functions() -> Iterator[FunctionType]:
    """Each once, under whatever decorators."""
    homes = (
        ops,
        import_module("mindspore.ops.function.nn_func"),
        getattr(getattr(mindspore, "mint", None), "nn", None),
        getattr(getattr(getattr(mindspore, "mint", None), "nn", None), "functional", None),
    )
    found: dict[int, FunctionType] = {}
    for home in homes:
        for name in _NAMES:
            function = inspect.unwrap(getattr(home, name, None))  # type: ignore[arg-type]  # None is handed back
            if isinstance(function, FunctionType):
                found[id(function)] = function
    yield from found.values()


@cache
def _undropped(function: FunctionType) -> Optional[CodeType]:
    """The function's code with dropout switched off first; None for what has no such switch, or no source."""
    own = function.__code__
    names = own.co_varnames[: own.co_argcount + own.co_kwonlyargcount]
    switch = next((name for name in _SWITCHES if name in names), None)
    if switch is None or own.co_freevars:
        return None
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    (tree,) = ast.parse(source).body
    if not isinstance(tree, ast.FunctionDef):
        return None
    tree.decorator_list = []
    tree.body.insert(0, ast.parse(f"{switch} = {_SWITCHES[switch]!r}").body[0])
    # A file of the framework's, for who asks in which line somebody has called it; MindSpore's compiler reads it.
    name, text = f"{own.co_filename}:{function.__name__}", ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    made: dict[str, Any] = {}
    exec(compile(text, name, "exec"), {}, made)
    code: CodeType = made[function.__name__].__code__
    return code


def _keeping(original: Any, listeners: Listeners) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind: Any = type(self)
        return original(kept(kind) if listeners else self, *args, **kwargs)

    return __call__


@cache
def kept(kind: Any) -> Any:
    """An operator of this class that keeps everything."""
    return kind(keep_prob=1.0)

"""Which operations of torch run: told by a function mode, which hears of every public function once.

A mode sees what Python calls: `x * y`, `torch.softmax`, `F.gelu`, `x.permute`. What such a function does inside, in
Python or in C++, is not told again. Reading attributes and asking for shapes are no operations, and neither is what
aligner's own callbacks do with tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch

from aligner.adapter import Handle
from aligner_hooks.torch_.calls import is_in_callback
from aligner_hooks.torch_.ears import Ears

Told = Callable[[str], None]

# Answers of a tensor about itself, ways of Python to look at it, and switches: nothing is computed.
_QUESTIONS = frozenset(
    {
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "storage_offset", "len", "get"),
        *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_same_size", "is_set_to"),
        *("data_ptr", "untyped_storage", "storage", "get_device", "hash", "repr", "str", "format", "set", "dir"),
        *("is_nonzero", "bool", "iter", "type", "requires_grad_", "register_hook", "retain_grad", "result_type"),
        *("delete", "deepcopy", "reduce_ex", "setstate", "dlpack", "dlpack_device", "can_cast", "numpy", "tolist"),
        *("contains_tensor", "backward", "set_grad_enabled", "set_default_dtype"),
    }
)
# Reading these attributes makes another tensor.
_COMPUTED = {"T": "transpose", "mT": "transpose", "H": "adjoint", "mH": "adjoint", "real": "real", "imag": "imag"}
# Python's names of operators where torch's differ.
_OPERATORS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "invert": "bitwise_not"}
_SWAPPED = frozenset({"sub", "div", "truediv", "floordiv", "pow", "mod", "matmul", "add", "mul", "and", "or", "xor"})


def overrides() -> Any:
    """torch.overrides; a package that only imitates torch, and is told so by the adapter, has none."""
    return getattr(torch, "overrides", None)


def has_modes() -> bool:
    """Whether torch has function modes: 1.13 and later."""
    return hasattr(overrides(), "_push_mode")


def listen(told: Told) -> Handle:
    """Tell of this thread's operations from now on. torch before 1.13 tells of none."""
    return _EARS.listen(told)


def put_on(make: Callable[[], Any]) -> Any:
    """Have torch use the mode that `make` makes; None where torch has no such modes."""
    if not has_modes():
        return None
    mode = make()
    overrides()._push_mode(mode)
    return mode


def take_off(mode: Any) -> bool:
    """Take the mode off torch's stack, from under those that somebody has put on since and not taken off."""
    return taken_from(mode, overrides(), overrides()._get_current_function_mode_stack())


def taken_from(mode: Any, home: Any, stack: Iterable[Any]) -> bool:
    """Take the mode off this stack of `home`'s; nothing is left to do where somebody has taken it for theirs."""
    above = list(stack)
    while above and above[0] is not mode:
        del above[0]
    for _ in above:
        home._pop_mode()
    for other in above[1:]:
        home._push_mode(other)
    return True


_EARS = Ears(lambda: put_on(_mode), take_off)


def _mode() -> Any:
    """A mode that tells all who listen and computes what would be computed anyway."""

    class Telling(overrides().TorchFunctionMode):  # type: ignore[misc]  # the base is known at run time only
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = None if is_in_callback() else name_of(function)
            if name is not None:
                _EARS.tell(name)
            return function(*args, **(kwargs or {}))

    return Telling()


def name_of(function: Any) -> Optional[str]:
    """The word for a function: "add" for x + 1, x += 1, x.add_(1) and torch.add; None for what is no operation."""
    name = str(getattr(function, "__name__", ""))
    if name in ("__get__", "__set__", "__delete__"):
        attribute = str(getattr(getattr(function, "__self__", None), "__name__", ""))
        return _COMPUTED.get(attribute) if name == "__get__" else None
    if name.startswith("__") and name.endswith("__"):
        name = _operator(name.strip("_"))
    name = name.strip("_")
    if not name or name in _QUESTIONS or name.startswith(("is_", "has_")):
        return None
    return name.lower()


def is_turned(function: Any) -> bool:
    """Whether the first that it is given stands on the right: `1 - x` asks x."""
    name = str(getattr(function, "__name__", ""))
    return name == "rsub" or (name.startswith("__r") and name.strip("_")[1:] in _SWAPPED)


def _operator(name: str) -> str:
    """ "sub" for "rsub" and "isub": an operator without the side it was called from."""
    if name[:1] in ("r", "i") and name[1:] in _SWAPPED:
        name = name[1:]
    return _OPERATORS.get(name, name)

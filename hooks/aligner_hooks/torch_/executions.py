"""What each operation of torch is given and what it makes, told by a function mode of its own: see operations.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from aligner.adapter import Begun, Handle
from aligner_hooks.frames import Frames
from aligner_hooks.torch_ import operations, steps
from aligner_hooks.torch_.calls import callback, is_in_callback
from aligner_hooks.torch_.ears import Ears

_FRAMES = Frames(torch)


def listen(begun: Begun) -> Handle:
    """Tell of this thread's operations from now on. torch before 1.13 tells of none."""
    return _EARS.listen(begun)


def _put_on() -> Any:
    return operations.put_on(_mode)


_EARS = Ears(_put_on, operations.take_off)


def _mode() -> Any:
    class Following(operations.overrides().TorchFunctionMode):  # type: ignore[misc]  # known at run time only
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = None if is_in_callback() else operations.name_of(function)
            if name is None:
                return function(*args, **(kwargs or {}))
            where = _FRAMES.line()
            heard = [listener for listener in _EARS.listeners if listener.heard]
            given = args[::-1] if operations.is_turned(function) and len(args) == 2 else args
            with callback():  # what others hear is the net's own
                after = [listener.told(name, given, kwargs or {}, where) for listener in heard]
            if name in steps.STEPS and any(made is not None for made in after):
                with suppress(Exception), self:  # where it cannot be put on twice, the steps are not heard
                    steps.taken(name, args, kwargs or {})
            output = function(*args, **(kwargs or {}))
            with callback():
                for made in after:
                    if made is not None:
                        made(args[0] if output is None and args else output)
            return output

    return Following()

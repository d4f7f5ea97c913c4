"""The state of torch's random numbers, read as it is: also inside a transform or a mode, where tensors are others.

Inside torch.func.grad a new tensor is one without storage, under a FakeTensorMode one without values. Both are a
thread's own affair and the generator is the process's: where anything of the kind is on, another thread reads it.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

import torch


def state() -> Optional[bytes]:
    """The state of the default generator."""
    return _outside(lambda: bytes(torch.get_rng_state().numpy().tobytes()))


def restore(state: bytes) -> None:
    """Go back to it."""
    _outside(lambda: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)))


def _outside(work: Callable[[], Any]) -> Any:
    """What `work` returns where tensors are ordinary ones."""
    if not _is_inside():
        return work()
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    thread.join()
    return made[0]


def _is_inside() -> bool:
    """Whether a transform or a mode of torch's is on in this thread, or may be: an older torch does not tell."""
    return _modes() > 0 or _transform() is not None


_modes: Callable[[], int] = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", lambda: 1)
_transform: Callable[[], Any] = getattr(
    getattr(getattr(torch, "_C", None), "_functorch", None), "peek_interpreter_stack", lambda: None
)

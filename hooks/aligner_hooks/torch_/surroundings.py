"""What stands around a run: devices, modes, the facts of the header, and what `aligner doctor` says about torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import chain
from typing import Any, Optional

import numpy as np
import torch

from aligner.adapter import Finding
from aligner.errors import AdapterError
from aligner.record import Scalar
from aligner_hooks.torch_.eager import Hold, can_stop_compiling, unfused

# Names as users write them -> torch's. "gpu" and "ascend" are written from documentation and were never run.
_DEVICES = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}


def device(name: str) -> Callable[[object], object]:
    """What moves a model or tensor to the device.

    Raises:
        AdapterError: torch has no such device here.
    """
    if name not in _DEVICES:
        raise AdapterError("torch-device-unknown", device=name, known=", ".join(_DEVICES))
    reason = _absence(name)
    if reason:
        raise AdapterError("torch-device-absent", device=name, reason=reason)
    target = torch.device(_DEVICES[name])

    def move(value: Any) -> Any:
        return value.to(target)

    return move


def _absence(name: str) -> str:
    """Why a device cannot be used here, or nothing."""
    if name == "gpu" and not torch.cuda.is_available():
        return "torch.cuda.is_available() is False"
    if name == "ascend":
        try:
            import_module("torch_npu")  # importing it adds torch.npu
        except ImportError as error:
            return str(error)
        if not torch.npu.is_available():
            return "torch.npu.is_available() is False"
    return ""


@contextmanager
def running(mode: Optional[str]) -> Iterator[None]:
    """No gradients, nothing compiled, nothing fused: torch has no other mode in which layers could be seen."""
    if mode == "graph":
        raise AdapterError("torch-no-graph-mode")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(Hold())
        stack.enter_context(unfused())
        yield


def environment(model: Any) -> Mapping[str, Scalar]:
    """Facts for the header."""
    first = next(chain(model.parameters(), model.buffers()), None)
    facts: dict[str, Scalar] = {
        "device": "cpu" if first is None else first.device.type,
        "mode": "pynative",
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).partition(".")[2],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if facts["device"] == "cuda":
        facts["tf32"] = bool(torch.backends.cuda.matmul.allow_tf32)
        facts["device_name"] = str(torch.cuda.get_device_name())
    return facts


def doctor() -> Iterator[Finding]:
    """What is usable and what is wrong with torch here."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(True, "torch-found", {"version": str(torch.__version__), "python": python})
    try:
        torch.from_numpy(np.zeros(1, np.float32)).numpy()
        yield Finding(True, "torch-numpy-works", {"numpy": np.__version__})
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        yield Finding(False, "torch-numpy-broken", {"numpy": np.__version__, "reason": reason})
    if torch.cuda.is_available():
        yield Finding(True, "torch-gpu", {"count": torch.cuda.device_count(), "name": torch.cuda.get_device_name()})
    else:
        yield Finding(True, "torch-no-gpu", {})
    if hasattr(torch, "compile") and not can_stop_compiling():
        yield Finding(True, "torch-no-stance", {"version": str(torch.__version__)})

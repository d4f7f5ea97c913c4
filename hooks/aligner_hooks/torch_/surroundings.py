"""What stands around a run: devices, modes, the facts of the header, and what `aligner doctor` says about torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Optional

import numpy as np
import torch

from aligner.adapter import Finding
from aligner.errors import AdapterError
from aligner.record import Scalar
from aligner_hooks.torch_ import devices
from aligner_hooks.torch_.eager import Hold, can_stop_compiling, unfused


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
        **devices.facts(first),
        "mode": "pynative",
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).partition(".")[2],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
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
    yield from devices.doctor()
    if hasattr(torch, "compile") and not can_stop_compiling():
        yield Finding(True, "torch-no-stance", {"version": str(torch.__version__)})

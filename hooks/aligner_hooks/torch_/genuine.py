"""Whether `torch` is PyTorch: MindTorch and others can take its name and its place in sys.modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aligner.errors import AdapterError


def insist() -> None:
    """Refuse to be loaded beside anything but PyTorch, so that no file of this package holds on to an imitation.

    What is in the place of torch is looked up at each call: another one may stand there later.

    Raises:
        AdapterError: an imitation has the name of torch; says which file it is.
    """
    torch: Any = import_module("torch")
    if not is_genuine(torch):
        raise AdapterError("torch-imitated", file=str(getattr(torch, "__file__", "-")))


def is_genuine(torch: Any) -> bool:
    """Whether this module is PyTorch: its core is a compiled one."""
    loader = getattr(getattr(getattr(torch, "_C", None), "__spec__", None), "loader", None)
    module = getattr(getattr(torch, "nn", None), "Module", None)
    return type(loader).__name__ == "ExtensionFileLoader" and getattr(module, "__module__", "") == (
        "torch.nn.modules.module"
    )

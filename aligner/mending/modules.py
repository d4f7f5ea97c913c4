"""What the code calls the framework's modules."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from aligner.words.templates import MINDSPORE, NUMPY, TORCH

_MODULES: Mapping[str, Mapping[str, str]] = {
    MINDSPORE: {"ops": "mindspore.ops", "ms": "mindspore"},
    TORCH: {"ops": "torch", "ms": "torch"},
    NUMPY: {"ops": "numpy", "ms": "numpy"},
}
"""By what templates call them."""


def modules(scope: Mapping[str, Any], side: str) -> Mapping[str, str]:
    """The framework's modules, or numpy, as far as the code has them."""
    known = {value.__name__: name for name, value in scope.items() if isinstance(value, types.ModuleType)}
    found = {}
    for word, module in _MODULES[side].items():
        root, dot, rest = module.partition(".")
        if module in known or root in known:
            found[word] = known.get(module) or f"{known[root]}{dot}{rest}"
    return found

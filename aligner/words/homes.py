"""Where a framework's operations are found: what a program writes before their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

from aligner.words.operations import row

METHOD, OPERATOR = "Tensor", "operator"
"""Of a tensor's method, and of what is written as a sign."""

_TORCH = ("torch", "torch.nn.functional")
_MODULES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "mindspore": {
        "ops": ("mindspore.ops",),
        "mint": ("mindspore.mint",),
        "mint.nn.functional": ("mindspore.mint.nn.functional",),
    },
    "torch": {word: (word,) for word in _TORCH},
    "mindtorch": {word: (f"mindtorch.{word}", f"mindtorch{word[len('torch') :]}") for word in _TORCH},
}
"""By framework: the words of a program, and the modules that they may stand for."""


def homes(framework: str) -> Iterator[tuple[str, ModuleType]]:
    """Those that are imported."""
    for word, names in _MODULES.get(framework, {}).items():
        for name in names:
            if name in sys.modules:
                yield word, sys.modules[name]


def operators() -> frozenset[str]:
    """Python's own operators on two values, by their names in the module `operator`."""
    return frozenset(("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"))


def is_known(name: str, framework: str) -> bool:
    """Whether this is what a program may call: an operation of the table, at home in the framework."""
    home, _, word = name.rpartition(".")
    if home == OPERATOR:
        return word in operators()
    known = word.isidentifier() and not word.startswith("_") and row(word) is not None
    return known and (home == METHOD or home in _MODULES.get(framework, {}))

"""What each layer's own code computes in: casts sit inside layers, so the types at their borders do not tell.

    adapter.precision      what switches say (autocast, to_float), at a layer's first call
    adapter.computations   what its operators really make, where the framework tells

One finding for each layer; none at all where nothing computes in anything but float32 and no switch is on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

from aligner.adapter import Adapter, Handle
from aligner.findings import CAST

USUAL = "float32"

AUTOCAST = "autocast"
"""The switch of which only a run tells that it is on."""
MOST = 40
"""Names of operations in one type that are kept of a layer."""

SHORT = ("float16", "bfloat16")

PRODUCTS = ("conv", "matmul", "mm", "dense", "linear", "dot_product", "einsum", "lstm", "gru", "rnn")
"""Operations with these in their names decide what a layer computes in."""

CAREFUL = ("norm", "softmax", "loss", "entropy", "mean", "sum", "var", "std", "rsqrt", "exp", "log", "pow", "cdist")
"""Operations that short types are bad at; they decide where there is no product."""


@dataclass
class _Layer:
    told: Optional[tuple[str, str]] = None
    operations: dict[str, list[str]] = field(default_factory=dict)


class Computed:
    """Follows a capture's calls as they nest, until the end of the first step."""

    def __init__(self, adapter: Adapter, model: object) -> None:
        self._adapter = adapter
        self._model = model
        self._layers: dict[str, _Layer] = {}
        self._stack: list[_Layer] = []
        self._handle: Optional[Handle] = None

    def listen(self) -> Computed:
        """Be told of operations from now on."""
        self._handle = self._adapter.computations(self._told)
        return self

    def remove(self) -> None:
        """Be told no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _told(self, name: str, dtype: str) -> None:
        if self._stack:
            names = self._stack[-1].operations.setdefault(dtype, [])
            if len(names) < MOST and name not in names:
                names.append(name)

    def enter(self, path: str, layer: object) -> None:
        """A call begins."""
        known = self._layers.get(path)
        if known is None:
            known = self._layers[path] = _Layer(self._adapter.precision(self._model, layer))
        self._stack.append(known)

    def unwind(self, depth: int) -> None:
        """Calls above `depth` have ended."""
        del self._stack[depth:]

    def tell(self, finding: Callable[[str, dict[str, Any]], None]) -> dict[str, str]:
        """All that was found out, if there is anything to tell; returns what belongs into the header."""
        if all(layer.told is None and set(layer.operations) <= {USUAL} for layer in self._layers.values()):
            return {}
        for path, layer in self._layers.items():
            told, dtype = layer.told, decisive(layer.operations)
            if dtype is None and told is None:
                continue
            facts: dict[str, Any] = {"layer": path, "dtype": dtype or (told[0] if told else "")}
            facts["by"] = told[1] if told is not None else "measured"
            if layer.operations:
                facts["operations"] = layer.operations
            finding(CAST, facts)
        return (
            {"amp": AUTOCAST} if any((layer.told or ("", ""))[1] == AUTOCAST for layer in self._layers.values()) else {}
        )


def decisive(operations: dict[str, list[str]]) -> Optional[str]:
    """The type that a layer computes in, of those that its operations do."""
    for words in (PRODUCTS, CAREFUL, ("",)):
        found = [dtype for dtype, names in operations.items() if any(word in name for name in names for word in words)]
        if found:
            return next((dtype for dtype in SHORT if dtype in found), found[0])
    return None

"""Which operations a layer's own code runs between its children: evidence where no layer is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aligner.findings import OPERATIONS

MOST = 200
"""Names of one gap that are kept."""


@dataclass
class _Code:
    """A layer's own code while it runs."""

    last: str = ""
    """The child that ran last."""
    names: list[str] = field(default_factory=list)
    rows: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def cut(self, child: str) -> None:
        """Here a child begins, or ("") the code ends."""
        if self.names:
            self.rows.append((self.last, child, self.names))
            self.names = []


class Gaps:
    """Follows a capture's calls as they nest; `told` is what an adapter tells of operations."""

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._tell = tell
        self._stack: list[_Code] = []

    def told(self, name: str) -> None:
        """An operation runs."""
        if self._stack and len(self._stack[-1].names) < MOST:
            self._stack[-1].names.append(name)

    def enter(self, layer: str, call: int = 0) -> None:
        """A call begins."""
        if self._stack:
            self._stack[-1].cut(layer)
        self._stack.append(_Code())

    def leave(self, layer: str, call: int, step: int) -> None:
        """A call ends. What a layer without children runs inside itself is its own affair."""
        code = self._stack.pop()
        code.cut("")
        if code.last and code.rows:
            self._tell(OPERATIONS, {"layer": layer, "call": call, "step": step, "rows": code.rows})
        if self._stack:
            self._stack[-1].last = layer

    def unwind(self, depth: int) -> None:
        """Calls above `depth` never came back."""
        del self._stack[depth:]

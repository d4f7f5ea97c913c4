"""A parameter as a net with other borders has it: rows of it, its two axes turned, or without axes of one.

One qkv of the port against three projections of the reference, stacked experts against a list of them, the Conv1D of
GPT-2 that keeps its weight as (in, out), a convolution of one by one against a Dense layer, a table of relative
positions with its heads in front: the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aligner.record import Array


@dataclass(frozen=True)
class View:
    """Which numbers of a whole parameter are meant: of its rows, after its axes were turned. `stop` 0: all of them."""

    start: int = 0
    stop: int = 0
    turned: bool = False
    """The last axis comes first."""
    heads: int = 1
    """The rows of the parts come head by head: all of the first head, then all of the second."""

    @property
    def plain(self) -> bool:
        """The parameter as it is."""
        return self == WHOLE

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is seen of a parameter of this shape."""
        seen = self._turned(whole)
        return (self.stop - self.start, *seen[1:]) if self.stop else seen

    @property
    def label(self) -> str:
        """What is meant, behind the parameter's name."""
        rows = f"[{self.start}:{self.stop}]" if self.stop else ""
        return (".T" if self.turned else "") + rows

    def within(self, whole: tuple[int, ...]) -> bool:
        """Whether a parameter of this shape has these numbers."""
        seen = self._turned(whole)
        shared = self.heads == 1 or (bool(seen) and all(n % self.heads == 0 for n in (seen[0], self.start, self.stop)))
        return shared and (not self.stop or (bool(seen) and self.stop <= seen[0]))

    def take(self, whole: Array) -> Array:
        """What is seen of it; its own memory as far as that is possible."""
        return self._of(whole)[self.rows(len(self._of(whole)))] if self.stop else self._of(whole)

    def put(self, whole: Array, part: Array) -> None:
        """Write the part into the whole."""
        seen = self._of(whole)
        seen[self.rows(len(seen)) if self.stop else ...] = part.reshape(self.shape(whole.shape))

    def _of(self, whole: Array) -> Array:
        return np.moveaxis(whole, -1, 0) if self.turned else whole

    def _turned(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[-1:], *shape[:-1]) if self.turned else shape

    def rows(self, count: int) -> Any:
        """The numbers of the rows; each head has its share of every part."""
        if self.heads == 1:
            return slice(self.start, self.stop)
        each, share = count // self.heads, (self.stop - self.start) // self.heads
        first = self.start // self.heads
        return (np.arange(self.heads)[:, None] * each + first + np.arange(share)[None]).reshape(-1)

    def facts(self) -> list[int]:
        """Plain numbers for a dump."""
        return [self.start, self.stop, int(self.turned), self.heads]

    @staticmethod
    def parsed(facts: Any) -> View:
        """From what `facts` gave.

        Raises:
            ValueError: it is damaged.
        """
        if not isinstance(facts, (list, tuple)) or len(facts) != 4 or any(type(n) is not int or n < 0 for n in facts):
            raise ValueError("a view of a parameter is none")
        start, stop, turned, heads = facts
        if (stop and stop <= start) or not heads:
            raise ValueError("a view of a parameter is none")
        return View(start, stop, bool(turned), heads)


WHOLE = View()


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without axes of one."""
    return tuple(size for size in shape if size != 1)

"""The reference's values that tensors of the port hold for a while, and what these held before.

Code that keeps a tensor goes on with the very one that a layer is given. A table that a layer keeps outlives the run:
the next one, and who looks for the mistake after it, are to find it as it was.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, NamedTuple

from aligner.adapter import Adapter
from aligner.record import Array
from aligner.replay import prints


class _Loan(NamedTuple):
    """One tensor, where it is alive, and what it holds and held."""

    step: int
    tensor: Any
    own: Array
    dtype: str
    lent: prints.Print


class Lent:
    """What is lent; `owned` are the model's own tensors, which no pass may write to."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._owned: set[int] = set()
        self._loans: list[_Loan] = []

    def begin(self, step: int, owned: set[int]) -> None:
        """A run begins: of the step that is run again nothing is lent any more."""
        self._owned = owned
        self.returned(step)

    def lend(self, step: int, tensor: Any, other: object, array: Array) -> None:
        """Have a tensor hold another's values in the place of `array`, if it can."""
        if id(tensor) in self._owned:
            return
        own, word, lent = array.copy(), self._adapter.dtype(tensor), prints.taken(self._adapter.to_numpy(other))
        with suppress(ValueError):  # it keeps its own; a difference handed on is known again by its values
            self._adapter.overwrite(tensor, other)
            loan = _Loan(step, None, own, word, lent)
            with suppress(TypeError):  # one that cannot be seen to be gone is none that a layer keeps
                self._loans.append(loan._replace(tensor=weakref.ref(tensor, self._dropped)))

    def returned(self, step: int = -1) -> None:
        """Give back what was lent in this step, or in any, unless the port has written to it since."""
        due = [loan for loan in self._loans if step in (-1, loan.step)]
        self._loans = [loan for loan in self._loans if step not in (-1, loan.step)]
        for loan in reversed(due):
            tensor = loan.tensor()
            if tensor is not None and prints.taken(self._adapter.to_numpy(tensor)) == loan.lent:
                with suppress(ValueError):
                    self._adapter.overwrite(tensor, self._adapter.from_numpy(loan.own, loan.dtype))

    def _dropped(self, _: object) -> None:
        self._loans = [loan for loan in self._loans if loan.tensor() is not None]

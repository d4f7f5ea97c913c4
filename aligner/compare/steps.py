"""The steps of a training on both sides, as a comparison hands them on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Optional

from aligner.record import Key

Two = tuple[Optional[float], Optional[float]]
"""Of the reference and of the port."""

LOST = ("state", "schedule")
"""What a resumed run begins with."""

STAGES = ("data", "loss", "clip", "update", "program", *LOST)
"""Of a step, by which an origin is told; any other is told by the phase of the value that is wrong."""


@dataclass(frozen=True)
class StepRow:
    """One step. `first` is the first value in it that is wrong by itself, with the number of its origin."""

    step: int
    same_data: Optional[bool]
    loss: Two
    norm: Two
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    skipped: tuple[bool, bool] = (False, False)
    """No update was made: a gradient was not finite."""
    first: Optional[Key] = None
    origin: Optional[int] = None
    stage: Optional[str] = None
    """Where in the step that is: one of STAGES, or the phase of `first`."""
    wrong: int = 0
    """Values that are wrong by themselves."""
    inherited: int = 0
    """Values that are wrong by what is before them."""


class Steps(tuple[StepRow, ...]):
    """The steps of a training in their order; a notebook shows a table and a drawing of them."""

    __slots__ = ()

    def plot(self, axes: Any = None) -> Any:
        """Losses and norms of gradients over the steps, drawn by matplotlib.

        Args:
            axes: two axes of matplotlib to draw on, for losses and for norms; None: a new figure.

        Returns:
            The figure that is drawn on.

        Raises:
            UsageError: matplotlib is not installed.
        """
        return import_module("aligner.notebook.step_plot").plot(self, axes)

    def _repr_html_(self) -> str:
        return str(import_module("aligner.notebook.step_html").steps_html(self))

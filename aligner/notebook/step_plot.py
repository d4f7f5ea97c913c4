"""The same two curves as a figure of matplotlib, for whoever has it and wants to go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Optional

from aligner.compare.steps import StepRow
from aligner.errors import UsageError
from aligner.report.words import say


def plot(rows: Sequence[StepRow], axes: Any = None) -> Any:
    """Losses above, norms below; steps in which something is wrong are shaded.

    Words are English: the fonts that matplotlib brings have no Chinese characters.

    Args:
        axes: two of matplotlib's to draw on; None: those of a new figure.

    Raises:
        UsageError: matplotlib is not installed, or there is another number of axes.
    """
    if axes is None:
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError as error:
            raise UsageError("plot-needs-matplotlib") from error
        _, axes = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    panels = list(axes)
    if len(panels) != 2:
        raise UsageError("plot-needs-two-axes", count=len(panels))
    steps = [row.step for row in rows]
    curves = [row.loss for row in rows], [row.norm for row in rows]
    for panel, name, pairs in zip(panels, ("step-loss", "step-norm"), curves):
        _draw(panel, steps, pairs, say(name, "en"))
        for row in rows:
            if row.first is not None:
                panel.axvspan(row.step - 0.5, row.step + 0.5, color="tab:red", alpha=0.15, linewidth=0)
    panels[-1].set_xlabel(say("step-number", "en"))
    panels[0].legend()
    return panels[0].figure


def _draw(panel: Any, steps: Sequence[int], pairs: Sequence[Any], name: str) -> None:
    for side, style in enumerate(("-", "--")):
        values = [_known(pair[side]) for pair in pairs]
        panel.plot(steps, values, style, label=say(("reference", "port")[side], "en"), marker=".")
    panel.set_ylabel(name)


def _known(value: Optional[float]) -> float:
    """A number, or a gap in the line."""
    return float("nan") if value is None else value

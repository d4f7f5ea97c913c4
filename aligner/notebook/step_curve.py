"""Losses and norms of gradients over the steps of a training, as a small static SVG: both sides in two panels.

The reference is a solid line and the port a dashed one over it, so that they can be told apart without colour; what is
not finite interrupts a line. Steps in which something is wrong have a tint behind them, and a pointer resting on it
reads what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.compare.steps import StepRow, Two
from aligner.notebook.markup import TINTS, text
from aligner.report.step_table import wrong
from aligner.report.words import say

WIDTH, PANEL, GAP = 640, 110, 26
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 22, 18
TICKS = 4
PORT = "31,136,190"

Curve = Sequence[Optional[float]]


@dataclass(frozen=True)
class Panel:
    """Where a value of a step lies."""

    top: float
    low: float
    high: float
    steps: int

    def x(self, at: float) -> float:
        """The middle of a step's column, by its place among the steps."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (at + 0.5) / self.steps, 1)

    def y(self, value: float) -> float:
        """The height of a value."""
        return round(self.top + PANEL * (self.high - value) / (self.high - self.low), 1)


def step_curve(rows: Sequence[StepRow], language: str) -> str:
    """The drawing; nothing where there is no step, or no number in any."""
    kinds: tuple[tuple[str, Callable[[StepRow], Two]], ...] = (
        ("step-loss", lambda row: row.loss),
        ("step-norm", lambda row: row.norm),
    )
    drawn, top = [], float(TOP)
    for name, of in kinds:
        panel = _panel([of(row) for row in rows], top)
        if panel is not None:
            drawn.append(_drawn(panel, rows, [of(row) for row in rows], say(name, language), language))
            top += PANEL + GAP
    if not drawn:
        return ""
    height = round(top - GAP + BOTTOM)
    title = text(say("step-curve", language))
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'style="max-width:100%;height:auto;display:block;margin:.4em 0" font-size="10" font-family="sans-serif">'
        f"<title>{title}</title>{_legend(language)}{''.join(drawn)}{_numbers(rows, height)}</svg>"
    )


def _panel(pairs: Sequence[Two], top: float) -> Optional[Panel]:
    known = [value for pair in pairs for value in pair if value is not None and math.isfinite(value)]
    if not known:
        return None
    low, high = min(known), max(known)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Panel(top, low - margin, high + margin, len(pairs))


def _drawn(panel: Panel, rows: Sequence[StepRow], pairs: Sequence[Two], name: str, language: str) -> str:
    reference, port = ([pair[side] for pair in pairs] for side in (0, 1))
    return (
        _tinted(panel, rows, language)
        + _axis(panel, name)
        + _line(panel, reference, "stroke='currentColor' stroke-opacity='.7' stroke-width='1.4'")
        + _line(panel, port, f"stroke='rgb({PORT})' stroke-width='1.6' stroke-dasharray='5 3'")
    )


def _tinted(panel: Panel, rows: Sequence[StepRow], language: str) -> str:
    """A strip behind each step in which something is wrong; fainter where that comes of an earlier one."""
    width = (WIDTH - LEFT - RIGHT) / len(rows)
    strips = []
    for at, row in enumerate(rows):
        if row.first is None and not row.inherited:
            continue
        tint, opacity = (TINTS["inherited"], ".14") if row.first is None else (TINTS["origin"], ".22")
        strips.append(
            f"<rect x='{round(LEFT + at * width, 1)}' y='{panel.top}' width='{round(width, 1)}' height='{PANEL}' "
            f"fill='rgb({tint})' fill-opacity='{opacity}'>"
            f"<title>{text(say('step-number', language))} {row.step}: {text(wrong(row, language))}</title></rect>"
        )
    return "".join(strips)


def _axis(panel: Panel, name: str) -> str:
    """Some values at the left, each with a faint line, and what they are values of."""
    drawn = [f"<text x='2' y='{panel.top - 5}' fill='currentColor' font-weight='600'>{text(name)}</text>"]
    for tick in range(TICKS):
        value = panel.low + (panel.high - panel.low) * (tick + 0.5) / TICKS
        y = panel.y(value)
        drawn.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' stroke='currentColor' stroke-opacity='.15'/>"
            f"<text x='{LEFT - 5}' y='{y + 3}' text-anchor='end' fill='currentColor' opacity='.8'>{value:.3g}</text>"
        )
    return "".join(drawn)


def _line(panel: Panel, curve: Curve, style: str) -> str:
    """Pieces of a line, one for each run of steps that have a number; a step alone is a dot."""
    drawn: list[str] = []
    piece: list[str] = []
    for at, value in enumerate([*curve, None]):
        if value is not None and math.isfinite(value):
            piece.append(f"{panel.x(at)},{panel.y(value)}")
            continue
        if piece:
            points = " ".join(piece if len(piece) > 1 else piece * 2)
            drawn.append(f"<polyline points='{points}' fill='none' stroke-linecap='round' {style}/>")
        piece = []
    return "".join(drawn)


def _numbers(rows: Sequence[StepRow], height: int) -> str:
    """The steps' numbers below, as many as have room."""
    every = -(-len(rows) // 12)
    panel = Panel(0, 0, 1, len(rows))
    return "".join(
        f"<text x='{panel.x(at)}' y='{height - 5}' text-anchor='middle' fill='currentColor' opacity='.8'>"
        f"{row.step}</text>"
        for at, row in enumerate(rows)
        if at % every == 0
    )


def _legend(language: str) -> str:
    """Which line is whose."""
    styles = (
        ("reference", "stroke='currentColor' stroke-opacity='.7' stroke-width='1.4'"),
        ("port", f"stroke='rgb({PORT})' stroke-width='1.6' stroke-dasharray='5 3'"),
    )
    drawn = []
    for number, (side, style) in enumerate(styles):
        x = LEFT + 110 * number
        drawn.append(f"<line x1='{x}' x2='{x + 24}' y1='10' y2='10' {style}/>")
        drawn.append(f"<text x='{x + 29}' y='13' fill='currentColor'>{text(say(side, language))}</text>")
    return "".join(drawn)

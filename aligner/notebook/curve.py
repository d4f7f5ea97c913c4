"""The error of every pair over execution order, as a small static SVG.

The axis is logarithmic; NaN and Inf have a lane of their own on top of it, and an error of zero lies on the bottom.
Long nets are drawn by column: each column shows the largest error in it, so no peak is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aligner.compare.verdict import Comparison, Verdict
from aligner.notebook.markup import TINTS, text
from aligner.record import display
from aligner.report.figures import exact, figure
from aligner.report.words import say

WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 26, 18
COLUMNS = 290
MARKED = 20


@dataclass(frozen=True)
class Scale:
    """Where an error and a column lie on the drawing."""

    low: int
    high: int
    columns: int

    def x(self, column: int) -> float:
        """The middle of a column."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (column + 0.5) / self.columns, 1)

    def y(self, error: float) -> float:
        """The height of an error; what is not finite lies in its lane."""
        if not math.isfinite(error):
            return TOP / 2
        if error <= 0:
            return HEIGHT - BOTTOM
        share = (math.log10(error) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(0.0, min(1.0, share)), 1)


def curve(comparison: Comparison, language: str) -> str:
    """The drawing; nothing when no pair was measured."""
    measured = [v for v in comparison.verdicts if v.error is not None and v.reference is not None]
    if not measured:
        return ""
    peaks = _peaks(measured)
    scale = _scale([_error(v) for v in peaks], comparison.tolerance, len(peaks))
    points = " ".join(f"{scale.x(i)},{scale.y(_error(v))}" for i, v in enumerate(peaks))
    title = text(say("curve", language))
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'style="max-width:100%;height:auto;display:block;margin:.4em 0" font-size="10" font-family="sans-serif">'
        f"<title>{title}</title>{_axis(scale, comparison.tolerance, language)}"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-opacity=".65" stroke-width="1.2"/>'
        f"{_marks(peaks, scale)}</svg>"
    )


def _error(verdict: Verdict) -> float:
    return verdict.error if verdict.error is not None else 0.0


def _peaks(measured: Sequence[Verdict]) -> list[Verdict]:
    """One verdict for each column: the largest error among those that fall into it."""
    columns = min(len(measured), COLUMNS)
    bounds = [i * len(measured) // columns for i in range(columns + 1)]
    return [max(measured[a:b], key=_error) for a, b in zip(bounds, bounds[1:])]


def _scale(errors: Sequence[float], tolerance: float, columns: int) -> Scale:
    shown = [error for error in (*errors, tolerance) if math.isfinite(error) and error > 0]
    low = math.floor(math.log10(min(shown, default=1e-8)))
    high = math.ceil(math.log10(max(shown, default=1.0)))
    return Scale(low, max(high, low + 1), columns)


def _axis(scale: Scale, tolerance: float, language: str) -> str:
    """Powers of ten at the left, the tolerance as a dashed line with its name, the lane for NaN and Inf."""
    drawn = []
    step = max(1, -(-(scale.high - scale.low) // 5))
    for power in range(scale.low, scale.high + 1, step):
        y = scale.y(10.0**power)
        drawn.append(_line(y, "stroke-opacity='.18'") + _label(LEFT - 5, y + 3, f"1e{power:+03d}", "end"))
    drawn.append(_line(TOP / 2, "stroke-opacity='.12'") + _label(LEFT - 5, TOP / 2 + 3, "NaN, Inf", "end"))
    if tolerance > 0:
        y = scale.y(tolerance)
        named = f"{say('curve-tolerance', language)} {exact(tolerance)}"
        drawn.append(_line(y, f"stroke='rgb({TINTS['origin']})' stroke-dasharray='5 4'"))
        drawn.append(_label(WIDTH - RIGHT, y - 4, named, "end"))
    return "".join(drawn)


def _line(y: float, style: str) -> str:
    stroke = "" if "stroke=" in style else "stroke='currentColor' "
    return f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' {stroke}{style}/>"


def _label(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f"<text x='{x}' y='{round(y, 1)}' text-anchor='{anchor}' fill='currentColor' opacity='.8'>{text(words)}</text>"
    )


def _marks(peaks: Sequence[Verdict], scale: Scale) -> str:
    """Dots on the first failing columns, the very first larger; a pointer resting on one reads its name."""
    failing = [(i, v) for i, v in enumerate(peaks) if v.outcome.fails][:MARKED]
    return "".join(_mark(i, v, scale, 4.5 if number == 0 else 2.5) for number, (i, v) in enumerate(failing))


def _mark(column: int, verdict: Verdict, scale: Scale, radius: float) -> str:
    tint = TINTS.get(verdict.outcome.value, "134,142,150")
    name = text(f"{display(verdict.key.layer)} {verdict.key.slot}  {figure(verdict.error)}")
    x, y = scale.x(column), scale.y(_error(verdict))
    return f"<circle cx='{x}' cy='{y}' r='{radius}' fill='rgb({tint})'><title>{name}</title></circle>"

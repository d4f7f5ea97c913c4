"""Numbers as reports print them: short, but never so short that a number changes sides of the tolerance."""

from __future__ import annotations

import math
from typing import Optional


def figure(value: Optional[float], tolerance: Optional[float] = None) -> str:
    """A measured number: "8.3e-03". Gets more digits where two would hide that it is over (or under) the tolerance."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    for digits in range(1, 17):
        text = f"{value:.{digits}e}"
        if tolerance is None or (float(text) > tolerance) == (value > tolerance):
            return text
    return repr(value)


def exact(value: float) -> str:
    """A number that somebody chose, as shortly as it can be said: "1e-03"."""
    if not math.isfinite(value):
        return str(value)
    return next((text for d in range(17) if float(text := f"{value:.{d}e}") == value), repr(value))


def multiple(value: float) -> str:
    """How many times something is something else, in two digits: "6,100"."""
    return f"{float(f'{value:.1e}'):,.0f}" if value >= 10 else f"{value:.1f}"


def element(value: float) -> str:
    """One element of a tensor, with all digits that float32 has."""
    return f"{value:.9g}"


def index(position: Optional[tuple[int, ...]]) -> str:
    """An index as Python writes it: "[0, 3, 1]"."""
    return "[" + ", ".join(str(i) for i in position or ()) + "]"


def size(count: float) -> str:
    """Bytes as people read them: "3.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

"""How a side treats gradients between its backward runs and its optimizer, read from several steps' numbers: the same
way must explain all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.explain.phrase import Phrase, phrase
from aligner.training.numbers import ALIKE, EXACT, FAINT, term

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
else:
    Floats = Any

CLIPPED = 1 - 1e-6
"""An element that stands at the bound to this part of it is cut off."""

VARIED = 1e-2
"""Norms of steps that differ by less than this part tell a factor and a bound not apart."""

TOLD = {"norm": "way-norm", "each": "way-each", "value": "way-value"}


@dataclass(frozen=True)
class Way:
    """Multiplied by the factor, and then clipped: not at all ("none"), all together to a "norm", "each" by its own
    norm, or element by element at a "value"."""

    kind: str
    factor: float = 1.0
    bound: float = 0.0

    @property
    def word(self) -> str:
        """What tells ways apart in a dump."""
        return f"{self.kind} {self.factor:.4g} {self.bound:.4g}"

    @property
    def told(self) -> Phrase:
        """For a person."""
        bare = abs(self.factor - 1) <= ALIKE
        if self.kind == "none":
            return phrase("way-none") if bare else phrase("way-factor", f"{self.factor:.6g}")
        clipped = phrase(TOLD[self.kind], f"{self.bound:.6g}")
        return clipped if bare else phrase("way-times", clipped, f"{self.factor:.6g}")

    def same(self, other: Way) -> bool:
        """Whether both make the same of any gradients."""
        return self.kind == other.kind and _near(self.factor, other.factor) and _near(self.bound, other.bound)


@dataclass(frozen=True)
class Seen:
    """What the sum of a parameter's backward runs and what its optimizer is given tell in one step."""

    raw: float
    """The norm."""
    factor: Optional[float]
    """Of all elements; None where they differ."""
    top: float
    """The largest element that is given."""
    below: Optional[float] = None
    """Where they differ: the factor of those below the largest, if that is one."""


def seen(raw: Floats, given: Floats) -> Seen:
    """Of one parameter."""
    found = term(given, {"gradient": raw})
    top, norm = float(np.abs(given).max(initial=0.0)), float(np.linalg.norm(raw))
    if found is not None:
        return Seen(norm, found.factor, top)
    inside = np.abs(given) < CLIPPED * top
    rest = term(given[inside], {"gradient": raw[inside]}) if inside.any() else None
    return Seen(norm, None, top, None if rest is None else rest.factor)


def way(steps: Sequence[Sequence[Seen]]) -> Optional[Way]:
    """The one that explains every step; None where none does, or where several would."""
    told = [_telling(step) for step in steps]
    told = [step for step in told if step]
    if not told:
        return None
    if any(one.factor is None for step in told for one in step):
        return _by_value([one for step in told for one in step])
    whole = [_one([one.factor for one in step if one.factor is not None]) for step in told]
    if None in whole:
        pairs = [(one.factor or 0.0, one.raw) for step in told for one in step]
        return _clipped("each", pairs)
    norms = [math.sqrt(sum(one.raw**2 for one in step)) for step in told]
    return _clipped("norm", [(factor or 0.0, norm) for factor, norm in zip(whole, norms)])


def _telling(step: Sequence[Seen]) -> list[Seen]:
    most = max((one.raw for one in step), default=0.0)
    return [one for one in step if one.raw > FAINT * most]


def _one(factors: Iterable[float]) -> Optional[float]:
    """The one number that they are."""
    known = sorted(factors)
    middle = known[len(known) // 2] if known else 0.0
    return middle if known and known[-1] - known[0] <= ALIKE * abs(middle) else None


def _clipped(kind: str, pairs: Sequence[tuple[float, float]]) -> Optional[Way]:
    """From factors, and the norms that they stand before."""
    factor = _one(factor for factor, _ in pairs)
    norms = [norm for _, norm in pairs]
    varied = max(norms) - min(norms) > VARIED * max(norms)
    if factor is not None:
        return Way("none", factor) if varied or _near(factor, 1.0) else None
    bound = max(factor * norm for factor, norm in pairs)
    cut = [(factor, norm) for factor, norm in pairs if _near(factor * norm, bound)]
    rest = _one(factor for factor, norm in pairs if not _near(factor * norm, bound))
    if rest is None and len(cut) < len(pairs):
        return None
    if rest is None:  # all are cut: whatever they are multiplied by before, it is enough for that
        rest = max(1.0, *(bound / norm for _, norm in cut))
    return Way(kind, rest, bound) if len(cut) > 1 or all(factor < rest for factor, _ in cut) else None


def _by_value(rows: Sequence[Seen]) -> Optional[Way]:
    cut = [one for one in rows if one.factor is None]
    bound = max(one.top for one in cut)
    whole = [one.factor for one in rows if one.factor is not None and not _near(one.top, bound)]
    factor = _one([one.below for one in cut if one.below is not None] + whole)
    if factor is None or any(not _near(one.top, bound) for one in cut):
        return None
    return Way("value", factor, bound) if all(one.top <= bound * (1 + EXACT) for one in rows) else None


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= ALIKE * max(abs(one), abs(other))

"""What the numbers of one step tell: of what an update is too much, and how gradients were changed before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
else:
    Floats = Any


EXACT = 1e-3
"""What a term leaves of a difference, at most, if it is the difference."""

ALIKE = 1e-3
"""By how much the factors of parameters may differ that are one factor."""


@dataclass(frozen=True)
class Term:
    """A difference of two updates that is a multiple of one thing: "weight", "gradient" or "momentum"."""

    of: str
    factor: float
    left: float


def term(difference: Floats, parts: Mapping[str, Floats]) -> Optional[Term]:
    """Of which of these parts the difference is a multiple, if it is one."""
    whole = float(np.linalg.norm(difference))
    best: Optional[Term] = None
    for name, part in parts.items():
        size = float(np.vdot(part, part))
        if not size or not whole:
            continue
        factor = float(np.vdot(part, difference)) / size
        left = float(np.linalg.norm(difference - factor * part)) / whole
        if left <= EXACT and (best is None or left < best.left):
            best = Term(name, factor, left)
    return best


def averaged(before: Floats, after: Floats, other: Floats) -> Optional[float]:
    """What is kept of a value where all else in it is another one: an average that moves; None where it is none."""
    off = before - other
    size, moved = float(np.vdot(off, off)), float(np.linalg.norm(after - before))
    if not size or not moved or other.shape != before.shape:
        return None
    kept = float(np.vdot(off, after - other)) / size
    return kept if float(np.linalg.norm(after - other - kept * off)) <= EXACT * moved else None


@dataclass(frozen=True)
class Treatment:
    """How the gradients that an optimizer is given follow from those of the backward runs."""

    factors: Sequence[Optional[float]]
    """Of each parameter; None where it is no multiple."""
    bound: Optional[float] = None
    """Where elements stand at one largest value: that."""

    @property
    def factor(self) -> Optional[float]:
        """The one factor of all, if it is one."""
        known = [one for one in self.factors if one is not None]
        if not known or len(known) < len(self.factors):
            return None
        middle = sorted(known)[len(known) // 2]
        return middle if all(abs(one - middle) <= ALIKE * abs(middle) for one in known) else None


FAINT = 1e-5
"""A gradient whose norm is so small a part of the largest is rounding, and tells nothing."""


def telling(raw: Sequence[Floats]) -> list[bool]:
    """Which of these are large enough to tell anything."""
    norms = [float(np.linalg.norm(one)) for one in raw]
    return [one > FAINT * max(norms) for one in norms]


def treatment(raw: Sequence[Floats], given: Sequence[Floats]) -> Treatment:
    """Of all parameters, each with the sum of what the backward runs made of it."""
    factors = [_factor(*pair) for pair in zip(raw, given)]
    bound = None
    if None in factors:
        tops = {float(np.abs(one).max(initial=0.0)) for one, factor in zip(given, factors) if factor is None}
        bound = tops.pop() if len(tops) == 1 else None
    return Treatment(factors, bound)


def _factor(raw: Floats, given: Floats) -> Optional[float]:
    found = term(given, {"gradient": raw})
    return None if found is None else found.factor


def shares(raws: Sequence[Sequence[Floats]], given: Sequence[Floats]) -> Optional[list[float]]:
    """The factor of each batch, if all parameters are given the sum of what the batches made, each times its own."""
    many = len(raws[0])
    square, right = np.zeros((many, many)), np.zeros(many)
    for batches, one in zip(raws, given):
        square += [[float(np.vdot(a, b)) for b in batches] for a in batches]
        right += [float(np.vdot(a, one)) for a in batches]
    factors = np.linalg.lstsq(square, right, rcond=None)[0]
    made = [sum(f * a for f, a in zip(factors, batches)) for batches in raws]
    left = norm([a - b for a, b in zip(made, given)])
    return [float(one) for one in factors] if left <= EXACT * norm(given) else None


def crossed(wanted: Sequence[Floats], given: Sequence[Floats]) -> list[int]:
    """Those that were given what another one is to have."""
    return [
        at
        for at, one in enumerate(given)
        if not _close(one, wanted[at]) and any(_close(one, other) for n, other in enumerate(wanted) if n != at)
    ]


def _close(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and float(np.linalg.norm(one - other)) <= EXACT * float(np.linalg.norm(other))


def norm(arrays: Sequence[Floats]) -> float:
    """Of all of them together."""
    return math.sqrt(sum(float(np.vdot(one, one)) for one in arrays))

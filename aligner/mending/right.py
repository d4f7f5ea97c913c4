"""Which values are right while edits are looked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Optional

from aligner.compare.checks import LIMIT, OTHER_BORDER, OTHER_FORM, Check
from aligner.record import Key

RIGHT = 2e-6
"""What may be left where an edit is proved: clean code stays below 1e-6, and a second normalisation in a row, which is
a mistake, changes no more than 3e-6."""

ALIKE = 1e-4
"""Errors of two runs are as far apart, at most: code that divides by next to nothing rounds otherwise each time."""

FALL = 5.0
"""The error must be this many times smaller."""


def _limit(check: Check) -> float:
    return max(RIGHT, LIMIT * check.expected)


def wrong_of(checks: Iterable[Check], errors: Mapping[Key, float]) -> list[Check]:
    """Values that are off, and those that were not made; of those in a form of their own what edits made another."""
    return [
        check
        for check in checks
        if check.reason != OTHER_BORDER
        if not errors.get(check.port, 0.0 if check.reason == OTHER_FORM else math.inf) <= _limit(check)
    ]


def is_right(check: Check, error: Optional[float], before: float) -> bool:
    """Whether an edit after which a value is so far off puts it right."""
    return error is not None and error <= _limit(check) and error * FALL <= before


def alike(ones: Mapping[Key, float], others: Mapping[Key, float]) -> bool:
    """Whether the errors of a run are those of another."""
    return all(one == others.get(key) or abs(one - others.get(key, math.inf)) <= ALIKE for key, one in ones.items())

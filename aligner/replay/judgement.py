"""One value of a forced pass set against the reference's, and what rounding explains of its error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from aligner.compare.checks import OTHER_NUMBER, ROUNDING, Check
from aligner.compare.deviation import Deviation
from aligner.compare.held import Held
from aligner.compare.net import is_input
from aligner.compare.pairing import Pair
from aligner.compare.reading import HIDDEN, LOW_PRECISION, read, visible_part
from aligner.compare.tolerance import Tolerance
from aligner.dtypes import DTYPES

Place = tuple[str, str, Optional[tuple[str, str]]]
"""where, owner, between: as a Check has them."""

RULE = Tolerance()

EFFECT = 0.01
"""An argument that is off by so much more than what comes of it is meant in another way."""

TERMS = 2.0
"""Roundings of a number of size one that a sum may keep. Measured: a KL divergence of 50 classes is off by 7e-7,
whether it is 1e-2 or 1e-6."""


def judged(short: Optional[str], wanted: Held, found: Held, place: Place, same: bool) -> Check:
    """The check of one value; `same` says that its bits are the reference's."""
    where, owner, between = place
    explained = max(expected(short, wanted.dtype, found.dtype), cancelled(short, wanted))
    if same:
        return Check(wanted.key, found.key, where, owner, between, 0.0, explained)
    reading = read(Pair(as_entry(wanted), as_entry(found)), RULE)
    visible = reading.deviation and visible_part(as_entry(wanted), as_entry(found), reading.deviation)
    if visible:  # masks hide by -inf or by a large number; what is seen counts
        values = (part.astype(np.float64) for part in visible)
        parts = (Held(held.key, 0, "float64", part) for held, part in zip((wanted, found), values))
        reading = read(Pair(*map(as_entry, parts)), RULE)
    explained *= large(short, explained, reading.deviation, wanted)
    facts = dict(reading.facts)
    return Check(
        wanted.key,
        found.key,
        where,
        owner,
        between,
        reading.severity,
        explained,
        reading.deviation,
        reading.reason,
        facts,
    )


def large(short: Optional[str], explained: float, deviation: Optional[Deviation], wanted: Held) -> float:
    """How much more single elements may be off where a short type rounds large numbers, and explains them as a whole.

    Elements near zero are sums of large terms: the tolerance takes them against one, rounding goes by the terms. Beside
    what a mask writes, everything is near zero.
    """
    if short is None or deviation is None or deviation.nonfinite or deviation.rel_l2 > explained or deviation.rms <= 1:
        return 1.0
    return deviation.rms if float(np.abs(wanted.load()).max()) < HIDDEN else 1.0


def unexcused(check: Check, wanted: Held, found: Held) -> Check:
    """The check with what a mask hides counted as well, and as wrong."""
    deviation = read(Pair(as_entry(wanted), as_entry(found)), RULE).deviation
    return replace(check, error=math.inf, deviation=deviation)


def without_effect(results: Sequence[Pair], check: Check) -> bool:
    """Whether what a call made in the free run agrees although this argument does not: the two mean the same by it."""
    readings = [read(pair, RULE) for pair in results]
    return bool(readings) and not any(r.over or r.severity > EFFECT * check.error for r in readings)


def expected(short: Optional[str], wanted: str, found: str) -> float:
    """What rounding explains before it is measured. A type shorter than is usual here (`short`) explains nothing."""
    eps = DTYPES[wanted].eps or 0.0
    if short is not None:
        eps = max(eps, DTYPES[short].eps or 0.0)
    return max(ROUNDING, LOW_PRECISION * eps)


def cancelled(short: Optional[str], wanted: Held) -> float:
    """What rounding explains of a single number that came out small: a divergence of two distributions that are near.

    It is a sum of terms of size one that cancel, and keeps their rounding: more digits are lost the smaller it is.
    """
    value = wanted.load() if int(np.prod(wanted.shape)) == 1 else None
    if value is None or value.dtype.kind != "f":
        return 0.0
    size = abs(float(value.reshape(-1)[0]))
    eps = max(DTYPES["float32"].eps or 0.0, (DTYPES[short].eps or 0.0) if short is not None else 0.0)
    return TERMS * eps / size if 0.0 < size < 1.0 else 0.0


def as_entry(held: Held) -> Any:
    """As what measuring takes it for: it asks for nothing of an Entry that a Held lacks."""
    return held


def wrong_places(checks: Iterable[Check]) -> int:
    """In how many places something is wrong, but for numbers that calls are given."""
    wrong = (check for check in checks if check.fails and check.reason != OTHER_NUMBER)
    return len({(c.key.layer, c.key.call, c.where, is_input(c.key.slot)) for c in wrong})

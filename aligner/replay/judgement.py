"""One value of a forced pass set against the reference's, and what rounding explains of its error."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from aligner.compare.checks import ROUNDING, Check
from aligner.compare.held import Held
from aligner.compare.pairing import Pair
from aligner.compare.reading import LOW_PRECISION, read, visible_part
from aligner.compare.tolerance import Tolerance
from aligner.dtypes import DTYPES

Place = tuple[str, str, Optional[tuple[str, str]]]
"""where, owner, between: as a Check has them."""

RULE = Tolerance()


def judged(short: Optional[str], wanted: Held, found: Held, place: Place, same: bool) -> Check:
    """The check of one value; `same` says that its bits are the reference's."""
    where, owner, between = place
    explained = expected(short, wanted.dtype, found.dtype)
    if same:
        return Check(wanted.key, found.key, where, owner, between, 0.0, explained)
    reading = read(Pair(as_entry(wanted), as_entry(found)), RULE)
    visible = reading.deviation and visible_part(as_entry(wanted), as_entry(found), reading.deviation)
    if visible:  # masks hide by -inf or by a large number; what is seen counts
        values = (part.astype(np.float64) for part in visible)
        parts = (Held(held.key, 0, "float64", part) for held, part in zip((wanted, found), values))
        reading = read(Pair(*map(as_entry, parts)), RULE)
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


def expected(short: Optional[str], wanted: str, found: str) -> float:
    """What rounding explains before it is measured. A type shorter than is usual here (`short`) explains nothing."""
    eps = DTYPES[wanted].eps or 0.0
    if short is not None:
        eps = max(eps, DTYPES[short].eps or 0.0)
    return max(ROUNDING, LOW_PRECISION * eps)


def as_entry(held: Held) -> Any:
    """As what measuring takes it for: it asks for nothing of an Entry that a Held lacks."""
    return held

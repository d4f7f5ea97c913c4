"""One verdict for every record, from its reading and what the trace says of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from aligner.compare.cover import LEFT_OUT, ONE_SIDED
from aligner.compare.moved import ABSENT, BOTH
from aligner.compare.net import Net
from aligner.compare.origin import Trace
from aligner.compare.reading import Reading
from aligner.compare.stop import NOT_RUN
from aligner.compare.verdict import Origin, Outcome, Side, Verdict
from aligner.record import Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


def verdict_of(
    reading: Reading,
    trace: Trace,
    origins: Sequence[Origin],
    index: Mapping[int, int],
    nets: tuple[Net, Net],
    allowed: Sequence[str],
    unjudged: str = "",
) -> Verdict:
    """The conclusion about one reading; `unjudged` is why no layer is judged by it, if so (aligner.compare.moved)."""
    births = trace.reached.get(id(reading), ())
    own = bool(births) and trace.births[births[0]].reading is reading
    origin = next((index[birth] for birth in births if birth in index), None)
    outcome = _outcome(reading, own, reading.good and not births and not reading.unexplained, unjudged)
    key = reading.pair.key
    sides = tuple(_side(e, net) for e, net in zip((reading.pair.reference, reading.pair.port), nets))
    kind = nets[0 if reading.pair.reference is not None else 1].kind(key.layer)
    matched = reading.deviation is not None and not reading.covered
    told = bool(unjudged) and (outcome is Outcome.UNMATCHED or (reading.over and outcome.fails))
    allowed_to = reading.reason in (LEFT_OUT, ONE_SIDED) or unjudged == ABSENT
    return Verdict(
        key=key,
        kind=kind,
        outcome=outcome,
        reference=sides[0],
        port=sides[1],
        error=reading.error if matched and not reading.void else None,
        deviation=reading.deviation if matched else None,
        origin=None if outcome in (Outcome.ALIGNED, Outcome.COVERED, Outcome.NOT_RUN) else origin,
        reason=unjudged if told else reading.reason,
        facts=reading.facts,
        allowed=outcome is Outcome.UNMATCHED
        and (allowed_to or any(fnmatch.fnmatchcase(key.layer, glob) for glob in allowed)),
    )


def _outcome(reading: Reading, own: bool, explained: bool, unjudged: str) -> Outcome:
    """`explained`: a forced pass found nothing wrong before this, so that rounding alone has grown to it."""
    if reading.covered:
        return Outcome.COVERED
    if not reading.matched:
        return Outcome.NOT_RUN if reading.reason == NOT_RUN else Outcome.UNMATCHED
    if reading.deviation is None:
        return Outcome.INCOMPARABLE
    if not reading.over:
        return Outcome.ROUNDING if reading.rounded else Outcome.ALIGNED
    if unjudged:
        return Outcome.INHERITED if unjudged == BOTH else Outcome.INCOMPARABLE
    if reading.nonfinite:
        return Outcome.NONFINITE
    if explained and reading.pair.key.phase is Phase.FORWARD:
        return Outcome.ROUNDING
    return Outcome.ORIGIN if own else Outcome.INHERITED


def _side(entry: Optional[Entry], net: Net) -> Optional[Side]:
    if entry is None:
        return None
    layer = net.layers.get(entry.key.layer)
    return Side(entry.key, entry.order, layer.type if layer is not None else "", entry.dtype, tuple(entry.shape))

"""How much rounding explains, as the reference measured it on itself (`capture --truth`, `--expect float16`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from aligner.dtypes import DTYPES
from aligner.errors import DumpError, Reason, because, form_of
from aligner.findings import EXPECTED
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.dump.reader import Dump

TRUTH = "float64"
"""The type that a run counts as true in."""

EXPLAINED = 8.0
"""A free run's error of up to this many times what the reference's own rounding makes is explained by it.

Two frameworks round in other orders: their errors differ by as much as either has, and by chance a few times that.
"""


def _usual(port: Dump) -> Optional[str]:
    """The type shorter than float32 that most of the port's values have."""
    found = Counter(e.dtype for e in port.entries if e.key.phase is Phase.FORWARD and DTYPES[e.dtype].eps is not None)
    word, count = found.most_common(1)[0] if found else ("", 0)
    short = word in ("float16", "bfloat16") and 2 * count > sum(found.values())
    return word if short else None


class Expected(NamedTuple):
    """Relative L2 that rounding makes of a value: by the layer itself, and grown through the net."""

    own: float
    free: float


def _precision(port: Dump) -> Optional[str]:
    """The type shorter than float32 that the port's header tells of, if there is such a type."""
    word = str(port.header.get("precision"))
    return word if word in DTYPES and DTYPES[word].eps is not None else None


def _from_facts(facts: Mapping[str, Any], reference: Dump) -> tuple[Key, Expected]:
    """What a dump tells of one value.

    Raises:
        DumpError: these are no such facts.
    """
    try:
        step, layer, call, slot = facts["at"]
        key = Key(int(step), Phase.FORWARD, str(layer), int(call), str(slot))
        return key, Expected(float(facts["own"]), float(facts["free"]))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = because(Reason("why-bad-rounding", form_of(error)))
        raise DumpError("dump-bad", path=reference.path, reason=reason) from error


class Expectations:
    """What a reference's dump tells of its own rounding, for a port that computes in float32 or shorter."""

    def __init__(self, reference: Dump, port: Dump) -> None:
        short = _precision(port) or ("float16" if port.header.get("amp") else _usual(port))
        self._found: dict[Key, Expected] = {}
        wanted = {TRUTH, short}
        for kind, facts in reference.findings:
            if kind == EXPECTED and str(facts.get("by")) in wanted:
                key, now = _from_facts(facts, reference)
                before = self._found.get(key, now)
                self._found[key] = Expected(max(before.own, now.own), max(before.free, now.free))
        self.floor = 0.25 * (DTYPES[short or "float32"].eps or 0.0)

    def of(self, key: Key) -> Optional[Expected]:
        """What is known of this value of the reference."""
        return self._found.get(key)

    def ratio(self, reading: Reading) -> Optional[float]:
        """How many times the error of a free run's value is what rounding explains; None where that is not known."""
        expected, deviation = self._found.get(reading.pair.key), reading.deviation
        if expected is None or deviation is None or deviation.exact:
            return None
        return deviation.rel_l2 / max(expected.free, self.floor)

    def excuse(self, readings: Iterable[Reading]) -> None:
        """What is over tolerance by no more than the reference's own rounding makes of it is rounding."""
        for reading in readings:
            ratio = self.ratio(reading) if reading.over and not reading.nonfinite else None
            if ratio is not None and ratio <= EXPLAINED:
                reading.over, reading.rounded = False, True

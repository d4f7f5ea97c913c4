"""One pair after it was measured: what verdicts and origins are drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from aligner.compare.deviation import Deviation, measure
from aligner.compare.tolerance import FLOOR, Tolerance
from aligner.dtypes import DTYPES
from aligner.record import Scalar

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair

SEEN = 1e-6
"""Relative L2 that a clean float32 layer may add by itself (the worst one measured: 9.8e-7)."""

LOW_PRECISION = 0.4
"""The same in units of eps for shorter floats; an order of magnitude above is a bug's work there as well."""


@dataclass(eq=False)
class Reading:
    """A pair, its deviation, and how bad that is. `reason` says why there is no deviation."""

    pair: Pair
    deviation: Optional[Deviation] = None
    reason: str = ""
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    error: float = math.inf
    over: bool = True
    covered: bool = False
    """Without counterpart, but compared in another way: `reason` says how."""
    rounded: bool = False
    """Over tolerance by no more than storing the same values in a shorter type explains; then `over` is false."""

    @property
    def matched(self) -> bool:
        """Whether both sides have the record."""
        return self.pair.reference is not None and self.pair.port is not None

    @property
    def nonfinite(self) -> bool:
        """Whether NaN or Inf stand apart."""
        return self.deviation is not None and self.deviation.nonfinite > 0

    @property
    def severity(self) -> float:
        """How far off the tensor is as a whole, whatever the rule: what decides where an error comes from.

        A single element may be off by chance (an approximate tanh: 1.5e-5 in a clean port), the norm is not; but one
        that is far off counts, however large the tensor is.
        """
        d = self.deviation
        if d is None or d.nonfinite:
            return math.inf
        if d.exact:
            return max(d.rel_l2, 0.01) if d.mismatched else 0.0
        # The norm of a tensor that is truly zero is round-off: below the floor nothing is relative to it.
        whole = d.rel_l2 if d.rms >= FLOOR or math.isinf(d.rel_l2) else d.rel_l2 * d.rms / FLOOR
        return max(min(whole, d.scaled), 0.1 * d.scaled)

    @property
    def own(self) -> float:
        """What a clean layer may add to the severity of a tensor of this precision."""
        shortest = 0.0
        for entry in (self.pair.reference, self.pair.port):
            if entry is not None:
                shortest = max(shortest, DTYPES[entry.dtype].eps or 0.0)
        return max(SEEN, LOW_PRECISION * shortest)


def excuse_rounding(reading: Reading) -> None:
    """The same values in two float types differ by the shorter one's rounding (bfloat16: 4e-3), and are the same."""
    one, other, deviation = reading.pair.reference, reading.pair.port, reading.deviation
    if one is None or other is None or deviation is None or one.dtype == other.dtype or deviation.exact:
        return
    shortest = max(DTYPES[entry.dtype].eps or 0.0 for entry in (one, other))
    if reading.over and deviation.scaled <= shortest and not deviation.nonfinite:
        reading.over, reading.rounded = False, True


def read(pair: Pair, tolerance: Tolerance) -> Reading:
    """Measure one pair: the job that an Executor runs. A record on one side only is read as unmatched."""
    one, other = pair.reference, pair.port
    if one is None or other is None:
        return Reading(pair, reason="only-port" if one is None else "only-reference")
    if one.shape != other.shape and not math.prod(one.shape) == math.prod(other.shape) == 1:
        same = math.prod(one.shape) == math.prod(other.shape)
        facts: dict[str, Scalar] = {"reference": str(one.shape), "port": str(other.shape)}
        return Reading(pair, reason="shapes-differ-same-count" if same else "shapes-differ", facts=facts)
    if _complex(one.dtype) != _complex(other.dtype):
        return Reading(pair, reason="complex-and-real", facts={"reference": one.dtype, "port": other.dtype})
    deviation = measure(one, other, tolerance)
    return Reading(pair, deviation, error=tolerance.error(deviation), over=tolerance.over(deviation))


def _complex(dtype: str) -> bool:
    return dtype.startswith("complex")

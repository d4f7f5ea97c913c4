"""One pair after it was measured: what verdicts and origins are drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.checks import OTHER_BORDER, OTHER_FORM, OTHER_SHAPE, SAME_COUNT, UNREAD
from aligner.compare.deviation import Deviation, measure
from aligner.compare.held import Held
from aligner.compare.net import Net, is_input
from aligner.compare.spread import LARGEST, Spread, common_shape, squeezed
from aligner.compare.tolerance import FLOOR, Tolerance, scale_of
from aligner.dtypes import DTYPES
from aligner.record import Array, Scalar, display

if TYPE_CHECKING:
    from aligner.compare.checks import Check
    from aligner.compare.pairing import Pair
    from aligner.dump.reader import Entry

FORMS = {OTHER_FORM: "covered-argument", OTHER_BORDER: "covered-border-held", UNREAD: "covered-unread"}
"""Reasons of checks, and of the readings that they cover."""

SEEN = 1e-6
"""Relative L2 that a clean float32 layer may add by itself (the worst one measured: 9.8e-7)."""

HIDDEN = 5e3
"""A value as far below zero as this is meant to be invisible to a softmax; no layer's own values are of this size.

Half of the 1e4 that people add: the scores may be above zero.
"""

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
    """Has no counterpart or another form than its counterpart, but was compared in another way: `reason` says how."""
    rounded: bool = False
    """Over tolerance by no more than storing the same values in a shorter type explains; then `over` is false."""

    check: Optional[Check] = None
    """What the forced pass found of it, if there was one."""
    unexplained: bool = False
    """No place is wrong by itself, and rounding is not what makes it so far off (aligner.compare.growth)."""
    noise: Optional[float] = None
    """Of what the net hands on then: how far noise moves it."""

    @property
    def good(self) -> bool:
        """Within tolerance, or shown by a forced pass to be wrong only because something before it is.

        What a layer does wrong beneath the rounding of a short type is not what makes its value red.
        """
        if not self.over or self.check is None:
            return not self.over
        return self.check.isolated and (self.check.hidden or self.check.by_cast or not self.check.suspicious)

    @property
    def matched(self) -> bool:
        """Whether both sides have the record."""
        return self.pair.reference is not None and self.pair.port is not None

    @property
    def nonfinite(self) -> bool:
        """Whether NaN or Inf stand apart."""
        return self.deviation is not None and self.deviation.nonfinite > 0

    @property
    def void(self) -> bool:
        """Whether it agrees without a finite number in it: nothing was measured."""
        return self.deviation is not None and self.deviation.void and not self.over

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


def excuse_form(reading: Reading, tolerance: Tolerance) -> None:
    """An argument in another form is covered where a forced pass saw that all that is made of it is right.

    So is a value that is right, and belongs to another place of the reference. One in another order of axes that is
    off by less than the tolerance is as far off as the forced pass has measured it.
    """
    check = reading.check
    measured = check.deviation if check is not None and reading.deviation is None else None
    if measured is not None and reading.over and not tolerance.over(measured):
        reading.deviation, reading.error, reading.over = measured, tolerance.error(measured), False
        reading.reason, reading.facts = "", {}
        return
    known = FORMS.get(check.reason) if check is not None else None
    if check is not None and known is not None and reading.over:
        reading.over, reading.covered, reading.reason = False, True, known
        reading.facts = {"layer": reading.pair.key.layer or "(net)", **check.facts}


def excuse_imported(reading: Reading, reference: Net, port: Net) -> None:
    """Of a layer around others, operators do not tell for sure which value is which: another shape may be another one.

    What is wrong shows in the layers inside as well.
    """
    one, other = reading.pair.reference, reading.pair.port
    if one is None or other is None or not (reference.partial or port.partial):
        return
    around = one.key.layer in reference.inner or other.key.layer in port.inner
    if around and reading.deviation is None and reading.over:
        reading.over, reading.covered, reading.reason = False, True, "covered-imported"
        reading.facts = {"layer": display(one.key.layer)}


def excuse_rounding(reading: Reading) -> None:
    """The same values in two float types differ by the shorter one's rounding (bfloat16: 4e-3), and are the same."""
    one, other, deviation = reading.pair.reference, reading.pair.port, reading.deviation
    if one is None or other is None or deviation is None or one.dtype == other.dtype or deviation.exact:
        return
    shortest = max(DTYPES[entry.dtype].eps or 0.0 for entry in (one, other))
    if reading.over and deviation.scaled <= shortest and not deviation.nonfinite:
        reading.over, reading.rounded = False, True


def excuse_mask(reading: Reading, tolerance: Tolerance) -> None:
    """Additive masks write "nothing is to be seen here" as -inf, -1e9 or the least float: the same, at the same places.

    A softmax makes zero of each. The other values, which it does see, must agree. Where it sees nothing else, -inf and
    -1e9 are not the same: a forced pass has found out.
    """
    one, other, deviation = reading.pair.reference, reading.pair.port, reading.deviation
    if one is None or other is None or deviation is None or deviation.exact or not reading.over:
        return
    wrong = reading.check is not None and reading.check.fails
    if reading.check is not None and wrong and math.isinf(reading.check.error):
        return
    visible = visible_part(one, other, deviation)
    if visible is None:
        return
    seen, found = visible[0].astype(np.float64), visible[1].astype(np.float64)
    scale = scale_of(math.sqrt(float(np.mean(np.square(seen)))))
    near = np.isfinite(found).all() and (np.abs(found - seen) <= tolerance.value * (scale + np.abs(seen))).all()
    if near and not wrong:
        reading.over, reading.covered, reading.reason = False, True, "covered-mask"
    else:  # what is hidden agrees; what is seen is judged by itself
        parts = Held(one.key, 0, "float64", seen), Held(other.key, 0, "float64", found)
        reading.deviation = replace(measure(*parts, tolerance), worst=None, worst_values=None)
        reading.error, reading.over = tolerance.error(reading.deviation), tolerance.over(reading.deviation)


def visible_part(one: Entry, other: Entry, deviation: Deviation) -> Optional[tuple[Array, Array]]:
    """The values that a softmax would see, of both, where both hide others at the same places; else None.

    One may write a large number over a score, the other add it: then they differ by no more than a score.
    """
    differ = deviation.nonfinite or deviation.max_abs >= HIDDEN or max(deviation.worst_values or (0.0,)) <= -HIDDEN
    if not differ or any(deviation.nan) or _complex(one.dtype):
        return None
    if max(one.nbytes, other.nbytes) > LARGEST:
        return None
    ours, theirs = np.broadcast_arrays(one.load().reshape(_form(one, other)), other.load().reshape(_form(other, one)))
    hidden = ours <= -HIDDEN
    if hidden.all() or not hidden.any() or not np.array_equal(hidden, theirs <= -HIDDEN):
        return None
    return ours[~hidden], theirs[~hidden]


def _form(one: Entry, other: Entry) -> tuple[int, ...]:
    """The entry's shape, without axes of size one where only these differ from the other's."""
    return squeezed(one.shape) if squeezed(one.shape) == squeezed(other.shape) else one.shape


def read(pair: Pair, tolerance: Tolerance) -> Reading:
    """Measure one pair: the job that an Executor runs. A record on one side only is read as unmatched."""
    one, other = pair.reference, pair.port
    if one is None or other is None:
        return Reading(pair, reason="only-port" if one is None else "only-reference")
    if one.key.layer and squeezed(one.shape) != squeezed(other.shape):
        shape = common_shape(one, other)
        if shape is not None and _complex(one.dtype) == _complex(other.dtype):
            deviation = measure(Spread(one, shape), Spread(other, shape), tolerance)
            if is_input(one.key.slot) or not tolerance.over(deviation):  # a wrong result may not be meant so
                return Reading(pair, deviation, error=tolerance.error(deviation), over=tolerance.over(deviation))
    if not (_same_form(one, other) or _in_operators(one, other)):
        same = math.prod(one.shape) == math.prod(other.shape)
        facts: dict[str, Scalar] = {"reference": str(one.shape), "port": str(other.shape)}
        return Reading(pair, reason=SAME_COUNT if same else OTHER_SHAPE, facts=facts)
    if _complex(one.dtype) != _complex(other.dtype):
        return Reading(pair, reason="complex-and-real", facts={"reference": one.dtype, "port": other.dtype})
    deviation = measure(one, other, tolerance)
    return Reading(pair, deviation, error=tolerance.error(deviation), over=tolerance.over(deviation))


def _same_form(one: Entry, other: Entry) -> bool:
    """Whether element k of one stands against element k of the other.

    Inside a net an axis of size one more or less is a way of writing (BatchNorm2d on (N, C, L, 1)); what the net itself
    hands out is used by others as it is, and its shape counts.
    """
    if one.shape == other.shape or math.prod(one.shape) == math.prod(other.shape) == 1:
        return True
    return bool(one.key.layer) and squeezed(one.shape) == squeezed(other.shape)


def _in_operators(one: Entry, other: Entry) -> bool:
    """Whether a side was imported: its shapes are those of operators, which work on (N * L, C) where layers pass on
    (N, L, C)."""
    return math.prod(one.shape) == math.prod(other.shape) and (one.imported or other.imported)


def _complex(dtype: str) -> bool:
    return dtype.startswith("complex")

"""One block of two tensors into the Tally: float32, float64 and complex, integers.

The maxima, the worst place and the count of mismatched elements are those of float64 arithmetic, also from the
float32 kernel: it works in float32 only to find the few elements that can matter, with a margin for its own rounding,
and settles these in float64. Sums (relative L2, rms, cosine) are good to 1e-6.
"""

from __future__ import annotations

import math

import numpy as np

from aligner.compare.tally import NOWHERE, Numbers, Tally, plain

BLOCK = 1 << 17
"""Elements at a time: 512 KiB of float32. Half of it stays in a smaller cache, but pays for more calls of numpy."""

RUN = 1 << 12

SLICE = 1 << 12
"""Elements at a time in float64: temporaries of 32 KiB, which the allocator keeps at hand."""

MARGIN = 1e-6
"""More than subtraction, addition, division and a rounded scale lose in float32 (2.4e-7)."""

TINY = 1e-27
"""Below this a float32 sum of squares of one block may have lost terms to underflow."""

FEW = 32
"""Up to a 32nd of a block is cheaper to pick out than to work through the block again."""


class Workspace:
    """Buffers for one block at a time, made once and used for all pairs of a comparison."""

    def __init__(self) -> None:
        self.difference = np.empty(BLOCK, np.float32)
        self.quotient = np.empty(BLOCK, np.float32)
        self.mask = np.empty(BLOCK, np.bool_)


def product(one: Numbers, other: Numbers) -> float:
    """Dot product of float32 blocks, added up in float64 every RUN elements.

    One float32 sum over a whole block is off by 4e-6 where all values have few bits (bfloat16): always rounded the
    same way. Runs this short also stay in one thread of BLAS.
    """
    whole = one.size - one.size % RUN
    total = 0.0
    if whole:
        runs = np.matmul(one[:whole].reshape(-1, 1, RUN), other[:whole].reshape(-1, RUN, 1))
        total = float(runs.sum(dtype=np.float64))
    return total + float(np.dot(one[whole:], other[whole:])) if whole < one.size else total


def trusted(total: float) -> bool:
    """Whether a float32 sum of squares neither overflowed, nor underflowed, nor met a NaN or Inf."""
    return TINY <= total < math.inf


def narrow(tally: Tally, work: Workspace, reference: Numbers, port: Numbers, start: int, known: float) -> None:
    """A float32 block; `known` is the reference's sum of squares. What float32 cannot say goes to `wide`."""
    if reference.size <= SLICE:  # so small that float64 is not slower
        wide(tally, reference, port, start)
        return
    difference = np.subtract(port, reference, out=work.difference[: reference.size])
    both, apart = product(port, port), product(difference, difference)
    if apart == 0.0 and trusted(known) and trusted(both) and not difference.any():
        tally.reference_squares += known
        tally.port_squares += both
        tally.products += (known + both) / 2
        return
    if not (trusted(known) and trusted(both) and trusted(apart)):
        wide(tally, reference, port, start)
        return
    # The product follows from the three squares unless the tensors are far apart, where it is lost in cancellation.
    near = apart < 0.1 * (known + both)
    tally.reference_squares += known
    tally.port_squares += both
    tally.difference_squares += apart
    tally.products += (known + both - apart) / 2 if near else product(reference, port)
    np.abs(difference, out=difference)
    _elements(tally, work, reference, port, start)


def _elements(tally: Tally, work: Workspace, reference: Numbers, port: Numbers, start: int) -> None:
    """Maxima and mismatches of a float32 block whose absolute differences stand in the workspace."""
    size = reference.size
    difference, mask = work.difference[:size], work.mask[:size]
    top = int(difference.argmax())
    if difference[top] <= min(tally.seen, tally.limit) * (1 - MARGIN):
        return
    if not tally.crowded:
        over = _settle(tally, reference, port, start, np.array([top]))  # a first bound, so that few others remain
        np.greater(difference, np.float32(min(tally.seen, tally.limit) * (1 - MARGIN)), out=mask)
        candidates = int(np.count_nonzero(mask))
        if candidates <= 1:
            tally.mismatched += over
            return
        if candidates * FEW <= size:
            tally.mismatched += _settle(tally, reference, port, start, np.flatnonzero(mask))
            return
        tally.crowded = True
    _many(tally, work, reference, port, start, float(difference[top]))


def _many(tally: Tally, work: Workspace, reference: Numbers, port: Numbers, start: int, peak: float) -> None:
    """A block in which many elements are of interest: each metric in float32, its top ones settled if they count.

    scaled is never below allclose, so a block that does not raise the one need not be asked for the other.
    """
    difference, rule, value = work.difference[: reference.size], tally.tolerance.rule, tally.tolerance.value
    if peak > tally.max_abs * (1 - MARGIN):
        _top(tally, work, difference, peak, reference, port, start)
    quotient = _quotient(work, reference, tally.scale)
    crest = float(quotient.max())
    if crest > tally.scaled * (1 - MARGIN):
        _top(tally, work, quotient, crest, reference, port, start)
    if rule == "scaled":
        tally.mismatched += _over(tally, work, quotient, value, reference, port)
    if rule == "allclose" or (tally.scale != 1.0 and crest > tally.allclose * (1 - MARGIN)):
        quotient = _quotient(work, reference, 1.0)
        _top(tally, work, quotient, float(quotient.max()), reference, port, start)
        if rule == "allclose":
            tally.mismatched += _over(tally, work, quotient, value, reference, port)
    if rule in ("abs", "l2"):
        tally.mismatched += _over(tally, work, difference, tally.limit, reference, port)


def _top(
    tally: Tally, work: Workspace, metric: Numbers, peak: float, reference: Numbers, port: Numbers, start: int
) -> None:
    """Settle the elements whose float32 metric may be the block's largest."""
    mask = np.greater_equal(metric, np.float32(peak * (1 - MARGIN)), out=work.mask[: metric.size])
    _settle(tally, reference, port, start, np.flatnonzero(mask))


def _quotient(work: Workspace, reference: Numbers, offset: float) -> Numbers:
    """|difference| / (offset + |reference|) in float32."""
    quotient = np.abs(reference, out=work.quotient[: reference.size])
    np.add(quotient, np.float32(offset), out=quotient)
    return np.asarray(np.divide(work.difference[: reference.size], quotient, out=quotient))


def _over(tally: Tally, work: Workspace, metric: Numbers, limit: float, reference: Numbers, port: Numbers) -> int:
    """How many elements of a float32 metric are over `limit`; those too close to call are settled in float64."""
    mask = np.greater(metric, np.float32(limit * (1 - MARGIN)), out=work.mask[: metric.size])
    possible = int(np.count_nonzero(mask))
    if not possible:
        return 0
    sure = int(np.count_nonzero(np.greater(metric, np.float32(limit * (1 + MARGIN)), out=mask)))
    if sure == possible:
        return sure
    np.logical_not(mask, out=mask)
    mask &= metric > np.float32(limit * (1 - MARGIN))
    picked = np.flatnonzero(mask)
    exact, other = reference[picked].astype(np.float64), port[picked].astype(np.float64)
    return sure + int(np.count_nonzero(tally.over(np.abs(other - exact), np.abs(exact))))


def _settle(tally: Tally, reference: Numbers, port: Numbers, start: int, picked: Numbers) -> int:
    exact, other = reference[picked].astype(np.float64), port[picked].astype(np.float64)
    return int(np.count_nonzero(tally.settle(exact, other, picked + start)))


def wide(tally: Tally, reference: Numbers, port: Numbers, start: int) -> None:
    """A block in float64 (complex128): mixed widths, NaN and Inf, and what float32 cannot say."""
    for at in range(0, reference.size, SLICE):
        _wide(tally, reference[at : at + SLICE], port[at : at + SLICE], start + at)


def _wide(tally: Tally, reference: Numbers, port: Numbers, start: int) -> None:
    exact, other = widened(reference), widened(port)
    positions = np.arange(start, start + exact.size)
    sound = np.isfinite(exact) & np.isfinite(other)
    if not sound.all():
        _special(tally, exact, other, ~sound, start)
        exact, other, positions = exact[sound], other[sound], positions[sound]
    if exact.size:
        add_sums(tally, exact, other)
        tally.mismatched += int(np.count_nonzero(tally.settle(exact, other, positions)))


def widened(block: Numbers) -> Numbers:
    """float64, or complex128 for complex numbers."""
    kind = np.complex128 if np.issubdtype(block.dtype, np.complexfloating) else np.float64
    return block.astype(kind)


def add_sums(tally: Tally, reference: Numbers, port: Numbers) -> None:
    """Add the sums of float64 or complex128 elements."""
    tally.largest = max(tally.largest, float(np.abs(reference).max()), float(np.abs(port).max()))
    exact, other = reference * tally.unit, port * tally.unit
    apart = other - exact
    tally.reference_squares += float(np.vdot(exact, exact).real)
    tally.port_squares += float(np.vdot(other, other).real)
    tally.difference_squares += float(np.vdot(apart, apart).real)
    tally.products += float(np.vdot(exact, other).real)


def _special(tally: Tally, reference: Numbers, port: Numbers, odd: Numbers, start: int) -> None:
    """Places with NaN or Inf on either side: the same thing on both sides is agreement."""
    for side, block in enumerate((reference, port)):
        nan = np.isnan(block)
        tally.nan[side] += int(np.count_nonzero(nan))
        tally.inf[side] += int(np.count_nonzero(np.isinf(block) & ~nan))
    same = (reference == port) | (np.isnan(reference) & np.isnan(port))
    apart = np.flatnonzero(odd & ~same)
    if apart.size and tally.apart == NOWHERE:
        tally.apart = start + int(apart[0])
        tally.apart_values = (plain(reference[apart[0]]), plain(port[apart[0]]))
    tally.nonfinite += int(apart.size)
    tally.mismatched += int(apart.size)


def whole(tally: Tally, reference: Numbers, port: Numbers, start: int) -> None:
    """A block of integers or booleans: compared exactly, also where float64 could not tell two apart."""
    for at in range(0, reference.size, SLICE):
        _whole(tally, reference[at : at + SLICE], port[at : at + SLICE], start + at)


def _whole(tally: Tally, reference: Numbers, port: Numbers, start: int) -> None:
    exact, other = widened(reference), widened(port)
    add_sums(tally, exact, other)
    unequal = np.flatnonzero(reference != port)
    if not unequal.size:
        return
    tally.mismatched += int(unequal.size)
    distance = _distance(reference[unequal], port[unequal])
    size = np.abs(exact[unequal])
    at = int(np.argmax(distance))
    if float(distance[at]) > tally.max_abs:
        tally.max_abs = float(distance[at])
        tally.worst = start + int(unequal[at])
        tally.worst_values = (float(exact[unequal[at]]), float(other[unequal[at]]))
    tally.scaled = max(tally.scaled, float((distance / (tally.scale + size)).max()))
    tally.allclose = max(tally.allclose, float((distance / (1.0 + size)).max()))


def _distance(reference: Numbers, port: Numbers) -> Numbers:
    """|port - reference| of integers without overflow, as uint64; float64 for uint64 against negative numbers."""
    signed = [np.issubdtype(block.dtype, np.signedinteger) for block in (reference, port)]
    if signed[0] != signed[1] and np.uint64 in (reference.dtype, port.dtype):
        apart: Numbers = np.abs(port.astype(np.float64) - reference.astype(np.float64))
        return apart
    kind = np.uint64 if np.uint64 in (reference.dtype, port.dtype) else np.int64
    exact, other = reference.astype(kind), port.astype(kind)
    distance: Numbers = np.maximum(exact, other).view(np.uint64) - np.minimum(exact, other).view(np.uint64)
    return distance

"""The measured difference of two arrays, block by block, without a temporary as large as a tensor."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional, Protocol

import numpy as np

from aligner.compare.kernels import BLOCK, Workspace, narrow, product, trusted, whole, wide, widened
from aligner.compare.tally import NOWHERE, Tally, ratio
from aligner.compare.tolerance import Tolerance
from aligner.dtypes import DTYPES, DType
from aligner.record import Array


@dataclass(frozen=True)
class Deviation:
    """How far the port's array is from the reference's; unrounded. Differences count finite pairs only.

    `scaled` is max |port - ref| / (s + |ref|) with s = min(1, rms(ref)), not below a small floor. `worst` is the
    element that is worst by the rule, as the error is (rule "l2", and exact types: of the largest difference).
    `nonfinite` counts places where one side is NaN or Inf and the other is not the same; if there are any, `worst`
    is the first of them. `worst` is None where nothing differs.
    """

    max_abs: float
    scaled: float
    allclose: float
    """max |port - ref| / (1 + |ref|): over the tolerance exactly where np.allclose(rtol=atol=tolerance) fails."""
    rel_l2: float
    cosine: float
    mismatched: int
    """Elements over the tolerance (of exact types: that differ; by rule "l2": above tolerance times rms)."""
    total: int
    nan: tuple[int, int]
    """NaN in reference and port."""
    inf: tuple[int, int]
    nonfinite: int
    rms: float
    """Root mean square of the reference."""
    worst: Optional[tuple[int, ...]]
    worst_values: Optional[tuple[float, float]]
    """Reference and port at the worst index; the modulus of complex numbers."""
    exact: bool = False
    """Integers or booleans on both sides: any difference is over tolerance."""

    @property
    def finite(self) -> int:
        """How many elements could be compared as numbers; where NaN and Inf stand apart, no more than these."""
        return self.total - max(nan + inf for nan, inf in zip(self.nan, self.inf))

    @property
    def void(self) -> bool:
        """There are elements, and none of them is a finite number on both sides."""
        return self.total > 0 and self.finite == 0


KEEP = 8 << 20
"""Bytes of a reference that are kept in memory between the two looks at it."""


@dataclass(frozen=True)
class _Sizes:
    """What one reading of the reference tells: sums of squares by block (None: float32 cannot say), and the rms."""

    blocks: tuple[Optional[float], ...]
    rms: float


class Stored(Protocol):
    """What measuring needs of a record."""

    @property
    def dtype(self) -> str:
        """A key of aligner.dtypes.DTYPES."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""

    @property
    def nbytes(self) -> int:
        """The size of the raw bits."""

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of the raw bits."""


class Meter:
    """Measures pairs one after the other with the same buffers; one for each thread."""

    def __init__(self) -> None:
        self._work = Workspace()
        self._raw = (np.empty(0, np.uint8), np.empty(0, np.uint8))
        self._keep: Optional[Array] = None
        self._wide = (np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32))

    def measure(self, reference: Stored, port: Stored, tolerance: Tolerance) -> Deviation:
        """The deviation of two entries with the same number of elements.

        Raises:
            DumpError: the stored data of one of them is damaged.
        """
        with np.errstate(all="ignore"):
            tally = self._run(reference, port, tolerance, 1.0)
            if _beyond(tally) and {"float64", "complex128"} & {reference.dtype, port.dtype}:
                # Squares left the range of float64: once more in another unit.
                unit = math.ldexp(1.0, min(1000, -math.frexp(tally.largest)[1]))
                tally = self._run(reference, port, tolerance, unit)
            return _deviation(tally, reference.shape, _exact(reference, port))

    def _run(self, reference: Stored, port: Stored, tolerance: Tolerance, unit: float) -> Tally:
        kinds = (DTYPES[reference.dtype], DTYPES[port.dtype])
        single = math.prod(reference.shape) <= BLOCK
        if single:
            pieces = [(self._decoded(0, reference), self._decoded(1, port))]
            sizes = _sizes([pieces[0][0]], kinds[0])
            return self._pass(iter(pieces), sizes, kinds, tolerance, unit)
        if reference.dtype == "float32" and reference.nbytes <= KEEP:
            # Read once and kept for the second look; larger ones are read twice instead.
            kept = list(self._kept(reference))
            return self._pass(zip(kept, self._blocks(1, port)), _sizes(kept, kinds[0]), kinds, tolerance, unit)
        sizes = _sizes(self._blocks(0, reference), kinds[0])
        both = zip(self._blocks(0, reference, verify=False), self._blocks(1, port))
        return self._pass(both, sizes, kinds, tolerance, unit)

    def _pass(
        self,
        pieces: Iterator[tuple[Array, Array]],
        sizes: _Sizes,
        kinds: tuple[DType, DType],
        tolerance: Tolerance,
        unit: float,
    ) -> Tally:
        tally = Tally(tolerance, sizes.rms, unit)
        exact = kinds[0].exact and kinds[1].exact
        start = 0
        for number, (one, other) in enumerate(pieces):
            known = sizes.blocks[number]
            if one.size != other.size:
                raise ValueError(f"blocks of {one.size} and {other.size} elements")
            if exact:
                whole(tally, one, other, start)
            elif known is None or not (one.dtype == other.dtype == np.float32) or unit != 1.0:
                wide(tally, one, other, start)
            else:
                narrow(tally, self._work, one, other, start, known)
            start += one.size
        return tally

    def _decoded(self, side: int, entry: Stored) -> Array:
        """The only block of a small entry."""
        blocks = list(self._blocks(side, entry))
        return blocks[0] if blocks else np.empty(0, np.float32)

    def _kept(self, entry: Stored) -> Iterator[Array]:
        """All blocks of a float32 entry, each a view of its own."""
        self._keep = np.empty(KEEP, np.uint8) if self._keep is None else self._keep
        room = -(-entry.nbytes // 16) * 16  # a stream cuts its pieces at multiples of 16 bytes; this is one piece
        (numbers,) = entry.stream(self._keep[:room])
        yield from (numbers[at : at + BLOCK] for at in range(0, numbers.size, BLOCK))

    def _blocks(self, side: int, entry: Stored, verify: bool = True) -> Iterator[Array]:
        """The entry's numbers, BLOCK at a time (the last may be shorter), each in the same buffer."""
        kind = DTYPES[entry.dtype]
        for piece in entry.stream(self._buffer(side, kind.storage.itemsize * BLOCK), verify):
            if kind.decode is not None:
                yield kind.decode(piece)
            elif kind.name == "float16":
                wide_piece = self._wide[side][: piece.size]
                np.copyto(wide_piece, piece)
                yield wide_piece
            else:
                yield piece

    def _buffer(self, side: int, size: int) -> Array:
        if self._raw[side].size < size:
            grown = np.empty(size, np.uint8)
            self._raw = (grown, self._raw[1]) if side == 0 else (self._raw[0], grown)
        return self._raw[side][:size]


def _sizes(blocks: Iterable[Array], kind: DType) -> _Sizes:
    """One reading of the reference: its root mean square over finite values, needed before differences are judged."""
    known: list[Optional[float]] = []
    parts: list[tuple[float, float]] = []
    count = 0
    for block in blocks:
        part = product(block, block) if block.dtype == np.float32 and not kind.exact else math.nan
        if trusted(part):
            known.append(part)
            parts.append((1.0, part))
            count += block.size
            continue
        known.append(None)
        numbers = np.abs(widened(block))
        numbers = numbers[np.isfinite(numbers)]
        top = float(numbers.max(initial=0.0)) or 1.0
        numbers /= top
        parts.append((top, float(np.dot(numbers, numbers))))
        count += numbers.size
    top = max((top for top, total in parts if total), default=1.0)
    mean = sum(total * (own / top) ** 2 for own, total in parts) / max(count, 1)
    return _Sizes(tuple(known), top * math.sqrt(mean))


def _beyond(tally: Tally) -> bool:
    """Whether a square may have overflowed or vanished."""
    least = min(tally.reference_squares, tally.port_squares)
    return tally.largest > 0 and not (1e-140 < tally.largest < 1e140 and least > 1e-270)


def _exact(reference: Stored, port: Stored) -> bool:
    return DTYPES[reference.dtype].exact and DTYPES[port.dtype].exact


def _deviation(tally: Tally, shape: tuple[int, ...], exact: bool) -> Deviation:
    reference, port = tally.reference_squares, tally.port_squares
    if reference == 0.0 or port == 0.0:
        cosine = 1.0 if reference == port else 0.0
    else:
        cosine = max(-1.0, min(1.0, tally.products / (math.sqrt(reference) * math.sqrt(port))))
    at, values = (tally.apart, tally.apart_values) if tally.nonfinite else (tally.worst, tally.worst_values)
    return Deviation(
        max_abs=tally.max_abs,
        scaled=tally.scaled,
        allclose=tally.allclose,
        rel_l2=ratio(tally.difference_squares, reference),
        cosine=cosine,
        mismatched=tally.mismatched,
        total=math.prod(shape),
        nan=(tally.nan[0], tally.nan[1]),
        inf=(tally.inf[0], tally.inf[1]),
        nonfinite=tally.nonfinite,
        rms=tally.rms,
        worst=None if at == NOWHERE else tuple(int(i) for i in np.unravel_index(at, shape)),
        worst_values=None if at == NOWHERE else values,
        exact=exact,
    )


_LOCAL = threading.local()


def measure(reference: Stored, port: Stored, tolerance: Tolerance) -> Deviation:
    """The deviation of two entries; buffers are kept for the thread's next pair."""
    meter: Optional[Meter] = getattr(_LOCAL, "meter", None)
    if meter is None:
        meter = _LOCAL.meter = Meter()
    return meter.measure(reference, port, tolerance)

"""What tells a value from others without keeping it: a few sums, by which two nets' values are known as the same.

    flat      sums with fixed weights, in the order of the elements: unchanged by a reshape; of two values, their
              difference tells how far apart they are (its square is that of the distance, within a half)
    turned    the same with weights that each axis has for itself: unchanged by a transposition as well
    plain     sum, root of the squares, sum of magnitudes, least and greatest: unchanged by any other order

Numbers beyond HUGE count as one of their sign: masks are written with -inf, with -1e9, with the least float, and with
-1e4, which is added to scores. Not where all are, and not alike: sums are that large, and they are no mask.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

FLAT, TURNED, PLAIN = 8, 6, 5
LARGEST = 1 << 22
"""Elements of the largest value that is looked at."""

HUGE, HUGE_AS = 5e3, 1.3247179572
"""Numbers that count as one, and what they count as: none that a mask has beside them."""

SUMS = 1e8
"""Numbers that are all large, and smaller than this, are sums."""

BLOCK = 1 << 16
PART = 1 << 16
"""Elements that are contracted at a time."""

SAMPLE = 256
WEIGHT = math.sqrt(13.0 / 12.0)
"""Root of the mean square of the weights, which lie between 0.5 and 1.5 with either sign."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Of one value. `whole` says that it consists of whole numbers or of truth values."""

    shape: tuple[int, ...]
    whole: bool
    flat: Floats
    turned: Floats
    plain: Floats

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def norm(self) -> float:
        """Root of the sum of squares."""
        return float(self.plain[1])

    def text(self) -> str:
        """The numbers as a dump keeps them: float32, in base64."""
        numbers = np.concatenate([self.flat, self.turned, self.plain]).astype("<f4")
        return base64.b64encode(numbers.tobytes()).decode("ascii")

    @staticmethod
    def parsed(shape: Any, whole: Any, text: Any) -> Fingerprint:
        """From what `text` gave.

        Raises:
            ValueError: it is damaged.
        """
        try:
            numbers = np.frombuffer(base64.b64decode(str(text), validate=True), "<f4").astype(np.float64)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
        sizes = tuple(int(size) for size in shape)
        if len(numbers) != FLAT + TURNED + PLAIN or any(size < 0 for size in sizes):
            raise ValueError("a fingerprint of another form")
        return Fingerprint(sizes, bool(whole), numbers[:FLAT], numbers[FLAT:-PLAIN], numbers[-PLAIN:])


IMAGINARY = 0.7548776662
"""What the imaginary part counts in a fingerprint: no ratio that two parts have by chance."""


def fingerprint(array: Array) -> Optional[Fingerprint]:
    """Of an array in plain numbers, of complex ones both parts in one; None for one too large, empty, or with NaN."""
    if array.dtype.kind == "c" and array.size <= LARGEST:
        array = np.real(array) + IMAGINARY * np.imag(array)
    if array.dtype.kind not in "fiub" or not 0 < array.size <= LARGEST:
        return None
    with np.errstate(all="ignore"):
        plain = np.array([0.0, 0.0, 0.0, array.min(), array.max()], np.float64)
        if np.isnan(plain).any():
            return None
        values = np.ascontiguousarray(array)
        if max(-plain[3], plain[4]) >= HUGE and array.dtype.kind == "f" and not _are_sums(values):
            values = np.where(np.abs(values) >= HUGE, HUGE_AS * np.sign(values), values)
            plain[3], plain[4] = values.min(), values.max()
        flat = np.zeros(FLAT)
        row = values.reshape(-1)
        for number, start in enumerate(range(0, row.size, BLOCK)):
            block = row[start : start + BLOCK].astype(np.float64)
            flat += (1.0 + number % 7 / 7.0) * _projected(block)
            plain[:3] += block.sum(), np.dot(block, block), np.abs(block).sum()
        plain[1] = math.sqrt(plain[1])
        return Fingerprint(tuple(array.shape), array.dtype.kind != "f", flat, _turned(values), plain)


def _are_sums(values: Array) -> bool:
    magnitudes = np.abs(values)
    least, most = float(magnitudes.min()), float(magnitudes.max())
    return least >= HUGE and most < SUMS and (values.size == 1 or least != most)


def _projected(block: Floats) -> Floats:
    rows = -(-block.size // FLAT)
    if rows * FLAT != block.size:
        block = np.concatenate([block, np.zeros(rows * FLAT - block.size)])
    return np.asarray(np.einsum("rc,rc->c", block.reshape(rows, FLAT), _weights()[:rows]))


def _turned(values: Array) -> Floats:
    """One axis after the other; axes of one are none."""
    return _contracted(values.reshape([size for size in values.shape if size > 1] or [1]))


def _contracted(cube: Array) -> Floats:
    """A large value in parts along its first axis: what is made of it on the way may be six times as large."""
    length, size = len(cube), max(1, cube.size // len(cube))
    if cube.ndim > 1 and size > PART:
        parts = (_contracted(part)[None] for part in cube)
        return np.asarray(sum(_weighed(n, n + 1)[0] * part[0] for n, part in enumerate(parts)))
    step = max(1, PART // size)
    total = np.zeros(TURNED)
    for start in range(0, length, step):
        part = cube[start : start + step]
        weights = _weighed(start, start + len(part))
        if cube.ndim == 1:
            total += part.astype(np.float64) @ weights
        else:
            total += np.einsum("rk,rk->k", _rows(part), weights)
    return total


def _rows(cube: Array) -> Floats:
    """All axes but the first, the last one first."""
    sizes = cube.shape
    short = cube.dtype if cube.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    made = cube.reshape(-1, sizes[-1]).astype(short, copy=False) @ _weighed(0, sizes[-1]).astype(short)
    sums = made.astype(np.float64)
    for size in reversed(sizes[1:-1]):
        sums = np.einsum("rlk,lk->rk", sums.reshape(-1, size, TURNED), _weighed(0, size))
    return np.asarray(sums.reshape(-1, TURNED))


@lru_cache(maxsize=1)
def _weights() -> Floats:
    return _drawn(0, BLOCK // FLAT, FLAT)


def _weighed(start: int, stop: int) -> Floats:
    """The weights of these elements of an axis; beyond a block they come again, stretched."""
    if stop <= BLOCK:
        return _table()[start:stop]
    places = np.arange(start, stop)
    return np.asarray(_table()[places % BLOCK] * (1.0 + places // BLOCK % 7 / 7.0)[:, None])


@lru_cache(maxsize=1)
def _table() -> Floats:
    return _drawn(1, BLOCK, TURNED)


def _drawn(seed: int, rows: int, columns: int) -> Floats:
    """Always the same, on every machine and with every numpy: the digits of a counter's hash (splitmix64)."""
    z = np.arange(1, rows * columns + 1, dtype=np.uint64) + np.uint64(seed << 40)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    drawn = 0.5 + (z >> np.uint64(12)).astype(np.float64) / float(1 << 52)
    return np.where(z & np.uint64(1), -drawn, drawn).reshape(rows, columns)


def apart(one: Fingerprint, other: Fingerprint) -> float:
    """About how far two values of as many elements are apart in their order, relative to the larger (relative L2)."""
    size = max(one.norm, other.norm)
    away = float(np.linalg.norm(one.flat - other.flat)) / WEIGHT
    return away / size if size else 0.0


class Prints:
    """Many values, of which one after the other is looked for."""

    def __init__(self, values: Sequence[Optional[Fingerprint]]) -> None:
        self._count = len(values)
        sizes: dict[int, list[tuple[int, Fingerprint]]] = {}
        for number, value in enumerate(values):
            if value is not None:
                sizes.setdefault(value.size, []).append((number, value))
        self._stacks = {
            size: (
                np.array([number for number, _ in known]),
                *(np.stack(rows) for rows in zip(*((one.flat, one.turned, one.plain) for _, one in known))),
            )
            for size, known in sizes.items()
        }

    def apart(self, value: Optional[Fingerprint], turned: bool = False) -> Floats:
        """How far each is from this one, as `apart` tells; inf where one is not known or has another size.

        With `turned`, axes may stand in another order.
        """
        found = np.full(self._count, math.inf)
        numbers, away = self._away(value, turned)
        found[numbers] = away
        return found

    def near(self, value: Optional[Fingerprint], limit: float) -> Sequence[int]:
        """Which are no further from this one than the limit, in their order."""
        numbers, away = self._away(value, turned=False)
        return [int(number) for number in numbers[away <= limit]]

    def _away(self, value: Optional[Fingerprint], turned: bool) -> tuple[Any, Floats]:
        """Those of its size, and how far each is from this one."""
        if value is not None and value.size in self._stacks:
            numbers, flat, axes, plain = self._stacks[value.size]
            if turned:  # a few of those sums may all be small by chance: what any order leaves alike must fit, too
                left = np.abs(plain - value.plain)
                left[:, [0, 2]] /= math.sqrt(max(value.size, 1))  # sums of so many
                away = np.maximum(np.abs(axes - value.turned).max(axis=-1) / WEIGHT, left.max(axis=-1))
            else:
                away = np.linalg.norm(flat - value.flat, axis=-1) / WEIGHT
            size = np.maximum(plain[:, 1], value.norm)
            return numbers, np.divide(away, size, out=np.zeros_like(away), where=size > 0)
        return np.zeros(0, int), np.zeros(0)


def distances(ones: Sequence[Optional[Fingerprint]], others: Sequence[Optional[Fingerprint]], turned: bool) -> Floats:
    """The same of each with each."""
    known = Prints(others)
    found = np.empty((len(ones), len(others)), np.float32)
    for row, value in zip(found, ones):
        row[:] = known.apart(value, turned)
    return found


def print_of(array: Array) -> bytes:
    """What equal arrays have in common, and hardly ever others: for the same run, not for another framework."""
    values = np.ascontiguousarray(array)
    raw = values.reshape(-1).view(np.uint8)
    words = raw[: raw.size // 8 * 8].view(np.uint64)
    with np.errstate(over="ignore"):
        total = int(np.add.reduce(words)) if words.size else 0
    sample = raw[-8:].tobytes() + words[:: max(1, words.size // SAMPLE)].tobytes()
    return repr((array.shape, array.dtype.str, total)).encode() + sample

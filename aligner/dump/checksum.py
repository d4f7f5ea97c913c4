"""The checksum of record data: fast enough to stay out of the way, and different when elements change places.

The bytes, padded with zeros to a multiple of eight, are taken as little-endian 64-bit words in blocks of 64 KiB.
Each block gives one 64-bit sum of its words, each word times the odd weight of its place (`weights`), modulo
2**64; the checksum is the CRC-32 of these sums in order, written as little-endian 64-bit words.

Any flipped bit changes its block's sum, since the weights are odd. A plain sum would be as fast but blind to a
permutation, the very thing a wrong port does to a weight.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
else:
    Words = Any

BLOCK = 1 << 16
WORD: np.dtype[np.uint64] = np.dtype("<u8")
_WORDS = BLOCK // 8


@cache
def weights() -> Words:
    """The weights of the places in a block: splitmix64 of 1, 2, 3, ..., with the lowest bit set."""
    z = np.arange(1, _WORDS + 1, dtype=WORD) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    z.flags.writeable = False
    return z


class Checksum:
    """Feeds on flat uint8 pieces of any size that is a multiple of eight; the last one may have any size."""

    __slots__ = ("_crc", "_place", "_sum")

    def __init__(self) -> None:
        self._crc = 0
        self._place = 0  # words of the block that has been begun
        self._sum = 0

    def update(self, piece: Array) -> None:
        """Take in the next bytes."""
        whole = piece.size & ~7
        words = piece[:whole].view(WORD)
        at = 0
        if self._place:
            at = min(_WORDS - self._place, words.size)
            self._partial(words[:at])
        blocks = (words.size - at) // _WORDS
        if blocks:
            end = at + blocks * _WORDS
            sums = np.einsum("ij,j->i", words[at:end].reshape(blocks, _WORDS), weights())
            self._crc = zlib.crc32(sums.astype(WORD, copy=False), self._crc)
            at = end
        if at < words.size:
            self._partial(words[at:])
        if whole < piece.size:
            self._partial(np.frombuffer(piece[whole:].tobytes().ljust(8, b"\0"), WORD))

    def _partial(self, words: Words) -> None:
        end = self._place + words.size
        part = np.einsum("ij,j->i", words.reshape(1, -1), weights()[self._place : end])
        self._sum += int(part[0])
        self._place = end
        if end == _WORDS:
            self._flush()

    def _flush(self) -> None:
        self._crc = zlib.crc32((self._sum & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"), self._crc)
        self._place = self._sum = 0

    def value(self) -> int:
        """The checksum of all bytes so far; nothing can be added afterwards."""
        if self._place:
            self._flush()
        return self._crc


def checksum(data: Array) -> int:
    """The checksum of a flat uint8 array."""
    if 0 < data.size <= BLOCK and not data.size & 7:  # most records of small nets: one block, one sum
        words = data.view(WORD)
        part = np.einsum("ij,j->i", words.reshape(1, -1), weights()[: words.size])
        return zlib.crc32(part.astype(WORD, copy=False))
    whole = Checksum()
    whole.update(data)
    return whole.value()

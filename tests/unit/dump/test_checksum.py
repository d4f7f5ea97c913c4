from __future__ import annotations

import zlib

import numpy as np
import pytest

from aligner.dump.checksum import BLOCK, Checksum, checksum, weights

SIZES = [0, 1, 7, 8, 9, 4096, BLOCK - 8, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 8, 3 * BLOCK, 5 * BLOCK + 13]


def by_definition(data):
    """The definition of docs/dump-format.md in plain Python."""
    mask = (1 << 64) - 1

    def weight(j):
        z = (j + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31 | 1

    crc = 0
    padded = data + bytes(-len(data) % 8)
    for at in range(0, len(padded), BLOCK):
        block = padded[at : at + BLOCK]
        words = (int.from_bytes(block[i : i + 8], "little") for i in range(0, len(block), 8))
        total = sum(word * weight(j) for j, word in enumerate(words)) & mask
        crc = zlib.crc32(total.to_bytes(8, "little"), crc)
    return crc


def some(size):
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_is_as_defined(size):
    data = some(size)
    assert checksum(data) == by_definition(data.tobytes())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [16, 48, BLOCK - 16, BLOCK, BLOCK + 16, 1 << 20])
def test_does_not_depend_on_the_pieces(size, step):
    data = some(size)
    whole = Checksum()
    for at in range(0, size, step):
        whole.update(data[at : at + step])
    assert whole.value() == checksum(data)


def test_weights_are_odd_and_all_different():
    assert bool((weights() & np.uint64(1)).all())
    assert np.unique(weights()).size == BLOCK // 8


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", "<i8"])
def test_sees_permutations_that_a_plain_sum_does_not(dtype):
    values = np.random.default_rng(1).standard_normal((64, 64)).astype(dtype) * 10
    turned = {
        "transposed": values.T.copy(),
        "rows": values[::-1].copy(),
        "halves": np.roll(values, 32, 0),
        "columns": np.roll(values, 16, 1),
    }
    base = checksum(values.reshape(-1).view(np.uint8))
    assert all(checksum(other.reshape(-1).view(np.uint8)) != base for other in turned.values())


def test_sees_every_flipped_bit():
    data = some(256)
    base = checksum(data)
    for bit in range(256 * 8):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        assert checksum(flipped) != base

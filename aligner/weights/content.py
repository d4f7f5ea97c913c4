"""Which tensors of two checkpoints hold the same numbers, found without keeping them: one pass over each."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

import numpy as np

from aligner.compare.views import squeezed
from aligner.dtypes import DTYPES, decode, encode
from aligner.replay.items import Item
from aligner.weights.stored import Weight

BLOCK = 1 << 20

Find = Callable[[Item], Weight]


def same(ours: Sequence[Item], theirs: Sequence[Item], find: tuple[Find, Find]) -> list[tuple[Item, Item]]:
    """Pairs with equal numbers of which there are no others on either side; rounding to a shorter type is equal."""
    found: list[tuple[Item, Item]] = []
    for shape in dict.fromkeys(squeezed(item.whole) for item in ours):
        sides = [[item for item in side if squeezed(item.whole) == shape] for side in (ours, theirs)]
        if not sides[1]:
            continue
        words = {look(item).dtype for look, side in zip(find, sides) for item in side}
        if len({DTYPES[word].exact for word in words}) > 1 or any(word.startswith("float8") for word in words):
            continue
        word = max(words, key=lambda one: DTYPES[one].eps or 0.0)
        tables = [{item.name: digest(look(item), word) for item in side} for look, side in zip(find, sides)]
        found += _pairs(sides, tables)
    return found


def _pairs(
    sides: Sequence[Sequence[Item]], tables: Sequence[dict[str, Optional[bytes]]]
) -> Iterable[tuple[Item, Item]]:
    counts = [Counter(table.values()) for table in tables]
    others = {tables[1][item.name]: item for item in sides[1]}
    for item in sides[0]:
        value = tables[0][item.name]
        if value is not None and counts[0][value] == counts[1][value] == 1:
            yield item, others[value]


def digest(weight: Weight, word: str) -> Optional[bytes]:
    """A checksum of the numbers in this type; None where all are the same number, as fresh ones are."""
    made, first, constant = hashlib.blake2b(digest_size=16), None, True
    itemsize = DTYPES[weight.dtype].storage.itemsize
    for piece in weight.stored.stream(np.empty(BLOCK * itemsize, np.uint8)):
        bits = piece if weight.dtype == word else encode(decode(piece, weight.dtype), word)
        bits = np.ascontiguousarray(bits)
        first = bits[0] if first is None else first
        constant = constant and bool((bits == first).all())
        made.update(bits.view(np.uint8).data)
    return None if constant else made.digest()

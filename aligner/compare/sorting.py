"""The order in which a comparison is read: what went in, then the parameters, then everything as it ran."""

from __future__ import annotations

from collections.abc import Sequence

from aligner.compare.net import Net, is_input
from aligner.compare.pairing import Pair
from aligner.record import Key, Phase

_Place = tuple[int, int, int, int]


def in_reading_order(pairs: Sequence[Pair], reference: Net, port: Net) -> list[Pair]:
    """Pairs by step, class and the reference's order; the port's own records follow what preceded them there."""
    roots = reference.roots, port.roots
    places: dict[int, _Place] = {}
    latest: dict[tuple[int, int], int] = {}
    for pair in pairs:
        if pair.reference is not None:
            key = pair.key
            places[id(pair)] = (key.step, _rank(key, roots[0]), pair.reference.order, -1)
    for pair in sorted((p for p in pairs if p.port is not None), key=lambda p: p.port.order if p.port else 0):
        if pair.port is None:
            continue
        if id(pair) in places:
            step, rank, order, _ = places[id(pair)]
            latest[step, rank] = max(order, latest.get((step, rank), 0))
        else:
            step, rank = pair.key.step, _rank(pair.key, roots[1])
            places[id(pair)] = (step, rank, latest.get((step, rank), -1), pair.port.order)
    return sorted(pairs, key=lambda pair: places[id(pair)])


def _rank(key: Key, roots: frozenset[str]) -> int:
    if key.phase is Phase.PARAMETER:
        return 1
    return 0 if is_given(key, roots) else 2


def is_given(key: Key, roots: frozenset[str]) -> bool:
    """Whether a record went into the net from outside."""
    return key.phase is Phase.FORWARD and key.layer in roots and is_input(key.slot)

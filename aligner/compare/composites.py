"""Layers that one framework has as one, and somebody has written by hand on the other side: a GRU's cell, attention.

Their weights went to layers inside of the hand-written one, which make nothing that the one layer makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from aligner.compare.net import Net
from aligner.compare.verdict import LayerPair

COMPOSITES = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention"})
"""Kinds that one framework builds of layers and the other does not: they stand in the row of leaves."""


def by_hand(replayed: Sequence[LayerPair], reference: Net, port: Net) -> Iterator[LayerPair]:
    """Such a layer and the layer around all that got its weights, if that holds no others."""
    rows = [(pair.reference, pair.port, pair) for pair in replayed]
    for one, other, place in _composed(rows, reference, port):
        yield LayerPair(one, place, other, "replay")
    for one, other, place in _composed([(b, a, pair) for a, b, pair in rows], port, reference):
        yield LayerPair(place, one, other, "replay")


def _composed(rows: Iterable[tuple[str, str, LayerPair]], ours: Net, theirs: Net) -> Iterator[tuple[str, float, str]]:
    rows = list(rows)
    for layer in ours.paths:
        if ours.kind(layer) not in COMPOSITES:
            continue
        met = [(other, pair.confidence) for one, other, pair in rows if _within(one, layer)]
        others = {other for other, _ in met}
        around = _around(others)
        if not around or any(theirs.kind(path) in COMPOSITES for path in (*others, around)):
            continue
        held = {path for path in theirs.parameters if theirs.weights(path) and _within(path, around)}
        if held <= others and _outside(rows, layer, held):
            yield layer, min(sure for _, sure in met), around


def _outside(rows: Iterable[tuple[str, str, LayerPair]], layer: str, held: Set[str]) -> bool:
    """Whether nobody else's weights went there."""
    return all(_within(one, layer) for one, other, _ in rows if other in held)


def _around(paths: Set[str]) -> str:
    """The innermost layer around all of several."""
    if len(paths) == 1:
        return ""
    common = []
    for names in zip(*(path.split(".") for path in paths)):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}.")

"""Layers without weights that likeness alone has paired, and whose values tell that they do different things.

A penalty on one side and all that is done to scores on the other are called alike and as often. Where what the nets
hand out is the same, and nothing that the two make ever was, they are not each other's counterparts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.compare.net import CallId, Net, Visit
from aligner.errors import DumpError

if TYPE_CHECKING:
    from aligner.compare.verdict import LayerPair
    from aligner.dump.reader import Entry

SAME, APART = 1e-3, 0.1
"""What nets hand out is the same where it differs by no more than the one part; what is off by less than the other may
be a mistake's.
"""


def strangers(
    layers: Iterable[LayerPair], calls: Mapping[CallId, CallId], reference: Net, port: Net
) -> set[tuple[str, str]]:
    """Such pairs of layers."""
    alike = guessed(layers, reference, port)
    if not alike:
        return set()
    ours, theirs = ({visit.id: visit for visit in net.visits} for net in (reference, port))
    paired = [(ours[one], theirs[other]) for one, other in calls.items() if one in ours and other in theirs]
    ends = [(one, other) for one, other in paired if one.call.layer in reference.roots]
    if not ends or not all(_alike(one.outputs, other.outputs, SAME) for one, other in ends):
        return set()
    same = {(a.call.layer, b.call.layer) for a, b in paired if (a.call.layer, b.call.layer) in alike if _agree(a, b)}
    return {*alike} - same


def guessed(layers: Iterable[LayerPair], reference: Net, port: Net) -> list[tuple[str, str]]:
    """Layers without weights, and without others inside, that likeness alone has paired."""
    return [
        (pair.reference, pair.port)
        for pair in layers
        if pair.by == "structure" and pair.reference not in reference.inner and pair.port not in port.inner
        if not reference.weights(pair.reference) and not port.weights(pair.port)
    ]


def _agree(one: Visit, other: Visit) -> bool:
    """Whether anything that they make is the same; a value that cannot be read may be."""
    return any(_alike([mine], other.outputs, APART) for mine in one.outputs) or not (one.outputs and other.outputs)


def _alike(ours: Sequence[Entry], theirs: Sequence[Entry], limit: float) -> bool:
    """Whether each of the first is among the second."""
    try:
        samples = [_sample(entry) for entry in ours], [_sample(entry) for entry in theirs]
    except DumpError:  # it is told where all is read
        return True
    return bool(ours) and all(any(_near(one, other, limit) for other in samples[1]) for one in samples[0])


def _sample(entry: Entry) -> Any:
    flat = entry.sample().reshape(-1)
    return (np.abs(flat) if flat.dtype.kind == "c" else flat).astype(np.float64)


def _near(one: Any, other: Any, limit: float) -> bool:
    if one.size != other.size or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return False
    known = np.isfinite(one)
    with np.errstate(all="ignore"):
        return bool(np.linalg.norm((one - other)[known]) <= limit * np.linalg.norm(one[known]))

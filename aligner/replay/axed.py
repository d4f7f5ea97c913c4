"""Masks that a port hands over with their axes in another order than the reference, and as true and false."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aligner.compare.held import held
from aligner.compare.net import CallId, is_input
from aligner.compare.pairing import Pair
from aligner.compare.worded import Axed
from aligner.fingerprint import LARGEST
from aligner.record import Key, Phase
from aligner.replay.forms import AXES, Axes, squeezed
from aligner.replay.masks import TWO

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

MOST = 0.75
"""Two masks that say the same for this share are one, though one of them be wrong; so are two that say it for as little
as is left, the other way round."""

Masks = dict[tuple[int, CallId], list["Entry"]]


class _Fit(NamedTuple):
    """How well a mask of the port's is one of the reference's."""

    share: float
    port: Key
    mask: Axed


def axed(pairs: Sequence[Pair], calls: Mapping[CallId, CallId]) -> Mapping[Key, Axed]:
    """The reference's masks as the port hands them to the counterparts, by the port's address; `calls` tells the
    reference's call by the port's."""
    ours: Masks = {}
    theirs: Masks = {}
    found: dict[Key, Axed] = {}
    for pair in pairs:
        entry = pair.entry
        if entry.key.phase is not Phase.FORWARD or not is_input(entry.key.slot):
            continue
        if not 1 < math.prod(entry.shape) <= LARGEST:
            continue
        if pair.reference is not None and pair.port is not None:
            fit = max(_fits(pair.reference, pair.port), key=lambda one: one.share, default=None)
            found.update({} if fit is None else {fit.port: fit.mask})
            continue
        this = entry.key.step, CallId(entry.key.layer, entry.key.call)
        (ours if pair.port is None else theirs).setdefault(this, []).append(entry)
    for (step, call), entries in theirs.items():
        masks = ours.get((step, calls[call]), []) if call in calls else []
        fits = sorted((fit for one in entries for mask in masks for fit in _fits(mask, one)), key=lambda f: -f.share)
        taken = set[Key]()
        for fit in fits:
            if fit.port not in found and fit.mask.key not in taken:
                found[fit.port] = fit.mask
                taken.add(fit.mask.key)
    return found


def _fits(mask: Entry, port: Entry) -> Iterator[_Fit]:
    """In which orders of its axes the one is nearly the other."""
    sizes = squeezed(mask.shape), squeezed(port.shape)
    if port.dtype != "bool" or sizes[0] == sizes[1] or sorted(sizes[0]) != sorted(sizes[1]) or len(sizes[0]) > AXES:
        return
    values, found = held(mask).load().reshape(sizes[0]), held(port).load().reshape(sizes[1])
    if np.unique(values).size != TWO:
        return
    true = values == values.max()
    orders = [o for o in permutations(range(values.ndim)) if true.transpose(o).shape == found.shape]
    shares = {order: float(np.mean(true.transpose(order) == found)) for order in orders}
    likely = [o for o, share in shares.items() if _keeps(o, sizes[0]) and not 1.0 - MOST < share < MOST]
    for order in likely or [o for o, share in shares.items() if share in (0.0, 1.0)]:
        share = shares[order]
        yield _Fit(max(share, 1.0 - share), port.key, Axed(mask, _whole(mask.shape, order), share > MOST, port.shape))


def _keeps(order: Axes, sizes: Sequence[int]) -> bool:
    """Whether axes that are as long as each other stay in their order: queries before keys, as a rule."""
    return all(sizes[one] != sizes[other] or one < other for one, other in combinations(order, 2))


def _whole(shape: Sequence[int], order: Axes) -> Axes:
    """The order of all axes, those of one behind the others."""
    longer = [axis for axis, size in enumerate(shape) if size != 1]
    return (*(longer[axis] for axis in order), *(axis for axis, size in enumerate(shape) if size == 1))

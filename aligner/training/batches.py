"""How a port's batch differs from the reference's: its rows in another order, those of another step, other numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.explain.suspect import Suspect

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
else:
    Floats = Any

SHOWN = 8
"""Rows that are named."""

COMPARED = 1_000_000
"""Pairs of rows that are compared, at most."""

CHANNELS = 4
"""Of a picture, at most."""

CLOSE = 1e-4
"""Two rows, or a batch and what it is told to come of, are the same that are apart by less than this part."""


def suspects(port: Floats, reference: Mapping[int, Floats], step: int) -> Iterator[Suspect]:
    """Of the port's batch in this step, with the reference's of all steps."""
    own = reference.get(step)
    if own is None or port.ndim < 1:
        return
    if own.shape != port.shape:
        if own.shape[1:] == port.shape[1:]:
            yield Suspect("data-batch-size", {"size": port.shape[0], "wanted": own.shape[0]}, weight=0.95)
        elif sorted(own.shape) == sorted(port.shape):
            yield Suspect("data-axes", {"shape": str(port.shape), "wanted": str(own.shape)}, weight=0.95)
        return
    if _near(port, own):
        return
    for other, batch in reference.items():
        if other != step and batch.shape == port.shape and _near(port, batch):
            yield Suspect("data-other-step", {"step": step, "other": other}, weight=0.95)
            return
    places = [_where(row, reference) for row in port]
    known = [place for place in places if place is not None]
    if len(known) == len(places) and known:
        inside = all(at == step for at, _ in known)
        yield _ordered("data-order-inside" if inside else "data-order", known)
        return
    scale, shift = np.polyfit(own.reshape(-1), port.reshape(-1), 1) if own.size > 2 and np.ptp(own) else (1.0, 0.0)
    if abs(scale) > CLOSE and _near(port, scale * own + shift):
        yield Suspect("data-scaled", {"factor": f"{scale:.6g}", "shift": _plain(shift, own)}, weight=0.9)
        return
    channels = [*_by_channel(own, port)]
    yield from channels
    if not channels:
        many = 2 * len(known) >= len(places)  # those that it lacks may stand in batches that were not captured
        facts = {"rows": len(places), "known": len(known)}
        yield _ordered("data-order", known) if many else Suspect("data-other", facts, weight=0.5)


def undone(cause: str, port: Mapping[int, Floats], reference: Mapping[int, Floats], steps: Sequence[int]) -> float:
    """How far off the port's own data are from the reference's of these steps with what is told of them undone: the
    same numbers as the port's loader has made them, in another order or times and plus the numbers of the first of
    these steps. Infinite where they are not known."""
    pairs = [(port[step], reference[step]) for step in steps if step in port and step in reference]
    if len(pairs) < len(steps) or not pairs:
        return math.inf
    first, wanted = pairs[0]
    if cause == "data-scaled":
        fit = np.polyfit(first.reshape(-1), wanted.reshape(-1), 1)
        return max(_off(fit[0] * one + fit[1], other) for one, other in pairs)
    if cause == "data-normalised":
        axis = next((axis for axis in (1, first.ndim - 1) if 1 < first.shape[axis] <= CHANNELS), 1)
        sides = [[np.moveaxis(one, axis, 0).reshape(first.shape[axis], -1) for one in pair] for pair in pairs]
        fits = [np.polyfit(one, other, 1) for one, other in zip(*sides[0])]
        return max(_off(f[0] * a + f[1], b) for one, other in sides for f, a, b in zip(fits, one, other))
    if cause in ("data-other-step", "data-order", "data-order-inside", "data-batch-size"):
        rows = [row for batch in port.values() for row in batch]
        exact = {row.tobytes() for row in rows}
        left = [row for _, batch in pairs for row in batch if row.tobytes() not in exact]
        if len(left) * len(rows) > COMPARED:
            return math.inf
        found = max((min(_off(row, one) for row in rows) for one in left), default=0.0)
        return found if found <= CLOSE else math.inf  # a row that the port has in a step that was not captured
    return math.inf


def _off(one: Floats, other: Floats) -> float:
    if one.shape != other.shape:
        return math.inf
    size, off = float(np.linalg.norm(other)), float(np.linalg.norm(one - other))
    return off / size if size else (0.0 if not off else math.inf)


def _ordered(cause: str, places: Sequence[tuple[int, int]]) -> Suspect:
    shown = ", ".join(str(row) if cause == "data-order-inside" else f"{at}:{row}" for at, row in places[:SHOWN])
    return Suspect(cause, {"rows": shown + (", ..." if len(places) > SHOWN else "")}, weight=0.95)


def _by_channel(own: Floats, port: Floats) -> Iterator[Suspect]:
    """A mean and a deviation of each channel, as pictures are normalised by."""
    for axis in (1, own.ndim - 1) if own.ndim > 2 else ():
        channels = own.shape[axis]
        if not 1 < channels <= CHANNELS:
            continue
        one, other = (np.moveaxis(array, axis, 0).reshape(channels, -1) for array in (own, port))
        fits = [np.polyfit(a, b, 1) if np.ptp(a) else (1.0, float(np.mean(b - a))) for a, b in zip(one, other)]
        if all(abs(scale) > CLOSE for scale, _ in fits) and _near(
            other, np.stack([scale * a + shift for (scale, shift), a in zip(fits, one)])
        ):
            facts = {name: ", ".join(f"{fit[n]:.4g}" for fit in fits) for n, name in enumerate(("factors", "shifts"))}
            yield Suspect("data-normalised", facts, weight=0.9)
            return


def _where(row: Floats, reference: Mapping[int, Floats]) -> Any:
    """The step and the row of the reference's that it is."""
    for step, batch in reference.items():
        if batch.shape[1:] != row.shape:
            continue
        for number, other in enumerate(batch):
            if _near(row, other):
                return step, number
    return None


def _near(one: Floats, other: Floats) -> bool:
    return float(np.linalg.norm(one - other)) <= CLOSE * float(np.linalg.norm(other))


def _plain(shift: float, own: Floats) -> str:
    """A shift; what the fit leaves of none is none."""
    return "0" if abs(shift) <= CLOSE * float(np.abs(own).max(initial=0.0)) else f"{shift:.6g}"

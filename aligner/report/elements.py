"""Single elements of a pair of arrays: the difference, the worst places, and what a person selects by hand."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from aligner.compare.tolerance import scale_of
from aligner.errors import UsageError
from aligner.record import Array

Selection = tuple[Union[int, slice, "ellipsis"], ...]  # noqa: F821  # typeshed's name for the type of `...`

_PART = re.compile(r"\s*(?:(?P<index>-?\d+)|(?P<dots>\.\.\.)|(?P<slice>-?\d*:-?\d*(?::-?\d+)?))\s*")


@dataclass(frozen=True)
class Element:
    """One place: the reference's value, the port's, port - reference, and that as the tolerance counts it."""

    index: tuple[int, ...]
    reference: float
    port: float
    difference: float
    error: float = math.nan
    """What lists of the worst are sorted by; inf where NaN or Inf stand apart."""


def difference(reference: Array, port: Array) -> Array:
    """port - reference, in float32 if both are no wider than that, else float64 (complex stays complex)."""
    wide = np.result_type(reference, port)
    if wide.kind == "c":
        return np.asarray(port.astype(wide) - reference.astype(wide))
    narrow = all(a.dtype.kind == "f" and a.dtype.itemsize <= 4 for a in (reference, port))
    target = np.float32 if narrow else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(port.astype(target, copy=False) - reference.astype(target, copy=False))


def worst(reference: Array, port: Array, count: int = 10, rule: str = "scaled") -> list[Element]:
    """The places that differ most, NaN and Inf on one side first; places that are equal are left out.

    A difference counts as the tolerance counts it, by default against min(1, rms) + |reference|: next to a mask of -1e9
    the elements that matter still come first.

    Raises:
        ValueError: the arrays have different shapes.
    """
    if reference.shape != port.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {port.shape}")
    distances = errors(reference, port, rule)
    same = np.logical_or(reference == port, np.logical_and(_nan(reference), _nan(port)))
    distances[np.isnan(distances)] = np.inf
    distances[same.ravel()] = 0
    count = min(count, int(np.count_nonzero(distances)))
    if count == 0:
        return []
    chosen = np.argpartition(-distances, count - 1)[:count]
    chosen = chosen[np.lexsort((chosen, -distances[chosen]))]
    places = (np.unravel_index(int(at), reference.shape) for at in chosen)
    return [_element(reference, port, place, float(distances[at])) for place, at in zip(places, chosen)]


def errors(reference: Array, port: Array, rule: str = "scaled") -> Array:
    """|port - reference| of each element against the scale of the tolerance rule, flat.

    Rule "l2" looks at the whole tensor; of its elements, and of integers and booleans, it is the difference itself.
    """
    distances = np.abs(difference(reference, port)).ravel()
    if rule in ("abs", "l2") or all(array.dtype.kind in "iub" for array in (reference, port)):
        return np.asarray(distances)
    size = np.abs(reference.astype(np.float64) if reference.dtype.kind in "iub" else reference).ravel()
    finite = size[np.isfinite(size)]
    rms = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(distances / ((1.0 if rule == "allclose" else scale_of(rms)) + size))


def _nan(array: Array) -> Array:
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, np.bool_)


def _element(reference: Array, port: Array, at: tuple[np.intp, ...], error: float) -> Element:
    before, after = reference[at].item(), port[at].item()
    return Element(tuple(int(i) for i in at), before, after, after - before, error)


def selection(text: str) -> Selection:
    """What a person writes between brackets: "0,:3" or "...,-1"; only numbers, colons and dots.

    Raises:
        UsageError: it is something else.
    """
    parts: list[Union[int, slice, ellipsis]] = []  # noqa: F821  # as above
    for part in text.strip().strip("[]").split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise UsageError("values-selection", text=text)
        if found["index"] is not None:
            parts.append(int(found["index"]))
        elif found["dots"] is not None:
            parts.append(...)
        else:
            parts.append(slice(*(_bound(bound) for bound in found["slice"].split(":"))))
    if parts.count(...) > 1:
        raise UsageError("values-selection", text=text)
    return tuple(parts)


def _bound(text: str) -> Optional[int]:
    return int(text) if text else None


def select(array: Array, chosen: Selection, text: str) -> Array:
    """The selected part.

    Raises:
        UsageError: the array has no such place.
    """
    try:
        return np.asarray(array[chosen])
    except (IndexError, ValueError):
        raise UsageError("values-outside", text=text, shape=str(array.shape)) from None

"""Why two nets were not run on the same data: what the port's input is of the reference's.

Data made twice, once in each framework's pipeline, differ by what one of the two forgot. Where nothing relates them,
that is told as well: they were drawn apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.inquiry import current
from aligner.explain.patterns import limits, rearranged, scales, slices
from aligner.explain.patterns.channels import line, listed
from aligner.explain.patterns.pair import Floats, Pair, figure, numbers
from aligner.explain.patterns.resized import suspects as resized
from aligner.explain.phrase import Phrase, phrase
from aligner.explain.suspect import Suspect

CHANNELS = (1, 3, 4)
"""Grey, colours, colours with their cover."""

BYTE = 255.0

ALIKE, APART = 0.9, 0.2
"""Correlations from which two pictures show the same, and up to which two values have nothing to do with each other."""

MOVED = {"axes-permuted", "reshape-order", "values-permuted"}
STEPPED = {"axis-rolled", "picture-shifted", "concat-order"}
AFFINE = {"constant-ratio", "std-ddof", "constant-shift", "ratio-and-shift"}
SLICED = {"channel-ratio", "channel-shift", "channel-ratio-and-shift"}


def suspects(case: Case) -> Iterator[Suspect]:
    """What relates the two inputs, the first that is proved; else what they look like."""
    pair = Pair.of(case) if case.where == "inputs" else None
    if pair is None:
        return
    found = current().ask("inputs", partial(_found, case, pair))
    yield from found
    if not any(suspect.error is not None for suspect in found):
        yield from _unrelated(pair)


def _found(case: Case, pair: Pair) -> list[Suspect]:
    swapped = _exchanged(case, pair)
    return [swapped] if swapped is not None else _related(pair)


def _exchanged(case: Case, pair: Pair) -> Optional[Suspect]:
    """The value is another input of the same call."""
    for other in case.inputs:
        held = numbers(other) if other.slot != case.slot and other.shape == pair.actual.shape else None
        left = None if held is None else pair.proved(held, pair.actual)
        if left is not None:
            return pair.suspect("inputs-exchanged", left, 0.9, slot=case.slot, instead=other.slot)
    return None


def _related(pair: Pair) -> list[Suspect]:
    """The relations that hold, in the words of data; proofs only, but for the same values in an unknown order."""
    if not pair.alike:
        return [*_turned(pair), *(_cropped(pair, suspect) for suspect in resized(pair)), *_exchanged_sides(pair)]
    side = _padding_side(pair)
    if side is not None:
        return [side]
    for rule in (scales.suspects, slices.suspects, slices.shifted, _turned, limits.suspects):
        found = [said for suspect in rule(pair) if (said := _in_words(pair, suspect)).error is not None]
        if found:
            return found[:1]
    colours = _other_colours(pair)
    return [] if colours is None else [colours]


def _turned(pair: Pair) -> Iterator[Suspect]:
    for suspect in rearranged.suspects(pair):
        yield _in_words(pair, suspect)


def _in_words(pair: Pair, suspect: Suspect) -> Suspect:
    """A relation as a pipeline's mistake, where it is one."""
    facts, cause = suspect.facts, suspect.cause
    image = _channel_axis(pair.expected.shape)
    if cause in AFFINE | SLICED:
        return _ranged(pair, suspect)
    if cause in MOVED and image is not None and not _sides_only(pair, suspect):
        return replace(suspect, cause="hwc-chw-not-transposed", weight=0.9) if suspect.error is not None else suspect
    if cause == "axis-flipped" and facts.get("axis") == image:
        codes = {"reference_code": "x", "port_code": f"flip(x, {image})"}
        return replace(suspect, cause="rgb-bgr", facts={**facts, **codes}, weight=0.9)
    if facts.get("axis") == 0 and pair.expected.ndim > 1 and cause in {"axis-order", "axis-flipped", *STEPPED}:
        return replace(suspect, cause="dataset-shuffle-default", facts={"order": phrase("reversed"), **facts})
    if cause in STEPPED and _tokens(pair) and facts.get("axis") == pair.expected.ndim - 1:
        return replace(suspect, cause="tokens-shifted", weight=0.85)
    if cause == "picture-shifted" and image is not None:
        return replace(suspect, cause="centercrop-rounding", weight=0.85)
    return suspect


def _ranged(pair: Pair, suspect: Suspect) -> Suspect:
    """Factors and addends of a range, as they are written."""
    facts = suspect.facts
    if suspect.cause in AFFINE:
        ratio = float(str(facts.get("ratio", 1)).split()[0])
        scale = next((n for n in (BYTE, 1.0 / BYTE) if abs(ratio / n - 1.0) < 1e-3), None)
        if scale is not None and "shift" not in facts:
            facts = {**facts, "ratio": figure(scale)}
            return replace(suspect, cause="totensor-scale-missing", facts=facts, weight=0.9)
        told = {"factors": str(facts.get("ratio", "1")), "addends": str(facts.get("shift", "0"))}
        return replace(suspect, cause="normalized-otherwise", facts={**facts, **told}, weight=0.8)
    axis = _channel_axis(pair.expected.shape)
    lines = None if axis is None else line(pair.expected, pair.actual, axis, pair.limit)
    if lines is None:
        return suspect
    told = {"factors": listed(lines[0]), "addends": listed(lines[1])}
    return replace(suspect, cause="normalized-otherwise", facts={**facts, **told}, weight=0.85)


def _other_colours(pair: Pair) -> Optional[Suspect]:
    """Colours in reversed order, which were normalised then: channel by channel a line through the other one."""
    axis = _channel_axis(pair.expected.shape)
    if axis is None or pair.expected.shape[axis] < 3:
        return None
    turned = np.flip(pair.expected, axis)
    lines = line(turned, pair.actual, axis, pair.limit)
    if lines is None:
        return None
    shape = [-1 if a == axis else 1 for a in range(turned.ndim)]
    left = pair.proved(turned * lines[0].reshape(shape) + lines[1].reshape(shape), pair.actual)
    if left is None:
        return None
    codes = {"reference_code": "x", "port_code": f"flip(x, {axis}) * {listed(lines[0])} + {listed(lines[1])}"}
    return pair.suspect("rgb-bgr", left, 0.9, None, axis=axis, **codes)


def _cropped(pair: Pair, suspect: Suspect) -> Suspect:
    """Fewer samples in a batch, or tokens around a text, are told as such."""
    part = suspect.facts.get("part")
    axis = part.parts[0] if isinstance(part, Phrase) else None
    if pair.expected.ndim == 2 and axis == 1 and _whole_numbers(pair):
        return replace(suspect, cause="special-tokens")
    if axis == 0:
        return replace(suspect, cause="batch-drop-remainder")
    return suspect


def _exchanged_sides(pair: Pair) -> Iterator[Suspect]:
    """Pictures whose height is the other's width: resized to (w, h)."""
    axis = _channel_axis(pair.expected.shape)
    if axis is None or _channel_axis(pair.actual.shape) != axis or pair.expected.ndim != pair.actual.ndim:
        return
    sides = [a for a in range(pair.expected.ndim - 3, pair.expected.ndim) if a != axis % pair.expected.ndim]
    one, other = ([side.shape[a] for a in sides] for side in (pair.expected, pair.actual))
    if one != other and one == other[::-1]:
        height, width = one
        yield pair.suspect("resize-wh-order", None, 0.7, height=height, width=width)


def _channel_axis(shape: tuple[int, ...]) -> Optional[int]:
    """The axis of the channels of pictures, channels first or last; None for what is no picture."""
    if len(shape) not in (3, 4):
        return None
    first, last = len(shape) - 3, len(shape) - 1
    for axis, others in ((first, shape[first + 1 :]), (last, shape[first:last])):
        if shape[axis] in CHANNELS and min(others) > max(CHANNELS):
            return axis
    return None


def _sides_only(pair: Pair, suspect: Suspect) -> bool:
    """Whether only height and width are exchanged."""
    return suspect.cause == "axes-permuted" and _channel_axis(pair.actual.shape) == _channel_axis(pair.expected.shape)


def _tokens(pair: Pair) -> bool:
    """Whether the values are rows of indices."""
    return pair.expected.ndim <= 2 and _whole_numbers(pair)


def _whole_numbers(pair: Pair) -> bool:
    return all(bool((side == np.round(side)).all()) for side in (pair.expected, pair.actual))


def _padding_side(pair: Pair) -> Optional[Suspect]:
    """The same rows of tokens, filled up at the other end."""
    if pair.expected.ndim != 2 or not _tokens(pair):
        return None
    for filler in {float(pair.expected[0, -1]), float(pair.expected[0, 0]), 0.0}:
        ours, theirs = (_filled(side, filler) for side in (pair.expected, pair.actual))
        if ours is None or theirs is None or ours[0] == theirs[0]:
            continue
        if all(np.array_equal(one, other) for one, other in zip(ours[1], theirs[1])):
            return pair.suspect("tokens-padding-side", 0.0, 0.9, filler=figure(filler), found=theirs[0], wanted=ours[0])
    return None


def _filled(rows: Floats, filler: float) -> Optional[tuple[str, list[Floats]]]:
    """At which end all rows are filled up, and what stands before or behind that; None where that is not so."""
    for end, turned in (("right", rows), ("left", rows[:, ::-1])):
        kept = [row[: int(np.flatnonzero(row != filler)[-1]) + 1] if (row != filler).any() else row for row in turned]
        if any(len(row) < rows.shape[1] for row in kept) and not any((row == filler).any() for row in kept):
            return end, [row if end == "right" else row[::-1] for row in kept]
    return None


def _unrelated(pair: Pair) -> Iterator[Suspect]:
    """Nearly the same picture, or nothing in common."""
    if not pair.alike or pair.expected.size < 64 or not np.isfinite(pair.before):
        return
    one, other = pair.sample
    spread = float(np.std(one) * np.std(other))
    together = float(np.mean((one - one.mean()) * (other - other.mean()))) / spread if spread else 0.0
    if together >= ALIKE and _channel_axis(pair.expected.shape) is not None:
        largest = figure(float(np.abs(one - other).max() / max(float(np.ptp(one)), 1e-30)))
        yield pair.suspect("picture-made-otherwise", None, 0.4, correlation=figure(together), largest=largest)
    elif abs(together) <= APART:
        differing = int(np.count_nonzero(one != other))
        yield pair.suspect(
            "inputs-unrelated", None, 0.3, correlation=figure(together), differing=differing, total=int(one.size)
        )

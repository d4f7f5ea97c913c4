"""What the layer that is handed the value makes of it: padding done by hand, a convolution along another axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect
from aligner.record import LayerSpec, Scalar

MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""Ways in which a convolution pads, and numpy's words for them."""

TURNED = {"view-vs-transpose", "axes-permuted"}


def suspects(case: Case, pair: Pair) -> Iterator[Suspect]:
    """A port that pads by hand what the reference's layer pads by itself, and pads otherwise."""
    if case.taker is None or pair.expected.ndim != pair.actual.ndim or pair.alike:
        return
    reference, port = case.taker
    wanted, own = _padding(reference, pair.expected.ndim), _padding(port, pair.expected.ndim)
    if wanted is None or own is None or any(map(any, own)) or not any(map(any, wanted)):
        return
    mode = str(reference.attributes.get("padding_mode", "zeros"))
    widths = tuple((a - n, b - m) for (a, b), (n, m) in zip(wanted, own))
    found = _padded(pair, widths)
    if found is not None and found[0] != mode:
        yield pair.suspect("conv2d-padding-mode-reflect", found[1], 0.93, None, found=found[0], wanted=mode)
        return
    for other in _widths(pair):
        found = _padded(pair, other)
        if found is not None and other != widths:
            facts: dict[str, Scalar] = {"other": _text(mode, widths), "instead": _text(*(found[0], other))}
            facts.update(reference_code=str(facts["other"]), port_code=str(facts["instead"]))
            yield pair.suspect("pad-differs", found[1], 0.92, None, **facts)
            return


def _padding(spec: LayerSpec, rank: int) -> Optional[tuple[tuple[int, int], ...]]:
    """What the layer pads for each axis of its input; None where that is no number, or it is no convolution."""
    listed: Any = spec.attributes.get("padding")
    if not spec.kind.startswith("Conv") or "Transpose" in spec.kind or not isinstance(listed, (tuple, list)):
        return None
    pairs = tuple(tuple(pair) for pair in listed)
    return ((0, 0),) * (rank - len(pairs)) + pairs if all(len(pair) == 2 for pair in pairs) else None


def _widths(pair: Pair) -> Iterator[tuple[tuple[int, int], ...]]:
    """The ways in which the port's value may be the reference's with something around it: even, before, behind."""
    spare = [m - n for n, m in zip(pair.expected.shape, pair.actual.shape)]
    if min(spare) < 0:
        return
    for ways in ([(n // 2, n - n // 2) for n in spare], [(n, 0) for n in spare], [(0, n) for n in spare]):
        yield tuple(ways)


def _padded(pair: Pair, widths: tuple[tuple[int, int], ...]) -> Optional[tuple[str, float]]:
    """The mode in which the reference's value is padded to give the port's."""
    if (
        tuple(n + a + b for n, (a, b) in zip(pair.expected.shape, widths)) != pair.actual.shape
        or min(map(min, widths)) < 0
    ):
        return None
    for mode, word in MODES.items():
        try:
            made: Floats = np.pad(pair.expected, widths, mode=word)  # type: ignore[call-overload]  # one of numpy's words
        except ValueError:
            continue
        left = pair.proved(made, pair.actual)
        if left is not None:
            return mode, left
    return None


def _text(mode: str, widths: tuple[tuple[int, int], ...]) -> str:
    return f"pad(x, {widths}, {mode})"


def renamed(case: Case, found: Iterable[Suspect]) -> Iterator[Suspect]:
    """Other axes, said of a convolution that goes along one: it goes along another."""
    one_axis = case.taker is not None and case.taker[0].kind in ("Conv1d", "ConvTranspose1d")
    for suspect in found:
        if one_axis and suspect.error is not None and suspect.cause in TURNED and _last_two(case):
            codes = {"reference_code": "x", "port_code": "x.swapaxes(1, 2)"}
            yield replace(suspect, cause="conv1d-on-wrong-axis", facts={**codes, **suspect.facts})
        else:
            yield suspect


def _last_two(case: Case) -> bool:
    """Whether channels and places are exchanged, and nothing else."""
    if case.expected is None or case.actual is None or len(case.expected.shape) != 3:
        return False
    if case.actual.shape != (case.expected.shape[0], *case.expected.shape[:0:-1]):
        return False
    return bool(np.array_equal(case.actual.load(), case.expected.load().swapaxes(1, 2)))

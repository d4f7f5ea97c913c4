"""A number that the reference does not say, as an operation of the framework's has it inside (the -0.75 of a bicubic
kernel): what it is to be is told by how far off it and another one leave a value.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Optional

from aligner.mending.constants import around, used
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import walked
from aligner.words.spelling import number_text

STEP, EVEN = 0.05, 1e-3
"""How far the other number is from the one that is written, and a change of the error by less than this is none."""

TURNS, NEAR, DIGITS = 4, 0.02, 3
"""How often it is told anew; an error of less than this part is near; a number of more digits may be right by chance,
as each that a value is multiplied with can be fitted."""

MOST, TELLING = 8, 16
"""Functions whose numbers are looked into, and of these so many; a value of fewer numbers can be made right by any."""

SMALLEST = 1e-3
"""Smaller numbers keep others from being zero, and change too little."""


def fitted(
    sources: Sources,
    places: Iterable[tuple[str, int]],
    size: int,
    before: float,
    error: Callable[[Edit], Optional[float]],
) -> Iterator[Edit]:
    """The edits that give numbers of the functions around these lines the values that are told by a value of this size;
    `error` is what an edit leaves of the one `before`, None where it cannot be run.
    """
    tells = math.isfinite(before) and size >= TELLING
    known = {
        (file, node.lineno, node.col_offset): node
        for file, line in islice(places, MOST)
        for node in _numbers(sources, file, line)
    }
    for (file, *_), node in islice(known.items(), MOST if tells else 0):
        start, end = sources.span(file, node)
        left = partial(_left, error, file, start, end)
        yield from (Edit(file, start, end, text) for text in told(float(str(node.value)), before, left))


def _left(error: Callable[[Edit], Optional[float]], file: str, start: int, end: int, number: float) -> Optional[float]:
    return error(Edit(file, start, end, number_text(number)))


def _numbers(sources: Sources, file: str, line: int) -> Iterator[ast.Constant]:
    """Those with a point in the function around a line, the nearest first, then those of the file that it uses."""
    text = sources.text(file)
    inside = [node for statement in statements(text, line) for node in own(statement)]
    named = [node for one in used(sources, file, around(text, line)) for node in walked(one)]
    for node in (*inside, *named):
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value >= SMALLEST:
            yield node


def told(value: float, before: float, error: Callable[[float], Optional[float]]) -> Iterator[str]:
    """What the number may be, in few digits, where the error falls as it does along a straight line: to where that is
    zero beyond the two best numbers, or between them.
    """
    number = value * (1.0 + STEP)
    left = error(number)
    if left is None or not math.isfinite(left) or abs(left - before) <= EVEN * before:
        return
    points = sorted([(before, value), (left, number)])
    for _ in range(TURNS):
        (least, one), (most, other) = points
        guesses = [one - least * (other - one) / (most - least)] if most != least else []
        guesses.append(one + least * (other - one) / (most + least))
        made = [(much, guess) for guess in guesses if (much := error(guess)) is not None and much < least]
        if not made:
            return
        points = [min(made), points[0]]
        much, guess = points[0]
        if much <= NEAR * before:
            digits = dict.fromkeys(float(f"{guess:.{many}g}") for many in range(1, DIGITS + 1))
            yield from (number_text(one) for one in digits if abs(one - guess) <= NEAR * abs(guess))
        if much == 0.0:
            return

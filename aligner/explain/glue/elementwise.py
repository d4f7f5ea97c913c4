"""Both sides are a function of one value, element by element: another function, another slope, or wrong beneath it.

The value may be a part of what is handed on (what follows it was joined to it), or be summed up afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Optional

import numpy as np

from aligner.explain.case import HUGE, Case, Value, distance
from aligner.explain.glue import differences, formulas, renamed
from aligner.explain.glue.edits import changed
from aligner.explain.glue.functions import ACTIVATIONS, BACK, Function, spelled
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.glue.place import Place
from aligner.explain.inquiry import spend
from aligner.explain.patterns.functions import leaky, softplus
from aligner.explain.patterns.pair import Floats, Pair, at, spots
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

NEAR = 8
"""Values in hand that the functions are tried on."""

GLANCE = 64
"""Elements that are looked at before all are."""

SUMMED = 1 << 16
"""Elements of a value that is summed up afterwards that are looked at."""

AFTER: Mapping[str, Callable[..., Floats]] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
"""What may be done along axes, or in each block of a map, after the function was taken."""

GRIDS = (2, 3, 4, 5, 6, 7)
"""Places along each side that a map is pooled to, whatever its size."""

BETAS = (0.5, 2.0, 3.0, 5.0, 10.0)
SLOPES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.3)


def _sharp(beta: float) -> Function:
    return lambda x: softplus(beta * x) / beta


def _sloped(slope: float) -> Function:
    return lambda x: leaky(x, slope)


def _flat(beta: float) -> Function:
    return lambda y: np.where(beta * y > 30.0, y, np.log(np.expm1(np.minimum(beta * y, 30.0))) / beta)


SOFTPLUS: Mapping[str, float] = {"Softplus": 1.0, **{f"Softplus(beta={beta:g})": beta for beta in BETAS}}
LEAKY: Mapping[str, float] = {f"LeakyReLU({slope:g})": slope for slope in SLOPES}

FUNCTIONS: Mapping[str, Function] = {
    **ACTIVATIONS,
    **{name: _sharp(beta) for name, beta in SOFTPLUS.items()},
    **{name: _sloped(slope) for name, slope in LEAKY.items()},
}

INVERSE: Mapping[str, Function] = {
    **{name: BACK[name] for name in ("Sigmoid", "Tanh", "ELU")},
    **{name: _flat(beta) for name, beta in SOFTPLUS.items()},
    **{name: _sloped(1.0 / slope) for name, slope in LEAKY.items()},
}


@dataclass(frozen=True, eq=False)
class Source:
    """A value in hand, what both sides may have made of it element by element, and what was done afterwards."""

    piece: Piece
    given: Floats
    expected: Floats
    actual: Floats
    after: Callable[[Floats], Floats] = np.asarray
    text: str = "{}"
    whole: bool = False
    known: dict[str, Floats] = field(default_factory=dict)
    """What functions make of the value, where that is done to it in several ways afterwards."""

    def made(self, name: str) -> Floats:
        """What a function and what follows it make of the value."""
        with np.errstate(all="ignore"):
            if name not in self.known:
                held = np.asarray(self.given, np.float64)
                self.known[name] = np.asarray(FUNCTIONS[name](held) if name else held, np.float64)
            return np.asarray(self.after(self.known[name]))


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one."""
    if not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    for group in _sources(pair, hand):
        reference = _first(group, pair.limit, port=False)
        if reference is None:
            continue
        source, ours = reference
        ported = _first((source, *group), pair.limit, port=True)
        theirs = ported and ported[1]
        if ported and ported[0] is not source:
            yield _reduced(pair, source, ours, *ported)
            return
        if theirs is not None and theirs != ours and not (source.whole and "" in (ours, theirs)):
            yield _told(pair, source, ours, theirs)
            return
        found = _beneath(case, pair, source, ours) if theirs is None and source.whole and ours in INVERSE else None
        if found is not None:
            yield found
            return


def _first(group: tuple[Source, ...], limit: float, port: bool) -> Optional[tuple[Source, str]]:
    """The first way to make the reference's, or the port's, value of one in hand, with its function."""
    for source in group:
        name = _function(source, source.actual if port else source.expected, limit)
        if name is not None:
            return source, name
    return None


def _function(source: Source, wanted: Floats, limit: float) -> Optional[str]:
    """The function that gives these values; "" where they are the value itself. A constant is what many give."""
    plain = source.after is np.asarray and source.given.shape == wanted.shape
    glance = plain and wanted.ndim == 1 and wanted.size > 2 * GLANCE and np.abs(wanted).max() < HUGE
    few = replace(source, given=source.given[:GLANCE], known={}) if glance else source
    most = (1.001 * limit) ** 2 * float(np.square(wanted).sum())
    for name in ("", *FUNCTIONS) if wanted.size and np.ptp(wanted) else ("",):
        if glance and not np.square(few.made(name) - wanted[:GLANCE]).sum() <= most:  # further off than all may be
            spend(wanted.size)
            continue
        if distance(source.made(name), wanted) <= limit:
            return name
    return None


def _sources(pair: Pair, hand: Hand) -> Iterator[tuple[Source, ...]]:
    """What one value in hand may have been made into, each time in all ways in which it may have been summed up."""
    shape = pair.expected.shape
    pieces = [p for p in hand.pieces(lambda s: 1 <= len(s) <= 5) if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)]
    few = spots(pair.expected.size, 1 << 12)
    for piece in [p for p in pieces if p.array.shape == shape][:NEAR]:
        yield (Source(piece, at(piece.array, few), at(pair.expected, few), at(pair.actual, few), whole=True),)
    for piece in [p for p in pieces if _shorter(p.array.shape, shape)][:NEAR]:
        yield from ((part,) for part in _parts(pair, piece))
    for piece in [p for p in pieces if p.array.ndim >= len(shape) and p.rank < 2 and p.array.size][:NEAR]:
        yield from _summed(pair, piece)
        yield from _pooled(pair, piece)


def _shorter(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    apart = [(n, m) for n, m in zip(shape, wanted) if n != m]
    return len(shape) == len(wanted) and len(apart) == 1 and 4 * apart[0][0] >= apart[0][1] > apart[0][0]


def _parts(pair: Pair, piece: Piece) -> Iterator[Source]:
    """The first or the last ones along the axis that is longer on the whole."""
    shape = pair.expected.shape
    axis = next(a for a, n in enumerate(piece.array.shape) if n != shape[a])
    size = piece.array.shape[axis]
    few = spots(piece.array.size, 1 << 12)
    for start in (0, shape[axis] - size):
        index = (slice(None),) * axis + (slice(start, start + size),)
        one, other = pair.expected[index], pair.actual[index]
        text = f"y[{':, ' * axis}{start}:{start + size}] = {{}}"
        yield Source(piece, at(piece.array, few), at(one, few), at(other, few), text=text)


def _summed(pair: Pair, piece: Piece) -> Iterator[tuple[Source, ...]]:
    shape, array = pair.expected.shape, piece.array
    for count in (1, 2, 3):
        for axes in combinations(range(array.ndim), count):
            kept = array.ndim == len(shape)
            rest = tuple(1 if a in axes else n for a, n in enumerate(array.shape) if kept or a not in axes)
            if rest != shape or array.size // pair.expected.size < 2 or (0 in axes and array.size > 4 * SUMMED):
                continue
            few = slice(0, None if 0 in axes else max(1, SUMMED * shape[0] // array.size))
            given, part = (few, slice(None)) if 0 in axes else (few, few)
            one, other = (np.asarray(side[part], np.float64) for side in (pair.expected, pair.actual))
            where = f"axis={axes if count > 1 else axes[0]}"
            known: dict[str, Floats] = {}
            yield tuple(
                Source(
                    piece,
                    array[given],
                    one,
                    other,
                    partial(function, axis=axes, keepdims=kept),
                    f"{word}({{}}, {where})",
                    known=known,
                )
                for word, function in AFTER.items()
            )


def _pooled(pair: Pair, piece: Piece) -> Iterator[tuple[Source, ...]]:
    """A map pooled to a few places, perhaps laid out flat afterwards."""
    shape, array = pair.expected.shape, piece.array
    if array.ndim != 4 or array.shape[0] != shape[0] or len(shape) not in (2, 4):
        return
    count, channels, height, width = array.shape
    for side in GRIDS:
        if (
            height % side
            or width % side
            or channels * side * side != int(np.prod(shape[1:]))
            or side == height == width
        ):
            continue
        few = slice(0, max(1, SUMMED * count // array.size))
        one, other = (np.asarray(sides[few], np.float64) for sides in (pair.expected, pair.actual))
        blocks = (channels, side, height // side, side, width // side)
        if one.ndim == 4 and one.shape[1:] != (channels, side, side):
            continue
        known: dict[str, Floats] = {}
        yield tuple(
            Source(
                piece,
                array[few],
                one,
                other,
                partial(_blocks, function, blocks, one.shape),
                f"adaptive_{word}_pool({{}}, {side})",
                known=known,
            )
            for word, function in AFTER.items()
            if word in ("mean", "max")
        )


def _blocks(function: Callable[..., Floats], blocks: tuple[int, ...], shape: tuple[int, ...], y: Floats) -> Floats:
    return np.asarray(function(y.reshape(y.shape[0], *blocks), axis=(3, 5)).reshape(shape))


def _reduced(pair: Pair, source: Source, ours: str, other: Source, theirs: str) -> Suspect:
    """Another way to sum up, of the same function or of another."""
    value = f"[{source.piece.name}]"
    one, two = (s.text.format(spelled(name, value) if name else value) for s, name in ((source, ours), (other, theirs)))
    left = distance(other.made(theirs), other.actual)
    cause = "reduction-other" if ours == theirs else "expression-differs"
    return pair.suspect(cause, left, 0.9, None, other=one, instead=two, reference_code=one, port_code=two)


def _told(pair: Pair, source: Source, ours: str, theirs: str) -> Suspect:
    left = distance(source.made(theirs), source.actual)
    value = f"[{source.piece.name}]"
    codes: dict[str, Scalar] = {
        "reference_code": source.text.format(spelled(ours, value) if ours else value),
        "port_code": source.text.format(spelled(theirs, value) if theirs else value),
        "other": value,
    }
    for cause, kind, setting, numbers in (
        ("softplus-beta", "Softplus", "beta", SOFTPLUS),
        ("leakyrelu-slope-default", "LeakyReLU", "negative_slope", LEAKY),
    ):
        if ours in numbers and theirs in numbers:
            facts: dict[str, Scalar] = {"setting": setting, "kind": kind, "port_kind": kind}
            facts.update(port_value=f"{numbers[theirs]:g}", reference_value=f"{numbers[ours]:g}")
            return pair.suspect(cause, left, 0.92, None, **{**codes, **facts, "written": codes["reference_code"]})
    if {ours, theirs} - {""} <= set(ACTIVATIONS):
        cause, told = changed(ours, theirs)
        return pair.suspect(cause, left, 0.9, None, **{**codes, **told})
    word = "other" if ours and theirs else "missing" if ours else "extra"
    facts = {"reference_function": ours or "identity", "port_function": theirs or "identity"}
    return pair.suspect(f"activation-{word}", left, 0.9, None, **{**codes, **facts, "function": ours or theirs})


def _beneath(case: Case, pair: Pair, source: Source, name: str) -> Optional[Suspect]:
    """The mistake in what the function was taken of, told from what the port's value must have been of."""
    with np.errstate(all="ignore"):
        found = np.asarray(INVERSE[name](np.asarray(pair.actual, np.float64)))
    right, value = np.asarray(source.piece.array), source.piece.value
    if not np.isfinite(found).all() or distance(found, right) <= pair.limit:
        return None
    under = Pair(right, found, pair.limit, pair.facts)
    kept = tuple(v for v in case.known if v is not value and (v.layer, v.call) != (value.layer, value.call))
    ported = Value(value.layer, value.slot, value.call, value.dtype, found.shape, lambda: found)
    inner = replace(case, expected=value, actual=ported, known=kept, later=())
    for suspect in _asked(inner, under, Hand.of(inner)):
        if suspect.error is not None and suspect.weight >= 0.7:
            codes = {side: spelled(name, str(text)) for side, text in suspect.facts.items() if side.endswith("_code")}
            return replace(suspect, facts={**suspect.facts, **codes, "beneath": name})
    return None


def _asked(inner: Case, under: Pair, hand: Hand) -> Iterator[Suspect]:
    place = Place.of(inner, under, hand)
    rules: tuple[Callable[[], Iterable[Suspect]], ...] = (
        lambda: formulas.suspects(place),
        lambda: differences.suspects(place),
        lambda: renamed.suspects(under, hand),
    )
    for rule in rules:
        yield from rule()

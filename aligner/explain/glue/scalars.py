"""A value times one number, or one number alone: of what that number is taken, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.scales import slope
from aligner.explain.suspect import Suspect

NEAR = 6
"""Values in hand that a number may have been taken of."""

LARGEST, SQUARE = 1 << 20, 1 << 18
"""Elements of a value, and of a matrix whose singular values are asked for."""

CLOSE = 5e-6
"""How near two numbers are that are one."""

PLAIN: Mapping[str, Callable[[Floats], Floats]] = {
    "norm({})": lambda x: np.sqrt(np.square(x).sum()),
    "sum({} ** 2)": lambda x: np.square(x).sum(),
    "sum(abs({}))": lambda x: np.abs(x).sum(),
    "max(abs({}))": lambda x: np.abs(x).max(),
    "mean(abs({}))": lambda x: np.abs(x).mean(),
    "sqrt(mean({} ** 2))": lambda x: np.sqrt(np.square(x).mean()),
    "mean({} ** 2)": lambda x: np.square(x).mean(),
    "std({}, ddof=1)": lambda x: x.std(ddof=1),
    "std({}, ddof=0)": lambda x: x.std(),
    "var({}, ddof=1)": lambda x: x.var(ddof=1),
    "var({}, ddof=0)": lambda x: x.var(),
    "median({})": lambda x: lower(x.reshape(-1)),
    "numpy.median({})": np.median,
    "median(abs({}))": lambda x: lower(np.abs(x).reshape(-1)),
    "numpy.median(abs({}))": lambda x: np.median(np.abs(x)),
    "mean({})": np.mean,
    "sum({})": np.sum,
    "max({})": np.max,
    "min({})": np.min,
}
"""As code, and what it is."""

SPREADS = ("std", "var")
MATRIX = ("matrix_norm({}, 2)", "matrix_norm({}, 1)", "matrix_norm({}, inf)", "matrix_norm({}, nuc)")


def lower(x: Floats) -> Floats:
    """The median as torch takes it: of an even count the lower of the two in the middle; over the last axis."""
    middle = (x.shape[-1] - 1) // 2
    return np.asarray(np.partition(x, middle, axis=-1)[..., middle])


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, where both numbers are known and of the same value."""
    if not np.isfinite(pair.before) or pair.expected.size > LARGEST:
        return
    base = _base(pair, hand)
    if base is None:
        return
    ours, theirs, text = base
    near = hand.pieces(lambda s: 2 <= int(np.prod(s)) <= LARGEST)
    for piece in [p for p in near if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)][:NEAR]:
        known = taken(np.asarray(piece.array, np.float64))
        one, other = _named(ours, known), _named(theirs, known)
        if one is not None and other is not None and one != other:
            yield _told(pair, f"[{piece.name}]", text, one, other)
            return


def _base(pair: Pair, hand: Hand) -> Optional[tuple[float, float, str]]:
    """The two numbers, and the value that they are multiplied by ("" for the numbers alone)."""
    if pair.expected.size == 1 or max(float(np.ptp(pair.expected)), float(np.ptp(pair.actual))) == 0.0:
        return float(pair.expected.reshape(-1)[0]), float(pair.actual.reshape(-1)[0]), ""
    for piece in hand.pieces(lambda s: s == pair.expected.shape):
        if piece.array.dtype.kind != "f":
            continue
        x = np.asarray(piece.array, np.float64)
        numbers = [
            slope(x.reshape(-1), np.asarray(side, np.float64).reshape(-1)) for side in (pair.expected, pair.actual)
        ]
        if all(n and distance(n * x, side) <= pair.limit for n, side in zip(numbers, (pair.expected, pair.actual))):
            return numbers[0], numbers[1], f"[{piece.name}]"
    return None


def taken(x: Floats) -> dict[str, float]:
    """Every number that is taken of a value, by its code."""
    with np.errstate(all="ignore"):
        found = {code: float(of(x)) for code, of in PLAIN.items()}
        if x.ndim > 1:
            for axis, size in enumerate(x.shape):
                for word, ddof in [(word, ddof) for word in SPREADS for ddof in (0, 1) if size > ddof]:
                    spread = getattr(np, word)(x, axis=axis, ddof=ddof)
                    found[f"mean({word}({{}}, axis={axis}, ddof={ddof}))"] = float(spread.mean())
        if x.ndim == 2 and x.size <= SQUARE:
            values = np.linalg.svd(x, compute_uv=False)
            sizes = np.abs(x)
            numbers = (values[0], sizes.sum(axis=0).max(), sizes.sum(axis=1).max(), values.sum())
            found.update(zip(MATRIX, map(float, numbers)))
    return found


def _named(number: float, known: Mapping[str, float]) -> Optional[tuple[str, bool]]:
    """The code of the number, and whether it is divided by it."""
    for inverse in (False, True):
        for code, held in known.items():
            wanted = 1.0 / held if inverse and held else held
            if wanted and abs(number - wanted) <= CLOSE * abs(wanted):
                return code, inverse
    return None


def _told(pair: Pair, piece: str, base: str, ours: tuple[str, bool], theirs: tuple[str, bool]) -> Suspect:
    one, other = ours[0].format(piece), theirs[0].format(piece)
    codes = [
        f"{base}{' / ' if inverse else ' * '}{code}" if base else f"1 / {code}" if inverse else code
        for code, inverse in ((one, ours[1]), (other, theirs[1]))
    ]
    facts = {"other": one, "instead": other, "reference_code": codes[0], "port_code": codes[1]}
    cause = _cause(ours[0], theirs[0])
    if cause == "std-ddof":
        facts["ratio"] = f"{other} / {one}"
    return pair.suspect(cause, 0.0, 0.93, None, **facts)


def _cause(ours: str, theirs: str) -> str:
    """What one number in another's place is called."""
    names = {ours, theirs}
    if any(name.startswith("matrix_norm") for name in names):
        return "norm-default-ord-matrix"
    if names in ({"median({})", "numpy.median({})"}, {"median(abs({}))", "numpy.median(abs({}))"}):
        return "median-numpy-vs-torch"
    if all(name.startswith(("mean(std", "mean(var")) for name in names):
        return "minibatch-stddev-gan"
    words = {name.split("(", 1)[0] for name in names}
    if len(words) == 1 and words <= set(SPREADS):
        return "std-ddof"
    return "norm-order" if "norm({})" in names or "sum(abs({}))" in names else "reduction-other"

"""How a wrong parameter follows from the right one: transposed, blocks exchanged, scaled, rounded, another one's.

`suspects(place)` asks the most telling rule first and ends with the first proof. What holds of any two tensors is
found by aligner.explain.patterns and told here in the words of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

import numpy as np

from aligner.explain import port_words
from aligner.explain.attributes import facts
from aligner.explain.case import Case, Value, distance
from aligner.explain.patterns import rearranged, scales, slices
from aligner.explain.patterns.limits import grid
from aligner.explain.patterns.pair import Floats, Pair, at, numbers, spots
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

EXACT = 1e-6
"""Parameters are copied, not computed: a right hypothesis leaves no more than this."""

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""What each short float explains."""

PROVED = 0.95

READ = 1 << 26
"""Elements of other parameters that are read to find the one that was loaded in place of the right one."""

GATES: Mapping[str, str] = {"LSTM": "ifgo", "LSTMCell": "ifgo", "GRU": "rzn", "GRUCell": "rzn"}
"""Kind -> its gates in torch's order."""


@dataclass(frozen=True)
class Place:
    """A parameter of the port that is not the reference's."""

    case: Case
    role: str
    expected: Value
    actual: Value

    def pair(self, expected: Value) -> Optional[Pair]:
        """The port's values against some of the reference's."""
        wanted, found = numbers(expected), numbers(self.actual)
        if wanted is None or found is None or not wanted.size or not found.size:
            return None
        return Pair(wanted, found, max(EXACT, EPS.get(self.actual.dtype, 0.0)), self.facts)

    @property
    def facts(self) -> dict[str, Scalar]:
        """What every suspect of the place is told with."""
        return named(self.case, self.role, self.expected, self.actual)

    def suspect(self, cause: str, left: float, **told: Fact) -> Suspect:
        """A suspect that the numbers have proved."""
        known: dict[str, Fact] = {**self.facts, "left": f"{left:.1e}" if left else "0", **told}
        return Suspect(cause, known, parameters=(self.role,), error=left, weight=PROVED)


def named(case: Case, role: str, expected: Optional[Value], actual: Optional[Value]) -> dict[str, Scalar]:
    """Names, shapes and types of a parameter on both sides."""
    layer, there = (case.port_layer, role) if actual is None else (actual.layer, actual.slot)
    own = port_words.parameter(case, there)
    told: dict[str, Scalar] = {**facts(case), "role": role}
    told["port_parameter"] = f"{layer}.{own}" if layer else own
    for prefix, value in (("", expected), ("port_", actual)):
        if value is not None:
            told.update({f"{prefix}shape": str(tuple(value.shape)), f"{prefix}dtype": value.dtype})
    return told


def suspects(place: Place) -> Iterator[Suspect]:
    """What the port's values are, made of the reference's; nothing where they have nothing to do with each other."""
    pair = place.pair(place.expected)
    if pair is None:
        return
    for rule in (_rounded, _another, _turned, _blocks, _interleaved, _related, _transformed):
        found = list(rule(place, pair))
        yield from found
        if found:
            return


def _meets(pair: Pair, wanted: Floats) -> Optional[float]:
    """What is left where the port's values are `wanted`: a few of them are looked at first."""
    if wanted.shape != pair.actual.shape or not pair.near(at(wanted, pair.spots), at(pair.actual, pair.spots)):
        return None
    left = distance(pair.actual, wanted)
    return left if left <= pair.limit else None


def _rounded(place: Place, pair: Pair) -> Iterator[Suspect]:
    """The reference's values in a shorter type, which the parameter has itself or its checkpoint had."""
    if not pair.alike:
        return
    own = place.actual.dtype
    apart = f"{pair.before:.1e}"
    if own == "float64" and place.expected.dtype != own and pair.before <= EXACT:
        yield place.suspect("dtype-float64-numpy-weights", pair.before)
    for word in EPS:
        if word == place.expected.dtype or pair.before > 4 * EPS[word] or pair.before == 0.0:
            continue
        if not np.array_equal(grid(pair.expected, word), np.asarray(pair.actual, np.float32)):
            continue
        if own not in EPS:
            yield place.suspect("checkpoint-fp16", 0.0, format=word, distance=apart)
        elif place.case.rounding < EPS[own] / 8:  # else the layer is meant to be short
            cause = "fp16-weights-no-master" if own == "float16" else "parameter-other-dtype"
            yield place.suspect(cause, 0.0, distance=apart)
        return


def _another(place: Place, pair: Pair) -> Iterator[Suspect]:
    """Another parameter of the layer, or the same kind of parameter of another layer."""
    own = [(role, value) for role, value in place.case.parameters.items() if role != place.role]
    others = [(f"{v.layer}.{v.slot}", v) for v in place.case.known if place.case.where == "parameters"]
    fitting = [each for each in (*own, *others) if tuple(each[1].shape) == tuple(place.actual.shape)]
    for role, value in fitting[: max(1, READ // max(pair.actual.size, 1))]:
        other = place.pair(value)
        left = None if other is None else _meets(other, other.expected)
        if left is not None and np.ptp(pair.actual) > 0:  # all ones or all zeros are no other's
            yield place.suspect("parameter-swapped", left, other=role)
            return


def _turned(place: Place, pair: Pair) -> Iterator[Suspect]:
    """A matrix transposed, or a kernel with height and width exchanged or turned around."""
    wanted, kind = pair.expected, place.case.reference.kind
    if wanted.ndim == 2 and min(wanted.shape) > 1:
        left = _meets(pair, wanted.T)
        if left is not None:
            square = kind == "Linear" and wanted.shape[0] == wanted.shape[1]
            cause = "dense-weight-transposed-square" if square else "parameter-transposed"
            yield place.suspect(cause, left, axes="(1, 0)")
    if wanted.ndim < 3 or not kind.startswith("Conv"):
        return
    kernel = tuple(range(2, wanted.ndim))
    order = (0, 1, *reversed(kernel))
    turns = {"[:, :" + ", ::-1" * len(kernel) + "]": np.flip(wanted, kernel)}
    if len(kernel) > 1:
        turns[f".transpose{order}"] = wanted.transpose(order)
    for told, turned in turns.items():
        left = _meets(pair, turned)
        if left is not None:
            yield place.suspect("conv-weight-hw-transposed", left, turned=f"{place.role}{told}")
            return


def _blocks(place: Place, pair: Pair) -> Iterator[Suspect]:
    """Equal blocks of rows in another order: gates, or queries, keys and values."""
    gates = GATES.get(place.case.reference.kind, "")
    rows = pair.expected.shape[0] if pair.alike and pair.expected.ndim else 0
    for count in (len(gates),) if gates else (3, 4, 2):
        if not rows or rows % count or rows == count:
            continue
        size = pair.expected.size // count
        wanted, found = (np.reshape(side, (count, size)) for side in (pair.expected, pair.actual))
        some = spots(size)
        order = _matched(wanted[:, some], found[:, some])
        if order == list(range(count)) or len(set(order)) < count:
            continue
        left = _meets(pair, wanted[order].reshape(pair.expected.shape))
        if left is not None:
            names = gates or "0123"[:count]
            had, right = ", ".join(names[i] for i in order), ", ".join(names)
            cause = "lstm-gate-order" if gates else "parameter-blocks-swapped"
            yield place.suspect(cause, left, count=count, axis=0, order=had, wanted=right)
            return


def _matched(wanted: Floats, found: Floats) -> list[int]:
    """For each row of the port the reference's that it equals best."""
    one, other = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
    return [int(np.argmin(np.square(one - row).sum(axis=1))) for row in other]


def _interleaved(place: Place, pair: Pair) -> Iterator[Suspect]:
    """Rows (parts, heads, size) kept as (heads, parts, size), or the reverse, of a fused projection."""
    rows = pair.expected.shape[0] if pair.alike and pair.expected.ndim else 0
    for parts in (3, 2):
        if rows % parts:
            continue
        for heads in (n for n in range(2, rows // parts + 1) if (rows // parts) % n == 0):
            size = rows // parts // heads
            for shape, words in (((parts, heads), ("parts", "heads")), ((heads, parts), ("heads", "parts"))):
                order = np.arange(rows).reshape(*shape, size).swapaxes(0, 1).reshape(-1)
                left = _meets_rows(pair, order)
                if left is not None:
                    right = f"({words[0]}={shape[0]}, {words[1]}={shape[1]}, {size})"
                    had = f"({words[1]}={shape[1]}, {words[0]}={shape[0]}, {size})"
                    yield place.suspect("qkv-interleaved-layout", left, order=had, wanted=right)
                    return


def _meets_rows(pair: Pair, order: Floats) -> Optional[float]:
    """What is left where the port's rows are the reference's in this order."""
    rows, *rest = np.unravel_index(pair.spots, pair.expected.shape)
    wanted = np.asarray(pair.expected[(order[rows], *rest)], np.float64)
    if not pair.near(wanted, at(pair.actual, pair.spots)):
        return None
    left = distance(pair.actual, pair.expected[order])
    return left if left <= pair.limit else None


RELATED: Mapping[str, str] = {
    "axes-permuted": "parameter-transposed",
    "reshape-order": "parameter-reshaped",
    "axis-flipped": "parameter-flipped",
    "concat-order": "parameter-permuted",
    "axis-rolled": "parameter-permuted",
    "axis-interleaved": "parameter-permuted",
    "axis-order": "parameter-permuted",
    "constant-ratio": "parameter-scaled",
    "std-ddof": "parameter-scaled",
    "sign-flipped": "parameter-scaled",
    "constant-shift": "parameter-shifted",
}
"""A relation of any two tensors -> what it is for a parameter."""


def _related(place: Place, pair: Pair) -> Iterator[Suspect]:
    """The first relation that is proved and that parameters have a word for."""
    # Where a few thousand elements agree, no factor and no order of axes is what is wrong.
    whole = () if pair.alike and pair.near(*reversed(pair.sample)) else (_scaled, rearranged.suspects)
    for rule in (*whole[:1], slices.suspects, *whole[1:]):
        for found in rule(pair):
            cause = RELATED.get(found.cause)
            if cause is None or found.error is None:
                continue
            told = {"ratio": "-1", **found.facts}
            told.update(axes=told.get("axes", told.get("axis", "")))
            yield Suspect(cause, {**place.facts, **told}, parameters=(place.role,), error=found.error, weight=PROVED)
            return


def _scaled(pair: Pair) -> Iterator[Suspect]:
    """One factor or one addend for all; a glance at the sample spares a search slice by slice."""
    if not pair.alike:
        return
    wanted, found = pair.sample
    ratio = scales.slope(wanted, found)
    if pair.near(ratio * wanted, found) or pair.near(found - float(np.mean(found - wanted)), wanted):
        yield from scales.suspects(pair)


TRANSFORMS: Mapping[str, Callable[[Floats], Floats]] = {
    "sqrt": np.sqrt,
    "square": np.square,
    "1/sqrt": lambda x: np.asarray(1.0 / np.sqrt(x)),
    "1/x": np.reciprocal,
    "log": np.log,
    "exp": np.exp,
}
"""What a converter may have made of a value: a deviation of a variance, an inverse."""


def _transformed(place: Place, pair: Pair) -> Iterator[Suspect]:
    """A function of the values."""
    if not pair.alike or pair.expected.size < 2:
        return
    with np.errstate(all="ignore"):
        some, found = at(pair.expected, pair.spots), at(pair.actual, pair.spots)
        for word, function in TRANSFORMS.items():
            if not pair.near(function(some), found):
                continue
            left = _meets(pair, function(np.asarray(pair.expected, np.float64)))
            if left is not None:
                yield place.suspect("parameter-transformed", left, function=word)
                return

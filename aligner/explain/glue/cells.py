"""A recurrent cell written by hand: which part of the wide product is which gate, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.functions import sigmoid
from aligner.explain.patterns.pair import FEW, Floats, Pair, at, distinct, spots
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

WIDE, STATES = 4, 6
"""Products that may hold the gates, and values that may be the state: the nearest ones."""

LOOKED_AT = 512
"""Elements by which a way is ruled out before all are looked at."""

FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "Tanh": np.tanh,
    "Sigmoid": sigmoid,
    "ReLU": lambda x: np.maximum(x, 0.0),
    "": lambda x: x,
}


@dataclass(frozen=True)
class Way:
    """How a value of a cell is made. `roles` are the parts taken as gates: i, f, g, o, or r, z, n."""

    kind: str
    """"cell": the next state; "out": what an output gate lets through; "gru": a GRU's next state."""
    roles: tuple[int, ...]
    state: int
    function: str = "Tanh"
    shift: float = 0.0
    """Added to the forget gate."""
    inverted: bool = False
    """GRU: the update gate keeps the new value instead of the old one."""

    @property
    def usual(self) -> int:
        """The fewer, the likelier, where several ways make the same numbers."""
        return (self.function != "Tanh") + (self.shift != 0.0) + self.inverted


@dataclass(frozen=True, eq=False)
class Gates:
    """One wide product in parts, or the two of a GRU, with the states that may be meant; numbers at some places."""

    names: tuple[str, ...]
    parts: tuple[tuple[Floats, ...], ...]
    states: tuple[tuple[str, Floats], ...]

    def made(self, way: Way) -> Floats:
        """What the way makes."""
        state = self.states[way.state][1]
        function = FUNCTIONS[way.function]
        if way.kind == "gru":
            (xr, xz, xn), (hr, hz, hn) = ([side[role] for role in way.roles] for side in self.parts)
            keep = sigmoid(xz + hz)
            new = function(xn + sigmoid(xr + hr) * hn)
            return np.asarray(keep * new + (1 - keep) * state if way.inverted else (1 - keep) * new + keep * state)
        gates = [self.parts[0][role] for role in way.roles]
        if way.kind == "out":
            return np.asarray(sigmoid(gates[0]) * function(state) if gates else function(state))
        i, f, g = gates
        return np.asarray(sigmoid(f + way.shift) * state + sigmoid(i) * function(g))

    def ways(self) -> Iterator[Way]:
        """All that people write, the usual ones first."""
        states, count = range(len(self.states)), len(self.parts[0])
        if count == 3:
            for inverted, roles, state in product((False, True), permutations(range(3)), states):
                yield Way("gru", roles, state, inverted=inverted)
            return
        found = [
            Way("cell", roles, state, function, shift)
            for roles, state, function, shift in product(permutations(range(4), 3), states, FUNCTIONS, (0.0, 1.0))
        ]
        found += [
            Way("out", roles, state, function)
            for roles, state, function in product([(role,) for role in range(4)], states, ("Tanh", ""))
        ]
        yield from sorted(found, key=lambda way: way.usual)
        yield from (Way("out", (), state) for state in states)

    def text(self, way: Way) -> str:
        """The way as code."""
        state, function = f"[{self.states[way.state][0]}]", way.function or "identity"
        if way.kind == "gru":
            gate, other = ("z", "(1 - z)") if way.inverted else ("(1 - z)", "z")
            order = ", ".join(sorted("rzn", key=lambda word: way.roles["rzn".index(word)]))
            return f"{order} = split({', '.join(self.names)}); {gate} * n + {other} * {state}"
        word = {"cell": "ifg", "out": "o"}[way.kind]
        parts = f"{', '.join(word)} = split({self.names[0]}, 4)[{', '.join(map(str, way.roles))}]" if way.roles else ""
        if way.kind == "out":
            return f"Sigmoid(o) * {function}({state}); {parts}" if parts else f"{function}({state})"
        forget = f"Sigmoid(f + {way.shift:g})" if way.shift else "Sigmoid(f)"
        return f"{forget} * {state} + Sigmoid(i) * {function}(g); {parts}"


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one."""
    if pair.expected.ndim < 2 or not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    positions = spots(pair.expected.size, LOOKED_AT)
    wanted, found = at(pair.expected, positions), at(pair.actual, positions)
    if distinct(wanted) < FEW:
        return
    for gates in _gates(pair, hand, positions):
        ours = _way(gates, wanted, pair.limit)
        if ours is None or not ours.roles:
            continue
        theirs = _way(gates, found, pair.limit)
        if theirs is not None and theirs != ours:
            yield _told(pair, gates, ours, theirs, distance(gates.made(theirs), found))
            return


def _way(gates: Gates, wanted: Floats, limit: float) -> Optional[Way]:
    few = slice(None, 24)
    small = Gates(
        gates.names,
        tuple(tuple(part[few] for part in side) for side in gates.parts),
        tuple((name, state[few]) for name, state in gates.states),
    )
    for way in gates.ways():
        if distance(small.made(way), wanted[few]) <= 10 * limit and distance(gates.made(way), wanted) <= limit:
            return way
    return None


def _gates(pair: Pair, hand: Hand, positions: Floats) -> Iterator[Gates]:
    shape = pair.expected.shape
    held = [p for p in hand.pieces(lambda s: s == shape) if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)]
    states = tuple((piece.name, at(piece.array, positions)) for piece in held[:STATES])
    if not states:
        return
    for axis in sorted({1, len(shape) - 1}, reverse=True):
        for count in (4, 3):
            wide = tuple(n * count if a == axis else n for a, n in enumerate(shape))
            found = [p for p in hand.pieces(wide.__eq__) if p.array.dtype.kind == "f" and p.rank < 4][:WIDE]
            cut = [tuple(at(part, positions) for part in np.split(piece.array, count, axis)) for piece in found]
            yield from _of_four(found, cut, states) if count == 4 else _of_three(found, cut, states)


def _of_four(
    found: list[Piece], cut: list[tuple[Floats, ...]], states: tuple[tuple[str, Floats], ...]
) -> Iterator[Gates]:
    for piece, parts in zip(found, cut):
        yield Gates((f"[{piece.name}]",), (parts,), states)
    for (one, first), (other, second) in combinations(list(zip(found, cut)), 2):
        summed = tuple(a + b for a, b in zip(first, second))
        yield Gates((f"([{one.name}] + [{other.name}])",), (summed,), states)


def _of_three(
    found: list[Piece], cut: list[tuple[Floats, ...]], states: tuple[tuple[str, Floats], ...]
) -> Iterator[Gates]:
    for (one, first), (other, second) in permutations(list(zip(found, cut)), 2):
        yield Gates((f"[{one.name}]", f"[{other.name}]"), (first, second), states)


def _told(pair: Pair, gates: Gates, ours: Way, theirs: Way, left: float) -> Suspect:
    codes: dict[str, Scalar] = {"reference_code": gates.text(ours), "port_code": gates.text(theirs)}
    names = ("kind", "roles", "state", "function", "shift", "inverted")
    apart = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    if apart == ["roles"] and not theirs.roles:
        other = f"Sigmoid(split({gates.names[0]}, 4)[{ours.roles[0]}])"
        return pair.suspect("gate-missing", left, 0.92, None, **{**codes, "other": other, "factor": other})
    if apart == ["roles"]:
        return pair.suspect("cell-gate-order", left, 0.92, None, **codes)
    if apart == ["state"]:
        texts = {"other": f"[{gates.states[ours.state][0]}]", "instead": f"[{gates.states[theirs.state][0]}]"}
        return pair.suspect("wrong-tensor", left, 0.92, None, **{**codes, **texts})
    if apart == ["function"]:
        words = {"reference_function": ours.function or "identity", "port_function": theirs.function or "identity"}
        return pair.suspect("activation-other", left, 0.92, None, **{**codes, **words})
    if apart == ["shift"]:
        shifts = {"wanted": f"{ours.shift:g}", "found": f"{theirs.shift:g}"}
        return pair.suspect("cell-forget-bias", left, 0.92, None, **{**codes, **shifts})
    if apart == ["inverted"]:
        return pair.suspect("gru-update-inverted", left, 0.92, None, **codes)
    return pair.suspect("expression-differs", left, 0.85, None, **codes)

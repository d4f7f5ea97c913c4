"""A recurrent layer that ran otherwise: gates, biases, direction, time. Run again for a few samples for each guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, permutations
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.functions import coarse_tanh, sigmoid
from aligner.explain.patterns.pair import Floats
from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

GATES = {"LSTM": ("i", "f", "g", "o"), "GRU": ("r", "z", "n"), "RNN": ("h",)}

WORK = 1 << 25
"""Products that may be spent on one guess."""

STEPS = 1 << 11
"""Steps of time that may be run for one guess, all layers together."""

COARSE = "tanh as MindSpore has it on the CPU"
BENDS: dict[str, Callable[[Floats], Floats]] = {
    "tanh": np.tanh,
    COARSE: coarse_tanh,
    "relu": lambda v: np.maximum(v, 0.0),
}
"""What a gate's sum goes through."""

SMALL = 1e-3
"""A coarse tanh makes no larger an error."""

CAUSES = {
    "bias": {"": "recurrent-bias", "merged": "gru-merged-bias"},
    "backward": {"": "recurrent-backward-as-forward", "not turned back": "recurrent-backward-not-turned"},
    "reset": {"": "recurrent-reset-before", "update inverted": "gru-update-inverted"},
    "activation": {"": "recurrent-activation", COARSE: "recurrent-tanh-approximation"},
    "state": {"": "recurrent-state"},
    "order": {"": "gate-order"},
}
"""What is changed in a guess -> how -> the cause."""


@dataclass(frozen=True)
class Guess:
    """How the layer runs; the defaults are torch's."""

    order: tuple[int, ...]
    bias: str = "both"
    reset: str = "after"
    backward: str = "reversed"
    state: bool = True
    activation: str = "tanh"
    time: str = "its own axis"


@dataclass(frozen=True, eq=False)
class Net:
    """Weights by role, and the layer's form."""

    kind: str
    weights: dict[str, Floats]
    layers: int
    directions: int

    def run(self, x: Floats, states: list[Floats], guess: Guess) -> Floats:
        """(batch, time, features) through all layers and directions."""
        for layer in range(self.layers):
            sides = []
            for side in range(self.directions):
                tail = f"l{layer}" + ("_reverse" if side else "")
                start = [state[layer * self.directions + side] for state in states] if guess.state else []
                if not side or guess.backward == "as forward":
                    sides.append(self._along(x, tail, start, guess))
                else:
                    made = self._along(x[:, ::-1], tail, start, guess)
                    sides.append(made if guess.backward == "not turned back" else made[:, ::-1])
            x = np.concatenate(sides, -1)
        return x

    def _along(self, x: Floats, tail: str, start: list[Floats], guess: Guess) -> Floats:
        inner, outer = self.weights[f"weight_ih_{tail}"], self.weights[f"weight_hh_{tail}"]
        zero = np.zeros(len(inner))
        first = self.weights.get(f"bias_ih_{tail}", zero) if guess.bias in ("both", "bias_ih") else zero
        second = self.weights.get(f"bias_hh_{tail}", zero) if guess.bias in ("both", "bias_hh") else zero
        if guess.bias == "merged":
            first = self.weights.get(f"bias_ih_{tail}", zero) + self.weights.get(f"bias_hh_{tail}", zero)
        size = outer.shape[1]
        hidden = start[0] if start else np.zeros((len(x), size))
        cell = start[1] if len(start) > 1 else np.zeros((len(x), size))
        given = x @ inner.T + first
        made = np.empty((*x.shape[:2], size))
        for t in range(x.shape[1]):
            hidden, cell = self._step(given[:, t], hidden, cell, outer, second, guess)
            made[:, t] = hidden
        return made

    def _step(
        self, given: Floats, hidden: Floats, cell: Floats, outer: Floats, bias: Floats, guess: Guess
    ) -> tuple[Floats, Floats]:
        gates = len(GATES[self.kind])
        kept = hidden @ outer.T + bias
        one = [np.split(given, gates, -1)[index] for index in guess.order]
        two = [np.split(kept, gates, -1)[index] for index in guess.order]
        bend = BENDS[guess.activation]
        if self.kind == "LSTM":
            i, f, g, o = (a + b for a, b in zip(one, two))
            cell = sigmoid(f) * cell + sigmoid(i) * bend(g)
            return sigmoid(o) * bend(cell), cell
        if self.kind == "GRU":
            r, z = sigmoid(one[0] + two[0]), sigmoid(one[1] + two[1])
            inner = r * two[2]
            if guess.reset == "before":
                rows = slice(guess.order[2] * r.shape[-1], (guess.order[2] + 1) * r.shape[-1])
                inner = (r * hidden) @ outer[rows].T + bias[rows]
            n = bend(one[2] + inner)
            keep = 1.0 - z if guess.reset == "update inverted" else z
            return (1.0 - keep) * n + keep * hidden, cell
        return np.asarray(bend(one[0] + two[0])), cell


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one, for the sequence that a recurrent layer gives."""
    if _base(scene) not in GATES or scene.case.slot not in ("output.0", "output") or not scene.pair.alike:
        return
    lengths = _lengths(scene)
    if lengths is not None:
        yield lengths
        return
    ready = _ready(scene)
    if ready is None:
        return
    net, own, x, states, wanted, made = ready
    if distance(net.run(x, states, own), wanted) > max(scene.pair.limit, 1e-5):
        return
    guesses = _guesses(net, own, bool(states), scene.kind.endswith("Cell"))
    if own.activation == "tanh" and scene.pair.before < SMALL:
        guesses = chain([replace(own, activation=COARSE)], guesses)
    for guess in guesses:
        turned = guess.time != own.time
        left = _other_time(scene, net, guess) if turned else distance(net.run(x, states, guess), made)
        if left is not None and left <= max(scene.pair.limit, 3e-5) and left * 8 <= scene.pair.before:
            yield _told(scene, net, own, guess, left)
            return


def _base(scene: Scene) -> str:
    """LSTM for an LSTMCell too, which is one step of it."""
    return scene.kind[: -len("Cell")] if scene.kind.endswith("Cell") else scene.kind


def _lengths(scene: Scene) -> Optional[Suspect]:
    """The reference's rows are zero behind each sample's length, the port's are not."""
    pair = scene.pair
    empty = ~pair.expected.any(axis=-1)
    if empty.ndim != 2 or not empty.any() or empty.all() or not pair.actual[empty].any():
        return None
    left = pair.proved(np.where(empty[..., None], 0.0, pair.actual), pair.expected)
    weight = 0.9 if left is not None else 0.6
    return pair.suspect("rnn-packed-sequence-missing", left, weight, steps=int(empty.sum()), total=int(empty.size))


def _net(scene: Scene) -> Optional[Net]:
    weights = {role: scene.parameter(role) for role in scene.case.parameters}
    tail = "_l0" if scene.kind.endswith("Cell") else ""
    kept = {role + tail: value for role, value in weights.items() if value is not None}
    if "weight_ih_l0" not in kept or "weight_hh_l0" not in kept:
        return None
    layers = sum(role.startswith("weight_ih_l") and not role.endswith("_reverse") for role in kept)
    directions = 2 if "weight_ih_l0_reverse" in kept else 1
    size, gates = kept["weight_hh_l0"].shape[-1], len(GATES[_base(scene)])
    width = scene.x.shape[-1] if scene.x is not None else 0
    for layer in range(layers):
        for tail in (f"l{layer}", f"l{layer}_reverse")[:directions]:
            forms: dict[str, tuple[int, ...]] = {"weight_ih": (gates * size, width), "weight_hh": (gates * size, size)}
            forms.update({word: (gates * size,) for word in ("bias_ih", "bias_hh") if f"{word}_{tail}" in kept})
            if any(f"{w}_{tail}" not in kept or kept[f"{w}_{tail}"].shape != form for w, form in forms.items()):
                return None
        width = size * directions
    return Net(_base(scene), kept, layers, directions)


def _ready(scene: Scene) -> Optional[tuple[Net, Guess, Floats, list[Floats], Floats, Floats]]:
    """The net, its usual way to run, and a few samples as (batch, time, features)."""
    net, x = _net(scene), scene.x
    if net is None or x is None:
        return None
    values = [np.asarray(v, np.float64) for v in (x, scene.pair.expected, scene.pair.actual)]
    given = [np.asarray(s, np.float64) for s in scene.inputs[1:3]]
    if scene.kind.endswith("Cell"):
        values, given = [v[None] for v in values], [s[None] for s in given]
    if any(v.ndim != 3 for v in values) or values[0].shape[:2] != values[1].shape[:2]:
        return None
    turned = values if scene.setting("batch_first") is True else [v.swapaxes(0, 1) for v in values]
    form = (net.layers * net.directions, len(turned[0]), net.weights["weight_hh_l0"].shape[1])
    states = [s for s in given if s.shape == form]
    steps = turned[0].shape[1] * net.layers * net.directions
    each = steps * sum(w.size for w in net.weights.values()) // max(net.layers * net.directions, 1)
    if steps > STEPS or each > WORK:
        return None
    few = slice(0, max(1, min(4, WORK // max(each, 1))))
    own = Guess(tuple(range(len(GATES[net.kind]))), activation=str(scene.setting("nonlinearity", "tanh")))
    return net, own, turned[0][few], [s[:, few] for s in states], turned[1][few], turned[2][few]


def _guesses(net: Net, own: Guess, states: bool, cell: bool) -> Iterator[Guess]:
    words = ("bias_ih", "bias_hh", "none", "merged") if net.kind == "GRU" else ("bias_ih", "bias_hh", "none")
    yield from (replace(own, bias=word) for word in words)
    if net.directions == 2:
        yield from (replace(own, backward=word) for word in ("not turned back", "as forward"))
    if net.kind == "GRU":
        yield from (replace(own, reset=word) for word in ("before", "update inverted"))
    if net.kind == "RNN":
        yield replace(own, activation="relu" if own.activation == "tanh" else "tanh")
    if states:
        yield replace(own, state=False)
    if not cell:
        yield replace(own, time="the batch's axis")
    yield from (replace(own, order=order) for order in permutations(own.order) if order != own.order)


def _other_time(scene: Scene, net: Net, guess: Guess) -> Optional[float]:
    """Run along the other axis, for all samples."""
    x = scene.x
    if x is None or x.size > 1 << 18:
        return None
    first = bool(scene.setting("batch_first", False))
    turned = np.asarray(x, np.float64).swapaxes(0, 1) if first else np.asarray(x, np.float64)
    made = net.run(turned, [], guess)
    return distance(made.swapaxes(0, 1) if first else made, scene.pair.actual)


_BIASES: dict[str, Fact] = {
    "both": phrase("both-biases"),
    "none": phrase("no-bias"),
    "merged": phrase("merged-biases"),
}


def _told(scene: Scene, net: Net, own: Guess, guess: Guess, left: float) -> Suspect:
    if guess.time != own.time:
        found = not scene.setting("batch_first", False)
        return scene.setting_suspect("rnn-batch-first", left, 0.9, "batch_first", found)
    names = GATES[net.kind]
    name = next(name for name in CAUSES if getattr(guess, name) != getattr(own, name))
    cause = CAUSES[name].get(getattr(guess, name)) or CAUSES[name][""]
    order = ", ".join(names[guess.order.index(i)] for i in range(len(names)))
    told: dict[str, Any] = {
        "order": order,
        "bias": _BIASES.get(guess.bias, guess.bias),
        "activation": phrase("tanh-of-cpu") if guess.activation == COARSE else guess.activation,
        "port_parameter": "bias_ih + bias_hh",
    }
    return scene.pair.suspect(cause, left, 0.9, role="bias_ih", **told)

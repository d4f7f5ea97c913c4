"""What a wrong tensor looks like, where that is simple: the rules are those that explain a port's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aligner.compare.views import squeezed
from aligner.explain.case import TORCH, Case, Value
from aligner.explain.inquiry import Allowance
from aligner.explain.parameters import suspects
from aligner.explain.phrase import Fact
from aligner.record import LayerSpec
from aligner.weights.pairing import Pair, Pairing
from aligner.weights.stored import Weight

LARGEST = 1 << 27
"""Elements of the largest tensor that is looked into; it is held in memory, several times."""

THOROUGH = 50
"""How many wrong tensors are looked into."""

OTHERS = 64
"""Tensors of the same shape that may stand in the place of one."""


class Looks:
    """Looks into the wrong tensors of one comparison, one after the other."""

    def __init__(self, found: Pairing, allowance: Allowance) -> None:
        self._allowance = allowance
        self._left = THOROUGH
        self._layers: dict[str, dict[str, Weight]] = {}
        self._shapes: dict[tuple[int, ...], list[Weight]] = {}
        for one in found.pairs:
            self._layers.setdefault(one.layer, {})[one.role] = one.reference
            self._shapes.setdefault(one.reference.shape, []).append(one.reference)

    def like(self, one: Pair) -> tuple[str, Mapping[str, Fact]]:
        """The id of a cause and its facts; ("", {}) where it was not looked into."""
        if self._left <= 0 or math.prod(one.reference.shape) > LARGEST:
            return "", {}
        self._left -= 1
        with self._allowance.inquiry() as inquiry:
            found = inquiry.ask("parameters", lambda: suspects(self._case(one)))
        if not found:
            return "", {}
        facts = {**found[0].facts, "port_parameter": one.port.name, "role": one.reference.name}
        own = self._layers[one.layer]
        if facts.get("other") in own:  # the rule calls those of the same layer by their roles
            facts["other"] = own[str(facts["other"])].name
        return found[0].cause, facts

    def _case(self, one: Pair) -> Case:
        others = [w for w in self._shapes.get(one.port.shape, ()) if w is not one.reference][:OTHERS]
        own = self._layers[one.layer]
        spec = LayerSpec(one.kind)
        return Case(
            where="parameters",
            layer=one.layer,
            port_layer=one.layer,
            slot=one.role,
            between=None,
            reference=spec,
            port=spec,
            training=False,
            expected=_value(one.reference, one.role),
            actual=_formed(one),
            rounding=0.0,
            parameters={role: _value(weight, role) for role, weight in own.items()},
            known=_values(others),
            words=TORCH,
        )


def _formed(one: Pair) -> Value:
    """The port's tensor, in the reference's shape where only axes of one differ."""
    shape = one.reference.shape
    if squeezed(shape) != squeezed(one.port.shape):
        return _value(one.port, one.role)
    return Value("", one.role, 0, one.port.dtype, shape, lambda: one.port.load().reshape(shape))


def _values(weights: Sequence[Weight]) -> tuple[Value, ...]:
    found = []
    for weight in weights:
        layer, _, role = weight.name.rpartition(".")
        found.append(_value(weight, role, layer))
    return tuple(found)


def _value(weight: Weight, role: str, layer: str = "") -> Value:
    return Value(layer, role, 0, weight.dtype, weight.shape, weight.load)

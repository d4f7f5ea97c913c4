"""Cases built by hand, as the tests of explain need them. Every argument has a harmless default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from aligner.explain.case import Case, Value
from aligner.record import LayerSpec

ROUNDING = 2e-7
"""What float32 explains in an ordinary layer."""


def value(
    array: npt.ArrayLike, slot: str = "output.0", layer: str = "block.layer", dtype: Optional[str] = None, call: int = 0
) -> Value:
    """A recorded tensor that holds `array`; `dtype` where it is another than numpy's ("bfloat16")."""
    held = np.asarray(array)
    return Value(layer, slot, call, dtype or held.dtype.name, held.shape, lambda: held)


def named(arrays: Optional[Mapping[str, Any]], layer: str) -> dict[str, Value]:
    """Parameters by role: arrays, or values that are made already."""
    return {
        role: array if isinstance(array, Value) else value(array, slot=role, layer=layer)
        for role, array in (arrays or {}).items()
    }


def listed(arrays: Sequence[Any], layer: str, word: str) -> tuple[Value, ...]:
    """Inputs or outputs in order: arrays, or values that are made already."""
    return tuple(
        array if isinstance(array, Value) else value(array, slot=f"{word}.{index}", layer=layer)
        for index, array in enumerate(arrays)
    )


def case(
    kind: str = "Linear",
    reference: Optional[Mapping[str, Any]] = None,
    port: Optional[Mapping[str, Any]] = None,
    *,
    where: str = "layer",
    port_kind: Optional[str] = None,
    layer: str = "block.layer",
    port_layer: Optional[str] = None,
    slot: str = "output.0",
    between: Optional[tuple[str, str]] = None,
    training: bool = False,
    expected: Any = None,
    actual: Any = None,
    rounding: float = ROUNDING,
    inputs: Sequence[Any] = (),
    outputs: Optional[Sequence[Any]] = None,
    parameters: Optional[Mapping[str, Any]] = None,
    port_parameters: Optional[Mapping[str, Any]] = None,
    known: Sequence[Value] = (),
    operations: Optional[tuple[tuple[str, ...], tuple[str, ...]]] = None,
    computed: Optional[tuple[str, str]] = None,
) -> Case:
    """A case; `reference` and `port` are the settings of the two layers, arrays stand for recorded tensors.

    `port_parameters` are the reference's unless given, and so are settings, kind and path of the port's layer.
    `outputs` are `expected` alone unless given.
    """
    own = layer if port_layer is None else port_layer
    settings = dict(reference or {})
    wanted = _recorded(expected, layer, slot)
    return Case(
        where=where,
        layer=layer,
        port_layer=own,
        slot=slot,
        between=between,
        reference=LayerSpec(kind, settings),
        port=LayerSpec(port_kind or kind, settings if port is None else dict(port)),
        training=training,
        expected=wanted,
        actual=_recorded(actual, own, slot),
        rounding=rounding,
        inputs=listed(inputs, layer, "input"),
        outputs=listed(outputs, layer, "output") if outputs is not None else ((wanted,) if wanted else ()),
        parameters=named(parameters, layer),
        port_parameters=named(parameters if port_parameters is None else port_parameters, own),
        known=tuple(known),
        operations=operations,
        computed=computed,
    )


def _recorded(array: Any, layer: str, slot: str) -> Optional[Value]:
    if array is None or isinstance(array, Value):
        return array
    return value(array, slot=slot, layer=layer)

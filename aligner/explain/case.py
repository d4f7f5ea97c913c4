"""One place of a port that is wrong by itself, and what may tell why. Plain data; tensors are read on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.explain.inquiry import spend
from aligner.record import Array, LayerSpec

if TYPE_CHECKING:
    from aligner.explain.line import Fork

MINDSPORE, TORCH = "mindspore", "torch"
"""Whose words a port is written in. MindTorch's are torch's."""

HUGE = 1e4
"""A value this far from zero stands for minus infinity in a mask; no layer's own values are of this size."""

BLOCK = 1 << 16
"""Elements at a time in float64: what is made of them stays in the cache, however large the values are."""


Called = tuple[str, LayerSpec, int]
"""A layer that is called, its settings, and how many axes it is given."""


@dataclass(frozen=True, eq=False)
class Value:
    """A recorded tensor: where it stood, its form, and its numbers when somebody asks (short floats as float32)."""

    layer: str
    slot: str
    call: int
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class Case:
    """A wrong value and what stands around it. Paths are the reference's unless said.

    `where` is "layer" (this layer made `actual` of the reference's `inputs`), "glue" (the code of `layer`, a parent,
    made it between its children; `between` names the last layer before and the next one, "" for the parent's border)
    or "parameters" (a parameter was loaded or made wrong; `slot` is its role).
    """

    where: str
    layer: str
    port_layer: str
    slot: str
    between: Optional[tuple[str, str]]
    reference: LayerSpec
    """Settings of the layer; for glue, of the parent."""
    port: LayerSpec
    training: bool
    expected: Optional[Value]
    """The reference's; None where it has no such value."""
    actual: Optional[Value]
    """The port's own, made of nothing but right values; its shape may differ."""
    rounding: float
    """Relative L2 that rounding explains at this place."""
    inputs: tuple[Value, ...] = ()
    """What the reference's layer was given in this call, in order."""
    outputs: tuple[Value, ...] = ()
    """All that the reference's layer made in this call, in order."""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """The reference's parameters and buffers of the layer, by role."""
    port_parameters: Mapping[str, Value] = field(default_factory=dict)
    known: tuple[Value, ...] = ()
    """Glue: what the parent had in hand until then, in the reference: its inputs, its parameters, its children's inputs
    and outputs; the nearest last. Then what others had made before, for a value that came from further away.
    Parameters: the reference's parameters of other layers that have this shape."""
    repeated: Optional[float] = None
    """Layers: how far two runs of the port's layer on these inputs are apart (relative L2), where they are at all."""
    operations: Optional[tuple[tuple[str, ...], tuple[str, ...]]] = None
    """Glue: operations that ran between the two layers, of reference and port, where known."""
    fork: Callable[[], Optional[Fork]] = lambda: None
    """The line of the port's code that is not the reference's, where both were followed."""
    computed: Optional[tuple[str, str]] = None
    """Layers: what they compute in, reference and port, where the captures tell; casts may sit inside."""
    shortened: Optional[tuple[str, tuple[str, ...], tuple[str, ...]]] = None
    """A short type and operations that the port's code does in it and the reference's does not: those that short types
    are bad at, and others. Of the whole layer, or of the whole parent."""
    order: Optional[tuple[tuple[str, ...], tuple[str, ...]]] = None
    """Glue: the layers that the parent calls, in the order of reference and port, where it has to be the same."""
    alone: tuple[tuple[Called, ...], tuple[Called, ...]] = ((), ())
    """Glue: layers with weights that each side calls here and that the other has no counterpart of."""
    types: tuple[str, str] = ("", "")
    """Classes of the layer, in reference and port."""
    batch: Optional[int] = None
    """How many items the net was given at once, where that is the first axis of all it was given."""
    words: str = MINDSPORE
    """Whose words the port is written in: MINDSPORE or TORCH."""

    @property
    def rank(self) -> Optional[int]:
        """How many axes the layer's first input has."""
        return len(self.inputs[0].shape) if self.inputs else None


def distance(found: Array, wanted: Array) -> float:
    """Relative L2 of two arrays of one shape; inf where NaN or Inf stand apart, or shapes differ.

    Infinities at the same places agree, and so do values beyond HUGE of one sign (masks write either).
    """
    if found.shape != wanted.shape:
        return math.inf
    spend(wanted.size)
    real = "c" not in (found.dtype.kind, wanted.dtype.kind)
    norm, apart, hidden = _squares(found, wanted, real)
    if real and hidden and hidden == wanted.size:  # nothing else is left to compare by
        norm, apart, _ = _squares(found, wanted, real, hide=False)
    if not (math.isfinite(norm) and math.isfinite(apart)):
        return math.inf
    return math.sqrt(apart) / math.sqrt(norm) if norm else (0.0 if apart == 0.0 else math.inf)


def _squares(found: Array, wanted: Array, real: bool, hide: bool = True) -> tuple[float, float, int]:
    """Sums of squares of what is wanted and of the difference, block by block in float64, and how many were hidden."""
    kind = np.float64 if real else np.complex128
    blocks = np.nditer(
        (wanted, found),
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"], ["readonly"]],
        op_dtypes=[kind, kind],
        casting="unsafe",
        order="C",
        buffersize=BLOCK,
    )
    norm = apart = 0.0
    hidden = 0
    for one, other in blocks:
        if hide and real and (far := _hidden(one, other)) is not None:
            hidden += int(np.count_nonzero(far))
            one, other = one[~far], other[~far]  # what is left of the block
        size, difference = _square(one), _square(other - one)
        if not (math.isfinite(size) and math.isfinite(difference)):
            both = np.isnan(one) & np.isnan(other)
            one, other = one[~both], other[~both]
            if not (np.isfinite(one).all() and np.isfinite(other).all()):
                return math.inf, math.inf, hidden
            size, difference = _square(one), _square(other - one)
        norm += size
        apart += difference
    return norm, apart, hidden


def _hidden(one: Array, other: Array) -> Optional[Array]:
    """Where a mask hides on both sides; None where nowhere."""
    far = np.abs(one) >= HUGE
    if far.any():
        far &= (np.abs(other) >= HUGE) & (np.sign(one) == np.sign(other))
        return far if far.any() else None
    return None


def _square(values: Array) -> float:
    return float(np.vdot(values, values).real)  # type: ignore[arg-type]  # of floats as of booleans

"""The words all stages share: where a value stands (Key), the value (Record), the layer and the call it belongs to.

Plain data without I/O. capture makes these, dump stores them, compare reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]
else:
    Array = Any

Scalar = Union[bool, int, float, str, None]
Attribute = Union[Scalar, tuple["Attribute", ...]]


class Phase(Enum):
    """What was going on when a value was seen.

    UPDATE is a parameter after the optimizer ran. FORCED is what a layer of the port made of the reference's inputs,
    or what it was handed by code around it that had the reference's values in hand; kept where that is wrong.
    """

    FORWARD = "forward"
    FORCED = "forced"
    BACKWARD = "backward"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    UPDATE = "update"


class Key(NamedTuple):
    """The address of a value: equal in both dumps when both nets are built alike.

    `layer` is the dotted path, "" for the top-level net. `slot` is "input.0", "input.mask", "output.0.hidden",
    or for parameters the canonical name ("weight", "running_mean").
    """

    step: int
    phase: Phase
    layer: str
    call: int
    slot: str


@dataclass(frozen=True, eq=False)
class Record:
    """One captured array. `array` holds the exact bits in the storage type that aligner.dtypes names for `dtype`."""

    key: Key
    order: int
    dtype: str
    array: Array


@dataclass(frozen=True)
class LayerSpec:
    """A layer's type and settings in the one vocabulary of aligner.vocabulary, the same for all frameworks.

    `kind` is "Conv2d", "BatchNorm", ... or the class's own name when the vocabulary has no word for it.
    """

    kind: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A module or cell of the net. `type` is the class as its framework names it; `children`: it has layers inside."""

    path: str
    type: str
    spec: LayerSpec
    children: bool
    training: bool


@dataclass(frozen=True)
class Call:
    """The n-th time a layer ran in a step. `first` and `last` are the order numbers of entry and exit: calls nest so.

    `inputs` and `outputs` are structures (aligner.structure): how the tensors were nested, with None and plain
    values in their places. `last` is None when the layer raised.
    """

    step: int
    phase: Phase
    layer: str
    number: int
    first: int
    last: Optional[int]
    inputs: object
    outputs: object


@dataclass(frozen=True)
class Note:
    """Something that could not be captured, or was captured in another way: nothing is skipped silently.

    `message` is an id of aligner.messages and `facts` fill it.
    """

    layer: str
    message: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)


def display(path: str) -> str:
    """A layer's path as people read it: the top-level net has an empty path."""
    return path or "(net)"

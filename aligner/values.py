"""What the user's code works on: the framework's tensors, and numpy's arrays, of which tables are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from aligner.adapter import Adapter
from aligner.record import Array


class Values:
    """Tells the values of code from other objects, and reads them."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def holds(self, value: object) -> bool:
        """Whether this is a value."""
        return is_array(value) or self._adapter.is_tensor(value)

    def dtype(self, value: Any) -> str:
        """The type's word, as of the adapter's."""
        return str(value.dtype.name) if is_array(value) else self._adapter.dtype(value)

    def read(self, value: Any) -> Array:
        """The bits, as the adapter reads them."""
        return value if is_array(value) else self._adapter.to_numpy(value)


def is_array(value: object) -> bool:
    """Whether this is an array of numbers of numpy's own, and not one that stands for a tensor."""
    return type(value) is np.ndarray and value.dtype.kind in "fiub"

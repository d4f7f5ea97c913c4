"""Indices out of range. On a CPU three of MindSpore's kernels find them on threads of their own, where nobody catches
what they raise: the program is ended. So they are looked at before; a trial of wrong code is to fail, and no more.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from mindspore.ops import operations

from aligner.patches import Handle, Listeners, patch, together

Sizes = Callable[..., tuple[Any, Any]]

_KERNELS: dict[str, Sizes] = {
    "GatherNd": lambda value, indices, *_: (indices, value.shape),
    "ScatterNd": lambda indices, updates, shape, *_: (indices, shape),
    "TensorScatterUpdate": lambda value, indices, *_: (indices, value.shape),
}
"""Of what they are given the indices, and the sizes of what these point into."""


def in_range() -> Handle:
    """Have an IndexError raised where one is not."""
    with together() as handle:
        for name in _KERNELS:
            handle.add(patch(getattr(operations, name), "__call__", _checked).remove)
    return handle


def _checked(below: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if listeners:
            _look(self.name, *_KERNELS[self.name](*args, **kwargs))
        return below(self, *args, **kwargs)

    return call


def _look(name: str, indices: Any, sizes: Any) -> None:
    if not hasattr(indices, "asnumpy") or 0 in indices.shape:
        return
    found = indices.asnumpy()
    limits = np.array([int(size) for size in sizes[: found.shape[-1]]])
    outside = ((found < 0) | (found >= limits)).any(axis=-1) if len(limits) == found.shape[-1] else np.array(False)
    if outside.any():
        first = tuple(map(int, found[outside][0]))
        raise IndexError(f"{name}: the index {first} is outside of the shape {tuple(map(int, sizes))}")

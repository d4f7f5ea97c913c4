"""What tells a value from others without keeping it."""

from __future__ import annotations

from aligner.record import Array

LOOKED_AT = 256
"""Elements by which a value is known again."""

BOOL = "|b1"
"""The form of true and false in a print."""

Print = tuple[tuple[int, ...], str, bytes]


def taken(array: Array) -> Print:
    """The value's form, and bits from all over it."""
    flat = array.reshape(-1)
    return array.shape, array.dtype.str, flat[:: max(1, flat.size // LOOKED_AT)].tobytes()

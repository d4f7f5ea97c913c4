"""Reading values where kernels run behind the code that calls them.

A kernel that fails (an index out of range) is told of once, to whoever reads any value next, and then forgotten: the
tensor that it should have made reads as zeros from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from aligner.errors import LateError

Value = TypeVar("Value")


def read(action: Callable[[], Value]) -> Value:
    """What the action reads.

    Raises:
        LateError: a kernel of the net's had failed: at the second attempt the same values can be read.
        Exception: these values cannot be read, now or later.
    """
    try:
        return action()
    except Exception as error:
        try:
            action()
        except Exception:
            raise error from None
        raise LateError from error

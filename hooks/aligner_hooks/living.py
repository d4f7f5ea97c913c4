"""What of a framework is alive in a program: its nets and its optimizers, whoever holds them."""

from __future__ import annotations

import gc
from typing import Any


def living(kind: type) -> list[Any]:
    """The objects of a class that something can still reach."""
    gc.collect()
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]  # a lazy object's __class__ would import

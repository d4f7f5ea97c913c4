"""The casts that a cell was told to do: by `to_float`, or by the strategy of AMP level "auto".

`to_float` sets a flag on the cell and one inside it, in MindSpore's C++; it knows no way back.
"""

from __future__ import annotations

from typing import Any

from mindspore._c_expression import MixedPrecisionType

# What to_float can be told, and its flag.
FLAGS = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}
STRATEGY = "amp_strategy"
"""Where level "auto" keeps what it does around a cell's `construct`."""


def cast_of(cell: Any) -> str:
    """The dtype that to_float told this cell to compute in, or ""."""
    flagged = cell.mixed_precision_type
    if flagged is None:  # asked of every layer that runs
        return ""
    return next((dtype for dtype, flag in FLAGS.items() if getattr(MixedPrecisionType, flag.upper()) == flagged), "")


def flag(cell: Any, dtype: str) -> None:
    """What `to_float` does, for this cell alone; another dtype than its three takes the flag away."""
    if dtype in FLAGS:
        cell.add_flags(**{flag: word == dtype for word, flag in FLAGS.items()})
    elif cell.mixed_precision_type is not None:
        cell.add_flags(**dict.fromkeys(FLAGS.values(), False))
        cell.mixed_precision_type = None
        cell.set_mixed_precision_type(MixedPrecisionType.NOTSET)


def undo_strategy(cell: Any) -> None:
    """Take level "auto" off a cell."""
    if vars(cell).pop(STRATEGY, None) is not None:
        vars(cell).pop("construct", None)

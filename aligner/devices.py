"""The device that a user names, in any case, with or without a number: "cpu", "GPU", "cuda:1", "Ascend", "npu:3".

And what a header says of its arithmetic, in the same words for all frameworks: `float32_matmul` and `float32_conv` are
"float32", or the shorter type in which a device multiplies what is float32 to everybody else ("tf32", "hf32").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

KINDS = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "ascend": "ascend", "npu": "ascend"}
MATMUL, CONV = "float32_matmul", "float32_conv"
EXACT = "float32"
MOST = 1 << 16


@dataclass(frozen=True)
class Device:
    """`kind` is "cpu", "gpu" or "ascend"; `index` is None where the user named no number."""

    kind: str
    index: Optional[int]


def parse(name: str) -> Optional[Device]:
    """The device of this name, None if there is none."""
    word, colon, number = name.strip().lower().partition(":")
    kind = KINDS.get(word)
    if kind is None:
        return None
    if not colon:
        return Device(kind, None)
    if not (number.isascii() and number.isdigit() and int(number) < MOST):
        return None
    return Device(kind, int(number))


def cann(environ: Mapping[str, str]) -> Optional[str]:
    """The version of CANN, Ascend's toolkit, by the file that it lays beside its compiler."""
    path = os.path.join(environ.get("ASCEND_HOME_PATH", ""), "compiler", "version.info")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.lower().startswith("version=")), None)

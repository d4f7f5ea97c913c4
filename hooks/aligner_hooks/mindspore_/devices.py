"""Devices of MindSpore: choosing one, and what the header says of it and of its arithmetic.

Only "cpu" was ever run; GPU and Ascend are written from MindSpore's manual.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from glob import glob
from importlib import import_module
from typing import Any, Optional

import mindspore

from aligner.adapter import Finding
from aligner.devices import CONV, EXACT, KINDS, MATMUL, Device, cann, parse
from aligner.errors import AdapterError
from aligner.record import Scalar

# The kind of a device -> what MindSpore calls it.
TARGETS = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}


def device(name: str) -> Callable[[object], object]:
    """Select the device for everything that runs from now on; models and tensors go there by themselves.

    Raises:
        AdapterError: this MindSpore has no such device, or runs on another one already.
    """
    wanted = parse(name)
    if wanted is None:
        raise AdapterError("mindspore-device", name=name, reason="why-unknown-name", known=", ".join(sorted(KINDS)))
    try:
        _select(wanted)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (f"{error}".strip().splitlines() or [type(error).__name__])[0]
        raise AdapterError("mindspore-device", name=name, reason=reason, known=target().lower()) from error
    return lambda value: value


def _select(wanted: Device) -> None:
    goal = TARGETS[wanted.kind]
    index = None if wanted.kind == "cpu" else wanted.index
    if target() == goal and index in (None, mindspore.get_context("device_id")):
        return  # once something has run, even the same choice is refused
    if hasattr(mindspore, "set_device"):
        mindspore.set_device(*((goal,) if index is None else (goal, index)))
    elif index is None:
        mindspore.set_context(device_target=goal)
    else:
        mindspore.set_context(device_target=goal, device_id=index)


def target() -> str:
    """The device in MindSpore's word: "CPU", "GPU" or "Ascend"."""
    return str(mindspore.get_context("device_target"))


def facts() -> Mapping[str, Scalar]:
    """Header facts of the device and its arithmetic."""
    here = target()
    found: dict[str, Scalar] = {"device": here, "deterministic": _context("deterministic")}
    if here == "CPU":
        return found
    found["device_index"] = _context("device_id")
    if here == "Ascend":
        found.update(_ascend())
    else:
        found.update(_gpu())
    return found


def _ascend() -> Mapping[str, Scalar]:
    """By the manual CANN convolves in hf32 unless it is told not to, and multiplies matrices in float32."""
    said = _settings("AscendOpPrecisionConf")
    config = _context("ascend_config")
    return {
        "device_name": _device_name("ascend"),
        "cann": cann(os.environ),
        MATMUL: "hf32" if said("matmul_allow_hf32") == "1" else EXACT,
        CONV: EXACT if said("conv_allow_hf32") == "0" else "hf32",
        "precision_mode": said("precision_mode") or (config or {}).get("precision_mode") or None,
        "op_precision_mode": said("op_precision_mode") or None,
        "jit_level": _context("jit_level") or None,
    }


def _gpu() -> Mapping[str, Scalar]:
    """By the manual convolutions are in tf32 unless it is told not to be, matrix products in float32."""
    said = _settings("GPUOpPrecisionConf")
    return {
        "device_name": _device_name("gpu"),
        MATMUL: "tf32" if said("matmul_allow_tf32") in ("1", "True") else EXACT,
        CONV: EXACT if said("conv_allow_tf32") in ("0", "False") else "tf32",
    }


def _settings(name: str) -> Callable[[str], str]:
    """What reads a setting of operators' precision as text, "" where it cannot be read."""
    try:
        keeper: Any = getattr(import_module("mindspore._c_expression"), name).get_instance()
    except (ImportError, AttributeError, RuntimeError):
        return lambda setting: ""

    def read(setting: str) -> str:
        try:
            return str(getattr(keeper, setting)())
        except (AttributeError, TypeError, RuntimeError):
            return ""

    return read


def doctor() -> Iterator[Finding]:
    """An Ascend that is used, or that is there and is not."""
    version, there = str(mindspore.__version__), glob("/dev/davinci[0-9]*")
    if target() == "Ascend":
        yield Finding(True, "mindspore-ascend", {"version": version, "cann": cann(os.environ) or "-"})
    elif there:
        facts: dict[str, Scalar] = {
            "version": version,
            "count": len(there),
            "cann": cann(os.environ) or "-",
            "device": target(),
        }
        yield Finding(False, "mindspore-npu-unused", facts)


def _context(name: str) -> Any:
    try:
        return mindspore.get_context(name)
    except (ValueError, RuntimeError, KeyError):
        return None


def _device_name(kind: str) -> Optional[str]:
    try:
        return str(mindspore.hal.get_device_name(int(_context("device_id") or 0), TARGETS[kind]))
    except (AttributeError, ValueError, RuntimeError, TypeError):
        return None

"""Devices of torch: choosing one, and what the header says of it and of its arithmetic.

Run on the CPU and on one GPU (tests/endtoend/test_on_a_gpu.py); Ascend (torch_npu) is written from its documentation.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any, Optional

import torch

from aligner.adapter import Finding
from aligner.devices import CONV, EXACT, KINDS, MATMUL, Device, cann, parse
from aligner.errors import AdapterError
from aligner.record import Scalar

# The kind of a device -> what torch calls it.
TYPES = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}


def device(name: str) -> Callable[[object], object]:
    """What moves a model or tensor to the device.

    Raises:
        AdapterError: torch has no such device here.
    """
    wanted = parse(name)
    if wanted is None:
        raise AdapterError("torch-device-unknown", device=name, known=", ".join(KINDS))
    reason = absence(wanted)
    if reason:
        raise AdapterError("torch-device-absent", device=name, reason=reason)
    kind = TYPES[wanted.kind]
    target = torch.device(kind if wanted.index is None or kind == "cpu" else f"{kind}:{wanted.index}")

    def move(value: Any) -> Any:
        return value.to(target)

    return move


def home(model: Any) -> Optional[torch.device]:
    """Where a model is, by what it holds first; None for one that holds nothing."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return None if first is None else first.device


def absence(wanted: Device) -> str:
    """Why a device cannot be used here, or nothing."""
    if wanted.kind == "cpu":
        return ""
    if wanted.kind == "ascend":
        try:
            import_module("torch_npu")  # importing it adds torch.npu
        except Exception as error:  # without CANN it raises whatever its libraries do
            return f"{type(error).__name__}: {error}".splitlines()[0]
    module = getattr(torch, TYPES[wanted.kind])
    if not module.is_available():
        return f"torch.{TYPES[wanted.kind]}.is_available() is False"
    count = int(module.device_count())
    if wanted.index is not None and wanted.index >= count:
        return f"torch.{TYPES[wanted.kind]}.device_count() is {count}"
    return ""


def facts(first: Optional[torch.Tensor]) -> Mapping[str, Scalar]:
    """Header facts of the device that `first`, a parameter of the net, lies on."""
    place = torch.device("cpu") if first is None else first.device
    found: dict[str, Scalar] = {"device": str(place.type), "float32_matmul_precision": _said(_matmul_precision)}
    if place.index is not None and place.type != "cpu":
        found["device_index"] = place.index
    if place.type == "cuda":
        found.update(_cuda(place))
    elif place.type == "npu":
        found.update(_npu(place))
    return found


def _cuda(place: torch.device) -> Mapping[str, Scalar]:
    matmul = _said(lambda: bool(torch.backends.cuda.matmul.allow_tf32))
    conv = _said(lambda: bool(torch.backends.cudnn.allow_tf32))
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    return {
        "device_name": _said(lambda: str(torch.cuda.get_device_name(place))),
        "cuda": torch.version.cuda,
        "tf32": matmul,
        MATMUL: "tf32" if matmul else EXACT,
        CONV: "tf32" if conv else EXACT,
        "cudnn.deterministic": bool(torch.backends.cudnn.deterministic),
        **{name: _said(partial(_reduction, name)) for name in names},
    }


def _reduction(name: str) -> str:
    return str(getattr(torch.backends.cuda.matmul, name))


def _npu(place: torch.device) -> Mapping[str, Scalar]:
    """By torch_npu's manual: matmul in hf32 is off, and convolution in hf32 on, if nobody says otherwise."""
    npu = getattr(torch, "npu", None)
    matmul = _said(lambda: bool(npu.matmul.allow_hf32)) if npu is not None else None
    conv = _said(lambda: bool(npu.conv.allow_hf32)) if npu is not None else None
    return {
        "device_name": _said(lambda: str(npu.get_device_name(place))) if npu is not None else None,
        "torch_npu": _installed("torch_npu"),
        "cann": cann(os.environ),
        MATMUL: "hf32" if matmul else EXACT,
        CONV: EXACT if conv is False else "hf32",
    }


def _matmul_precision() -> str:
    return str(torch.get_float32_matmul_precision())


def _said(read: Callable[[], Scalar]) -> Scalar:
    """A setting, or None where this torch does not tell: newer ones warn of, or refuse, the older names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except (AttributeError, RuntimeError, AssertionError):
        return None


def _installed(name: str) -> Optional[str]:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def doctor() -> Iterator[Finding]:
    """The devices that torch can use here, and a torch_npu that does not fit."""
    if torch.cuda.is_available():
        yield Finding(True, "torch-gpu", {"count": torch.cuda.device_count(), "name": torch.cuda.get_device_name()})
    else:
        yield Finding(True, "torch-no-gpu", {})
    beside = _installed("torch_npu")
    if beside is None:
        return
    own = str(torch.__version__).partition("+")[0]
    if beside.split(".")[:2] != own.split(".")[:2]:
        yield Finding(False, "torch-npu-mismatch", {"torch": own, "torch_npu": beside})
    reason = absence(Device("ascend", None))
    if reason:
        yield Finding(False, "torch-npu-unusable", {"torch_npu": beside, "reason": reason})
    else:
        yield Finding(True, "torch-npu", {"torch_npu": beside, "cann": cann(os.environ)})

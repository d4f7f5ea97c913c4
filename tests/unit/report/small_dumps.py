"""Two small dumps written by the real writer, without a framework: a net of three layers, and a port of it.

The port's BatchNorm is off by `shift`; everything after it follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np

from aligner.dump.writer import DumpWriter
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record

LAYERS = (
    ("", "Net", {}, True),
    ("conv", "Conv2d", {"in_channels": 3, "out_channels": 4, "bias": True}, False),
    ("norm", "BatchNorm", {"num_features": 4, "eps": 1e-5}, False),
    ("fc", "Linear", {"in_features": 4, "out_features": 2}, False),
)


def write(
    path: Path,
    *,
    shift: float = 0.0,
    rename: str = "",
    forced: bool = False,
    unused: bool = False,
    complete: Optional[bool] = None,
    **header: Any,
) -> Path:
    """Write one dump; `rename` is put before the name of each layer, `forced` adds what norm made in a forced pass,
    `unused` a layer "spare" without a call."""
    facts = {
        "aligner": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "framework": "torch",
        "framework_version": "2.13.0",
        "device": "cpu",
        "mode": "pynative",
        "training": False,
        "model": "Net",
        "command": ["aligner", "capture", "net.py:build"],
        "steps": 1,
    }
    random = np.random.default_rng(0)
    values: dict[str, Any] = {
        "in": random.standard_normal((2, 3)),
        "conv": random.standard_normal((2, 4)),
        "norm": random.standard_normal((2, 4)) + shift,
        "fc": random.standard_normal((2, 2)) + shift * 0.5,
    }
    weight = random.standard_normal((4, 3)).astype(np.float32)
    with DumpWriter(path, {**facts, **header}, force=True) as writer:
        for name, kind, attributes, children in LAYERS:
            changed = {**attributes, "eps": 1e-3} if shift and name == "norm" else attributes
            path_ = name and rename + name
            writer.layer(Layer(path_, f"torch.nn.{kind}", LayerSpec(kind, changed), children, False))
        if unused:
            writer.layer(Layer("spare", "torch.nn.ReLU", LayerSpec("ReLU", {}), False, False))
        if complete is not None:
            writer.update_header(complete=complete)
        writer.write(Record(Key(0, Phase.PARAMETER, rename + "conv", 0, "weight"), 0, "float32", weight))
        order = _run(writer, values, rename)
        writer.call(_call("", 1, order))
        if forced:
            key = Key(0, Phase.FORCED, rename + "norm", 0, "output.0")
            writer.write(Record(key, order + 1, "float32", (values["norm"] * 1.5).astype(np.float32)))
        writer.note(Note("fc", "other-thread", {}))
        writer.note(Note("fc", "of-a-later-version", {"why": "\x1b[31m"}))
    return path


def _run(writer: DumpWriter, values: dict[str, Any], rename: str) -> int:
    _write(writer, "", "input.0", 1, values["in"])
    before, order = values["in"], 1
    for name in ("conv", "norm", "fc"):
        _write(writer, rename + name, "input.0", order + 1, before)
        _write(writer, rename + name, "output.0", order + 2, values[name])
        writer.call(_call(rename + name, order + 1, order + 2))
        before, order = values[name], order + 2
    _write(writer, "", "output.0", order + 1, before)
    return order + 1


def _write(writer: DumpWriter, layer: str, slot: str, order: int, array: Any) -> None:
    writer.write(Record(Key(0, Phase.FORWARD, layer, 0, slot), order, "float32", array.astype(np.float32)))


def _call(layer: str, first: int, last: Optional[int]) -> Call:
    inputs = {"args": [{"tensor": "input.0"}]}
    return Call(0, Phase.FORWARD, layer, 0, first, last, inputs, {"tensor": "output.0"})

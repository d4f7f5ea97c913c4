"""Good dumps for `forged.py` to spoil: a pair made by hand with findings of every kind, and a pair that torch made."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from aligner.dump import journal
from aligner.dump.reader import open_dump
from aligner.dump.sections import Content, encode
from aligner.dump.writer import DumpWriter
from aligner.fingerprint import fingerprint
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record


@dataclass(frozen=True)
class Side:
    """One dump in the forms in which it can be spoiled."""

    closed: bytes
    data: bytes
    """The closed one's start, up to where the values end."""
    sections: dict[str, bytes]
    token: str
    open: bytes
    """As it is while it is being written, and its journal."""
    journal: bytes
    layers: tuple[str, ...]


Pair = tuple[Side, Side]

NET = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8, eps=EPS)
            self.fc = nn.Linear(8, 8)

        def forward(self, x, *, by):
            return x + by * torch.tanh(self.fc(self.norm(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.bn = nn.BatchNorm2d(4)
            self.act = nn.GELU(ACT)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            x = self.act(self.bn(self.conv(x))).mean(-1)
            for block in self.blocks:
                x = block(x, by=0.5)
            return {"logits": self.head(x), "hidden": (x, None)}

    def build():
        torch.manual_seed(0)
        return Net(), torch.randn(2, 3, 8, 8)
"""


def pairs(folder: Path) -> dict[str, Pair]:
    """The pairs by name; torch's where torch is."""
    found = {"by hand": _by_hand(folder)}
    if find_spec("torch") is not None:
        found["torch"] = _captured(folder)
    return found


def side(path: Path) -> Side:
    """What is needed of a dump."""
    with open_dump(path) as dump:
        rows = dump.rows()
        content = Content(
            dict(dump.header), dict(dump.layers), rows, list(dump.calls), list(dump.notes), list(dump.findings)
        )
        again = path.with_suffix(".again.h5")
        with DumpWriter(again, dump.header, force=True) as writer:
            for layer in dump.layers.values():
                writer.layer(layer)
            for entry in dump.entries:
                writer.write(Record(entry.key, entry.order, entry.dtype, entry.raw()))
            for call in dump.calls:
                writer.call(call)
            for note in dump.notes:
                writer.note(note)
            for kind, facts in dump.findings:
                writer.finding(kind, facts)
            unfinished, told = again.read_bytes(), journal.path_of(again).read_bytes()
        whole = path.read_bytes()
        end = max((row.offset + row.size for row in rows), default=608)
        end = -(-end // 8) * 8
        return Side(whole, whole[:end], encode(content), dump.token, unfinished[:end], told, tuple(dump.layers))


def _captured(folder: Path) -> Pair:
    for name, eps, act in (("ref", "1e-5", ""), ("port", "1e-3", "")):
        text = NET.replace("EPS", eps).replace("ACT", act)
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    for arguments in (("ref.py:build", "-o", "ref.h5"), ("port.py:build", "--from", "ref.h5", "-o", "port.h5")):
        command = [sys.executable, "-m", "aligner", "capture", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the pair to be spoiled cannot be captured:\n{done.stderr}")
    return side(folder / "ref.h5"), side(folder / "port.h5")


def _by_hand(folder: Path) -> Pair:
    rng = np.random.default_rng(0)
    values = {
        (layer, slot): rng.normal(size=(3, 4)).astype("<f4")
        for layer in ("norm", "act", "")
        for slot in ("input.0", "output.0")
    }
    other = {place: array + np.float32(0.5 * (place[0] != "norm")) for place, array in values.items()}
    token = _make(folder / "one.h5", values, REFERENCE)
    _make(folder / "other.h5", other, PORT, reference_token=token, mapping=[["act", "act", 1.0], ["norm", "norm"]])
    return side(folder / "one.h5"), side(folder / "other.h5")


def _make(path: Path, values: dict[tuple[str, str], Any], findings: list[tuple[str, Any]], **header: Any) -> str:
    facts = {
        "framework": "torch", "framework_version": "2.13.0", "model": "Net", "forced": True, "amp": None, "steps": 2,
        "command": ["aligner", "capture", "net.py:build"], "precision": "float16", "timing": {"free": 1.0},
        "parameters": [["norm", "weight", "norm.weight", True, False]], "selected": ["*"],
    }  # fmt: skip
    with DumpWriter(path, {**facts, **header}, force=True) as writer:
        for name, kind in (("", "Net"), ("norm", "LayerNorm"), ("act", "GELU")):
            settings = {"eps": 1e-5, "normalized_shape": (4,)} if kind == "LayerNorm" else {}
            writer.layer(Layer(name, kind, LayerSpec(kind, settings), not name, False))
        writer.write(Record(Key(0, Phase.PARAMETER, "norm", 0, "weight"), 0, "float32", np.ones(4, "<f4")))
        order = 1
        for step in range(2):
            first = order
            for layer in ("norm", "act"):
                begun = order
                for slot in ("input.0", "output.0"):
                    order += 1
                    writer.write(
                        Record(Key(step, Phase.FORWARD, layer, 0, slot), order, "float32", values[layer, slot])
                    )
                order += 1
                structure = {"args": [{"tensor": "input.0"}], "kwargs": [["by", {"dict": [["a", {"value": 0.5}]]}]]}
                writer.call(Call(step, Phase.FORWARD, layer, 0, begun, order, structure, {"tensor": "output.0"}))
                order += 1
            writer.write(Record(Key(step, Phase.FORWARD, "", 0, "output.0"), order, "bfloat16", np.ones(5, "<u2")))
            out = {
                "object": "Out",
                "fields": [["logits", {"tensor": "output.0"}], ["more", {"list": [{"none": True}]}]],
            }
            writer.call(Call(step, Phase.FORWARD, "", 0, first, order + 1, {"args": [{"opaque": "Cache"}]}, out))
            order += 2
        writer.write(Record(Key(0, Phase.FORCED, "act", 0, "output.0"), order, "float32", values["act", "output.0"]))
        writer.write(
            Record(Key(0, Phase.BACKWARD, "act", 0, "output.0"), order + 1, "float32", values["act", "input.0"])
        )
        writer.note(Note("act", "dump-changed", {"path": "x"}))
        for kind, told in findings:
            writer.finding(kind, told)
    with open_dump(path) as dump:
        return dump.token


PRINT = getattr(fingerprint(np.eye(3, 4, dtype=np.float32)), "text", str)()
DEVIATION = {
    "max_abs": 1.0, "scaled": 0.5, "allclose": 0.5, "rel_l2": 0.5, "cosine": 0.9, "mismatched": 3, "total": 12,
    "nan": [0, 0], "inf": [0, 0], "nonfinite": 0, "rms": 1.0, "worst": [0, 1], "worst_values": [1.0, 2.0],
    "exact": False,
}  # fmt: skip
CHECK = {
    "at": [0, "act", 0, "output.0"], "port": ["act", 0, "output.0"], "owner": "act", "where": "layer",
    "between": ["norm", "act"], "error": 0.5, "expected": 1e-6, "alone": 0.5, "kept": True, "isolated": True,
    "follows": False, "reason": "covered-argument", "facts": {"layer": "act"}, "deviation": DEVIATION,
}  # fmt: skip
GLUE = {**CHECK, "at": [0, "act", 0, "input.0"], "port": ["act", 0, "input.0"], "owner": "", "where": "glue"}
OPERATIONS = {"layer": "", "call": 0, "step": 0, "rows": [["norm", "act", ["add", "mul"]]]}
CODE = {
    "layer": "", "values": [[[3, 4]], [[3, 4], False, PRINT]],
    "steps": [["add", [0, 1], [1], [["alpha", 1]], "net.py", 3, "x = x + 1"]],
}  # fmt: skip
REFERENCE = [
    ("expected", {"by": "float64", "at": [0, "act", 0, "output.0"], "own": 1e-7, "free": 1e-6}),
    ("operations", OPERATIONS),
    ("code", CODE),
    ("cast", {"layer": "act", "dtype": "float32", "by": "autocast", "operations": {"float16": ["mul", "softmax"]}}),
]
PORT = [
    ("check", CHECK), ("check", GLUE), ("operations", OPERATIONS), ("code", CODE),
    ("trial", {"layer": "act", "suspect": "activation-other()", "before": 0.5, "after": 1e-8, "proved": True}),
    ("repeat", {"layer": "act", "apart": 1e-3}),
    ("layer", {"layer": "act", "python": "nn.GELU()", "imports": "from torch import nn"}),
    ("cast", {"layer": "act", "dtype": "float16", "by": "autocast", "operations": {"float16": ["mul", "softmax"]}}),
]  # fmt: skip
"""Findings of every kind, as facts."""

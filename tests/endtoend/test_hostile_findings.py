"""Findings of any form: what a dump tells of its net may be anything, and ends in an answer or a refusal."""

from __future__ import annotations

import copy
import itertools
import math
from contextlib import suppress

import numpy as np
import pytest

from aligner.cli import main
from aligner.dump.reader import open_dump
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from aligner.record import Call, Key, Layer, LayerSpec, Phase, Record

ODD = (
    None,
    True,
    -1,
    1.5,
    1e308,
    math.nan,
    math.inf,
    "",
    "x",
    "../../x",
    [],
    [[]],
    [1, 2, 3, 4],
    ["a", "b"],
    {},
    {"a": 1},
)

CHECK = {
    "at": [0, "act", 0, "output.0"],
    "port": ["act", 0, "output.0"],
    "owner": "act",
    "where": "layer",
    "between": ["norm", "act"],
    "error": 0.5,
    "expected": 1e-6,
    "alone": 0.5,
    "kept": True,
    "isolated": True,
    "follows": False,
    "reason": "covered-argument",
    "facts": {"layer": "act"},
    "deviation": {
        "max_abs": 1.0, "scaled": 0.5, "allclose": 0.5, "rel_l2": 0.5, "cosine": 0.9, "mismatched": 3, "total": 12,
        "nan": [0, 0], "inf": [0, 0], "nonfinite": 0, "rms": 1.0, "worst": [0, 1], "worst_values": [1.0, 2.0],
        "exact": False,
    },
}  # fmt: skip
OPERATIONS = {"layer": "", "call": 0, "step": 0, "rows": [["norm", "act", ["add", "mul"]]]}
EXPECTED = {"by": "float64", "at": [0, "act", 0, "output.0"], "own": 1e-7, "free": 1e-6}
TRIAL = {"layer": "act", "suspect": "activation-other()", "before": 0.5, "after": 1e-8, "proved": True}
MOVED = {"step": 0, "order": 99, "layers": ["act"]}
BUILD = {"layer": "act", "python": "nn.GELU()", "imports": "from mindspore import nn"}
GLUE = {**CHECK, "at": [0, "act", 0, "input.0"], "port": ["act", 0, "input.0"], "owner": "", "where": "glue"}
GOOD = {
    "port": [
        ("check", CHECK),
        ("check", GLUE),
        ("operations", OPERATIONS),
        ("trial", TRIAL),
        ("layer", BUILD),
        ("moved", MOVED),
    ],
    "reference": [("expected", EXPECTED), ("operations", OPERATIONS)],
}


def make(path, values, findings, more=(), **header):
    """A net of two layers, and `more` that are like the second one; returns its token."""
    values = {**values, **{(name, slot): values["act", slot] for name in more for slot in ("input.0", "output.0")}}
    with DumpWriter(path, {"framework": "torch", "model": "Net", "forced": True, "amp": None, **header}) as writer:
        for name, children in (("", True), ("norm", False), ("act", False), *((name, False) for name in more)):
            kind = {"": "Net", "norm": "LayerNorm"}.get(name, "GELU")
            writer.layer(
                Layer(name, kind, LayerSpec(kind, {"eps": 1e-5} if kind == "LayerNorm" else {}), children, False)
            )
        order = 0
        for layer in ("norm", "act", *more):
            for slot in ("input.0", "output.0"):
                order += 1
                writer.write(Record(Key(0, Phase.FORWARD, layer, 0, slot), order, "float32", values[layer, slot]))
            structure = {"args": [{"tensor": "input.0"}]}
            writer.call(Call(0, Phase.FORWARD, layer, 0, order - 1, order, structure, {"tensor": "output.0"}))
        writer.call(Call(0, Phase.FORWARD, "", 0, 0, order + 1, {"args": []}, {"none": True}))
        for kind, facts in findings:
            writer.finding(kind, facts)
    with open_dump(path) as dump:
        return dump.token


def spoiled(findings):
    """Each fact of each finding left out or replaced by odd values in turn, two levels deep: what and the findings."""
    turn = itertools.cycle(ODD)
    for number, (kind, facts) in enumerate(findings):
        for name in [*facts, "new"]:
            inner = facts.get(name)
            places = [*inner] if isinstance(inner, dict) else [*range(len(inner))] if isinstance(inner, list) else []
            for place in [None, *places]:
                for value in (KeyError, *itertools.islice(turn, 3)):
                    yield f"{kind}.{name}", _replaced(findings, number, name, place, value)


def _replaced(findings, number, name, place, value):
    made = copy.deepcopy(findings)
    target, key = (made[number][1], name) if place is None else (made[number][1][name], place)
    if value is KeyError:
        target.pop(key, None) if isinstance(target, dict) else target.pop(key)
    else:
        target[key] = value
    return made


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    ours = {
        (layer, slot): rng.normal(size=(3, 4)).astype("<f4")
        for layer in ("norm", "act")
        for slot in ("input.0", "output.0")
    }
    theirs = {place: array + np.float32(0.5 if place[0] == "act" else 0.0) for place, array in ours.items()}
    return ours, theirs


def run(arguments, capsys):
    code = main(arguments)
    told = capsys.readouterr()
    assert code in (0, 1, 3), f"exit code {code}\n{told.err}"
    assert "Please report this" not in told.out, told.out
    assert code != 3 or not told.out or told.out.startswith("INCOMPARABLE")
    return code


def test_the_good_findings_are_used(tmp_path, values, capsys):
    token = make(tmp_path / "ref.h5", values[0], GOOD["reference"])
    make(tmp_path / "port.h5", values[1], GOOD["port"], reference_token=token, precision="float16")
    assert run(["compare", str(tmp_path / "ref.h5"), str(tmp_path / "port.h5")], capsys) == 1


@pytest.mark.parametrize("side", ["reference", "port"])
def test_findings_of_any_form_end_in_an_answer_or_a_refusal(tmp_path, values, capsys, side):
    reference, port = str(tmp_path / "ref.h5"), str(tmp_path / "port.h5")
    token = make(reference, values[0], GOOD["reference"])
    make(port, values[1], GOOD["port"], reference_token=token)
    refused = set()
    for number, (where, findings) in enumerate(spoiled(GOOD[side])):
        if side == "reference":
            (tmp_path / "ref.h5").unlink()
            (tmp_path / "port.h5").unlink()
            token = make(reference, values[0], findings)
            make(port, values[1], GOOD["port"], reference_token=token)
        else:
            (tmp_path / "port.h5").unlink()
            make(port, values[1], findings, reference_token=token)
        repro = ["--repro", str(tmp_path / f"repro{number}")] if where.startswith("layer") else []
        code = run(["compare", reference, port, *repro], capsys)
        refused |= {where} if code == 3 else set()
        if where == "check.deviation":
            run(["compare", "--json", reference, port], capsys)
            run(["show", reference, "act", "--against", port], capsys)
    assert refused


@pytest.mark.parametrize(
    "name",
    [
        *("precision", "amp", "forced", "reference_token", "selected", "timing", "mapping", "steps"),
        *("lineage", "reference", "inputs", "target", "imported", "created"),
    ],
)
def test_a_header_of_any_form(tmp_path, values, capsys, name):
    reference, port = str(tmp_path / "ref.h5"), str(tmp_path / "port.h5")
    token = make(reference, values[0], GOOD["reference"])
    for value in ODD:
        (tmp_path / "port.h5").unlink(missing_ok=True)
        with suppress(DumpError):  # what reads the dump may refuse it: then the commands say so
            make(port, values[1], GOOD["port"], **{"reference_token": token, name: value})
        assert (tmp_path / "port.h5").exists()
        run(["compare", reference, port], capsys)
        run(["show", port], capsys)

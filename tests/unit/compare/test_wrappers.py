"""Layers whose counterpart is a wrapper, and parameters that other layers hold on the other side."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.comparison import compare
from tests.unit.compare.memory_dump import Recorder
from tests.unit.compare.nets import relu

W = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(4).standard_normal((8, 8)).astype(np.float32)


def origins(result):
    return [(o.layer, o.where, o.between) for o in result.origins]


def linear(rec, path, x, transposed=False, factor=1.0):
    rec.parameter(path, "Linear", "weight", W)
    return rec.call(path, "Linear", lambda v: (W.T @ v if transposed else v @ W) * np.float32(factor), x)


def reference():
    rec = Recorder("Net")
    rec.call("", "Net", lambda v: linear(rec, "head", linear(rec, "norm", v, transposed=True)), X)
    return rec.dump()


def port(factor=1.0, before=1.0, behind=1.0, activation=False):
    """The same layer inside a cell that transposes before and after; or a plain layer in one that adds a ReLU."""
    rec = Recorder("Net", mapping=[["norm", "wrapped.layer", 1.0], ["head", "head", 1.0]])

    def wrapper(v):
        return linear(rec, "wrapped.layer", v.T, factor=factor).T * np.float32(behind)

    def net(v):
        return linear(rec, "head", rec.call("wrapped", "Wrapper", wrapper, v * np.float32(before)))

    rec.call("", "Net", net, X)
    return rec.dump()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"factor": 1.1}, [("norm", "layer", None)]),
        ({"behind": 1.1}, [("norm", "layer", None)]),
        ({"before": 1.1}, [("", "glue", ("", "norm"))]),
    ],
)
def test_a_layer_is_set_against_the_wrapper_that_gets_its_inputs(change, expected):
    result = compare(reference(), port(**change))
    assert origins(result) == expected
    keys = [v.port.key for v in result.verdicts if v.port is not None]
    assert len(keys) == len(set(keys)) == 10
    if "before" not in change:
        assert (
            next(v for v in result.pairs if v.key.layer == "norm" and v.key.slot == "input.0").port.key.layer
            == "wrapped"
        )


def test_a_wrapper_that_adds_something_leaves_the_layer_inside_in_its_place():
    def net(wrapped):
        rec = Recorder("Net", mapping=[["fc", "cell.fc", 1.0]] if wrapped else [])

        def body(v):
            if not wrapped:
                return rec.call("act", "ReLU", relu, linear(rec, "fc", v))
            return rec.call("cell", "Cell", lambda u: relu(linear(rec, "cell.fc", u)), v)

        rec.call("", "Net", lambda v: body(v) * np.float32(2), X)
        return rec.dump()

    result = compare(net(False), net(True))
    assert result.aligned
    assert next(v for v in result.pairs if v.key.layer == "fc").port.key.layer == "cell.fc"


def test_of_two_borders_around_the_same_layers_the_one_with_the_parameter_is_the_pair():
    def net(nested):
        rec = Recorder(
            "Net", mapping=[] if nested else [["stage.block", "block", 1.0], ["stage.block.fc", "block.fc", 1.0]]
        )
        outer = "stage." if nested else ""

        def block(v):
            return rec.call(f"{outer}block", "Block", lambda u: linear(rec, f"{outer}block.fc", u) * W[0], v)

        rec.parameter(f"{outer}block", "Block", "scale", W[0])
        rec.call("", "Net", lambda v: rec.call("stage", "Stage", block, v) if nested else block(v), X)
        return rec.dump()

    result = compare(net(True), net(False))
    assert {("stage.block", "block")} == {(p.reference, p.port) for p in result.layers if p.port == "block"}


def test_a_parameter_of_the_net_that_a_layer_holds_on_the_other_side_pairs_no_calls():
    token = np.arange(8, dtype=np.float32)

    def net(owner, prefix):
        mapping = [["", "parts.embed", 0.7], *([name, f"parts.{name}", 1.0] for name in ("embed.proj", "fc"))]
        rec = Recorder("Net", mapping=mapping if prefix else [])

        def body(v):
            fc = f"{prefix}fc"
            if not prefix:
                return linear(rec, fc, linear(rec, "embed.proj", v) + token)
            embed = rec.call("parts.embed", "Embed", lambda u: linear(rec, "parts.embed.proj", u) + token, v)
            return linear(rec, fc, embed)

        rec.parameter(owner, "Net" if owner == "" else "Embed", "token", token)
        rec.call("", "Net", body, X)
        return rec.dump()

    result = compare(net("", ""), net("parts.embed", "parts."))
    assert result.aligned
    paired = {(v.reference.key.layer, v.port.key.layer) for v in result.pairs if v.key.slot == "token"}
    assert paired == {("", "parts.embed")}
    assert any(v.key.layer == "" and v.key.slot == "output.0" for v in result.pairs)

"""The cast map: which layers are in it, and which of them stand out."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.casts import cast_map
from aligner.compare.layers import pair_layers
from aligner.compare.net import survey
from aligner.errors import DumpError
from aligner.findings import CAST
from tests.unit.compare.memory_dump import MemoryDump, Recorder

KINDS = {"conv": "Conv2d", "bn": "BatchNorm", "act": "ReLU", "fc": "Linear", "sm": "Softmax"}


def dump(amp=None, made=None, **told):
    """A chain of layers; `made` has the dtypes of outputs that are not float32, `told` what is found out by layer."""
    net = Recorder("Net")

    def run(y):
        for path, kind in KINDS.items():
            dtype = (made or {}).get(path, "float32")
            y = net.call(path, kind, lambda v, dtype=dtype: (v * 1.5).astype(dtype), y)
        return y

    net.call("", "Net", run, np.ones((2, 4), np.float32))
    found = MemoryDump(net)
    found.header["amp"] = amp
    for layer, dtype in told.items():
        rows = dtype if isinstance(dtype, dict) else {dtype: ["mul"]}
        found.findings.append((CAST, {"layer": layer, "dtype": next(iter(rows)), "by": "to_float", "operations": rows}))
    return found


def mapped(reference, port):
    nets = survey(reference), survey(port)
    found = cast_map(reference, port, nets, pair_layers(*nets, {}, None))
    return {c.layer + c.part: (c.reference.dtype, c.port.dtype, c.exception) for c in found}


ALL_SHORT = dict.fromkeys(KINDS, "float16")
O2 = {**ALL_SHORT, "bn": "float32"}


def test_nothing_is_shown_of_nets_in_float32():
    assert mapped(dump(), dump()) == {}


def test_a_level_that_does_as_it_does_has_no_exception_but_what_is_careful():
    found = mapped(dump(), dump("O2", **O2))
    assert {layer: row[2] for layer, row in found.items()} == dict.fromkeys(KINDS, "") | {"sm": "careful"}
    assert found["bn"][:2] == ("float32", "float32")


def test_a_norm_forced_to_float16_stands_out():
    assert mapped(dump(), dump("O2", **ALL_SHORT))["bn"] == ("float32", "float16", "careful")


def test_a_layer_left_in_float32_stands_out():
    assert mapped(dump(), dump("O2", **{**O2, "fc": "float32"}))["fc"] == ("float32", "float32", "left")
    assert mapped(dump(), dump("to_float", **{**ALL_SHORT, "fc": "float32"}))["conv"] == ("float32", "float16", "other")


def test_a_layer_cast_alone_stands_out():
    assert mapped(dump(), dump("to_float", fc="float16")) == {"fc": ("float32", "float16", "other")}


def test_what_both_sides_compute_in_float16_is_no_exception():
    found = mapped(dump(**ALL_SHORT), dump("O3", **ALL_SHORT))
    assert set(found.values()) == {("float16", "float16", "")}


def test_a_norm_that_the_reference_alone_lowers_stands_out():
    assert mapped(dump(**ALL_SHORT), dump("O2", **O2))["bn"] == ("float16", "float32", "careful")


def test_nothing_of_a_port_without_casts_stands_out():
    found = mapped(dump(**ALL_SHORT), dump())
    assert found == dict.fromkeys(KINDS, ("float16", "float32", ""))


def test_a_layer_that_nothing_is_told_of_computes_in_what_it_makes():
    assert mapped(dump(), dump(made={"fc": "float16"}))["fc"] == ("float32", "float16", "other")


def test_what_is_told_counts_more_than_what_is_made():
    """A cast behind the norm, inside it: its output is short, its computation is not."""
    port = dump("O2", made=dict.fromkeys(KINDS, "float16"), **O2)
    assert mapped(dump(), port)["bn"][:2] == ("float32", "float32")


def test_a_softmax_in_a_layers_own_code_is_told_by_itself():
    short = {"float16": ["matmul", "softmax"]}
    long = {"float16": ["matmul"], "float32": ["softmax"]}
    assert mapped(dump(), dump("O2", fc=short))["fcsoftmax"] == ("float32", "float16", "careful")
    assert mapped(dump(fc=long), dump("O2", fc=short))["fcsoftmax"] == ("float32", "float16", "careful")
    assert "fcsoftmax" not in mapped(dump(), dump("auto", fc=long))


@pytest.mark.parametrize("facts", [{}, {"layer": "fc"}, {"layer": "fc", "dtype": 1, "by": "", "operations": [1]}])
def test_damaged_facts_are_refused(facts):
    port = dump()
    port.findings.append((CAST, facts))
    with pytest.raises(DumpError, match="computes in is damaged"):
        mapped(dump(), port)

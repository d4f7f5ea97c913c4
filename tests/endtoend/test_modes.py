"""Samples in the ways MindSpore runs besides eagerly in float32; `benchmarks/modes.py` runs all of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the samples' references are PyTorch nets")
pytest.importorskip("mindspore", reason="the samples' ports are MindSpore nets")

ROOT = Path(__file__).resolve().parents[2]
WAYS = [
    ("graph", "O0", "conv_same", "port_no_dilation.py"),
    ("graph", "O2", "lenet_bn", "port.py"),
    ("graph", "O2", "lenet_bn", "port_bn_eps.py"),
    ("graph", "O2", "transformer", "port_gelu_tanh.py"),
    ("graph", "O3", "conv_valid", "port.py"),
    ("graph", "auto", "two_inputs", "port_std.py"),
    ("graph", "to_float", "lstm", "port.py"),
    ("jit", "O0", "lstm", "port_batch_first.py"),
    ("jit", "O2", "conv_valid", "port_flatten.py"),
    ("jit", "O3", "lenet_bn", "port_relu_first.py"),
    ("pynative", "O1", "lenet_bn", "port.py"),
    ("pynative", "O2", "unet", "port.py"),
    ("pynative", "O3", "transformer", "port_no_scale.py"),
    ("pynative", "auto", "renamed", "port.py"),
    ("pynative", "to_float", "conv_same", "port.py"),
]


@pytest.fixture(scope="module")
def modes():
    spec = importlib.util.spec_from_file_location("benchmark_of_modes", ROOT / "benchmarks" / "modes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("modes")


@pytest.mark.parametrize(("mode", "level", "sample", "port"), WAYS, ids=["-".join(way) for way in WAYS])
def test_a_sample_is_answered_as_in_float32(modes, work, mode, level, sample, port):
    expected = json.loads((ROOT / "samples" / sample / "expected.json").read_text())[port]
    if level == "O1":  # it cannot rewrite a second file of one name in a process
        ((result,), _) = modes._apart(mode, level, f"{sample}/{port}")
    else:
        result = modes.ran(ROOT / "samples" / sample, port, expected, mode, level, work)
    wanted = modes.ALIGNED if expected["outcome"] == "aligned" and not expected.get("below_tolerance") else modes.FOUND
    assert result.word == wanted, result


@pytest.mark.parametrize(
    ("found", "word", "detail"),
    [
        ({"outcome": "diverged", "origins": [{"layer": "fc", "where": "layer"}], "suspects": []}, "found", ""),
        (
            {"outcome": "aligned", "origins": [], "suspects": [{"layer": "fc", "where": "layer"}]},
            "found",
            "below the tolerance",
        ),
        ({"outcome": "aligned", "origins": [], "suspects": []}, "WRONG", None),
        ({"outcome": "diverged", "origins": [{"layer": "fc", "where": "glue"}], "suspects": []}, "WRONG", None),
    ],
)
def test_a_planted_mistake_must_be_found_where_it_is(modes, found, word, detail):
    expected = {"outcome": "diverged", "origin": "fc", "where": "layer"}
    result = modes._judged("sample", "port_x.py", expected, found)
    assert (result.word, detail) == (word, detail if detail is None else result.detail)


def test_a_right_port_must_be_aligned(modes):
    found = {"outcome": "aligned", "origins": [], "suspects": [{"layer": "fc", "where": "layer"}]}
    assert modes._judged("sample", "port.py", {"outcome": "aligned"}, found).word == "WRONG"
    assert modes._judged("sample", "port.py", {"outcome": "aligned"}, {**found, "suspects": []}).word == "aligned"


WRONG_SHAPES = """
import mindspore as ms
from mindspore import nn

class Net(nn.Cell):
    def __init__(self, pad_mode):
        super().__init__()
        self.first = nn.Conv1d(4, 4, 3, pad_mode=pad_mode)
    def construct(self, x):
        return x + self.first(x)

def reference():
    return Net("same"), ms.ops.ones((2, 4, 6))

def port():
    ms.set_context(mode=ms.GRAPH_MODE)
    return Net("valid")
"""


def test_a_graph_of_wrong_shapes_is_answered_as_the_eager_net(modes, work):
    """MindSpore does not even compile it: what its layers make is seen in an eager run of the same net."""
    import mindspore

    factory, reference, dump = work / "wrong_shapes.py", work / "right.h5", work / "wrong.h5"
    factory.write_text(WRONG_SHAPES)
    before = mindspore.get_context("mode")
    try:
        assert modes.aligner("capture", "-q", f"{factory}:reference", "-o", reference)[0] == 0
        code, _, said = modes.aligner("capture", "-q", f"{factory}:port", "--from", reference, "-o", dump)
    finally:
        mindspore.set_context(mode=before)
    assert code
    assert "The net raised ValueError" in said
    found = json.loads(modes.aligner("compare", reference, dump, "--json")[1])
    assert [(each["layer"], each["where"]) for each in found["origins"]] == [("first", "layer")]

"""Pairing of layers and calls: by name, map and replay, and where the port was written another way."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

from aligner.compare.layer_map import read_map, resolved
from aligner.compare.layers import pair_layers
from aligner.compare.naming import all_names
from aligner.compare.net import survey
from aligner.compare.sequence import LEAST, Feature, align, likeness, rising
from aligner.errors import UsageError
from tests.chinese import english
from tests.unit.compare.memory_dump import Recorder
from tests.unit.compare.nets import Side, dump, relu, residual_net, sample


def pairs(reference, port, given=None, mapping=None):
    nets = survey(reference), survey(port)
    rules = read_map(given) if isinstance(given, dict) else given
    found = pair_layers(*nets, resolved(rules, *map(all_names, nets)) if rules else {}, mapping)
    return {p.reference: p.port for p in found.layers}, found


def other_names(path):
    """Another naming and another nesting: blocks.0.fc1 -> body.layer0.ffn.dense_in."""
    path = re.sub(r"blocks\.(\d+)\.(fc1|act|fc2)", r"body.layer\1.ffn.\2", path)
    path = re.sub(r"blocks\.(\d+)", r"body.layer\1", path)
    for old, new in (("fc1", "dense_in"), ("fc2", "dense_out"), ("act", "relu"), ("norm", "ln"), ("stem", "embed")):
        path = path.replace(old, new)
    return path.replace("head", "classifier")


def test_equal_names():
    found, pairing = pairs(dump(), dump())
    assert found["blocks.1.fc2"] == "blocks.1.fc2"
    assert {p.by for p in pairing.layers} == {"name"}
    assert not pairing.alone


def test_renamed_and_nested_again():
    found, pairing = pairs(dump(), dump(rename=other_names))
    assert found == {path: other_names(path) for path in survey(dump()).paths}
    assert all(p.by == "structure" and 0 < p.confidence < 1 for p in pairing.layers if p.reference)


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_block_is_missing(skip):
    """Numbers are names here: the other blocks keep theirs."""
    found, _ = pairs(dump(), dump(skip=skip))
    assert {f"blocks.{i}.fc1" in found for i in range(3) if i != skip} == {True}
    assert f"blocks.{skip}.fc1" not in found
    assert f"blocks.{skip}" not in found


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_layer_is_missing_in_a_numbered_row(skip):
    """In a Sequential, all numbers behind the missing layer shift: kinds and weights tell."""

    def numbered(leave_out):
        side = Side()

        def net(v):
            position = 0
            for i in range(3):
                v = side.net.call(f"seq.{position}", "Linear", lambda u, i=i: u @ weights[i], v)
                position += 1
                if i != leave_out:
                    v = side.net.call(f"seq.{position}", "ReLU", relu, v)
                    position += 1
            return v

        rng = np.random.default_rng(0)
        weights = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(3)]
        position = 0
        for i in range(3):
            side.net.parameter(f"seq.{position}", "Linear", "weight", weights[i])
            position += 1 if i == leave_out else 2
        side.net.call("", "Net", net, sample())
        return side.net.dump()

    found, _ = pairs(numbered(None), numbered(skip))
    wanted, position = {"": ""}, 0
    for i in range(3):
        wanted[f"seq.{2 * i}"] = f"seq.{position}"
        position += 1
        if i != skip:
            wanted[f"seq.{2 * i + 1}"] = f"seq.{position}"
            position += 1
    assert found == wanted


def test_an_activation_written_as_a_function():
    found, _ = pairs(dump(), dump(rename=lambda path: None if path.endswith("act") else other_names(path)))
    assert not [path for path in found if path.endswith("act")]
    assert found["blocks.2.fc2"] == "body.layer2.ffn.dense_out"


def test_more_levels():
    found, _ = pairs(dump(), dump(wrapper="stages", rename=lambda p: p.replace("blocks.", "inner.")))
    assert found["blocks.1.fc1"] == "inner.1.fc1"
    assert found["blocks.1"] in ("inner.1", "stages.1")


def test_the_whole_net_one_level_down():
    found, _ = pairs(dump(), dump(rename=lambda path: f"net.{path}" if path else "net"))
    assert found["blocks.1.fc1"] == "net.blocks.1.fc1"
    assert found[""] == "net"


def test_wrapper_parts_are_no_names():
    found, pairing = pairs(dump(), dump(rename=lambda path: f"module.{path}" if path else ""))
    assert found["stem"] == "module.stem"
    assert {p.by for p in pairing.layers} == {"name"}


def test_one_reused_activation_against_several():
    """torch's `self.relu` called three times, three cells in the port."""

    def shared(path):
        return "relu" if path.endswith("act") else path

    _, pairing = pairs(dump(rename=shared), dump(rename=lambda path: path.replace(".act", ".own_act")))
    calls = {one: other for one, other in pairing.calls.items() if one.layer == "relu"}
    assert [calls["relu", i].layer for i in range(3)] == [f"blocks.{i}.own_act" for i in range(3)]


def test_a_reused_activation_called_less_often():
    """The port writes the first use as a function: its only call is the reference's second."""

    def net(first_as_function):
        side = Side()

        def body(v):
            v = side.linear("a", v, 20)
            v = relu(v) if first_as_function else side.net.call("relu", "ReLU", relu, v)
            v = side.linear("b", v, 20)
            v = side.net.call("relu", "ReLU", relu, v)
            return side.linear("c", v, 4)

        side.net.call("", "Net", body, sample())
        return side.net.dump()

    _, pairing = pairs(net(False), net(True))
    assert {k: v for k, v in pairing.calls.items() if k.layer == "relu"} == {("relu", 1): ("relu", 0)}


def test_another_activation_under_the_same_name_is_a_pair():
    found, _ = pairs(dump(), dump(kinds={"blocks.1.act": "GELU"}))
    assert found["blocks.1.act"] == "blocks.1.act"


def test_one_piece_against_many():
    """An LSTM that is one layer in the reference, and a layer with cells inside in the port."""

    def net(cells, name):
        rec = Recorder("Net")

        def lstm(v):
            for i in range(2 if cells else 0):
                rec.call(f"{name}.cell{i}", "LSTMLoop", np.tanh, v)
            return np.tanh(v)

        rec.call(
            "", "Net", lambda v: rec.call("fc", "Linear", lambda u: u * 2, rec.call(name, "LSTM", lstm, v)), sample()
        )
        return rec.dump()

    assert pairs(net(False, "lstm"), net(True, "rnn"))[0]["lstm"] == "rnn"


def test_map_overrules_names(tmp_path):
    file = tmp_path / "map.txt"
    file.write_text("# swapped\nblocks.0 = blocks.1\nblocks.1=blocks.0  # both\n")
    found, pairing = pairs(dump(), dump(), read_map(file))
    assert found["blocks.0.fc1"] == "blocks.1.fc1"
    assert found["blocks.1"] == "blocks.0"
    assert found["blocks.2.fc1"] == "blocks.2.fc1"
    assert {p.by for p in pairing.layers if p.reference.startswith("blocks.0")} == {"map"}


@pytest.mark.parametrize("content", [{"a": "b"}, [["a", "b"]]])
def test_map_as_json(tmp_path, content):
    file = tmp_path / "map.json"
    file.write_text(json.dumps(content))
    assert [(rule.reference, rule.port) for rule in read_map(file)] == [("a", "b")]


@pytest.mark.parametrize("text", ["a b", '{"a": 3}', "[1, 2]", '{"a"', "[" * 100_000, '{"a": {"b": 1}}', "[[[1], 2]]"])
def test_map_that_cannot_be_read(tmp_path, text):
    file = tmp_path / "map"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_map(file)
    told = caught.value.text("zh").replace(str(file), "").replace('{"encoder.0": "layers.0"}', "")
    assert english(told) == []


def test_map_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="none"):
        read_map(tmp_path / "none")


def test_map_with_an_unknown_name_lists_close_ones():
    with pytest.raises(UsageError, match=r"blocks\.1\.fc1"):
        pairs(dump(), dump(), read_map({"blocks.1.fcl": "stem"}))
    with pytest.raises(UsageError, match=r"port.*\bstem"):
        pairs(dump(), dump(), {"stem": "stam"})


NAMES = ["a.0.x.weight", "a.1.x.weight", "a.1.y.bias", "b"], ["c.0.z.weight", "c.1.z.weight", "c.1.y.bias", "d", "e.5"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"a.*": "c.*"}, {"a.0": "c.0", "a.1": "c.1"}),
        ({"a.*.x": "c.*.z"}, {"a.0.x": "c.0.z", "a.1.x": "c.1.z"}),
        ({"a.*.*": "c.*.*"}, {"a.1.y": "c.1.y"}),
        ({"a.*": "c.*", "a.1": "e.5"}, {"a.0": "c.0", "a.1": "e.5"}),
        ({"a.1": "e.5", "a.*": "c.*"}, {"a.0": "c.0", "a.1": "e.5"}),
        ({"*": "*"}, None),
        ({"b.weight": "d.weight"}, None),
        ({"(net)": ".", "b": "d"}, {"": "", "b": "d"}),
    ],
)
def test_a_star_is_one_part_of_a_name(given, meant):
    """What names more counts, wherever it stands; pairs that the port does not have are left to the other rules."""
    if meant is None:
        with pytest.raises(UsageError):
            resolved(read_map(given), *NAMES)
    else:
        assert dict(resolved(read_map(given), *NAMES)) == meant


def test_replay_mapping_goes_before_names():
    mapping = [["blocks.0.fc1", "blocks.1.fc1", 0.7], ["gone", "stem", 1.0], ["stem", "stem", 1.0], "junk"]
    found, pairing = pairs(dump(), dump(), mapping=mapping)
    assert found["blocks.0.fc1"] == "blocks.1.fc1"
    by = {p.reference: (p.by, p.confidence) for p in pairing.layers}
    assert by["blocks.0.fc1"] == ("replay", 0.7)
    assert by["stem"] == ("name", 1.0)


def test_layers_that_never_run_but_own_parameters():
    def net(name):
        rec = Recorder("Net")
        rec.parameter(f"{name}.out_proj", "Linear", "weight", np.ones((4, 4), np.float32))
        rec.call("", "Net", lambda v: rec.call(name, "MultiheadAttention", lambda u: u * 2, v), sample())
        return rec.dump()

    assert pairs(net("attn"), net("self_attention"))[0]["attn.out_proj"] == "self_attention.out_proj"


def feature(kind, out, name=""):
    return Feature(kind, kind, (out,), (out,), (), (name, ""))


def test_align_leaves_gaps_where_they_are():
    one = [feature("A", 1), feature("B", 2), feature("C", 3), feature("A", 1)]
    other = [feature("A", 1), feature("C", 3), feature("D", 9), feature("A", 1)]
    assert [(i, j) for i, j, _ in align(one, other)] == [(0, 0), (2, 1), (3, 3)]


def best_sum(scores, rows, columns, i=0, j=0):
    """By trying everything."""
    if i == rows or j == columns:
        return 0.0
    value = max(best_sum(scores, rows, columns, i + 1, j), best_sum(scores, rows, columns, i, j + 1))
    if scores[i, j] >= LEAST:
        value = max(value, best_sum(scores, rows, columns, i + 1, j + 1) + scores[i, j])
    return value


@pytest.mark.parametrize("seed", range(40))
def test_align_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    one, other = (
        [feature("AB"[rng.integers(2)], int(rng.integers(3)), "xyz"[rng.integers(3)]) for _ in range(count)]
        for count in rng.integers(0, 7, 2)
    )
    scorer = likeness(one, other)
    scores = {
        (i, j): float(scorer(np.array([i]), np.array([j]))[0]) for i in range(len(one)) for j in range(len(other))
    }
    found = align(one, other)
    assert sum(score for *_, score in found) == pytest.approx(best_sum(scores, len(one), len(other)), abs=1e-4)
    assert all(scores[i, j] >= LEAST for i, j, _ in found)
    assert [i for i, *_ in found] == sorted({i for i, *_ in found})
    assert [j for _, j, _ in found] == sorted({j for _, j, _ in found})


def test_rising():
    assert rising([3, 1, 2, 0, 5]) == [1, 2, 4]
    assert rising([]) == []


def test_two_thousand_layers_without_a_common_name_take_seconds():
    def long(rename):
        side = Side(rename=rename)
        return residual_net(side, blocks=500, x=sample(2, 8)).dump()

    one, other = long(None), long(other_names)
    start = time.process_time()
    found, _ = pairs(one, other)
    assert time.process_time() - start < 10
    assert found == {path: other_names(path) for path in survey(one).paths}


def test_of_two_activations_the_one_behind_the_same_layer_is_meant():
    """The port runs the gate before the second pair of layers: either activation would stand before it."""

    def ordered(names, order):
        side = Side(rename=lambda path: names.get(path, path))

        def body(v):
            for part in order:
                v = side.linear(f"{part}.0", v, 16)
                v = v if part == "gate" else side.act(f"{part}.1", v)
            return v

        side.block("", lambda x: side.block("body", body, x), sample(), kind="Net")
        return side.net.dump()

    parts = ("wide", "deep", "gate")
    names = {f"{part}.{n}": f"stage{i}.{n}" for i, part in enumerate(parts) for n in range(2)}
    weights = {f"{part}.0": names[f"{part}.0"] for part in parts}
    found, _ = pairs(ordered({}, parts), ordered(names, ("wide", "gate", "deep")), weights)
    assert found["wide.1"] == "stage0.1"
    assert found.get("deep.1") in (None, "stage1.1")

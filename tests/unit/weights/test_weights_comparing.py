"""Weights against weights: which pair, by which rule, and what a wrong one looks like."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from aligner import cli
from aligner.weights.comparing import compare
from tests.unit.weights import written
from tests.unit.weights.written import Array

SHAPES = {
    "conv.weight": (8, 3, 3, 3),
    "conv.bias": (8,),
    "bn.weight": (8,),
    "bn.bias": (8,),
    "bn.running_mean": (8,),
    "bn.running_var": (8,),
    "embed.weight": (20, 16),
    "kernel.weight": (8, 3, 5),
    "fc.weight": (16, 16),
    "fc.bias": (16,),
    "out.weight": (10, 16),
    "out.bias": (10,),
}
OTHER = {
    "bn.weight": "bn.gamma",
    "bn.bias": "bn.beta",
    "bn.running_mean": "bn.moving_mean",
    "bn.running_var": "bn.moving_variance",
    "embed.weight": "embed.embedding_table",
}


def reference():
    draw = np.random.default_rng(1)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def port(**changes):
    """The same in MindSpore's words, with some tensors as they were changed."""
    table = {**reference(), **{name.replace("__", "."): value for name, value in changes.items()}}
    table["kernel.weight"] = table["kernel.weight"].reshape(8, 3, 1, 5)
    return {OTHER.get(name, name): value for name, value in table.items()}


@pytest.fixture
def run(tmp_path, capsys):
    def compared(ours, theirs, *options, endings=(".pth", ".ckpt"), language="en"):
        paths = [
            written.write(tmp_path / f"{name}{ending}", table)
            for name, table, ending in zip(("ref", "port"), (ours, theirs), endings)
        ]
        code = cli.main(["compare", *paths, "-q", "--lang", language, *options])
        streams = capsys.readouterr()
        assert streams.err == "" or code > 1
        return code, streams.out or streams.err

    return compared


@pytest.mark.parametrize("endings", [(".pth", ".ckpt"), (".ckpt", ".safetensors"), (".safetensors", ".pth")])
def test_a_converted_checkpoint_is_equal(run, endings):
    ours = {**reference(), "bn.num_batches_tracked": Array(3, "int64")}
    code, text = run(ours, port(), endings=endings)
    assert code == 0
    assert text.startswith("EQUAL  all 12 tensors have the same values")
    assert "7 by one name, 5 by the rules of names" in text
    assert "num_batches_tracked (1)" in text


WRONG = {
    "square": ("fc.weight", lambda w: w.T, "fc.weight is transposed; it is square"),
    "turned": (
        "out.weight",
        lambda w: w.T,
        "out.weight is the reference's out.weight with its axes in the order (1, 0)",
    ),
    "kernel": ("conv.weight", lambda w: w.transpose(0, 1, 3, 2), "The kernel conv.weight is turned"),
    "permuted": ("conv.weight", lambda w: w.transpose(1, 0, 2, 3), "axes in the order (1, 0, 2, 3)"),
    "factor": ("fc.weight", lambda w: w * np.float32(2.5), "fc.weight is 2.5 times the reference's fc.weight"),
    "sign": ("fc.bias", lambda w: -w, "fc.bias is -1 times the reference's fc.bias"),
    "fresh": ("bn.weight", np.ones_like, "bn.gamma was not loaded"),
    "other": ("fc.weight", lambda w: w[::-1].T @ w, "has other values"),
    "flat": (
        "kernel.weight",
        lambda w: w * np.float32(2.5),
        "kernel.weight is 2.5 times the",
    ),
}


@pytest.mark.parametrize(("name", "change", "told"), WRONG.values(), ids=WRONG)
def test_one_that_is_wrong_is_named_and_told(run, name, change, told):
    wrong = change(reference()[name])
    if name == "kernel.weight":
        wrong = wrong.reshape(SHAPES[name])
    code, text = run(reference(), port(**{name.replace(".", "__"): np.ascontiguousarray(wrong)}))
    assert code == 1
    assert text.startswith(f"DIFFERENT  1 of 12 tensors differ, the first: {OTHER.get(name, name)}")
    assert told in re.sub(r"\s+", " ", text)


def test_two_that_are_swapped_are_told(run):
    ours = {**reference(), "fc2.weight": np.random.default_rng(9).normal(size=(16, 16)).astype(np.float32)}
    theirs = {**port(), "fc.weight": ours["fc2.weight"], "fc2.weight": ours["fc.weight"]}
    code, text = run(ours, theirs)
    assert code == 1
    assert "fc.weight holds the reference's fc2.weight, not its own" in re.sub(r"\s+", " ", text)
    assert "fc2.weight holds the reference's fc.weight, not its own" in re.sub(r"\s+", " ", text)
    within = {**port(), "bn.gamma": reference()["bn.bias"], "bn.beta": reference()["bn.weight"]}
    assert "bn.gamma holds the reference's bn.bias" in re.sub(r"\s+", " ", run(reference(), within)[1])


@pytest.mark.parametrize("word", ["float16", "bfloat16"])
def test_rounding_is_told_as_that(run, word):
    short = {name: Array(value, word) for name, value in port().items()}
    code, text = run(reference(), short)
    assert code == 0
    assert f"12 of them but for rounding to {word}" in re.sub(r"\s+", " ", text)
    back = {name: Array(written.decode(one.bits, word)) for name, one in short.items()}
    assert f"rounding to {word}" in re.sub(r"\s+", " ", run(reference(), back)[1])
    assert run(back, short)[1].startswith("EQUAL  all 12 tensors have the same values on both sides\n")
    off = dict(short, **{"fc.bias": Array(reference()["fc.bias"] * 1.02, word)})
    code, text = run(reference(), off)
    assert (code, "1 of 12 tensors differ, the first: fc.bias" in text) == (1, True)


def test_a_tolerance_allows_what_it_says(run):
    near = {name: (value * np.float32(1.00001)).astype(np.float32) for name, value in port().items()}
    assert run(reference(), near)[0] == 1
    code, text = run(reference(), near, "--tolerance", "1e-4")
    assert (code, "12 of them within 1e-04" in re.sub(r"\s+", " ", text)) == (0, True)


def test_not_a_number_is_a_difference_on_one_side_only(run):
    broken = reference()["fc.bias"].copy()
    broken[3] = np.nan
    code, text = run(reference(), port(fc__bias=broken))
    assert (code, "one side only at 1 places" in re.sub(r"\s+", " ", text)) == (1, True)
    assert run({**reference(), "fc.bias": broken}, port(fc__bias=broken))[0] == 0


@pytest.mark.parametrize(
    ("one", "other"), [("", "backbone."), ("module.", ""), ("model.", "net.encoder."), ("_orig_mod.", ""), ("a.b.", "")]
)
def test_prefixes_are_no_names(run, one, other):
    ours = {one + name: value for name, value in reference().items()}
    code, text = run(ours, {other + name: value for name, value in port().items()})
    assert (code, text[:5]) == (0, "EQUAL")
    table = json.loads(run(ours, {other + name: value for name, value in port().items()}, "--json")[1])
    assert "values" not in table["paired"]


def other_names():
    words = {"conv": "stem", "bn": "stem_norm", "embed": "table", "kernel": "wave", "fc": "hidden", "out": "head"}
    return {name.replace(name.split(".")[0], words[name.split(".")[0]], 1): value for name, value in port().items()}


@pytest.mark.parametrize("endings", [(".pth", ".ckpt"), (".pth", ".safetensors")])
def test_other_names_are_found_by_values_and_order(run, endings):
    code, text = run(reference(), other_names(), "--json", endings=endings)
    found = json.loads(text)
    assert (code, found["outcome"]) == (0, "equal")
    pairs = {each["reference"]["name"]: each["port"]["name"] for each in found["pairs"]}
    assert pairs["bn.running_var"] == "stem_norm.moving_variance"
    assert set(found["paired"]) <= {"order", "values"}


def test_a_wrong_one_among_other_names_is_found_by_order(run):
    theirs = other_names()
    theirs["hidden.weight"] = theirs["hidden.weight"].T.copy()
    code, text = run(reference(), theirs)
    assert code == 1
    assert "1 of 12 tensors differ, the first: hidden.weight" in text


def test_what_is_left_over_counts_and_may_be_allowed(run):
    ours = {**reference(), "extra.weight": np.ones((3, 9), np.float32), "extra.index": Array([1, 2], "int64")}
    code, text = run(ours, port())
    assert code == 1
    assert text.startswith("UNMATCHED  all 12 tensors")
    assert "extra.index  [2] int64  (needs none)" in text
    assert run(ours, port(), "--allow-unmatched", "extra")[0] == 0
    assert run({"a": np.ones((2, 3), np.float32)}, {"b": np.zeros((9, 9), np.float32)})[0] == 3


def test_a_map_overrules_names(run, tmp_path):
    draw = np.random.default_rng(5)
    ours = {f"{name}.weight": draw.normal(size=(6, 6)).astype(np.float32) for name in "abc"}
    theirs = {"x.weight": ours["b.weight"], "y.weight": ours["a.weight"] * 3, "z.weight": ours["c.weight"]}
    (tmp_path / "map.txt").write_text("a = y\n")
    table = json.loads(run(ours, theirs, "--map", str(tmp_path / "map.txt"), "--json")[1])
    pairs = {each["reference"]["name"]: (each["port"]["name"], each["by"]) for each in table["pairs"]}
    assert pairs["a.weight"] == ("y.weight", "map")


def test_options_of_dumps_are_refused(run):
    code, text = run(reference(), port(), "--repro", "folder")
    assert (code, "--repro is for two dumps" in text) == (2, True)


def test_the_answer_is_chinese_where_that_is_asked_for(run):
    code, text = run(reference(), port(fc__weight=reference()["fc.weight"].T.copy()), language="zh")
    assert code == 1
    assert text.startswith("不一致  12 个张量中有 1 个不同，首个为：fc.weight")
    assert "被转置" in text
    assert run(reference(), port(), language="zh")[1].startswith("一致  两侧全部 12 个张量的值相同")


def test_a_tied_tensor_needs_one_counterpart(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    table = torch.arange(12.0).reshape(4, 3)
    torch.save({"embed.weight": table, "head.weight": table}, tmp_path / "a.pth")
    path = written.write(tmp_path / "b.ckpt", {"embed.embedding_table": table.numpy()})
    assert cli.main(["compare", str(tmp_path / "a.pth"), path, "-q"]) == 0
    assert "head.weight  [4, 3] float32  (needs none)" in capsys.readouterr().out


def test_memory_does_not_grow_with_the_file(tmp_path):
    import tracemalloc

    table = {f"layer{n}.weight": np.full((512, 1024), n, np.float32) for n in range(24)}
    paths = [written.write(tmp_path / f"a{ending}", table) for ending in (".pth", ".ckpt")]
    del table
    tracemalloc.start()
    assert compare(*paths).outcome == "equal"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20, "one tensor has 2 MB, the files have 50"

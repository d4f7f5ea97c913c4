"""Values that two nets write, hand on or delimit differently although nothing is off by it."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.comparison import compare
from aligner.compare.verdict import Outcome
from tests.unit.compare.memory_dump import Recorder
from tests.unit.compare.nets import relu, sample

W = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32) / 4


def reasons(result):
    return {(v.key.layer, v.key.slot): v.reason for v in result.verdicts if v.outcome is Outcome.COVERED}


def origins(result):
    return [(o.layer, o.where, o.between) for o in result.origins]


def linear(rec, path, x, factor=1.0):
    rec.layer(path, "Linear")
    if not any(r.key.layer == path for r in rec.records):
        rec.parameter(path, "Linear", "weight", W)
    return rec.call(path, "Linear", lambda v: (v @ W * np.float32(factor)).astype(np.float32), x)


def stages(inside, factor=1.0, missing=False):
    """Two stages of a linear layer and a ReLU, which stands inside the stage or behind it."""
    rec = Recorder("Net")

    def stage(i):
        def body(v):
            y = linear(rec, f"stage{i}.fc", v, factor if i == 0 else 1.0)
            return relu(y) if inside else y

        return body

    def net(v):
        for i in range(2):
            v = rec.call(f"stage{i}", "Stage", stage(i), v)
            v = v if inside or (missing and i == 0) else relu(v)
        return linear(rec, "head", v)

    rec.call("", "Net", net, sample())
    return rec.dump()


def test_a_stage_that_ends_elsewhere_is_no_divergence():
    result = compare(stages(True), stages(False))
    assert result.aligned
    assert reasons(result) == {("stage0", "output.0"): "covered-border", ("stage1", "output.0"): "covered-border"}


def test_a_step_missing_behind_such_a_stage_is_one():
    result = compare(stages(True), stages(False, missing=True))
    assert result.exit_code == 1
    assert origins(result) == [("stage0", "glue", ("stage0.fc", ""))]


def test_a_wrong_layer_in_such_a_stage_is_the_origin():
    result = compare(stages(True), stages(False, factor=1.1))
    assert origins(result) == [("stage0.fc", "layer", None)]


def tailed(inside, factor=1.0, names="stage", lost=False):
    """A stage whose output code takes up before any layer gets it; a wrong layer further on."""
    rec = Recorder("Net")

    def stage(v):
        y = linear(rec, f"{names}.fc", v)
        return relu(y) if inside and not lost else y

    def net(v):
        v = rec.call(names, "Stage", stage, v)
        v = v if inside or lost else relu(v)
        return linear(rec, "last", np.tanh(linear(rec, "head", v[::-1] * np.float32(2), factor)))

    rec.call("", "Net", net, sample())
    return rec.dump()


def test_code_that_takes_up_a_value_shows_that_a_stage_ends_elsewhere():
    assert compare(tailed(True), tailed(False)).aligned
    assert origins(compare(tailed(True), tailed(False, 1.1, "part"))) == [("head", "layer", None)]
    assert origins(compare(tailed(True), tailed(True, lost=True))) == [("stage", "glue", ("stage.fc", ""))]


def test_a_wrong_layer_inside_is_not_excused_by_a_branch_that_agrees():
    def net(name, factor=1.0):
        rec = Recorder("Net")

        def body(v):
            one = rec.call(name, "Stage", lambda u: relu(linear(rec, f"{name}.fc", u, factor)), v)
            other = linear(rec, "branch", v * np.float32(3))
            return linear(rec, "join", one - other)

        rec.call("", "Net", body, sample())
        return rec.dump()

    assert origins(compare(net("stage"), net("part", 1.1))) == [("stage.fc", "layer", None)]


def test_what_comes_out_of_a_stage_with_a_wrong_layer_is_not_excused_by_what_becomes_of_it():
    def net(factor=1.0):
        rec = Recorder("Net")

        def body(v):
            y = rec.call("stage", "Stage", lambda u: linear(rec, "stage.fc", u, factor), v)
            return linear(rec, "head", v + y * np.float32(1e-3))

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = compare(net(), net(1.1))
    assert (
        next(v for v in result.verdicts if v.key.layer == "stage" and v.key.slot == "output.0").outcome
        is Outcome.INHERITED
    )


def attention(mask, factor=1.0, shape=None, inner=True):
    """A block that gets a mask as argument, and hands scores to a softmax that is a layer."""
    rec = Recorder("Net")

    def softmax(v):
        e = np.exp(v - v.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).astype(np.float32)

    def block(v, m):
        scores = linear(rec, "block.fc", v, factor)
        scores = scores + np.broadcast_to(m, (8, 16)) if m.dtype != np.bool_ else np.where(m, scores, -1e9)
        return rec.call("block.softmax", "Softmax", softmax, scores.astype(np.float32))

    def net(v):
        return linear(rec, "head", rec.call("block", "Block", block, v, mask if shape is None else mask.reshape(shape)))

    with np.errstate(all="ignore"):
        rec.call("", "Net", net, sample())
    return rec.dump()


HIDE = np.zeros((1, 16), np.float32)
HIDE[:, 11:] = 1


def test_numbers_that_hide_from_a_softmax_are_equal():
    low = np.where(HIDE == 1, np.float32(-np.inf), 0).astype(np.float32)
    result = compare(attention(low), attention(np.where(HIDE == 1, -1e9, 0).astype(np.float32), shape=(16,)))
    assert result.aligned
    assert set(reasons(result).values()) == {"covered-mask"}


def test_a_mask_that_hides_another_place_is_found_where_it_is_made():
    low = np.where(HIDE == 1, np.float32(-np.inf), 0).astype(np.float32)
    other = np.roll(np.where(HIDE == 1, -1e9, 0), 1, axis=1).astype(np.float32)
    assert origins(compare(attention(low), attention(other, shape=(16,)))) == [("", "glue", ("", "block"))]


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_an_argument_that_is_repeated_on_one_side_is_compared(factor):
    low = np.where(HIDE == 1, np.float32(-3), 0).astype(np.float32)
    result = compare(attention(np.repeat(low, 8, axis=0)), attention(low, factor))
    assert origins(result) == ([] if factor == 1.0 else [("block.fc", "layer", None)])
    assert result.counts["incomparable"] == 0


def test_an_argument_in_another_form_does_not_count_where_all_agrees():
    hidden = np.repeat(HIDE == 1, 8, axis=0)

    def net(mask, keep):
        rec = Recorder("Net")

        def block(v, m):
            return linear(rec, "block.fc", np.where(m == keep, v, 0).astype(np.float32))

        rec.call("", "Net", lambda v: linear(rec, "head", rec.call("block", "Block", block, v, mask)), sample())
        return rec.dump()

    result = compare(net(hidden, False), net(~hidden, True))
    assert result.aligned
    assert reasons(result) == {("block", "input.1"): "covered-argument"}
    assert origins(compare(net(hidden, False), net(~hidden, False))) == [("", "glue", ("", "block"))]


def test_axes_of_size_one_inside_a_net_do_not_matter():
    """BatchNorm1d on (N, C, L) is written as BatchNorm2d on (N, C, L, 1)."""

    def net(extra, outer=False):
        rec = Recorder("Net")

        def body(v):
            v = v[..., None] if extra else v
            v = rec.call("norm", "BatchNorm", lambda u: u * 2, v)
            v = v[..., 0] if extra else v
            v = linear(rec, "head", v)
            return v[..., None] if outer else v

        rec.call("", "Net", body, sample())
        return rec.dump()

    assert compare(net(False), net(True)).aligned
    result = compare(net(False), net(False, outer=True))
    assert (result.exit_code, result.first.outcome) == (1, Outcome.INCOMPARABLE)


@pytest.mark.parametrize("role", ["inv_freq", "running_mean"])
def test_a_constant_that_one_side_works_out_anew(role):
    def net(stored):
        rec = Recorder("Net", parameters=[["rotary", role, f"rotary.{role}", False, True]] if stored else [])

        def body(v):
            angle = rec.call("rotary", "Rotary", lambda u: np.cos(u), v) if stored else np.cos(v)
            return linear(rec, "head", angle)

        if stored:
            rec.parameter("rotary", "Rotary", role, np.arange(4, dtype=np.float32))
        rec.call("", "Net", body, sample())
        return rec.dump()

    result = compare(net(True), net(False))
    assert result.aligned == (role == "inv_freq")
    if result.aligned:
        assert reasons(result)["rotary", role] == "covered-constant"


def dense(joined, factor=1.0):
    """A layer that gets a list of features on one side, and all of them in one tensor on the other."""
    rec = Recorder("Net")

    def one(*features):
        wide = np.concatenate(features, -1)
        return linear(rec, "layer.fc", wide[:, :16] + wide[:, 16:])

    def net(v):
        a = linear(rec, "stem", v, factor)
        b = linear(rec, "side", a)
        y = (
            rec.call("layer", "Layer", one, np.concatenate((a, b), -1))
            if joined
            else rec.call("layer", "Layer", one, a, b)
        )
        return linear(rec, "head", y)

    rec.call("", "Net", net, sample())
    return rec.dump()


def test_a_layer_whose_inputs_stand_elsewhere_inherits_from_there():
    assert compare(dense(False), dense(True)).aligned
    assert origins(compare(dense(False), dense(True, 1.1))) == [("stem", "layer", None)]


def test_layers_that_hold_other_layers_are_no_pair():
    """Groups of one and two blocks: their outputs have the same shape, and are not the same values."""

    def net(first, names):
        rec = Recorder("Net")

        def group(numbers):
            def body(v):
                for i in numbers:
                    v = linear(rec, f"{names}{i < first}.{i}", v)
                return v

            return body

        def body(v):
            v = rec.call(f"{names}True", "Group", group(range(first)), v) * np.float32(2)
            scale = np.float32(0.5)
            return rec.call(f"{names}False", "Group", group(range(first, 4)), v * scale)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = compare(net(1, "stage"), net(3, "part"))
    assert {(p.reference, p.port) for p in result.layers} >= {
        ("stageTrue.0", "partTrue.0"),
        ("stageFalse.3", "partFalse.3"),
    }
    assert not any(p.reference in ("stageTrue", "stageFalse") for p in result.layers)
    assert result.aligned

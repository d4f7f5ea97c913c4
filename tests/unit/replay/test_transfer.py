"""Which parameter of the port gets which of the reference's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aligner.errors import ReplayError
from aligner.replay.items import Item, Slot, View
from aligner.replay.likeness import best_path
from aligner.replay.transfer import Transfer, _with_tables, plan


def layer(path, kind, required=True, **shapes):
    return [Item(Slot(path, role), shape, f"{path}.{role}", kind, required) for role, shape in shapes.items()]


def conv(path, ins=8, outs=8):
    return layer(path, "Conv2d", weight=(outs, ins, 3, 3))


def norm(path, n=8):
    return layer(path, "BatchNorm", weight=(n,), bias=(n,), running_mean=(n,), running_var=(n,))


def linear(path, ins=8, outs=8):
    return layer(path, "Linear", weight=(outs, ins), bias=(outs,))


def pairs(transfer):
    return {(a, b) for a, b, _ in transfer.layers}


def test_equal_names_match_by_name():
    net = conv("stem.conv") + norm("stem.bn") + linear("head")
    transfer = plan(net, list(net), {})
    assert {match.by for match in transfer.matches} == {"name"}
    assert not transfer.left_reference
    assert not transfer.left_port


def test_other_names_match_by_kind_shape_and_order():
    reference = conv("features.0", 3) + norm("features.1") + conv("features.3") + norm("features.4") + linear("fc")
    port = conv("stem.c", 3) + norm("stem.n") + conv("body.c") + norm("body.n") + linear("classifier.dense")
    transfer = plan(reference, port, {})
    assert pairs(transfer) == {
        ("features.0", "stem.c"),
        ("features.1", "stem.n"),
        ("features.3", "body.c"),
        ("features.4", "body.n"),
        ("fc", "classifier.dense"),
    }
    assert transfer.failing == ([], [])
    alone = next(m for m in transfer.matches if m.port.slot.layer == "stem.c")
    assert alone.confidence == 1.0, "a layer with a shape of its own cannot be meant otherwise"


def test_names_that_coincide_by_chance_do_not_win_over_order():
    """The port has one more level of numbering, so blocks.1 here is not blocks.1 there."""
    reference = [item for i in range(4) for item in linear(f"blocks.{i}")]
    port = [item for i in range(1, 5) for item in linear(f"blocks.{i}")]
    assert pairs(plan(reference, port, {})) == {(f"blocks.{i}", f"blocks.{i + 1}") for i in range(4)}


def test_a_rename_covers_everything_below_its_prefix():
    reference = linear("encoder.q") + linear("encoder.k")
    port = linear("blocks.k") + linear("blocks.q")
    transfer = plan(reference, port, {"encoder": "blocks"})
    assert pairs(transfer) == {("encoder.q", "blocks.q"), ("encoder.k", "blocks.k")}
    assert {match.by for match in transfer.matches} == {"rename"}


def test_the_longer_rename_wins():
    reference = linear("a.q") + linear("a.k")
    port = linear("b.k") + linear("b.q")
    transfer = plan(reference, port, {"a": "b", "a.q": "b.k", "a.k": "b.q"})
    assert pairs(transfer) == {("a.q", "b.k"), ("a.k", "b.q")}


@pytest.mark.parametrize(("renames", "side"), [({"nix": "b"}, "reference"), ({"a": "nix"}, "port")])
def test_a_rename_of_nothing_is_refused(renames, side):
    with pytest.raises(ReplayError, match=f"the {side} has no layer or parameter 'nix'"):
        plan(linear("a"), linear("b"), renames)


def test_what_fits_nowhere_is_left_over_and_fails():
    reference = conv("c") + layer("c", "Conv2d", bias=(8,))
    transfer = plan(reference, conv("c"), {})
    ours, theirs = transfer.failing
    assert [item.name for item in ours] == ["c.bias"]
    assert not theirs


def test_buffers_that_nets_work_out_anew_do_not_fail():
    reference = linear("a") + layer("a", "Linear", required=False, mask=(4, 4))
    transfer = plan(reference, linear("a"), {})
    assert [item.name for item in transfer.left_reference] == ["a.mask"]
    assert transfer.failing == ([], [])


def test_the_counter_of_batches_is_nobodys_business():
    reference = norm("bn") + layer("bn", "BatchNorm", num_batches_tracked=())
    transfer = plan(reference, norm("bn"), {})
    assert transfer.left_reference == ()


def test_a_shape_that_differs_is_no_match_by_name():
    transfer = plan(linear("a", 8, 4), linear("a", 4, 8), {})
    assert [item.name for item in transfer.failing[0]] == ["a.weight", "a.bias"]


def test_parameters_of_the_nets_own_match_by_shape():
    reference = layer("", "Net", class_token=(1, 1, 16)) + linear("head")
    port = layer("", "Net", cls=(1, 1, 16)) + linear("head")
    transfer = plan(reference, port, {})
    assert ("class_token", "cls") in {(m.reference.slot.role, m.port.slot.role) for m in transfer.matches}


def test_a_row_with_a_layer_missing_keeps_the_likeliest_names():
    reference = [item for name in ("q", "k", "v", "out") for item in linear(f"attn.{name}")]
    port = [item for name in ("q_proj", "v_proj", "out_proj") for item in linear(f"self.{name}")]
    assert pairs(plan(reference, port, {})) == {
        ("attn.q", "self.q_proj"),
        ("attn.v", "self.v_proj"),
        ("attn.out", "self.out_proj"),
    }


def test_a_head_that_never_ran_leaves_the_one_head_of_the_port_to_the_one_that_did():
    heads = [replace(item, idle=name != "fc") for name in ("fc", "aux.classifier") for item in linear(name, outs=10)]
    assert pairs(plan(linear("stem") + heads, linear("stem") + linear("classifier", outs=10), {})) == {
        ("stem", "stem"),
        ("fc", "classifier"),
    }


def test_best_path_never_crosses():
    found = best_path([[0.1, 1.0, 0.1], [1.0, 0.1, 0.9]])
    assert found == [(0, 1), (1, 2)]


def test_layers_that_lack_their_bias_do_not_push_the_others_along():
    reference = linear("q") + linear("k") + linear("v") + linear("out")
    port = linear("wq") + linear("wk") + layer("wv", "Linear", weight=(8, 8)) + linear("wo")
    transfer = plan(reference, port, {})
    assert pairs(transfer) == {("q", "wq"), ("k", "wk"), ("v", "wv"), ("out", "wo")}
    assert [item.name for item in transfer.left_reference] == ["v.bias"]
    assert not transfer.left_port


def test_parameters_that_blocks_keep_themselves_stay_in_their_blocks():
    """Norms that are layers, against weights of the blocks: the net's own come first where they are none."""
    reference, port = [], layer("", "", norm=(8,))
    for n in range(3):
        reference += linear(f"layers.{n}.fc", outs=4)
        reference += layer(f"layers.{n}.norm1", "", weight=(8,)) + layer(f"layers.{n}.norm2", "", weight=(8,))
        port += layer(f"stack.{n}", "", first=(8,), second=(8,)) + linear(f"stack.{n}.out", outs=4)
    reference += layer("norm", "", weight=(8,))
    found = {(".".join(m.reference.slot), ".".join(m.port.slot)) for m in plan(reference, port, {}).matches}
    assert ("norm.weight", ".norm") in found
    for n in range(3):
        assert (f"layers.{n}.norm1.weight", f"stack.{n}.first") in found
        assert (f"layers.{n}.norm2.weight", f"stack.{n}.second") in found


def test_roles_of_equal_names_come_before_roles_of_equal_meaning():
    reference = layer("norm", "RMSNorm", weight=(8,)) + layer("ls", "LayerScale", gamma=(8,))
    port = layer("scale", "Scale", gamma=(8,)) + layer("ln", "Norm", weight=(8,))
    transfer = plan(reference, port, {})
    assert {(m.reference.slot.layer, m.port.slot.layer) for m in transfer.matches} == {("norm", "ln"), ("ls", "scale")}


def test_a_role_means_nothing_where_the_layer_has_what_it_would_mean():
    reference = layer("a", "Gated", weight=(8,), gamma=(8,), beta=(8,))
    port = layer("b", "Gate", gamma=(8,), weight=(8,), bias=(8,))
    pairs = {(m.reference.slot.role, m.port.slot.role) for m in plan(reference, port, {}).matches}
    assert pairs == {("weight", "weight"), ("gamma", "gamma"), ("beta", "bias")}


def test_a_norm_is_no_row_of_a_layer_that_has_another_size():
    reference = norm("norm", 32) + layer("fc", "Linear", weight=(8, 32), bias=(8,))
    port = norm("norm", 32) + layer("fc", "Linear", weight=(9, 32), bias=(9,))
    transfer = plan(reference, port, {})
    assert [item.name for item in transfer.left_reference] == ["fc.weight", "fc.bias"]
    assert [item.name for item in transfer.left_port] == ["fc.weight", "fc.bias"]


def test_a_part_of_one_parameter_is_not_taken_apart_for_others():
    """The keys and values are rows of what makes queries, keys and values; their size is that of two layers beside."""
    reference = linear("into") + layer("mix.q", "Linear", weight=(8, 8)) + layer("mix.kv", "Linear", weight=(16, 8))
    reference += linear("between.0") + linear("between.2")
    port = linear("start") + layer("mix.qkv", "Linear", weight=(24, 8)) + linear("fc1") + linear("fc2")
    transfer = plan(reference, port, {})
    assert transfer.failing == ([], [])
    assert {("into", "start"), ("between.0", "fc1"), ("between.2", "fc2")} <= pairs(transfer)


def test_a_buffer_does_not_keep_a_parameter_from_the_rows_that_make_it():
    reference = layer("scale", "Scale", required=False, mean=(3,)) + [
        item for n in range(3) for item in linear(f"gates.{n}", 8, 1)
    ]
    port = linear("gate", 8, 3)
    transfer = plan(reference, port, {})
    assert transfer.failing == ([], [])
    assert {(m.reference.name, m.port.name) for m in transfer.matches} == {
        (f"gates.{n}.{role}", f"gate.{role}") for n in range(3) for role in ("weight", "bias")
    }


def test_a_buffer_takes_no_parameter_of_its_shape_from_one_that_needs_it():
    reference = [*layer("", "Net", required=False, A=(3, 11, 11))]
    reference += [one for n in range(3) for one in layer("weights", "ParameterList", **{str(n): (3, 11, 11)})]
    port = [one for n in range(3) for one in layer("", "Cell", **{f"importance.{n}": (3, 11, 11)})]
    found = plan(reference, port, {})
    assert [match.reference.slot.role for match in found.matches] == ["0", "1", "2"]
    assert [match.port.slot.role for match in found.matches] == ["importance.0", "importance.1", "importance.2"]
    assert [item.slot.role for item in found.left_reference] == ["A"]


def test_nor_where_others_are_rows_of_one_parameter():
    reference = layer("text", "Text", logits=(4,)) + linear("text.q") + linear("text.k") + linear("text.v")
    reference += layer("dense", "Dense", False, freq=(4,)) + linear("dense.out")
    port = layer("encoder", "Encoder", mix=(4,)) + linear("encoder.qkv", 8, 24) + linear("numeric.head")
    found = plan(reference, port, {})
    assert found.failing == ([], [])
    assert {("text", "encoder"), ("dense.out", "numeric.head")} <= pairs(found)
    assert [item.slot.role for item in found.left_reference] == ["freq"]


def test_a_table_keeps_its_form_where_others_are_turned():
    plain = layer("mix", "Mix", False, waves=(2, 16)), layer("own", "Own", False, table=(2, 16))
    turned = tuple(replace(item, view=View(turned=True)) for item in plain[1])
    found = _with_tables(Transfer((), tuple(plain[0]), turned), plain)
    assert (found.left_reference, found.left_port) == ((), ())
    assert [(one.reference.slot.role, one.port.slot.role) for one in found.matches] == [("waves", "table")]


def test_two_tables_of_one_form_are_left_where_they_are():
    plain = (
        layer("mix", "Mix", False, waves=(2, 16)),
        layer("own", "Own", False, table=(2, 16), other=(2, 16)),
    )
    found = Transfer((), tuple(plain[0]), tuple(plain[1]))
    assert _with_tables(found, plain) is found

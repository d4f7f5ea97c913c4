"""Which layer's code is named where the port has other borders."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from aligner.compare.edits import Home
from aligner.compare.narrowed import narrowed
from aligner.compare.place import Place
from aligner.compare.verdict import Origin
from aligner.record import Key, Phase

LAYERS = ("", "block", "block.attn", "block.attn.q", "block.attn.out", "block.norm")


KINDS = {"a": "Mixture", "b": "Mixture", "c": "Other", "a.router": "Router", "b.router": "Router"}


def origin(layer, between, where="glue"):
    seen = (between or ("", ""))[1] or layer
    return Origin(
        layer, "port", "Kind", where, 0, "forward", 0, "input.0", 1, 1.0, None, None, between, seen=seen, ratio=9.0
    )


@pytest.mark.parametrize(
    ("layer", "between", "named"),
    [
        ("block", ("block.attn.q", "block.attn.out"), "block.attn"),
        ("", ("block.attn.q", "block.attn.out"), "block.attn"),
        ("block", ("block.attn.out", "block.norm"), "block"),
        ("block", ("block.attn.q", ""), "block"),
        ("", ("layers.0", "layers.1"), ""),  # a list of layers has no code
        ("block.attn", ("block.attn.q", "block.attn.out"), "block.attn"),
    ],
)
def test_it_is_the_innermost_layer_around_both(layer, between, named):
    net = SimpleNamespace(by_layer=lambda: dict.fromkeys(LAYERS, ()), kind=lambda layer: f"kind of {layer}")
    (found,) = narrowed([origin(layer, between)], net, {"block.attn": "stage.attention"}, [])
    assert found.layer == named
    assert found.port_layer == ("stage.attention" if named == "block.attn" and layer != named else "port")
    assert (found.kind == "Kind") is (named == layer)


def test_a_layer_that_is_wrong_by_itself_keeps_its_name():
    net = SimpleNamespace(by_layer=lambda: dict.fromkeys(LAYERS, ()), kind=str)
    (found,) = narrowed([origin("block", None, "layer")], net, {}, [])
    assert found.layer == "block"


def test_code_that_the_port_has_elsewhere_is_named_by_the_reference_s_layer_in_all_of_its_kind():
    net = SimpleNamespace(by_layer=lambda: dict.fromkeys(["a", "a.router", "b", "b.router", "c"], ()), kind=KINDS.get)
    wrong = [origin("a", ("a.gate", "")), origin("b", ("b.gate", "")), origin("c", ("c.gate", ""))]
    found = narrowed(wrong, net, {}, [Home("a", "a", "a.router")])
    assert [one.layer for one in found] == ["a.router", "b.router", "c"]


def test_the_layer_around_the_border_is_the_one_at_each_border():
    layers = [f"up.{n}.upsample" for n in range(3)]
    net = SimpleNamespace(by_layer=lambda: dict.fromkeys(layers, ()), kind=str)
    wrong = [origin("", (f"up.{n}.block", f"up.{n}.upsample.conv")) for n in range(3)] + [
        origin("", ("up.2", "conv_out"))
    ]
    found = narrowed(wrong, net, {}, [Home("", "up.0.upsample.conv", "up.0.upsample")])
    assert [one.layer for one in found] == [*layers, ""]


def test_what_was_found_at_a_layer_itself_comes_before_what_was_found_at_another():
    net = SimpleNamespace(by_layer=lambda: dict.fromkeys(["a.router", "b.router", "b.gate"], ()), kind=KINDS.get)
    homes = [Home("a", "a", "a.router"), Home("b", "b", "b.gate")]
    (found,) = narrowed([origin("b", ("b.x", ""))], net, {}, homes)
    assert found.layer == "b.gate"


def test_a_layer_that_only_hands_on_what_it_was_given_has_not_made_it():
    key = Key(0, Phase.FORWARD, "block.attn.out", 0, "input.0")
    given = [SimpleNamespace(inputs=[SimpleNamespace(content="a", key=key)])]
    wrong = replace(origin("", ("block.attn.q", "block.attn.out")), place=Place("glue", "", key, None, None, 0.0, True))
    visits = {**dict.fromkeys(LAYERS, ()), "block.attn.out": given}
    for around, named in (((), "block.attn"), (("block.attn",), "block"), (("block.attn", "block"), "")):
        calls = {**visits, **dict.fromkeys(around, given)}
        (found,) = narrowed([wrong], SimpleNamespace(by_layer=lambda calls=calls: calls, kind=str), {}, [])
        assert found.layer == named

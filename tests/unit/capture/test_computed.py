"""What a layer computes in is told by its operations, or else by the switches that are on."""

from __future__ import annotations

from aligner.capture.computed import MOST, Computed, decisive
from aligner.findings import CAST


class Handle:
    def remove(self):
        pass


class Switches:
    """An adapter as far as Computed asks it."""

    def __init__(self, told):
        self._told = told
        self.tell = None

    def precision(self, model, layer):
        return self._told.get(layer)

    def computations(self, told):
        self.tell = told
        return Handle()


def follow(story, **switches):
    """Run "(name" enter, ")" leave, "mul:float16" an operation; returns the facts by layer, and for the header."""
    adapter = Switches(switches)
    computed = Computed(adapter, None).listen()
    stack = []
    for word in story.split():
        if word.startswith("("):
            stack.append(word[1:])
            computed.enter(stack[-1], stack[-1])
        elif word == ")":
            stack.pop()
            computed.unwind(len(stack))
        else:
            adapter.tell(*word.split(":"))
    found = {}

    def finding(kind, facts):
        assert kind == CAST
        found[facts["layer"]] = (facts["dtype"], facts["by"])

    return found, computed.tell(finding)


def test_operations_belong_to_the_layer_whose_code_runs_them():
    found, _ = follow(
        "(net mul:float32 (a matmul:float16 (deep exp:float32 ) ) (b add:float16 ) add:float32 ) mm:float64"
    )
    assert {layer: dtype for layer, (dtype, _) in found.items()} == {
        "net": "float32",
        "a": "float16",
        "deep": "float32",
        "b": "float16",
    }


def test_nothing_is_told_of_a_net_in_float32():
    assert follow("(net (a matmul:float32 ) mul:float32 )") == ({}, {})


def test_a_net_in_float64_is_told_of():
    assert follow("(net (a matmul:float64 ) )")[0] == {"a": ("float64", "measured")}


def test_a_switch_is_told_where_no_operation_is():
    found, header = follow("(net (a ) (b ) )", a=("float16", "to_float"))
    assert found == {"a": ("float16", "to_float")}
    assert header == {}


def test_an_operation_counts_more_than_a_switch_and_the_switch_is_named():
    assert follow("(a softmax:float32 )", a=("float16", "to_float"))[0] == {"a": ("float32", "to_float")}


def test_autocast_goes_into_the_header():
    assert follow("(a mm:bfloat16 )", a=("bfloat16", "autocast"))[1] == {"amp": "autocast"}


def test_products_decide_then_what_short_types_are_bad_at():
    assert decisive({"float32": ["softmax", "biasadd"], "float16": ["bmm"]}) == "float16"
    assert decisive({"float16": ["mul"], "float32": ["pow", "mean", "rsqrt"]}) == "float32"
    assert decisive({"float32": ["add"], "bfloat16": ["mul"]}) == "bfloat16"
    assert decisive({}) is None


def test_a_long_list_of_operations_is_cut_short():
    adapter = Switches({})
    computed = Computed(adapter, None).listen()
    computed.enter("a", "a")
    for number in range(3 * MOST):
        adapter.tell(f"op{number}", "float16")
    rows = []
    computed.tell(lambda kind, facts: rows.append(facts))
    assert len(rows[0]["operations"]["float16"]) == MOST

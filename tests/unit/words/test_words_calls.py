"""Calls of either framework in one word and one form of arguments."""

from __future__ import annotations

import pytest

from aligner.words.calls import Constant, Opaque, Taken, operation, parsed, same

X = Taken(0, (2, 3, 4))
Y = Taken(1, (2, 3, 4))
X4 = Taken(0, (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("softmax", [X, -1], {}), ("softmax", [X], {"axis": 2})),
        (("mean", [X, (1, 2)], {"keepdim": True}), ("ReduceMean", [X, (-1, 1)], {"keep_dims": True})),
        (("sum", [X, 1, True], {}), ("sum", [X], {"dim": -2, "keepdim": True})),
        (("permute", [X, 0, 2, 1], {}), ("swapaxes", [X, -1, -2], {})),
        (("permute", [X, (0, 2, 1)], {}), ("transpose", [X, 1, 2], {})),
        (("mT", [X], {}), ("transpose", [X, 0, 2, 1], {})),
        (("einsum", ["nchw -> nhwc", X4], {}), ("permute", [X4, 0, 2, 3, 1], {})),
        (("__getitem__", [X, (slice(None), 1)], {}), ("select", [X, 1, 1], {})),
        (("getitem", [X, (slice(0, 2), slice(1, 3))], {}), ("narrow", [X, 1, 1, 2], {})),
        (("getitem", [X, (..., slice(-3, None))], {}), ("getitem", [X, (slice(None), slice(None), slice(1, 4))], {})),
        (("cat", [(X, Y)], {"dim": -1}), ("concat", [(X, Y), 2], {})),
        (("gelu", [X], {"approximate": "tanh"}), ("gelu", [X, True], {})),
        (("std", [X, 1, False], {}), ("std", [X], {"axis": 1, "ddof": 0})),
        (("clamp", [X, 0, 1], {}), ("clip", [X], {"min": 0, "max": 1.0})),
        (("arange", [5], {}), ("range", [0, 5, 1], {})),
        (("scatter", [X, 1, Y, X], {}), ("tensor_scatter_elements", [X, Y, X, -2], {})),
        (("scatter_add_", [X, 1, Y, X], {}), ("tensor_scatter_elements", [X, Y, X], {"axis": 1, "reduction": "add"})),
        (("where", [X, Y, X], {}), ("select", [X, Y, X], {})),
        (("where", [X, 1.0, 0.0], {}), ("select", [X, 1.0, 0.0], {})),
        (("index_select", [X, 1, Y], {}), ("gather", [X, Y, 1], {})),
        (("index_select", [X, 1, Y], {}), ("gather", [X], {"input_indices": Y, "axis": 1})),
        (("gather", [X, 1, Y], {}), ("gather_elements", [X, 1, Y], {})),
        (("gather", [X], {"dim": 1, "index": Y}), ("gather_d", [X, 1, Y], {})),
        (("truediv", [X, 2.0], {}), ("div", [X, 2.0], {})),
        (("rsub", [X, 1.0], {}), ("sub", [1.0, X], {})),
        (("masked_fill", [X, Y, float("-inf")], {}), ("masked_fill", [X, Y], {"value": float("-inf")})),
    ],
    ids=lambda call: call[0],
)
def test_two_ways_to_write_one_thing(one, other):
    calls = [operation(name, args, kwargs, [(2, 3, 4)]) for name, args, kwargs in (one, other)]
    assert calls[0].word == calls[1].word
    assert calls[0].operands == calls[1].operands
    assert same(calls[0].arguments, calls[1].arguments)
    assert all(call.known for call in calls)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("softmax", [X, -1], {}), ("softmax", [X, 1], {})),
        (("permute", [X, 0, 2, 1], {}), ("permute", [X, 1, 0, 2], {})),
        (("getitem", [X, (slice(None), 0)], {}), ("getitem", [X, (slice(None), -1)], {})),
        (("std", [X, 1], {}), ("std", [X, 1, False], {})),
        (("gelu", [X], {}), ("gelu", [X], {"approximate": "tanh"})),
        (("cat", [(X, Y)], {}), ("cat", [(X, Y), 1], {})),
        (("einsum", ["abc->acb", X], {}), ("einsum", ["abc->ac", X], {})),
        (("arange", [5], {}), ("arange", [1, 5], {})),
        (("scatter", [X, 1, Y, X], {}), ("scatter_add", [X, 1, Y, X], {})),
        (("scatter", [X, 1, Y, 0.5], {}), ("scatter", [X, 1, Y, 1.0], {})),
    ],
    ids=lambda call: call[0],
)
def test_two_things(one, other):
    calls = [operation(name, args, kwargs, [(2, 3, 4)]) for name, args, kwargs in (one, other)]
    assert not same(calls[0].arguments, calls[1].arguments)


def test_what_is_made_tells_a_layouts_argument():
    assert operation("view", [X, 6, -1], {}, [(6, 4)]).arguments == {"shape": (6, 4)}
    assert operation("flatten", [X, 0, 1], {}, [(6, 4)]).arguments == {"shape": (6, 4)}
    assert operation("repeat", [X, 1, 2, 1], {}, [(2, 6, 4)]).arguments == {"reps": (1, 2, 1)}
    assert operation("split", [X, 2], {"dim": -1}, [(2, 3, 2), (2, 3, 2)]).arguments["axis"] == 2


def test_numbers_are_operands_where_a_tensor_may_stand():
    assert operation("mul", [X, 3], {}, [(2, 3, 4)]).operands == (0, Constant(3.0))
    assert operation("where", [X, 0.0, Y], {}, [(2, 3, 4)]).operands == (0, Constant(0.0), 1)


@pytest.mark.parametrize("said", ["float32", "torch.float32", "mindspore.float32"])
def test_a_type_is_told_by_its_name(said):
    assert operation("to", [X, parsed(said)], {}, [(2, 3, 4)]).arguments == {"dtype": "float32"}
    assert operation("astype", [X], {"dtype": parsed(said)}, [(2, 3, 4)]).arguments == {"dtype": "float32"}
    assert operation("half", [X], {}, [(2, 3, 4)]).arguments == {"dtype": "float16"}


def test_places_tell_where_a_call_has_its_arguments():
    call = operation("sum", [X, 1], {"keepdim": True}, [(2, 1, 4)])
    assert call.places == {"axis": 1, "keepdims": "keepdim"}


def test_an_operation_of_another_name_keeps_its_arguments():
    call = operation("my_own", [X, 3], {"way": "up"}, [(2, 3, 4)])
    assert (call.word, call.operands, call.known) == ("myown", (0,), False)
    assert call.arguments == {"_1": 3, "way": "up"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("*", Taken(-1, ())),
        ("(*, 2)", (Taken(-1, ()), 2)),
        ("-1", -1),
        ("-inf", float("-inf")),
        ("'bn,nd->bd'", "bn,nd->bd"),
        ("slice(None, -1, None)", slice(None, -1, None)),
        ("Ellipsis", ...),
        ("float16", Opaque("float16")),
        ("(2, 'unfinis", Opaque("(2, 'unfinis")),
    ],
)
def test_arguments_out_of_a_dump(text, value):
    assert parsed(text) == value

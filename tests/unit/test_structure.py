"""Nested values are taken apart and put together again without loss."""

from __future__ import annotations

import gc
import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest

from aligner.structure import (
    MAX_DEPTH,
    flatten_arguments,
    flatten_result,
    kept,
    rebuild,
    rebuild_arguments,
    substitute_arguments,
    substitute_result,
)


class Tensor:
    """Stands for a framework's tensor."""


def is_tensor(value):
    return isinstance(value, Tensor)


def result(value):
    found = []
    structure = flatten_result(value, is_tensor, found)
    assert json.loads(json.dumps(structure)) == structure, "a structure is plain JSON"
    return structure, dict(found)


A, B, C = Tensor(), Tensor(), Tensor()
Pair = namedtuple("Pair", "left right")


@dataclass
class Box:
    value: object
    unset: object = field(init=False)


class Cache:
    """Something nobody looks into."""


@pytest.mark.parametrize(
    ("value", "slots"),
    [
        (A, {"output.0": A}),
        ((A, B), {"output.0": A, "output.1": B}),
        ([A, None, B], {"output.0": A, "output.2": B}),
        ((A, (B, C)), {"output.0": A, "output.1.0": B, "output.1.1": C}),
        ({"h": A, 3: [B]}, {"output.0.h": A, "output.0.3.0": B}),
        (OrderedDict(z=A, a=B), {"output.0.z": A, "output.0.a": B}),
        (Pair(A, {"x": B}), {"output.0.left": A, "output.0.right.x": B}),
        (Box(A), {"output.0.value": A}),
        (None, {}),
        ((), {}),
        (3.5, {}),
        (Cache(), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_have_a_slot_for_each_tensor(value, slots):
    assert result(value)[1] == slots


def test_arguments_are_named_by_place_and_by_name():
    found = []
    structure = flatten_arguments((A, None, 2), {"mask": B, "past": (A, C), "flag": True}, is_tensor, found)
    assert found == [("input.0", A), ("input.mask", B), ("input.past.0", A), ("input.past.1", C)]
    assert structure == {
        "args": [{"tensor": "input.0"}, {"none": True}, {"value": 2}],
        "kwargs": [
            ["mask", {"tensor": "input.mask"}],
            ["past", {"tuple": [{"tensor": "input.past.0"}, {"tensor": "input.past.1"}]}],
            ["flag", {"value": True}],
        ],
    }


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((A,), {}),
        ((), {"x": A, "scale": None}),
        (([A, (B, None)], {"k": C, 2: "word"}), {"flag": False, "deep": {"list": [1, 2.5, A]}}),
    ],
)
def test_a_call_is_rebuilt_as_it_was(args, kwargs):
    found = []
    structure = json.loads(json.dumps(flatten_arguments(args, kwargs, is_tensor, found)))
    assert rebuild_arguments(structure, dict(found).__getitem__) == (args, kwargs)


def test_named_tuples_and_dataclasses_come_back_as_tuples():
    structure, found = result((Pair(A, 1), Box(B)))
    assert rebuild(structure, found.__getitem__) == ((A, 1), (B, None))
    assert structure["tuple"][0]["object"] == "Pair"


class Table(dict):
    """Its items are attributes as well."""

    def __getattr__(self, name):
        return self[name]


class Same(dict):
    """Its items are its attributes."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.__dict__ = self


class Fixed(Pair):
    """Made in its own way."""

    def __new__(cls):
        raise AssertionError


@dataclass(frozen=True)
class Frozen:
    a: object
    b: object = 3


@pytest.mark.parametrize(
    "value",
    [
        Pair(A, 1),
        Box(B),
        Frozen(A),
        Table(x=A, y=[B]),
        Same(x=A),
        OrderedDict(x=A),
        tuple.__new__(Fixed, (A, 2)),
        {"deep": [Pair(Frozen(A), {"x": Table(x=Box(B))}), None]},
    ],
    ids=["named-tuple", "dataclass", "frozen", "table", "same", "ordered", "made-in-its-own-way", "deep"],
)
def test_a_value_is_of_its_own_type_again_where_that_was_kept(value):
    found = []
    structure = flatten_arguments((1, value), {"other": Cache()}, is_tensor, found)
    forms = kept((1, value), {"other": Cache()}, is_tensor)
    others = {slot: Tensor() for slot, _ in found}
    (one, again), named = rebuild_arguments(structure, others.__getitem__, forms)
    assert one == 1
    assert type(named["other"]) is Cache
    expected = substitute_arguments((value,), {}, {slot.replace("input.1", "input.0"): x for slot, x in others.items()})
    assert again == expected[0][0]
    assert type(again) is type(value)
    assert not isinstance(value, Same) or again.x is again["x"] is not A


def test_what_was_kept_holds_no_tensor():
    kept_tensors = [ref for form in kept((Box(A), Table(x=A)), {}, is_tensor) for ref in gc.get_referents(form)]
    assert not any(is_tensor(item) for one in kept_tensors for item in gc.get_referents(one))


def test_what_nobody_looks_into_is_named_and_cannot_be_rebuilt():
    structure, found = result([A, Cache()])
    assert structure == {"list": [{"tensor": "output.0"}, {"opaque": "Cache"}]}
    with pytest.raises(LookupError, match="Cache"):
        rebuild(structure, found.__getitem__)


def test_a_value_that_holds_itself_ends():
    value = A
    for _ in range(MAX_DEPTH + 2):
        value = [value]
    structure, found = result(value)
    assert not found, "one nesting deeper than anybody means"
    assert "opaque" in json.dumps(structure)


@dataclass
class Node:
    value: object
    one: object = None
    other: object = None


def _knots():
    """Values that hold themselves: directly, twice, through a tuple, through each other."""
    node, twice, first = Node(A), Node(A), Node(A)
    node.one = node
    twice.one = twice.other = twice
    first.one = Node(B, first)
    listed, mapped, inside = [A], {"x": A}, [A]
    listed.append(listed)
    mapped["me"] = mapped
    inside.append((inside, B))
    return {
        "dataclass": (node, 1),
        "dataclass-twice": (twice, 1),
        "two-dataclasses": (first, 2),
        "list": (listed, 1),
        "dict": (mapped, 1),
        "list-in-tuple": (inside, 2),
        "named-tuple": (Pair(A, inside), 3),
        "nested": ({"deep": [node, listed]}, 2),
    }


KNOTS = _knots()


@pytest.mark.parametrize("name", KNOTS)
def test_a_value_that_holds_itself_has_each_tensor_once(name):
    """Unrolled 32 deep, a value with two such fields would be four thousand million tensors."""
    value, tensors = KNOTS[name]
    structure, found = result(value)
    assert len(found) == tensors
    assert json.dumps(structure).count("opaque") >= 1
    others = {slot: Tensor() for slot in found}
    assert result(substitute_result(value, others)) == (structure, others)
    given = []
    flatten_arguments((value,), {"again": value}, is_tensor, given)
    assert len(given) == 2 * tensors


def test_what_is_substituted_in_a_value_that_holds_itself_is_seen_through_it():
    other = Tensor()
    for name, slot, me in (
        ("dataclass", "output.0.value", lambda node: node.one),
        ("dict", "output.0.x", lambda mapped: mapped["me"]),
        ("list", "output.0", lambda listed: listed[1]),
    ):
        changed = substitute_result(KNOTS[name][0], {slot: other})
        assert me(changed) is changed, name


def test_the_same_value_in_two_places_is_taken_apart_in_both():
    """Only what stands inside itself ends: two references to one box are two boxes of tensors."""
    box = Box(A)
    assert result({"a": box, "b": box})[1] == {"output.0.a.value": A, "output.0.b.value": A}


def test_subclasses_of_tuples_keep_their_order():
    class Size(tuple):
        __slots__ = ()

    structure, found = result(Size((A, B)))
    assert structure == {"tuple": [{"tensor": "output.0.0"}, {"tensor": "output.0.1"}]}
    assert list(found.values()) == [A, B]


def test_other_tensors_stand_in_the_places_of_some_and_the_rest_is_the_same_object():
    kept, other = {"deep": [A, None]}, Tensor()
    given = (A, (B, Pair(A, 1)), kept), {"mask": A, "box": Box(B)}
    assert substitute_arguments(*given, {}) == given
    args, kwargs = substitute_arguments(
        *given, {"input.1.1.left": other, "input.mask": other, "input.box.value": other}
    )
    assert args[:2] == (A, (B, Pair(other, 1)))
    assert args[2] is kept
    assert kwargs["mask"] is other
    assert kwargs["box"].value is other
    assert given[1]["box"].value is B, "what was given stays as it was"


@pytest.mark.parametrize(
    "value", [A, (A, B), [A, {"x": (B,)}], {"y": A}, Pair(A, 1), Box(A)], ids=lambda value: type(value).__name__
)
def test_every_slot_can_be_substituted(value):
    structure, found = result(value)
    others = {slot: Tensor() for slot in found}
    assert result(substitute_result(value, others)) == (structure, others)
    assert result(value) == (structure, found)

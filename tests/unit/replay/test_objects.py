"""Objects of a program's own, as they were when a call was given them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aligner.compare.net import CallId
from aligner.record import Call, Key, Phase
from aligner.replay.objects import Objects, copied
from aligner.source.functions import is_told, told


class Cache:
    def __init__(self, *values):
        self.seen, self.own = [*values], {"name": "cache", "parts": ("a", None, 2.5)}
        self.same = self.seen

    def note(self, value):
        return [*self.seen, value]


def is_tensor(value):
    return isinstance(value, np.ndarray)


def test_an_object_is_copied_with_what_it_holds():
    cache = Cache(1, [2, {"three": 3}])
    other = copied(cache, is_tensor)
    cache.seen.append(4)
    assert type(other) is Cache
    assert other.seen == [1, [2, {"three": 3}]]
    assert other.own == cache.own
    assert other.same is other.seen


def test_tensors_are_shared():
    cache = Cache(np.ones(3))
    assert copied(cache, is_tensor).seen[0] is cache.seen[0]


def test_arrays_beside_tensors_are_copied():
    cache = Cache(np.ones(3), np.float32(2))
    other = copied(cache, lambda value: False)
    cache.seen[0][1] = 7
    assert other.seen[0].tolist() == [1, 1, 1]
    assert other.seen[1] == 2
    assert other.same is other.seen


@pytest.mark.parametrize("array", [np.ones(1 << 18), np.array([object()])])
def test_large_arrays_and_such_of_objects_are_lost(array):
    assert copied(Cache(array), lambda value: False) is None


def test_an_array_that_a_call_is_given_is_kept():
    objects = Objects(lambda value: False)
    objects.keep(0, CallId("layer", 0), (np.arange(3),), {})
    (kept,) = objects.trusted([], [])[0, CallId("layer", 0)]
    assert kept.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [Cache(np), Cache(range(3)), Cache([0] * 2000), Cache(*(np.ones(1) for _ in range(100)))],
)
def test_what_is_no_plain_object_is_lost(value):
    assert copied(value, is_tensor) is None


def scaled(rows):
    factor, seen = 3, [1]

    def of(number):
        return [number * factor * row for row in rows] if number > 0 else of(-number)

    def change():
        nonlocal factor
        factor = 7
        seen.append(factor)

    return of, change, lambda: seen


def test_a_function_sees_what_its_caller_had_for_it_then():
    rows = np.ones(2)
    of, change, seen = scaled(rows)
    other, others = copied(of, is_tensor), copied(seen, is_tensor)
    change()
    assert other(2) == [6, 6]
    assert other(-2) == [6, 6]
    assert of(-2) == [14, 14]
    assert others() == [1]
    assert other.__closure__[-1].cell_contents is rows
    assert copied(scaled, is_tensor) is scaled


def test_a_method_is_its_owners_copy():
    cache = Cache(1)
    other = copied(cache.note, is_tensor)
    cache.seen.append(2)
    assert other(5) == [1, 5]
    assert cache.seen == [1, 2]


def test_a_function_that_was_heard_is_as_its_author_wrote_it_again():
    class Deaf:
        def call(self, place, function, *args):
            raise AssertionError("it is heard")

        back = named = lambda self, place, value: value

    def caller(number):
        def inner(one):
            return abs(one) + number

        return inner

    heard = told(caller, Deaf())(2)
    assert is_told(heard)
    other = copied(heard, is_tensor)
    assert not is_told(other)
    assert other(-3) == 5


def test_a_function_that_sees_a_name_without_a_value_is_lost():
    def of():
        return later

    assert copied(of, is_tensor) is None
    later = 1


def test_a_cache_with_values_is_kept_for_the_first_call_of_a_layer_and_while_nothing_is_wrong():
    found = Objects(is_tensor)
    rows = [("a", 0, Cache()), ("b", 0, Cache(np.ones(3))), ("b", 1, Cache(np.ones(3))), ("b", 2, Cache(np.ones(3)))]
    calls = [
        Call(0, Phase.FORWARD, layer, number, first, first, None, None) for first, (layer, number, _) in enumerate(rows)
    ]
    for layer, number, cache in rows:
        found.keep(0, CallId(layer, number), (np.ones(3), [cache]), {"other": Cache()})

    def known(*wrong):
        keys = [Key(0, Phase.FORWARD, layer, number, "output.0") for layer, number in wrong]
        return {tuple(call): [one is not None for one in row] for (_, call), row in found.trusted(calls, keys).items()}

    assert known() == {("a", 0): [True] * 2, ("b", 0): [True] * 2, ("b", 1): [True] * 2, ("b", 2): [False, True]}
    assert known(("b", 1)) == known()
    assert ("b", 1) not in known(("a", 0), ("b", 2))


def test_lists_and_plain_dicts_are_no_objects():
    @dataclasses.dataclass
    class Box:
        inside: object

    found = Objects(is_tensor)
    found.keep(0, CallId("", 0), ([np.ones(3)], (1, 2), {"a": None}, "text"), {})
    found.keep(0, CallId("", 1), ({"a": Cache()},), {})
    found.keep(0, CallId("", 2), (Box(np.ones(3)),), {})
    assert list(found.trusted([], [])) == [(0, CallId("", 1)), (0, CallId("", 2))]

"""Objects of a program's own, as they were when a call was given them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aligner.compare.net import CallId
from aligner.replay.objects import Objects, copied


class Cache:
    def __init__(self, *values):
        self.seen, self.own = [*values], {"name": "cache", "parts": ("a", None, 2.5)}
        self.same = self.seen


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


@pytest.mark.parametrize(
    "value",
    [Cache(lambda: 1), Cache(np), Cache(range(3)), Cache([0] * 2000), Cache(*(np.ones(1) for _ in range(100)))],
)
def test_what_is_no_plain_object_is_lost(value):
    assert copied(value, is_tensor) is None


def test_a_cache_with_values_is_kept_for_the_first_call_of_a_layer():
    found = Objects(is_tensor)
    for number, cache in enumerate((Cache(), Cache(np.ones(3)), Cache(np.ones(3)))):
        found.keep(0, CallId(f"layers.{min(number, 1)}", number // 2), (np.ones(3), [cache]), {"other": Cache()})
    known = [[type(one) for one in row] for row in found.known.values()]
    assert known == [[Cache, Cache], [Cache, Cache], [type(None), Cache]]


def test_lists_and_dataclasses_are_no_objects():
    @dataclasses.dataclass
    class Box:
        inside: object

    found = Objects(is_tensor)
    found.keep(0, CallId("", 0), ([np.ones(3)], Box(np.ones(3)), {"a": None}, "text"), {})
    found.keep(0, CallId("", 1), (Box(Cache()),), {})
    assert list(found.known) == [(0, CallId("", 1))]

"""Values that are too large to be looked at whole: which part is, and that it tells nothing else than the whole."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from aligner.explain import sample
from aligner.explain.case import HUGE, distance
from aligner.explain.inquiry import Inquiry
from aligner.explain.patterns.functions import applied
from aligner.explain.sample import sampled
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

RNG = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Large begins where a test is quick."""
    monkeypatch.setattr(sample, "LARGE", 20_000)
    monkeypatch.setattr(sample, "SAMPLE", 8_000)


def gelu_case(shape, batch):
    x = (2 * RNG.standard_normal(shape)).astype(np.float32)
    right, wrong = (applied(name, x.astype(np.float64)).astype(np.float32) for name in ("GELU", "GELU(tanh)"))
    return replace(case("GELU", inputs=[value(x, slot="input.0")], expected=right, actual=wrong), batch=batch)


def told(made):
    asked = Inquiry()
    found = [s for s in suspects(made, inquiry=asked) if s.error is not None]
    return [s.cause for s in found], found[0].facts if found else {}, asked.untried


def test_a_value_that_is_not_large_is_looked_at_whole():
    assert sampled(gelu_case((8, 10, 20), 8)) is None


def test_whole_items_stand_for_all_and_the_worst_is_among_them():
    made = gelu_case((16, 40, 50), 16)
    wrong = made.actual.load().copy()
    wrong[11] += 0.5
    part = sampled(replace(made, actual=value(wrong)))
    assert part.items
    assert part.case.expected.shape == part.case.inputs[0].shape == (4, 40, 50)
    right, taken = made.expected.load(), part.case.expected.load()
    assert np.array_equal(taken, right[[0, 1, 2, 11]])
    assert np.array_equal(part.case.inputs[0].load(), made.inputs[0].load()[[0, 1, 2, 11]])


def test_a_part_tells_the_same_cause(monkeypatch):
    large = gelu_case((16, 40, 50), 16)
    of_part = told(large)
    monkeypatch.setattr(sample, "LARGE", 1 << 30)
    of_whole = told(large)
    assert of_part[0] == of_whole[0] == ["gelu-approximate-default"]
    assert of_part[2] == ["whole"]
    assert of_whole[2] == []


def reshaped(shape, batch):
    """Heads that were cut from the channels by a reshape where a transposition was needed."""
    count, length, heads, size = shape
    x = RNG.standard_normal((count, length, heads * size)).astype(np.float32)
    right = np.ascontiguousarray(x.reshape(shape).transpose(0, 2, 1, 3))
    made = case(
        "Block",
        where="glue",
        port_kind="Block",
        slot="input.0",
        expected=value(right, slot="input.0"),
        actual=value(x.reshape(right.shape), slot="input.0"),
        known=[value(x)],
    )
    return replace(made, batch=batch)


def test_an_order_of_axes_is_told_of_whole_items_with_the_shapes_of_all(monkeypatch):
    large = reshaped((16, 10, 5, 50), 16)
    of_part = told(large)
    monkeypatch.setattr(sample, "LARGE", 1 << 30)
    of_whole = told(large)
    assert of_part[0][:1] == of_whole[0][:1]
    assert of_part[0], "the order is seen"
    names = ("reference_code", "port_code", "shape", "factors", "axes", "port_shape")
    assert {n: of_part[1].get(n) for n in names} == {n: of_whole[1].get(n) for n in names}


@pytest.mark.parametrize("mistake", ["samples exchanged", "axes of all permuted", "rolled along the batch"])
def test_what_goes_across_items_is_never_told_as_something_else(mistake):
    x = RNG.standard_normal((16, 40, 50)).astype(np.float32)
    wrong = {
        "samples exchanged": x[::-1],
        "axes of all permuted": np.ascontiguousarray(x.transpose(1, 0, 2)).reshape(x.shape),
        "rolled along the batch": np.roll(x, 1, 0),
    }[mistake]
    made = case("Block", where="glue", port_kind="Block", expected=x, actual=wrong, known=[value(x)])
    causes, _, untried = told(replace(made, batch=16))
    assert set(causes) <= {"axes-permuted", "axis-order", "axis-reversed", "axis-rolled", "values-permuted"}
    assert untried == ["whole"]


def test_of_one_large_item_only_rules_are_asked_that_look_at_each_place_by_itself():
    made = gelu_case((1, 30, 40, 50), 1)
    part = sampled(made)
    assert not part.items
    assert part.case.expected.shape == (1, 30, 5, 50), "rows are left out, channels are not"
    assert told(made)[0] == ["gelu-approximate-default"]
    turned = reshaped((1, 100, 5, 50), 1)
    causes, _, untried = told(turned)
    assert causes == []
    assert untried == ["whole"]


def test_texts_whose_batch_is_not_their_first_axis_are_not_cut_by_items():
    part = sampled(gelu_case((40, 16, 50), None))
    assert not part.items


def test_a_value_that_cannot_be_cut_is_left_alone():
    made = gelu_case((30_000,), None)
    assert told(made) == ([], {}, ["whole"])


def plain_distance(found, wanted):
    """All at once, as the definition says it."""
    one, other = wanted.astype(np.float64).reshape(-1), found.astype(np.float64).reshape(-1)
    hidden = (np.abs(one) >= HUGE) & (np.abs(other) >= HUGE) & (np.sign(one) == np.sign(other))
    if hidden.any() and not hidden.all():
        one, other = one[~hidden], other[~hidden]
    both = np.isnan(one) & np.isnan(other)
    one, other = one[~both], other[~both]
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    norm, apart = float(np.linalg.norm(one)), float(np.linalg.norm(other - one))
    return apart / norm if norm else (0.0 if apart == 0.0 else float("inf"))


def test_a_distance_is_the_same_in_blocks(monkeypatch):
    from aligner.explain import case as cases

    monkeypatch.setattr(cases, "BLOCK", 64)
    for number in range(300):
        one = RNG.standard_normal((5, 7, 9)).astype(np.float32)
        other = (one + 1e-3 * RNG.standard_normal(one.shape)).astype(np.float32)
        for side, special in ((one, [np.nan, -np.inf, 1e5]), (other, [np.nan, -1e9, 1e6])):
            places = RNG.integers(0, side.size, number % 4)
            side.reshape(-1)[places] = RNG.choice(special, places.size)
        if number % 5 == 0:
            one[2], other[2] = -1e9, -np.inf
        if number % 50 == 0:
            one[...], other[...] = -1e9, -2e9
        order = list(permutations(range(3)))[number % 6]
        with np.errstate(all="ignore"):
            wanted = plain_distance(other, one)
            assert distance(other.transpose(order), one.transpose(order)) == pytest.approx(wanted, rel=1e-12)


def test_a_distance_takes_no_temporary_as_large_as_the_values():
    one = np.ones((64, 128, 1024), np.float32)
    other = one + np.float32(1e-3)
    tracemalloc.start()
    distance(other, one)
    distance(other.transpose(2, 0, 1), one.transpose(2, 0, 1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < one.nbytes / 4, f"{peak / 2**20:.0f} MiB"

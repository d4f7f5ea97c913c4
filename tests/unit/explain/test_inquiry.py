"""How far an origin is looked into: bounds that do not depend on the clock, and what is told of the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aligner.explain import inquiry
from aligner.explain.inquiry import Allowance, Inquiry, Spent, current, held, spend
from aligner.explain.patterns import LAYERS
from aligner.explain.suspects import suspects
from aligner.report.untried import LAYERS as OF_LAYERS
from aligner.report.untried import TOPICS
from tests.unit.explain.cases import case, value

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def bare(request, monkeypatch):
    """Asking costs nothing by itself, so that figures here are those of elements."""
    if "nothing_small" not in request.node.name:
        monkeypatch.setattr(inquiry, "ASKING", 0.0)


def working(*parts):
    for elements in parts:
        spend(elements)
        yield elements


def test_a_rule_ends_where_it_would_touch_too_much_and_what_it_found_stays():
    asked = Inquiry(1000)
    assert asked.ask("long", lambda: working(300, 100, 300)) == [300, 100]
    assert asked.untried == ["long"]
    assert asked.told == ["long"]
    assert asked.ask("short", lambda: working(200)) == [200], "a long search leaves half of what there was"
    assert asked.untried == ["long"]


def test_what_a_rule_touches_at_least_is_known_before_it_is_asked():
    asked = Inquiry(1000)
    assert asked.ask("whole", lambda: working(1), elements=900) == []
    assert asked.untried == ["whole"]


def test_without_bounds_everything_is_asked():
    assert Inquiry().ask("all", lambda: working(1e30, 1e30)) == [1e30, 1e30]
    assert list(working(1e30)) == [1e30], "outside an inquiry nothing is counted"


def test_the_clock_is_the_last_guard(monkeypatch):
    asked = Inquiry(1000, until=50.0)
    now = iter([10.0, 20.0, 60.0])
    monkeypatch.setattr(inquiry.time, "monotonic", lambda: next(now))
    assert asked.ask("slow", lambda: working(1, 1, 1)) == [1]
    assert asked.untried == ["slow"]


def test_only_what_told_something_of_another_one_is_asked():
    asked = Inquiry(only=["b"])
    assert asked.ask("a", lambda: working(1)) == []
    assert asked.ask("b", lambda: working(1)) == [1]
    assert not asked.untried, "it was left out on purpose"
    with asked.narrowed(["a"]):
        assert asked.ask("b", lambda: working(1)) == []


def test_all_origins_together_have_an_end(monkeypatch):
    monkeypatch.setattr(inquiry, "ORIGIN", 100.0)
    monkeypatch.setattr(inquiry, "NET", 150.0)
    allowance, done = Allowance(), []
    for _ in range(4):
        with allowance.inquiry() as asked:
            asked.spend(min(asked.left, 80.0))
            done.append(asked.left)
    assert done == [20.0, 0.0, 0.0, 0.0]
    with allowance.inquiry() as asked, pytest.raises(Spent):
        asked.spend(1)


def test_the_inquiry_that_is_held_is_the_one_that_rules_ask():
    one = Inquiry(5)
    with held(one):
        assert current() is one
    assert math.isinf(current().left)


def wrong_sum():
    x, y = (RNG.standard_normal((4, 6, 8)).astype(np.float32) for _ in range(2))
    return case(
        "Block", where="glue", port_kind="Block", expected=x + y, actual=x, known=[value(x, slot="input.0"), value(y)]
    )


def test_the_same_case_gives_the_same_answer_within_the_same_bounds_and_names_what_was_left_out():
    told, untried = [], []
    for _ in range(2):
        asked = Inquiry(300)
        told.append([suspect.name for suspect in suspects(wrong_sum(), inquiry=asked)])
        untried.append(asked.untried)
    assert told[0] == told[1]
    assert untried[0] == untried[1] == ["guesses"]
    free = Inquiry()
    assert [s.cause for s in suspects(wrong_sum(), inquiry=free) if s.error is not None]
    assert not free.untried


def names():
    return ["guesses", "inputs", "layer.broken", "layer.relations", *LAYERS]


@pytest.mark.parametrize("name", names())
def test_each_rule_has_words_for_what_it_looks_for(name):
    assert name in TOPICS or name.startswith("layer."), f"{name} would be told as {OF_LAYERS}"


def test_nothing_small_is_asked_without_end():
    """Values of a few elements cost the questions that are asked of them."""
    asked = Inquiry(10 * inquiry.ASKING)
    assert len(asked.ask("small", lambda: working(*[1] * 100))) < 10
    assert asked.untried == ["small"]

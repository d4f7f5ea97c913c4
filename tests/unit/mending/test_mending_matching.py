"""What of the reference's numbers is worked out of its input: no edit may write such a one."""

from __future__ import annotations

import numpy as np

from aligner.fingerprint import fingerprint
from aligner.mending.events import Event, Story
from aligner.mending.matching import Matching
from aligner.mending.theirs import _in_order
from aligner.words.calls import Constant

X = np.random.default_rng(1).standard_normal((4, 6))
MEAN, SCALE = 0.1628582, 0.35355339


def test_the_result_of_a_reduction_is_and_a_number_made_of_numbers_is_not():
    values = [X, np.array(MEAN), np.array(SCALE), X * MEAN]
    events = [
        Event("mean", (0,), (1,)),
        Event("pow", (Constant(8.0), Constant(-0.5)), (2,)),
        Event("mul", (0, Constant(MEAN)), (3,)),
    ]
    story = Story([fingerprint(value) for value in values], events, [value.shape for value in values])
    other = Story([fingerprint(X), fingerprint(X + 1)], [Event("add", (0,), (1,))], [X.shape] * 2)
    assert Matching(story, other, other.events, 3, 1, 0.5).worked_out == {str(MEAN)}


def test_the_numbers_that_the_reference_computes_with_are_the_finite_broken_ones():
    given = {"eps": 1e-8, "max": np.inf, "p": 2.0, "slope": -0.5, "axis": 1}
    events = [Event("norm", (0, Constant(0.25)), (1,), given), Event("clamp", (1,), (2,), {"min": np.nan, "eps": 1e-8})]
    story = Story([fingerprint(X)] * 3, events, [X.shape] * 3)
    other = Story([fingerprint(X), fingerprint(X + 1)], [Event("add", (0,), (1,))], [X.shape] * 2)
    assert Matching(story, other, other.events, 2, 1, 0.5).numbers == [1e-8, 0.25]


def test_what_is_taken_out_of_a_value_does_not_make_it():
    mean, both = Event("div", (4, 5), (1,)), Event("cat", (1, 3), (2,))
    taken = Event("getitem", (2,), (1,))
    assert _in_order([taken, both, mean], set()) == [mean, both, taken]


def test_what_came_in_is_made_by_nobody():
    hidden, far = Event("where", (0, 1), (2,)), Event("lt", (2,), (0,))
    assert _in_order([hidden, far], {0}) == [hidden, far]


def test_places_in_the_order_of_one_value_are_one_but_for_ties():
    tied = np.array([3.0, 0.0, 0.0, 5.0])
    values = [tied, np.sort(tied), np.array([1.0, 2.0, 0.0, 3.0]), X[0, :4], X[1, :4]]
    other = [*values[:2], np.array([2.0, 1.0, 0.0, 3.0]), X[2, :4]]
    arguments = {"axis": 0, "descending": False}
    ours = [Event("sort", (0,), (1, 2), arguments), Event("gather", (3, 2), (4,))]
    theirs = [Event("sort", (0,), (1, 2), arguments), Event("neg", (0,), (3,))]
    stories = [
        Story([fingerprint(value) for value in some], events, [value.shape for value in some])
        for some, events in ((values, ours), (other, theirs))
    ]
    assert Matching(*stories, theirs, 4, 3, 1.0).twins[2] == [2]
    theirs[0].arguments = {**arguments, "descending": True}
    assert Matching(*stories, theirs, 4, 3, 1.0).twins[2] == []


def test_what_the_reference_makes_twice_is_told_in_both_ways():
    values = [X, X[:, ::-1], X * 2]
    events = [Event("flip", (0,), (1,)), Event("mul", (0, Constant(2.0)), (2,)), Event("add", (0, 0), (2,))]
    ours = Story([fingerprint(value) for value in values], events, [X.shape] * 3)
    theirs = Story([fingerprint(X), fingerprint(X + 1)], [Event("add", (0,), (1,))], [X.shape] * 2)
    found = Matching(ours, theirs, theirs.events, 2, 1, 1.0)
    assert [event.word for event in found.once_more[2]] == ["add"]
    assert found.makers[0][2].word == "mul"

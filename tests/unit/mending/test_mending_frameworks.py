"""What is said to be the framework's doing: the same operation, the same arguments and values, and another result."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.fingerprint import fingerprint
from aligner.mending.events import Event, Story
from aligner.mending.frameworks import differing
from aligner.mending.matching import Matching

RANDOM = np.random.default_rng(1)
X, RIGHT, WRONG = (RANDOM.standard_normal((4, 6)) for _ in range(3))


def told(word="fmod", name="fmod", ours=(X, RIGHT), theirs=(X, WRONG), arguments=({}, {}), rough=()):
    """Of one operation on each side, on the first of these values, with the second as its result."""
    stories = []
    for (given, made), known in zip((ours, theirs), arguments):
        event = Event(word, (0,), (1,), known, name=name)
        stories.append(Story([fingerprint(given), fingerprint(made)], [event], [given.shape, made.shape]))
    stories[1].rough.update(rough)
    return differing(Matching(*stories, stories[1].events, 1, 1, 0.5))


def test_the_same_on_the_same_values_with_another_result():
    found = told()
    assert found is not None
    assert (found.port.name, found.reference.name) == ("fmod", "fmod")


def test_of_several_results_the_wrong_one_is_told():
    stories = []
    for last in (RIGHT, WRONG):
        event = Event("topk", (0,), (1, 2), {"k": 2}, name="topk")
        values = [fingerprint(value) for value in (X, X[:, ::-1].copy(), last)]
        stories.append(Story(values, [event], [X.shape] * 3))
    found = differing(Matching(*stories, stories[1].events, 2, 2, 0.5))
    assert found is not None
    assert found.result == 1


def test_a_loss_that_is_not_summed_up():
    loss = {"word": "smooth_l1_loss", "name": "smooth_l1_loss", "arguments": ({"reduction": "mean"},) * 2}
    assert told(**loss, ours=(X, RIGHT.mean(keepdims=True))) is not None


def test_a_loss_that_is_not_summed_up_whose_parts_the_reference_has_too():
    stories, known = [], {"reduction": "mean"}
    for made in (RIGHT.mean(), RIGHT.sum()):
        values = [fingerprint(value) for value in (X, RIGHT, np.array(made))]
        loss, total = Event("smooth_l1_loss", (0,), (1,), known, name="smooth_l1_loss"), Event("sum", (1,), (2,))
        stories.append(Story(values, [loss, total], [X.shape, X.shape, ()]))
    parts = Event("mul", (0, 0), (1,))
    stories[0].events[:] = [parts, Event("smooth_l1_loss", (0,), (2,), known, name="smooth_l1_loss")]
    found = differing(Matching(*stories, stories[1].events, 2, 2, 0.5))
    assert found is not None
    assert (found.port.name, found.result) == ("smooth_l1_loss", 0)


@pytest.mark.parametrize(
    "other",
    [
        {"theirs": (X + 1.0, WRONG)},
        {"arguments": ({"axis": 1}, {"axis": 0})},
        {"theirs": (X, WRONG[:2])},
        {"rough": (0,)},
        {"word": "sub", "name": "sub"},
        {"word": "floor", "name": "floor", "theirs": (X * (1 + 1e-6), WRONG)},
        {"word": "reshape", "name": "reshape"},
    ],
    ids=["other value", "argument", "shape", "short or masked", "cancels", "jumps", "only moves"],
)
def test_what_may_have_another_reason_is_not_said(other):
    assert told(**other) is None

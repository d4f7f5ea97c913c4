"""Where the port's code leaves the reference's, where no edit is known."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.line import Spot
from aligner.fingerprint import fingerprint
from aligner.mending.events import HELPER, Event, Site, Story
from aligner.mending.leaving import leaving
from aligner.mending.matching import Matching

X = np.random.default_rng(2).standard_normal((4, 6))
COUNT = np.arange(6.0)


@pytest.fixture
def port(tmp_path):
    file = tmp_path / "port.py"
    file.write_text("a = x * 2\nb = ops.arange(6)\nc = a - b\nd = c + 1\n", encoding="utf-8")
    return lambda line: Site(str(file), line, 0, line, 9)


def matching(theirs, values):
    """The reference makes x / 2 and of it (x / 2) - 5; the port what is said."""
    spots = [Spot("net.py", line, text, name) for line, text, name in ((1, "h = x / 2", "div"), (2, "h - 5", "sub"))]
    events = [Event("div", (0,), (1,), spot=spots[0]), Event("sub", (1,), (2,), spot=spots[1])]
    ours = [X, X / 2, X / 2 - 5]
    stories = [
        Story([fingerprint(value) for value in values], events, [value.shape for value in values])
        for values, events in ((ours, events), (values, theirs))
    ]
    return Matching(*stories, theirs, 2, len(values) - 1, 0.5)


def test_it_is_the_first_step_on_either_side_that_works_on_what_both_have(port):
    steps = [Event("mul", (0,), (1,), site=port(1), name="mul"), Event("add", (1,), (2,), site=port(4))]
    found = leaving(matching(steps, [X, X * 2, X * 2 + 1]), None, "", ())
    assert (found.port.line, found.port.text, found.port.operation) == (1, "a = x * 2", "mul")
    assert (found.reference.line, found.reference.text) == (1, "h = x / 2")
    assert found.home == ""


def test_what_is_made_of_nothing_is_taken_for_right_if_there_is_another_step(port):
    steps = [Event("arange", (), (1,), site=port(2)), Event("sub", (0, 1), (2,), site=port(3))]
    assert leaving(matching(steps, [X, COUNT, X - COUNT]), None, "", ()).port.line == 3
    alone = [Event("arange", (), (1,), site=port(2))]
    assert leaving(matching(alone, [X, COUNT]), None, "", ()).port.line == 2


def test_a_step_that_stands_nowhere_and_a_function_that_is_called_are_none(port):
    steps = [Event("mul", (0,), (1,)), Event(HELPER, (0,), (1,), site=port(1))]
    found = leaving(matching(steps, [X, X * 2]), None, "", ())
    assert found.port is None
    assert found.reference.line == 1

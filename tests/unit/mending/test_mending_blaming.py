"""Which line of the port's is the likeliest, where no edit is known."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from aligner.fingerprint import fingerprint
from aligner.mending.blaming import Blaming
from aligner.mending.events import HELPER, LAYER, Event, Site, Story
from aligner.mending.matching import Matching
from aligner.words.calls import Constant

RANDOM = np.random.default_rng(2)
X, Y = RANDOM.standard_normal((4, 6)), RANDOM.standard_normal((4, 6))
MASK = X > 0.3


@pytest.fixture
def port(tmp_path):
    """A file of this text; what is called with a line is that line's place."""

    def written(*lines):
        file = tmp_path / "port.py"
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return lambda line: Site(str(file), line, 0, line, 9)

    return written


def line(ours, theirs, end=None):
    """Each side's events with its values, the last of which are set against each other."""
    stories = [
        Story([fingerprint(one) for one in values], events, [one.shape for one in values])
        for events, values in (ours, theirs)
    ]
    matching = Matching(*stories, theirs[0], len(ours[1]) - 1, len(theirs[1]) - 1, 0.5)
    return Blaming(matching, end).spot().line


HALVED = [Event("div", (0, Constant(2.0)), (1,)), Event("sub", (1, Constant(5.0)), (2,))], [X, X / 2, X / 2 - 5]


def test_a_right_value_in_the_place_of_another_one_is_the_mistake_of_who_takes_it(port):
    at = port("h = x / 2", "y = layer(h)")
    steps = [Event("div", (0, Constant(2.0)), (1,), site=at(1))]
    assert line(HALVED, (steps, [X, X / 2]), Event(LAYER, (1,), (), site=at(2))) == 2


def test_or_of_who_gave_it_that_name(port):
    at = port("def construct(self, x):", "    h = x / 2", "    taken = h", "    return self.layer(taken)")
    steps = [Event("div", (0, Constant(2.0)), (1,), site=at(2))]
    end = Event(LAYER, (1,), (), site=at(4), inputs=[(ast.Name("taken", ast.Load()), 1)])
    assert line(HALVED, (steps, [X, X / 2]), end) == 3


def test_another_order_of_axes_is_none_before_something_else_is_made_of_it(port):
    at = port("h = layer(x)", "h = h - 3")
    steps = [Event(LAYER, (0,), (1,), site=at(1)), Event("sub", (1, Constant(3.0)), (2,), site=at(2))]
    assert line(HALVED, (steps, [X, X.T / 2, X.T / 2 - 3])) == 2


def test_nor_is_a_mask_that_says_the_contrary(port):
    at = port("seen = x <= 0.3", "y = where(seen, x, 1)")
    ours = [Event("gt", (0,), (1,)), Event("masked_fill", (0, 1), (2,))], [X, MASK, np.where(MASK, 0, X)]
    steps = [Event("le", (0,), (1,), site=at(1)), Event("where", (1, 0), (2,), site=at(2))]
    assert line(ours, (steps, [X, ~MASK, np.where(MASK, 1, X)])) == 2


def test_right_values_that_only_stand_in_another_order_are_told_by_the_step_that_did_it(port):
    at = port("h = cat((y, x))", "h = h.reshape(-1)")
    ours = [Event("cat", (0, 1), (2,))], [X, Y, np.concatenate((X, Y))]
    steps = [Event("cat", (1, 0), (2,), site=at(1)), Event("reshape", (2,), (3,), site=at(2))]
    other = np.concatenate((Y, X))
    assert line(ours, (steps, [X, Y, other, other.reshape(-1)])) == 1


def test_what_a_function_was_given_is_the_mistake_of_who_calls_it(port):
    at = port("def less(v, y):", "    return v - y", "", "h = less(x, y)")
    ours = [Event("div", (0, Constant(2.0)), (2,)), Event("sub", (2, 1), (3,))], [X, Y, X / 2, X / 2 - Y]
    node = ast.parse("v - y", mode="eval").body
    event = Event("sub", (0, 1), (2,), site=at(2), node=node, inputs=[(node.left, 0), (node.right, 1)])
    assert line(ours, ([event, Event(HELPER, (), (2,), site=at(4))], [X, Y, X - Y])) == 4


def test_a_wrong_number_was_worked_out_where_it_got_its_name(port):
    at = port("def construct(self, x):", "    step = self.size / 3", "    return x * step")
    ours = [Event("mul", (0, Constant(4.0)), (1,))], [X, X * 4]
    node = ast.parse("x * step", mode="eval").body
    event = Event("mul", (0, Constant(3.5)), (1,), site=at(3), node=node, names={"step": 3.5})
    assert line(ours, ([event], [X, X * 3.5])) == 2


def test_steps_that_compute_come_before_those_that_bring_values_into_another_form(port):
    at = port("h = stack((x, y))", "g = atan2(y, x)", "z = h + g")
    ours = [Event("atan2", (0, 1), (2,)), Event("add", (2, 1), (3,))], [X, Y, np.arctan2(X, Y), np.arctan2(X, Y) + Y]
    both, made = np.stack((X, Y)), np.arctan2(Y, X)
    steps = [
        Event("stack", (0, 1), (2,), site=at(1)),
        Event("atan2", (1, 0), (3,), site=at(2)),
        Event("add", (2, 3), (4,), site=at(3)),
    ]
    assert line(ours, (steps, [X, Y, both, made, both + made])) == 2


def test_a_right_value_that_stands_for_another_one_is_told_where_it_got_its_name(port):
    at = port("def construct(self, x, y):", "    scale, shift = y, x", "    return (x - 1) * scale")
    first = Event("neg", (1,), (2,)), Event("sub", (0, Constant(1.0)), (3,))
    ours = [*first, Event("mul", (3, 0), (4,))], [X, Y, -Y, X - 1, (X - 1) * X]
    node = ast.parse("(x - 1) * scale", mode="eval").body
    steps = [
        Event("sub", (0, Constant(1.0)), (2,), site=at(3)),
        Event("mul", (2, 1), (3,), site=at(3), node=node, inputs=[(node.left, 2), (node.right, 1)]),
    ]
    assert line(ours, (steps, [X, Y, X - 1, (X - 1) * Y])) == 2

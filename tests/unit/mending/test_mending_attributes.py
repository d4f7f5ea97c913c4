"""Numbers that edits put in the place of a layer's attributes."""

from __future__ import annotations

import pytest

from aligner.mending.attributes import attributes


def told(*lines):
    return attributes([{"before": [before], "after": [after]} for before, after in lines])


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("return x * self.scale", "return x * 0.5", {"scale": 0.5}),
        ("y = f(x - self.shift) - self.offset", "y = f(x - 4) - 0.035", {"shift": 4, "offset": 0.035}),
        ("y = self.norm(x) + self.eps", "y = self.norm(x) + 1e-06", {"eps": 1e-06}),
        ("y = self.a * x + self.b", "y = self.a * x + -2", {"b": -2}),
        ("y = x[self.first] + self.first", "y = x[2] + 2", {"first": 2}),
    ],
)
def test_they_are_told(before, after, found):
    assert told((before, after)) == found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = x * self.scale", "y = x / self.scale"),
        ("y = x * self.scale", "y = x * scale"),
        ("y = self.norm(x)", "y = 2(x)"),
        ("y = x[self.first] + self.first", "y = x[2] + 3"),
        ("y = x * self.scale", "y = x * self.scale"),
    ],
)
def test_other_edits_tell_nothing(before, after):
    assert told((before, after)) == {}


def test_two_lines_have_to_say_the_same():
    assert told(("a = self.k", "a = 2"), ("b = x + self.k", "b = x + 2")) == {"k": 2}
    assert told(("a = self.k", "a = 2"), ("b = x + self.k", "b = x + 3")) == {}
    assert told(("a = self.k", "a = 2"), ("b = x", "b = y")) == {}

"""Whole numbers that are the size of something: how they are written."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from aligner.mending.candidate import Candidate
from aligner.mending.events import Event, Site
from aligner.mending.measuring import by_size, count, counted_on, sizes
from aligner.mending.sources import Edit, Sources

NET = """
def construct(self, x, past=None):
    return ops.arange(0, 4)
"""
CACHE = [(np.zeros((2, 6, 8)), np.zeros((2, 6, 8)))]
NAMES = {"self": np.zeros(6), "x": np.zeros((2, 4, 8)), "past": CACHE, "table": {"rows": np.zeros((6, 3))}}


@pytest.fixture
def place(tmp_path):
    """An event on the line that counts, and the sources."""
    file = tmp_path / "net.py"
    file.write_text(NET, encoding="utf-8")
    node = ast.parse(NET).body[0].body[0].value
    site = Site(str(file), 3, node.col_offset, 3, node.end_col_offset)
    told = {"start": 0, "end": 4, "step": 1}
    return Event("arange", (), (0,), told, site=site, node=node, names=NAMES), Sources({})


def test_sizes_are_looked_for_in_what_the_code_has_a_name_for():
    assert [*sizes(6, NAMES)] == [("past", "past[0][0].shape[1]"), ("table", 'table["rows"].shape[0]')]
    assert not [*sizes(5, NAMES)]


@pytest.mark.parametrize(
    ("number", "more", "said"),
    [
        (4, {}, "x.shape[1]"),
        (8, {}, "x.shape[2]"),
        (6, {}, "6"),  # rows of one table, steps of another
        (6, {"steps": 6}, "steps"),
        (5, {}, "5"),
        (1, {"y": np.zeros((1, 2))}, "1"),
        (4.5, {}, "4.5"),
    ],
)
def test_a_count_is_what_has_that_many_along_one_axis_alone(number, more, said):
    assert count(number, {**NAMES, **more}) == said


def test_what_may_not_be_given_leaves_what_stands_there(place):
    event, sources = place
    text = sources.text(event.site.file)
    at = text.index("0, 4")
    one = Candidate(1.0, (Edit(event.site.file, at, at + 1, "6"),), "argument", ((event, None, 0, None),))
    found = [each.edits[0].new for each in by_size(one, sources)]
    assert found == ["past[0][0].shape[1] if past is not None else 0", 'table["rows"].shape[0]']


@pytest.mark.parametrize("new", ["1", "0.5", "x"])
def test_a_small_number_and_a_word_are_no_size(place, new):
    event, sources = place
    one = Candidate(1.0, (Edit(event.site.file, 0, 1, new),), "argument", ((event, None, 0, None),))
    assert not [*by_size(one, sources)]


@pytest.mark.parametrize(("told", "many"), [((6, 10), 2), ((6, 11), 0), ((0, 4), 0), ((5, 9), 0)])
def test_as_many_places_are_counted_from_the_size(place, told, many):
    event, sources = place
    model = Event("arange", (), (0,), {"start": told[0], "end": told[1], "step": 1})
    found = [edits[0].new for edits, _, _ in counted_on(event, model, sources)]
    assert len(found) == many
    assert found[:1] == ["ops.arange(0, 4) + (past[0][0].shape[1] if past is not None else 0)"][:many]

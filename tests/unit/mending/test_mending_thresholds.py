"""Numbers that values are compared with: a run does not tell one from another, so only the reference says them."""

from __future__ import annotations

import ast

import pytest

from aligner.explain.line import Spot
from aligner.mending.candidate import Candidate
from aligner.mending.events import Event, Site, Story
from aligner.mending.sources import Edit, Sources
from aligner.mending.thresholds import said
from aligner.words.calls import Constant

TEXT = "def f(top):\n    return where(top < -1e29, top * 0.5, top)\n"


def kept(old, new, *theirs):
    """Whether an edit stands that puts `new` for `old`, where the reference does these steps."""
    sources = Sources({"f.py": TEXT})
    node = next(one for one in ast.walk(ast.parse(TEXT)) if isinstance(one, ast.Compare))
    site = Site("f.py", node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    heard = [Event("lt", (1, Constant(-1e29)), (2,), site=site, node=node)]
    start = TEXT.index(old)
    one = Candidate(1.0, (Edit("f.py", start, start + len(old), new),), "argument", ())
    return said([one], heard, Story([], list(theirs), []), sources) == [one]


@pytest.mark.parametrize("new", ["-1.15", "-1.15e3", "-2"])
def test_a_number_that_the_reference_does_not_compare_with_is_right_by_chance(new):
    assert not kept("-1e29", new, Event("div", (1, Constant(1.15)), (2,)))


def test_what_the_reference_compares_with_is_told():
    assert kept("-1e29", "-1e9", Event("lt", (1, Constant(-1e9)), (2,)))
    assert kept("-1e29", "0.5", Event("clamp", (1,), (2,), {"min": 0.5, "max": None}))


def test_so_is_what_its_line_says():
    line = Spot("net.py", 3, "keep = x.gt(limit) if limit > 3.5 else x", "gt")
    assert kept("-1e29", "3.5", Event("gt", (1, 2), (3,), spot=line))


def test_other_edits_of_a_comparison_stand():
    assert kept("<", "<=")
    assert kept("top < -1e29", "top > -1e29")


def test_numbers_beside_it_stand():
    assert kept("0.5", "0.25")

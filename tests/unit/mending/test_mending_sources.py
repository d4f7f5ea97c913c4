"""Edits of source text: where they stand, how they are written, how much they change."""

from __future__ import annotations

import ast

import pytest

from aligner.mending.hunks import hunks, sizes
from aligner.mending.sources import Edit, Sources, change, edit_of

TEXT = "def f(x, y):\n    名 = (x + y) * 2\n    return g(名, x.sum(1))\n"


def replaced(text, old, new):
    """The text with an expression of it replaced."""
    held = Sources({"f.py": text})
    node = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.expr) and held.words("f.py", n) == old)
    edit = edit_of(held, "f.py", node, new)
    return None if edit is None else held.edited([edit]).text("f.py")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("x + y", "x - y", "名 = (x - y) * 2"),
        ("x + y", "x", "名 = x * 2"),
        ("(x + y) * 2", "(x * 3)", "名 = x * 3"),
        ("x.sum(1)", "(x + y)", "return g(名, x + y)"),
        ("x.sum(1)", "(x, y)", "return g(名, (x, y))"),
        ("1", "-1", "return g(名, x.sum(-1))"),
    ],
)
def test_an_expression_is_replaced(old, new, line):
    assert line in replaced(TEXT, old, new)


def test_the_same_is_no_edit():
    assert replaced(TEXT, "x + y", "x + y") is None


def test_what_is_no_python_is_said():
    with pytest.raises(SyntaxError):
        Sources({"f.py": TEXT}).edited([Edit("f.py", 0, 3, "def 1")])


def test_several_edits_keep_their_places():
    held = Sources({"f.py": "a = one + two\n"})
    assert held.edited([Edit("f.py", 4, 7, "three"), Edit("f.py", 10, 13, "1")]).text("f.py") == "a = three + 1\n"


def test_words_that_come_weigh_more_than_those_that_go():
    assert change("x.transpose(0, 2, 1)", "x") < change("x", "x.transpose(0, 2, 1)")
    assert change("softmax(x, 1)", "softmax(x, -1)") < change("softmax(x, 1)", "sigmoid(x) + y")


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("x = x.reshape(2, 20, 48)", [20, 48]),
        ("x = x.reshape(b, 20, -1)", [20]),
        ("x = x[..., 4:]", [4]),
        ("x = x.softmax(dim=1)", []),
        ("x = x * 0.48 + 7", []),
        ("x = x48 + 12", []),
    ],
)
def test_sizes_that_an_edit_writes_are_told(after, found):
    edit = {"before": ["x = x.view(12)"], "after": [after]}
    assert sizes([edit], [(2, 20, 48), (4,), (12, 2)]) == found


def test_lines_that_an_earlier_edit_changed_are_not_told_again(monkeypatch):
    monkeypatch.setattr("aligner.mending.hunks.source", lambda file: "one\ntwo\nthree\n")
    old, new = Sources({"f.py": "one\n2\nthree\n"}), Sources({"f.py": "one\n2\n3\n"})
    (found,) = hunks(old, new)
    # lines side by side are one change
    assert (found["line"], found["before"], found["after"]) == (2, ["two", "three"], ["2", "3"])
    monkeypatch.setattr("aligner.mending.hunks.source", lambda file: "one\ntwo\nthree\nfour\n")
    old, new = Sources({"f.py": "one\n2\nthree\nfour\n"}), Sources({"f.py": "one\n2\nthree\n4\n"})
    (found,) = hunks(old, new)
    assert (found["line"], found["column"], found["before"], found["after"]) == (4, 1, ["four"], ["4"])


def test_brackets_that_change_nothing_are_not_written():
    assert "名 = (x + y + z) * 2\n" in replaced(TEXT, "x + y", "((x + y) + z)")
    assert "return g(名, x.sum(1) * (z + x))\n" in replaced(TEXT, "x.sum(1)", "(x.sum(1) * (z + x))")
    assert replaced("y = a * v\n", "v", "(v + b)") == "y = a * (v + b)\n"
    assert "名 = x * y + z * 2\n" in replaced(TEXT, "(x + y) * 2", "((x * y) + (z * 2))")
    assert "名 = x * (y + z)\n" in replaced(TEXT, "(x + y) * 2", "(x * (y + z))")

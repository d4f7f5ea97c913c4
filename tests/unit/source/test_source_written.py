"""The one function in which two texts differ, and what is told where there is none."""

from __future__ import annotations

import ast

import pytest

from aligner.source.written import changed, definitions

TEXT = '''import math

LEAST = 1


class Net:
    def own(self, x):
        return x


    @property
    def half(self):
        def inner(x):
            return x / 2

        return [inner(one) for one in self.all]


def free(x):
    return """
not the end
""" + x
'''


def told(old, new):
    assert TEXT.count(old) == 1
    return changed(TEXT, TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("x / 2", "x // 2", "half"),
        ("inner(one)", "inner(other)", "half"),
        ("return x\n", "return (x, y)\n", "own"),
        ("not the end", "nor this", "free"),
        ("def free(x)", "def free(x, y=1)", "free"),
        ("@property", "@cached_property", "half"),
    ],
)
def test_the_function_is_the_one_of_the_whole_trees(old, new, name):
    part = told(old, new)
    assert (part.own.name, part.new.name) == (name, name)
    whole = ast.parse(TEXT.replace(old, new))
    (same,) = [one for one in ast.walk(whole) if isinstance(one, ast.FunctionDef) and one.name == name]
    assert ast.dump(part.new, include_attributes=True) == ast.dump(same, include_attributes=True)
    assert len(definitions(part.own)) == len(definitions(part.new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LEAST = 1", "LEAST = 2"),
        ("return x\n", "y = x\n        return y\n"),
        ("return x\n", "return x\nMORE = 2\n"),
    ],
)
def test_no_one_function_where_others_change_or_lines_move(old, new):
    assert told(old, new) is None


def test_two_functions_are_not_one():
    assert changed(TEXT, TEXT.replace("x / 2", "x // 2").replace("return x\n", "return y\n")) is None


def test_what_is_no_python_is_told():
    with pytest.raises(SyntaxError):
        told("inner(one)", "inner(one")

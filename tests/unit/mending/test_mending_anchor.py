"""The values of the parts of an expression, in the turn of a loop in which it is looked at."""

from __future__ import annotations

import ast

from aligner.mending.anchor import Anchor, Parts
from aligner.mending.events import Event

TREE = ast.parse("clamp(0.5 * (a + b).sum(), 0)", mode="eval").body
PRODUCT = TREE.args[0]
TOTAL = PRODUCT.right
ADDED = TOTAL.func.value


def turn(first: int) -> list[Event]:
    """One run of the expression; its values are numbered from this one on."""
    made = enumerate([("add", ADDED), ("sum", TOTAL), ("mul", PRODUCT), ("clamp", TREE)], first)
    return [Event(word, (), (number,), node=node) for number, (word, node) in made]


def of(heard, event):
    found = Parts(heard).of(Anchor(event.node, event.results[0], event, 0, ()))
    return {ast.unparse(node): number for node, number in found}


def test_each_part_is_told_with_its_value_in_this_turn():
    first, second = turn(10), turn(20)
    heard = [*first, *second]
    assert of(heard, first[-1]) == {"0.5 * (a + b).sum()": 12, "(a + b).sum()": 11, "a + b": 10}
    assert of(heard, second[-1]) == {"0.5 * (a + b).sum()": 22, "(a + b).sum()": 21, "a + b": 20}


def test_what_makes_several_values_and_what_comes_later_has_none():
    heard = turn(10)
    heard[1].results = (11, 30)
    heard[0].part = True
    assert of(heard, heard[-1]) == {"0.5 * (a + b).sum()": 12}
    assert of(heard, heard[0]) == {}

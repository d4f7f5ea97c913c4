"""Values of a head, some of which are one on the other side."""

from __future__ import annotations

import numpy as np

from aligner.compare.shares import Shares
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

NUMBERS = dict(zip(("score", "ax", "ay", "bx", "by"), np.random.default_rng(3).normal(size=(5, 7, 4))))


def side(**values):
    keys = ((Key(0, Phase.FORWARD, "head", 0, f"output.{name}"), value) for name, value in values.items())
    return [MemoryEntry(Record(key, 0, "float32", value.astype(np.float32))) for key, value in keys]


def told(parts, *calls):
    shares = Shares()
    for wholes in calls:
        shares.learn("head", parts, wholes)
    return [
        (whole.key.slot, [one.key.slot for one in group], along.axis)
        for whole, group, along in shares.of("head", parts, calls[-1])
    ]


def stacked(one, other, axis=1):
    return np.stack([NUMBERS[one], NUMBERS[other]], axis)


PAIRS = [("output.a", ["output.ax", "output.ay"], 1), ("output.b", ["output.bx", "output.by"], 1)]
RIGHT = {"score": NUMBERS["score"], "a": stacked("ax", "ay"), "b": stacked("bx", "by")}


def test_those_that_follow_each_other_are_one():
    assert told(side(**NUMBERS), side(**RIGHT)) == PAIRS


def test_in_another_order_and_along_another_axis():
    turned = {**RIGHT, "a": stacked("ay", "ax", axis=2)}
    assert told(side(**NUMBERS), side(**turned))[0] == ("output.a", ["output.ay", "output.ax"], 2)


def test_a_wrong_one_is_told_by_the_others():
    assert told(side(**NUMBERS), side(**{**RIGHT, "a": 3 * RIGHT["a"]})) == PAIRS


def test_what_is_wrong_in_one_call_is_known_from_another():
    wrong = side(score=NUMBERS["score"], a=3 * RIGHT["a"], b=RIGHT["b"] - 1)
    assert told(side(**NUMBERS), wrong) == []
    assert told(side(**NUMBERS), side(**RIGHT), wrong) == PAIRS


def test_what_no_number_speaks_for_is_left():
    crossed = {"score": NUMBERS["score"], "a": stacked("ax", "bx"), "b": stacked("ay", "by")}
    assert told(side(**NUMBERS), side(**crossed)) == []

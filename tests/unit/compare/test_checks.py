"""What a forced pass finds survives being written down, and is judged by numbers alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from aligner.compare.checks import LIMIT, ROUNDING, Check, from_facts, to_facts
from aligner.compare.deviation import Deviation
from aligner.compare.pairing import Pair
from aligner.compare.reading import Reading
from aligner.record import Key, Phase


class Entry:
    """As much of a record as a pair needs."""

    def __init__(self, key):
        self.key = key


KEY = Key(1, Phase.FORWARD, "block.norm", 2, "output.0")
DEVIATION = Deviation(1.0, 0.5, 0.4, 0.3, 0.9, 3, 10, (0, 1), (0, 0), 0, 1.5, (1, 2), (0.5, 1.5))
CLEAN = Check(KEY, KEY, "layer", "block.norm", None, 3e-7, ROUNDING)
WRONG = Check(
    KEY,
    KEY._replace(layer="b.ln", slot="output.0.hidden"),
    "glue",
    "block",
    ("block.norm", ""),
    0.3,
    ROUNDING,
    DEVIATION,
    "shapes-differ",
    {"reference": "(1, 2)"},
    kept=True,
    alone=2e-4,
)


@pytest.mark.parametrize("check", [CLEAN, WRONG, replace(WRONG, isolated=False, follows=True, proved=True)], ids=str)
def test_a_check_comes_back_from_its_facts(check):
    assert from_facts(json.loads(json.dumps(to_facts(check)))) == check


def test_a_clean_check_takes_little_room():
    assert len(json.dumps(to_facts(CLEAN))) < 120
    assert "deviation" not in to_facts(replace(CLEAN, deviation=DEVIATION))


@pytest.mark.parametrize("facts", [{}, {"at": [0]}, {"at": [0, "a", 0, "s"], "where": "layer"}, {"at": 3}])
def test_facts_of_something_else_are_refused(facts):
    with pytest.raises(ValueError, match="check"):
        from_facts(facts)


@pytest.mark.parametrize(
    ("changes", "suspicious", "fails"),
    [
        ({"error": LIMIT * ROUNDING * 0.99}, False, False),
        ({"error": LIMIT * ROUNDING * 1.01}, True, True),
        ({"error": math.inf}, True, True),
        ({"error": 0.1, "follows": True}, True, False),
        ({"error": 0.1, "isolated": False}, True, False),
        ({"error": 0.1, "expected": 0.1}, False, False),
        ({"error": 3e-6, "proved": True}, True, True),
        ({"error": 4e-4, "expected": 4e-4, "alone": 2e-4}, True, True),
        ({"error": 4e-4, "expected": 4e-4, "alone": 2e-7}, False, False),
    ],
)
def test_what_is_wrong_by_itself(changes, suspicious, fails):
    check = replace(CLEAN, **changes)
    assert (check.suspicious, check.fails) == (suspicious, fails)


def test_a_layer_that_is_wrong_in_float32_is_looked_into_in_float32():
    hidden = replace(CLEAN, error=4e-4, expected=4e-4, alone=2e-4)
    assert hidden.hidden
    assert hidden.rounding == ROUNDING
    assert hidden.ratio == pytest.approx(200)


def test_what_a_short_type_hides_does_not_make_its_value_red():
    entry = Entry(KEY)
    red = Reading(Pair(entry, entry), over=True)
    assert not red.good
    for changes, good in (({"alone": 2e-4}, True), ({"alone": 2e-7}, True), ({"error": 0.1}, False)):
        red.check = replace(CLEAN, **{"error": 4e-4, "expected": 4e-4, **changes})
        assert red.good is good
    red.check = replace(CLEAN, error=4e-4, expected=4e-4, alone=2e-4, isolated=False)
    assert not red.good

"""Agreement that says nothing, or less than it seems to: it never passes without a word in the first line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aligner.cli.compare import exit_code
from aligner.compare.comparison import compare
from aligner.compare.verdict import Outcome
from aligner.errors import IncomparableError
from aligner.report import json_
from aligner.report.answer import answer
from tests.unit.compare.memory_dump import Recorder


def net(value, weight=None, given=None):
    """A net of one layer that makes `value`."""
    made = Recorder("Net")
    x = np.ones((2, 3), np.float32) if given is None else np.asarray(given)
    if weight is not None:
        made.parameter("fc", "Linear", "weight", weight)
    made.call("", "Net", lambda x: made.call("fc", "Linear", lambda x: np.asarray(value), x), x)
    return made.dump()


def run(value, **options):
    found = compare(net(value, **options), net(value, **options))
    return found, answer(found, "en"), answer(found, "zh"), [message for message, _ in found.warnings]


FULL = np.full((2, 3), np.nan, np.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float32("nan")])
def test_not_one_finite_number(value):
    found, english, chinese, warnings = run(np.full((2, 3), value, np.float32))
    assert warnings == ["no-finite-value"]
    assert "hold no finite number" in english
    assert "没有进行比对" in chinese
    assert (found.exit_code, exit_code(found, strict=True)) == (0, 1)
    void = [pair for pair in found.pairs if pair.key.slot == "output.0"]
    assert [pair.outcome for pair in void] == [Outcome.ALIGNED] * 2
    assert [pair.error for pair in void] == [None] * 2
    rows = [pair for pair in json_.document(found)["pairs"] if pair["slot"] == "output.0"]
    assert [(row["finite"], row["error"], row["max_abs"], row["cosine"]) for row in rows] == [(0, None, None, None)] * 2
    assert json.loads(json_.dumps(json_.document(found)))["pairs"]


def test_nan_and_inf_together_and_nan_everywhere():
    mixed = FULL.copy()
    mixed[0] = np.inf
    assert run(mixed)[3] == ["no-finite-value"]
    found, english, _, warnings = run(FULL, weight=FULL, given=FULL)
    assert warnings == ["no-finite-value"]
    assert "5 pairs hold no finite number" in english
    assert exit_code(found, strict=True) == 1


def test_one_number_among_nan_was_compared():
    some = FULL.copy()
    some[1, 2] = 3.0
    found, english, _, warnings = run(some)
    assert warnings == ["nan-on-both"]
    assert "finite" not in english
    assert [v.error for v in found.pairs] == [0.0] * 4


def test_an_empty_tensor_among_others_is_fine_and_nothing_but_empty_ones_is_not():
    empty = np.zeros((0, 3), np.float32)
    assert run(empty)[3] == []
    found, english, chinese, warnings = run(empty, given=empty, weight=np.ones((3, 3), np.float32))
    assert warnings == ["no-element"]
    assert "all of them are empty" in english
    assert "全部为空" in chinese
    assert (found.exit_code, exit_code(found, strict=True)) == (0, 1)


def test_outputs_that_are_zero_on_both_sides():
    found, english, chinese, warnings = run(np.zeros((2, 3), np.float32))
    assert warnings == ["output-zero"]
    assert "zero everywhere" in english
    assert "处处为零" in chinese
    assert exit_code(found, strict=True) == 1
    assert compare(net(np.zeros((2, 3), np.float32)), net(FULL * 0 + 1e-9)).counts["nonfinite"]


def test_zeros_within_the_net_are_nothing_to_speak_of():
    made = [Recorder("Net") for _ in range(2)]
    for one in made:
        zero = lambda x: np.zeros_like(x)  # noqa: E731  # a layer
        one.call("", "Net", lambda x, one=one, zero=zero: one.call("fc", "Linear", zero, x) + 1, np.ones((2, 3), "f4"))
    assert not compare(made[0].dump(), made[1].dump()).warnings


@pytest.mark.parametrize("value", [np.array([[1, 2]]), np.array([True, False])])
def test_only_whole_numbers_are_mentioned(value):
    found, english, chinese, warnings = run(value, given=np.array([3]))
    assert warnings == []
    assert "whole numbers" in english
    assert "整数" in chinese
    assert exit_code(found, strict=True) == 0
    assert "whole" not in run(value)[1]  # its input is float


def test_nothing_at_all_to_compare_is_incomparable():
    made = [Recorder("Net") for _ in range(2)]
    for one in made:
        one.call("", "Net", lambda: one.call("fc", "Linear", lambda: ()), *())  # noqa: B023  # called at once
        assert not one.records
    with pytest.raises(IncomparableError):
        compare(made[0].dump(), made[1].dump(), allow_unmatched=["*"])


def test_what_a_mask_hides_is_no_lack_of_numbers():
    """-inf on one side, -1e9 on the other, and one number that is seen."""
    low = np.array([[0.5, -np.inf]], np.float32)
    found = compare(net(low), net(np.where(low < 0, np.float32(-1e9), low)))
    assert (found.exit_code, list(found.warnings)) == (0, [])

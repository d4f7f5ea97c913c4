"""From which call on a net ran on other weights, by what the capture has found out."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.comparison import compare
from aligner.compare.moved import moved
from aligner.compare.verdict import Outcome
from aligner.findings import MOVED
from tests.unit.compare.memory_dump import Recorder


def loop(changes=(), factor=1.0, from_step=1, steps=3):
    """Two layers, three steps; `changes` are (step, layers), `factor` multiplies what `b` makes from a step on."""
    made, found = Recorder("Net"), []
    for layer in ("a", "b"):
        made.parameter(layer, "Linear", "weight", np.ones((3, 3), np.float32))
    random = np.random.default_rng(0)
    for step in range(steps):
        found += [
            (MOVED, {"step": step, "order": made.order + 1, "layers": names}) for at, names in changes if at == step
        ]
        scale = np.float32(factor if step >= from_step else 1.0)

        def net(x, scale=scale):
            return made.call("b", "Linear", lambda x: x * scale, made.call("a", "Linear", lambda x: x + 1, x))

        made.call("", "Net", net, random.standard_normal((2, 3)).astype(np.float32))
        made.next_step()
    dump = made.dump()
    dump.findings = found
    return dump


def test_nothing_moved():
    assert moved(loop()).steps == []
    assert [origin.layer for origin in compare(loop(), loop(factor=2.0)).origins] == ["b"]


def test_both_moved():
    found = compare(loop([(1, ["a", "b"])]), loop([(1, ["a", "b"])], factor=2.0))
    assert (found.exit_code, found.origins) == (1, ())
    failing = [v for v in found.verdicts if v.fails]
    assert {(v.outcome, v.reason) for v in failing} == {(Outcome.INHERITED, "unjudged-both")}
    assert dict(found.warnings)["weights-moved"] == {"step": 1, "records": 4, "count": 2, "layer": "a"}


def test_what_comes_before_the_moved_layer_is_judged():
    one = loop([(1, ["b"])])
    assert not compare(one, loop([(1, ["b"])], factor=2.0)).origins
    other = loop([(1, ["b"])])
    for entry in other.entries:
        if entry.key.layer == "a" and entry.key.slot == "output.0" and entry.key.step == 2:
            entry._array = entry._array * 2
    assert [(origin.layer, origin.step) for origin in compare(one, other).origins] == [("a", 2)]


def test_weights_that_came_back():
    there_and_back = [(1, ["b"]), (2, [])]
    assert moved(loop(there_and_back)).steps == [1]
    found = compare(loop(there_and_back), loop(there_and_back, factor=2.0, from_step=2))
    assert [(origin.layer, origin.step) for origin in found.origins] == [("b", 2)]


@pytest.mark.parametrize("side", ["reference", "port"])
def test_one_side_alone(side):
    pair = [loop([(1, ["b"])]), loop(factor=2.0)]
    found = compare(*(pair if side == "reference" else reversed(pair)))
    assert (found.outcome, found.exit_code, found.origins) == ("incomparable", 3, ())
    assert f"weights-moved-{side}" in dict(found.warnings)


def test_one_side_alone_that_agrees_is_aligned():
    found = compare(loop([(1, ["b"])]), loop())
    assert (found.exit_code, list(found.warnings)) == (0, [])


def test_a_real_error_in_the_same_dump_counts_first():
    found = compare(loop([(1, ["b"])]), loop([(1, ["b"])], factor=2.0, from_step=0))
    assert [(origin.layer, origin.step) for origin in found.origins] == [("b", 0)]
    assert found.first.key.step == 0


def test_steps_that_the_port_does_not_have():
    found = compare(loop([(1, ["a", "b"])]), loop(steps=1))
    assert found.exit_code == 0
    assert dict(found.warnings)["steps-not-compared"] == {"steps": 2, "step": 1}
    assert compare(loop(), loop(steps=1)).exit_code == 1  # these could have been compared


@pytest.mark.parametrize(
    "facts", [{}, {"order": "1", "layers": ["b"]}, {"order": True, "layers": "b"}, {"order": -1, "layers": [1, None]}]
)
def test_findings_of_any_form(facts):
    dump = loop()
    dump.findings = [(MOVED, facts), (MOVED, {"order": 1 << 70, "layers": ["b"]})]
    assert moved(dump).steps == []

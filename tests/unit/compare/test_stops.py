"""What ran before a stop is judged as usual; what did not run because of it is no difference."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.comparison import compare
from aligner.compare.verdict import Outcome
from aligner.record import Call, Phase
from tests.unit.compare.memory_dump import Recorder


class Stopping(Recorder):
    """A net whose code raises in the middle; `ended` is told what a capture would."""

    def __init__(self, *settings, **header):
        super().__init__(*settings, **header)
        self.under_way = []

    def call(self, path, kind, function, *inputs, **more):
        self.under_way.append((path, self._numbers.get(path, 0), self.order + 1))
        result = super().call(path, kind, function, *inputs, **more)
        self.under_way.pop()
        return result

    def ended(self, error):
        layer, number, _ = self.under_way[-1]
        for path, times, first in self.under_way:
            self.calls.append(Call(self.step, Phase.FORWARD, path, times, first, None, {}, {"none": True}))
        facts = {"step": self.step, "layer": layer, "call": number, "error": type(error).__name__, "said": str(error)}
        self.header["stopped"] = facts
        made = self.dump()
        made.complete = False
        return made


def sample(seed=0):
    return np.random.default_rng(seed).standard_normal((4, 6)).astype(np.float32)


def relu(x):
    return np.maximum(x, 0)


def net(stop="", without=(), prefix="", wrong="", steps=1, at=0):
    """Three blocks that share an activation; `stop` names what raises."""
    rec = Stopping("Net")
    rec.layer("", "Net", children=True)
    for name in ("a", "b", "c"):
        rec.layer(f"{prefix}{name}", "Linear")
    rec.layer(f"{prefix}act", "ReLU")

    def layer(name, kind, function, x):
        if name in without:
            return x

        def run(v):
            if stop == name and rec.step == at:
                raise ValueError("no")
            return function(v) * (1.5 if name == wrong else 1)

        return rec.call(f"{prefix}{name}", kind, run, x)

    def body(x):
        for n, name in enumerate(("a", "b", "c")):
            x = layer(name, "Linear", lambda v, n=n: v + n + 1, x)
            if stop == f"behind {name}" and rec.step == at:
                raise ValueError("no")
            x = layer("act", "ReLU", relu, x)
        return x

    try:
        for step in range(steps):
            rec.step, rec._numbers = step, {}
            rec.call("", "Net", body, sample(step))
    except ValueError as error:
        return rec.ended(error)
    return rec.dump()


def outcomes(result):
    return {(v.key.step, v.key.layer, v.key.call, v.key.slot): v.outcome for v in result.verdicts}


@pytest.mark.parametrize("prefix", ["", "body."])
@pytest.mark.parametrize("stop", ["a", "b", "behind b", "c", "behind c"])
def test_what_did_not_run_is_no_difference(stop, prefix):
    result = compare(net(), net(stop, prefix=prefix))
    assert (result.outcome, result.exit_code) == ("diverged", 1)
    assert [one.side for one in result.stops] == ["port"]
    assert not result.origins
    assert not [v for v in result.verdicts if v.fails]
    found = outcomes(result)
    assert found[0, "", 0, "output.0"] is Outcome.NOT_RUN
    ran = {"a": 0, "b": 1, "behind b": 1, "c": 2, "behind c": 2}[stop]
    for call in range(3):
        wanted = Outcome.ALIGNED if call < ran else Outcome.NOT_RUN
        assert found[0, "act", call, "output.0"] is wanted, "the i-th call of a shared layer is the i-th"


def test_the_side_that_stopped_may_be_the_reference_or_both():
    result = compare(net("b"), net())
    assert [one.side for one in result.stops] == ["reference"]
    assert result.exit_code == 1
    assert not [v for v in result.verdicts if v.fails]
    both = compare(net("b"), net("b"))
    assert [one.side for one in both.stops] == ["reference", "port"]
    assert both.counts["not_run"] == 0
    assert both.exit_code == 1


def test_a_layer_missing_before_the_stop_is_missing():
    result = compare(net(), net("behind c", without=("b",)))
    assert outcomes(result)[0, "b", 0, "output.0"] in (Outcome.UNMATCHED, Outcome.COVERED)
    assert any(v.fails for v in result.verdicts), "its effect is there"


def test_a_wrong_layer_before_the_stop_is_the_origin():
    result = compare(net(), net("c", wrong="a"))
    assert [origin.layer for origin in result.origins] == ["a"]
    assert result.first.key.layer == "a"


def test_later_steps_did_not_run_either():
    result = compare(net(steps=3), net("b", steps=3, at=1))
    found = outcomes(result)
    assert {outcome for (step, *_), outcome in found.items() if step == 0} == {Outcome.ALIGNED}
    assert {outcome for (step, *_), outcome in found.items() if step == 2} == {Outcome.NOT_RUN}
    assert found[1, "a", 0, "output.0"] is Outcome.ALIGNED
    assert found[1, "b", 0, "output.0"] is Outcome.NOT_RUN
    assert "steps-differ" not in [message for message, _ in result.warnings]


def test_a_dump_that_ended_without_a_word_is_told_as_before():
    port = net("b")
    port.header["stopped"] = None
    result = compare(net(), port)
    assert {v.reason for v in result.verdicts if v.outcome is Outcome.UNMATCHED} == {"only-reference-ended"}
    assert not result.stops

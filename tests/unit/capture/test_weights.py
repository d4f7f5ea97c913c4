"""Weights of a net that runs compiled: what they are is read around its run, whichever thread tells of its layers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from aligner.adapter import Parameter
from aligner.capture.weights import Weights
from aligner.patches import Handle


class Compiled:
    """An adapter of one layer with a weight and a statistic; `run` runs it as something compiled that was called."""

    def __init__(self):
        self.values = {"weight": np.zeros(3), "running_mean": np.zeros(3)}
        self.before = self.after = None
        self.reading = True

    def compiled_runs(self, before, after):
        self.before, self.after = before, after
        return Handle()

    def parameters(self, model):
        for role in self.values:
            yield Parameter(role, "bn", role, (3,), "float32", role == "weight", role)

    def read(self, parameter):
        assert self.reading, "the graph has the memory now"
        return self.values[parameter.role].copy()

    def thread(self):
        return threading.get_ident()  # that of the caller, if it is the caller's that tells

    def run(self, weights, step, told):
        self.before()
        self.reading = False
        weights.begin("", step, 0, lambda kind, facts: told.append((facts["step"], facts["layers"])))
        weights.end("")
        self.values["running_mean"] += 1
        self.reading = True
        self.after()


@pytest.mark.parametrize("elsewhere", [[], [0], [1, 2], [0, 1, 2, 3, 4]], ids=str)
def test_statistics_that_a_compiled_run_writes_are_no_weights_that_moved(elsewhere):
    """MindSpore told of the first run on a thread of its own and of the others on the caller's."""
    adapter, told = Compiled(), []
    weights = Weights(adapter, None)
    weights.listen([])
    weights.record(lambda key, dtype, read: read())
    for step in range(5):
        if step == 3:
            adapter.values["weight"] += 1
        if step in elsewhere:
            adapter.thread = lambda: -1
        adapter.run(weights, step, told)
        vars(adapter).pop("thread", None)
    assert told == [(3, ["bn"])]

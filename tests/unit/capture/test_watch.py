"""Nothing that goes wrong while a script is watched reaches the script, and nothing of it is forgotten."""

from __future__ import annotations

import pytest

from aligner import registry
from aligner.capture.progress import Progress
from aligner.capture.watch import Watch


class Adapter:
    """One that fails at the moment that it is told."""

    def __init__(self, moment):
        self._moment = moment

    def fail(self, moment):
        if moment == self._moment:
            raise RuntimeError(moment)

    def watch_roots(self, on_root):
        self.fail("watching")
        self.on_root = on_root
        return self

    def is_model(self, model):
        self.fail("a model runs")

    def remove(self):
        self.fail("the end")


@pytest.mark.parametrize("moment", ["loading", "watching", "a model runs", "the end"])
def test_a_failure_is_kept_for_the_end(monkeypatch, moment):
    adapter = Adapter(moment)

    def load(name):
        adapter.fail("loading")
        return adapter

    monkeypatch.setattr(registry, "load", load)
    watch = Watch("x.h5", lambda: None, None, Progress(None))
    watch.on_import("torch")
    if moment not in ("loading", "watching"):
        adapter.on_root(object())
    watch.close()
    assert str(watch.failure) == moment

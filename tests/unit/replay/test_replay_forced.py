"""Runs of a forced pass that do not come to their end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aligner.errors import DumpError
from aligner.replay.forced import ForcedPass


def pass_that(error):
    """One whose next run raises."""
    made = object.__new__(ForcedPass)
    made.values = SimpleNamespace(checks=["known"], disturb=None, watched=None)

    def run(step, call):
        made.checks.append("half")
        raise error

    made.run = run
    return made


def test_a_net_that_does_not_run_with_noise_in_it_keeps_what_was_found_without():
    """A form that is known by its very values is not known in this run: the whole pass was lost by that."""
    made = pass_that(ValueError("axis out of range"))
    made.disturbed(0, lambda: None, lambda array, dtype: array, lambda *told: None)
    assert (made.checks, made.values.disturb, made.values.watched) == (["known"], None, None)


def test_a_full_disk_is_told():
    with pytest.raises(DumpError):
        pass_that(DumpError("dump-empty", path="x")).disturbed(
            0, lambda: None, lambda array, dtype: array, lambda *told: None
        )

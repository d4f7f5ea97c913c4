"""Values that are put where the port does with them what the reference does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aligner.mending.candidate import OTHER, Candidate
from aligner.mending.events import LAYER, Event, Story
from aligner.mending.roles import Roles

OURS = [
    Event("mul", (0, 1), (2,)),
    Event("sum", (2,), (3,)),
    Event("div", (3, 4), (5,)),
    Event("reshape", (5,), (6,)),
    Event("sub", (6, 7), (8,)),
    Event(LAYER, (8,), (9,), layer="one"),
]
MEAN = Event("mean", (0,), (1,))
THEIRS = [MEAN, Event("transpose", (1,), (2,)), Event("sub", (2, 3), (4,)), Event(LAYER, (4,), (5,), layer="two")]


@pytest.mark.parametrize(("value", "event", "fits"), [(5, MEAN, True), (3, MEAN, False), (8, THEIRS[2], False)])
def test_several_steps_in_the_place_of_one(value, event, fits):
    matching = SimpleNamespace(ours=Story([], OURS, []))
    roles = Roles(matching, THEIRS)
    assert roles.fits(Candidate(1.0, (), OTHER, ((event, None, value, None),))) is fits

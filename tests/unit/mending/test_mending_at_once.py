"""Reductions in steps are told as one."""

from __future__ import annotations

import pytest

from aligner.mending.at_once import at_once
from aligner.mending.events import Event, makers

BEFORE = {
    "axes joined": (Event("reshape", (0,), (1,), {"shape": (3, 14)}), (3, 1, 7, 2), (3, 14), 1, (1, 2, 3)),
    "all joined": (Event("reshape", (0,), (1,), {"shape": (42,)}), (3, 7, 2), (42,), 0, (0, 1, 2)),
    "an axis of one left out": (Event("reshape", (0,), (1,), {"shape": (3, 7)}), (3, 1, 7), (3, 7), 1, (1, 2)),
    "reduced before": (Event("sum", (0,), (1,), {"axis": 1, "keepdims": False}), (3, 7, 2), (3, 2), 1, (1, 2)),
    "an axis taken apart": (Event("reshape", (0,), (1,), {"shape": (3, 7, 2)}), (3, 14), (3, 7, 2), 1, None),
    "in another way": (Event("amax", (0,), (1,), {"axis": 1, "keepdims": False}), (3, 7, 2), (3, 2), 1, None),
}


@pytest.mark.parametrize("name", BEFORE)
def test_it_is_told_as_one_step_where_it_is_one(name):
    before, whole, value, axis, wanted = BEFORE[name]
    event = Event("sum", (1,), (2,), {"axis": axis, "keepdims": False})
    found = at_once(event, makers([before, event]), [whole, value, ()])
    assert (None if found is None else (found.operands, found.arguments["axis"])) == (wanted and ((0,), wanted))

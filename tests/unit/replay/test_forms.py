"""Which differences of arguments are a matter of form."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.forms import sees_nothing

SCORES = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
SOME = np.arange(6) < 3
NONE = np.arange(4)[:, None] != 2
INF = np.float32(np.inf)


def masked(fill, seen, scores=SCORES):
    return np.where(seen, scores, np.float32(fill))


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (masked(-1e9, NONE), masked(-INF, NONE), True),
        (masked(-INF, NONE), masked(-1e9, NONE), True),
        (masked(-1e9, NONE), masked(-1e4, NONE), True),
        (masked(-1e9, NONE), masked(-3e38, NONE), False),
        (masked(-1e9, NONE), np.where(NONE, SCORES, SCORES - 2e4), True),
        (np.where(NONE, SCORES, SCORES - 2e4), np.where(NONE, SCORES, SCORES - 3e4), False),
        (masked(-INF, NONE), masked(-INF, NONE), False),
        (masked(-1e9, SOME & NONE), masked(-1e9, SOME), False),
        (SCORES, SCORES + 1, False),
    ],
)
def test_rows_that_are_hidden_as_a_whole(one, other, told):
    wanted = Held(Key(0, Phase.FORWARD, "softmax", 0, "input.0"), 0, "float32", np.ascontiguousarray(one))
    assert sees_nothing(wanted, np.ascontiguousarray(other, dtype=np.float32), "float32") is told


def test_rows_of_which_something_is_seen_are_no_matter():
    wanted = Held(Key(0, Phase.FORWARD, "softmax", 0, "input.0"), 0, "float32", masked(-1e9, SOME))
    assert not sees_nothing(wanted, masked(-INF, SOME), "float32")

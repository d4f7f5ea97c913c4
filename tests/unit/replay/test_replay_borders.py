"""What is to tell of values that may stand at another border: all that the code around makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from aligner.compare.checks import OTHER_BORDER, Check
from aligner.compare.formed import Formed
from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.borders import Borders
from aligner.replay.standing import Standing
from aligner.replay.uses import Uses


class Made(Formed):
    """A counterpart with numbers of its own."""

    def raw(self):
        return np.ones(self.shape, np.float32)


BLOCK, NET = ("block", 0), ("", 0)
RNG = np.random.default_rng(0)


def check(layer, slot="output.0", error=0.0, where="glue", call=0):
    key = Key(0, Phase.FORWARD, layer, call, slot)
    return Check(key, key, where, "", None, error, 1e-6)


def waiting(*layers, inside=True):
    """Borders that have left as it is what these layers hand on, by code of their own or by the code around."""
    borders = Borders(Uses(around=frozenset(layers), standing=Standing()))
    wrong = {layer: check(layer, error=1.0) for layer in layers}
    for layer in layers:
        found = Held(wrong[layer].port, 0, "float32", RNG.standard_normal(32).astype(np.float32))
        entry = Made(found.key, found, found.shape, layer)
        moved = borders.moved(wrong[layer], entry, found, lambda *_, one=wrong[layer]: one, BLOCK)
        assert moved is not None
        assert moved.entry is None
        # the check is another object by now, as it is where values are judged
        code = (layer, 0) if inside else BLOCK
        assert borders.opened(replace(wrong[layer]), None, code, BLOCK)[1].suspicious
    return borders


def told(borders, made, code=BLOCK, outer=BLOCK):
    excused, mine = borders.opened(made, None, code, outer)
    return [one.port.layer for one in excused if one.reason == OTHER_BORDER], mine.follows


def test_what_waits_is_right_when_all_that_the_code_hands_on_is():
    borders = waiting("tail")
    assert told(borders, check("next", "input.0")) == ([], False)
    assert told(borders, check("block"), outer=NET) == ([], False)
    assert [one.port.layer for one in borders.left(BLOCK, NET)] == ["tail"]
    assert not borders.refuted


def test_another_that_waits_says_nothing_against_the_first():
    borders = waiting("tail", "other", inside=False)
    assert not borders.refuted
    assert told(borders, check("next", "input.0")) == ([], False)
    assert {one.port.layer for one in borders.left(BLOCK, NET)} == {"tail", "other"}


def test_a_right_value_of_another_branch_does_not_excuse_it():
    borders = waiting("tail")
    told(borders, check("branch", "input.0"))
    assert told(borders, check("join", "input.0", error=1.0))[1], "it comes of what was handed on"
    assert not borders.left(BLOCK, NET)


def test_of_several_results_a_right_one_does_not_excuse_what_a_wrong_one_is_made_of():
    borders = waiting("loss")
    told(borders, check("block", "output.0"), outer=NET)
    assert told(borders, check("block", "output.1", error=math.inf), outer=NET)[1]
    assert not borders.left(BLOCK, NET)


def test_code_inside_another_layer_tells_nothing():
    borders = waiting("tail")
    assert told(borders, check("next.inner", "input.0", error=1.0), code=("next", 0), outer=("next", 0)) == ([], False)
    assert not borders.left(BLOCK, NET), "and nothing has been seen of it yet"

"""In which order of axes a value of a slot is, by what other calls tell."""

from __future__ import annotations

import numpy as np

from aligner.compare.checks import Check
from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.judgement import judged
from aligner.replay.turned import Turned

ORDER = (0, 2, 1, 3)


def judge(turned, wanted, array, call):
    key = Key(0, Phase.FORWARD, "decoder", call, "input.1")
    one, other = Held(key, 0, "float32", wanted), Held(key, 0, "float32", array)
    check: Check = judged(None, one, other, ("glue", "", None), False)
    return turned.judged(check, one, other, None)


def test_a_cache_is_put_in_the_order_of_its_slot_where_it_is_wrong_and_its_shape_tells_nothing():
    rng, turned = np.random.default_rng(0), Turned()
    one, three, four = (rng.standard_normal((6, n, 4, 10)).astype(np.float32) for n in (1, 3, 4))
    judge(turned, one, one.reshape(6, 4, 1, 10), 0)  # axes of one tell nothing
    check, _ = judge(turned, three, np.ascontiguousarray(three.transpose(ORDER)), 1)
    assert turned.orders[check.port] == ORDER
    wrong = np.ascontiguousarray(four.transpose(ORDER))[[1, 0, 2, 3, 4, 5]]
    check, put = judge(turned, four, wrong, 2)
    assert check.suspicious
    assert check.axes == ORDER
    assert np.array_equal(put.raw(), four.transpose(ORDER))
    again = turned.judged(check, put, Held(check.port, 0, "float32", wrong), None)
    assert again == (check, put)

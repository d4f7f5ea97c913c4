"""Which differences of arguments are a matter of form."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.forms import (
    are_indices,
    joined,
    laid,
    laid_out,
    once,
    own_axes,
    sees_nothing,
    takes_together,
    tells_other_things,
)

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


@pytest.mark.parametrize(
    ("order", "shape", "same"),
    [((0, 1, 2, 3), (2, 12, 5), True), ((0, 3, 1, 2), (2, 5, 3, 4), False), ((0, 3, 1, 2), (2, 5, 12), False)],
)
def test_the_same_numbers_in_another_order_of_axes_are_known_again(order, shape, same):
    values = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    wanted = Held(Key(0, Phase.FORWARD, "block", 0, "output.0"), 0, "float32", values)
    port = np.ascontiguousarray(values.transpose(order).reshape(shape))
    assert laid_out(wanted, port, "float32", 1e-6) == order
    assert np.array_equal(laid(wanted, order, shape).raw(), port)
    assert joined(wanted.shape, order, shape) is same
    assert laid_out(wanted, port[::-1].copy(), "float32", 1e-6) is None
    wrong = port.copy()
    wrong.flat[7] += 1
    assert laid_out(wanted, wrong, "float32", 1e-6) is None


APART = np.arange(8)[:, None] - np.arange(8)[None, :]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (APART, APART + 7, False),
        (APART, np.clip(APART + 7, 0, 13), False),
        (APART, np.where(APART == 3, 5, APART) + np.arange(8), True),
        (np.arange(9), np.arange(9)[::-1] + 4, True),
    ],
)
def test_indices_that_count_from_elsewhere(one, other, told):
    wanted = Held(Key(0, Phase.FORWARD, "attention", 0, "input.1"), 0, "int64", np.ascontiguousarray(one))
    assert tells_other_things(wanted, np.ascontiguousarray(other), "int64") is told
    assert are_indices(wanted, np.ascontiguousarray(other), "int64")


@pytest.mark.parametrize(
    ("one", "other", "does"),
    [
        ((3, 7, 4), (21, 4), True),
        ((3, 4, 7), (21, 4), False),
        ((3, 1, 4), (3, 4), True),
        ((3, 4), (3, 4, 1), True),
        ((6, 4), (2, 3, 4), False),
    ],
)
def test_neighbouring_axes_as_one(one, other, does):
    assert takes_together(one, other) is does


def test_what_edits_make_right_in_the_ports_own_axes():
    value = np.random.default_rng(1).standard_normal((2, 3, 5)).astype("<f4")
    turned, wrong = value.transpose(1, 0, 2).copy(), value.transpose(1, 0, 2) + 1
    wanted, found, plain = (
        Held(Key(0, Phase.FORWARD, "a", 0, "input.0"), 0, "float32", one) for one in (value, turned, wrong)
    )
    assert own_axes(wanted, plain, found, 1e-6) == (1, 0, 2)
    assert own_axes(wanted, found, found, 1e-6) is None, "it stood so before"
    assert own_axes(wanted, plain, plain, 1e-6) is None
    assert own_axes(wanted, None, found, 1e-6) is None


@pytest.mark.parametrize(
    ("wanted", "shape", "found"),
    [
        (np.stack([SCORES] * 3), (1, 4, 6), (1, 4, 6)),
        (np.stack([SCORES] * 3), (4, 6), (4, 6)),
        (np.stack([SCORES, SCORES, SCORES + 1]), (1, 4, 6), (3, 4, 6)),
        (SCORES[None], (3, 4, 6), (1, 4, 6)),
        (np.stack([SCORES] * 3), (1, 6, 4), (3, 4, 6)),
    ],
)
def test_what_the_reference_has_for_each_item_the_port_may_have_once(wanted, shape, found):
    put = once(
        *(Held(Key(0, Phase.FORWARD, "a", 0, "output.0"), 0, "float32", v) for v in (wanted, np.ones(shape, "f")))
    )
    assert put.shape == found
    assert np.array_equal(put.load().reshape(found), wanted[: found[0]].reshape(found) if len(found) > 2 else SCORES)

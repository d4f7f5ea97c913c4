"""Whether two masks say the same, with axes of one between."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.forms import in_other_words
from aligner.replay.masks import as_added, in_its_words, say_the_same

SEEN = np.random.default_rng(2).random((3, 4, 5)) > 0.4


def held(values):
    return Held(Key(0, Phase.FORWARD, "", 0, "input.1"), 0, "bool", values)


@pytest.mark.parametrize("shape", [(3, 4, 5, 1), (3, 1, 4, 5), (1, 3, 4, 5)])
def test_of_three_axes_one_of_one_before_or_behind_does_not_matter(shape):
    mask = np.where(SEEN, np.float32(0), np.float32(-1e4)).reshape(shape)
    assert say_the_same(held(SEEN), mask, "float32")
    assert not say_the_same(held(SEEN), mask.reshape(3, 4, 1, 5), "float32")
    assert not say_the_same(held(SEEN), np.where(mask == 0, np.float32(-1e4), np.float32(0))[::-1], "float32")


def test_of_two_it_does():
    keys, mask = SEEN[:, :1, :, None].swapaxes(2, 3), np.where(SEEN[:, 0], np.float32(0), np.float32(-1e4))
    assert say_the_same(held(keys), mask.reshape(3, 1, 1, 5), "float32")
    assert not say_the_same(held(keys), mask.reshape(3, 1, 5, 1), "float32")


def test_true_for_false_are_other_words_and_a_few_others_are_none():
    wrong = ~SEEN
    wrong[0, 0, 0] ^= True
    assert in_other_words(held(SEEN), ~SEEN, "bool")
    assert not in_other_words(held(SEEN), wrong, "bool")
    assert np.array_equal(in_its_words(SEEN, wrong), ~SEEN)
    assert np.array_equal(in_its_words(SEEN, ~wrong), SEEN)


@pytest.mark.parametrize("padded", [False, True])
def test_true_may_mean_either_where_whole_rows_are_hidden(padded):
    """A window of four tokens after padding on the left: nothing is seen by what pads. Without, it is not known."""
    query, key = np.arange(7)[:, None], np.arange(7)[None]
    seen = (key <= query) & (query - key < 4)
    seen = seen & (key > 1) if padded else seen
    additive = np.where(seen, np.float32(0), np.float32(-3e38))
    wanted = Held(Key(0, Phase.FORWARD, "", 0, "input.1"), 0, "float32", additive)
    assert say_the_same(wanted, seen, "bool") == say_the_same(wanted, ~seen, "bool") == padded
    assert not say_the_same(wanted, seen[::-1], "bool")


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_in_the_words_of_one_that_is_wrong(turned):
    wanted = held(turned != SEEN)
    own = np.where(SEEN[:, :1], np.float32(0), np.float32(-1e4))  # it hides the same from all
    added = as_added(wanted, Held(wanted.key, 0, "float32", own))
    assert (added.dtype, added.shape) == ("float32", SEEN.shape)
    assert np.array_equal(added.load(), np.where(SEEN, 0, -1e4))


@pytest.mark.parametrize("own", [SEEN, np.zeros((3, 4, 5), np.float32), np.full((2, 2), -1e4, np.float32)])
def test_there_may_be_no_such_words(own):
    wanted = held(SEEN)
    assert as_added(wanted, Held(wanted.key, 0, own.dtype.name, own)) is wanted

"""Numbers that steps are given on the one side and not on the other."""

from __future__ import annotations

from aligner.mending.differing_numbers import figures
from aligner.mending.events import Event
from aligner.words.calls import Constant


def step(word, *operands, **arguments):
    made = tuple(Constant(one) if isinstance(one, float) else one for one in operands)
    return Event(word, made, (0,), arguments)


def told(ours, theirs, early):
    wrong, missing = ([*enumerate(side)] for side in (theirs, ours))
    return [(one.step.word, one.found, one.wanted) for one in figures(wrong, missing, early, (theirs, ours))]


def test_operands_and_arguments_of_the_first_steps():
    ours = [step("mul", 1, 0.5), step("softplus", 1, beta=1, threshold=20), step("add", 1, 7.0)]
    theirs = [step("mul", 1, 0.25), step("softplus", 1, beta=2, threshold=20), step("mul", 1, 0.5)]
    assert told(ours, theirs, 2) == [("mul", 0.25, 0.5), ("softplus", 2, 1)]


def test_later_ones_only_where_either_side_has_them_nowhere_else():
    ours = [step("transpose", 1), step("add", 1, 1 / 31), step("add", 1, 3.0)]
    theirs = [step("reshape", 1), step("add", 1, 1 / 255), step("add", 1, 3.0)]
    assert told(ours, theirs, 1) == [("add", 1 / 255, 1 / 31)]


def test_what_is_no_finite_number_is_none():
    ours = [step("clamp", 1, min=None, max=float("inf")), step("sum", 1, axis=(1,), keepdims=True)]
    theirs = [step("clamp", 1, min=0.0, max=2.0), step("sum", 1, axis=1, keepdims=False)]
    assert not told(ours, theirs, 2)


def test_ends_of_slices_in_their_places():
    whole = (None, None, 1)
    ours = [step("getitem", 1, index=(whole, (56, 112, 1)))]
    theirs = [step("getitem", 1, index=(whole, (28, 84, 1)))]
    assert told(ours, theirs, 1) == [("getitem", 28, 56), ("getitem", 84, 112)]
    assert not told([step("getitem", 1, index=(whole, 0))], theirs, 1)

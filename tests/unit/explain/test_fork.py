"""Where two pieces of code part, told from nothing but fingerprints of what their lines made."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.fork import fork
from aligner.explain.trail import Step, Trail
from aligner.fingerprint import fingerprint

H, A, B = (np.random.default_rng(seed).standard_normal((2, 9, 4)) for seed in range(3))


class Code:
    """Writes down what it computes, a line for each call."""

    def __init__(self):
        self.values, self.steps = [], []

    def number(self, array):
        same = (n for n, other in enumerate(self.values) if other.shape == array.shape and np.array_equal(other, array))
        found = next(same, len(self.values))
        if found == len(self.values):
            self.values.append(array)
        return found

    def ran(self, line, name, made, *given, arguments=()):
        numbers = tuple(map(self.number, given))
        self.steps.append(Step(name, numbers, (self.number(made),), arguments, "net.py", line, f"line {line}"))
        return made

    @property
    def trail(self):
        return Trail(tuple(fingerprint(value) for value in self.values), tuple(self.steps))


def parted(ours, theirs, wanted, found, rounding=1e-7):
    return fork(ours.trail, theirs.trail, fingerprint(wanted), fingerprint(found), rounding)


def taps(code, padded):
    """One line that takes two slices of what the line before made, one of which may be what went into that."""
    first = code.ran(2, "mul", code.ran(2, "getitem", padded[:, :9], padded) * A, padded[:, :9], A)
    second = code.ran(2, "mul", code.ran(2, "getitem", padded[:, 2:11], padded) * B, padded[:, 2:11], B)
    return code.ran(2, "add", first + second, first, second)


def test_a_line_is_not_blamed_for_what_the_line_before_hands_it():
    ours, theirs = Code(), Code()
    nothing = np.zeros((2, 2, 4))
    wanted = taps(ours, ours.ran(1, "pad", np.concatenate([nothing, H], 1), H))
    found = taps(theirs, theirs.ran(1, "concat", np.concatenate([H, nothing], 1), H, nothing))
    told = parted(ours, theirs, wanted, found)
    assert told is not None
    assert told.port.line == 1 or not told.sure


def test_what_differs_by_rounding_is_no_line():
    ours, theirs = Code(), Code()
    wanted = ours.ran(2, "mul", ours.ran(1, "exp", np.exp(H), H) * A, np.exp(H), A)
    other = theirs.ran(1, "exp", np.exp(H) * (1 + 1e-7), H)
    found = theirs.ran(2, "mul", other * B, other, B)
    told = parted(ours, theirs, wanted, found)
    assert (told.kind, told.port.line, told.reference.line) == ("given", 2, 2)


def test_another_layout_is_no_mistake_of_its_own():
    ours, theirs = Code(), Code()
    turned = ours.ran(1, "transpose", H.swapaxes(1, 2), H)
    there = ours.ran(2, "softmax", np.tanh(turned), turned, arguments=("*", "dim=-1"))
    wanted = ours.ran(3, "transpose", there.swapaxes(1, 2), there)
    found = theirs.ran(5, "softmax", np.sinh(H), H, arguments=("*", "dim=1"))
    told = parted(ours, theirs, wanted, found)
    assert (told.port.line, told.reference.line) == (5, 2)


def test_a_scale_that_stands_elsewhere_does_not_hide_the_line():
    ours, theirs = Code(), Code()
    product = ours.ran(1, "matmul", H @ A.swapaxes(1, 2), H, A)
    wanted = ours.ran(3, "softmax", np.tanh(ours.ran(2, "div", product / 4, product)), product / 4)
    scaled = theirs.ran(7, "mul", H / 4, H)
    again = theirs.ran(8, "matmul", scaled @ A.swapaxes(1, 2), scaled, A)
    found = theirs.ran(9, "sigmoid", np.sin(again), again)
    told = parted(ours, theirs, wanted, found)
    assert (told.kind, told.port.line, told.reference.line) == ("other", 9, 3)


def test_nan_tells_nothing():
    ours, theirs = Code(), Code()
    wanted = ours.ran(1, "log", np.abs(H), H)
    found = theirs.ran(1, "log", np.full_like(H, np.nan), H)
    assert parted(ours, theirs, wanted, found) is None


def test_an_error_near_rounding_names_no_line():
    ours, theirs = Code(), Code()
    wanted = ours.ran(1, "exp", np.exp(H), H)
    found = theirs.ran(1, "exp", np.exp(H) * (1 + 1e-5), H)
    assert parted(ours, theirs, wanted, found) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"steps": []},
        {"values": [[[2], False, "AAAA"]], "steps": []},
        {"values": [[[2]]], "steps": [["add", [1], [0], [], "net.py", 1, ""]]},
        {"values": [], "steps": [["add"]]},
        {"values": [[["x"], False, "A"]], "steps": 3},
    ],
)
def test_a_damaged_trail_is_refused(facts):
    with pytest.raises((LookupError, TypeError, ValueError)):
        Trail.parsed(facts)

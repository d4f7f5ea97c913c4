"""What a run made is not made again; what code writes into is."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.mending.memory import Memory
from aligner.registry import load
from aligner.values import Values

torch = pytest.importorskip("torch")

VALUES = Values(load("torch"))


class Counted:
    """Runs operations through a memory and counts those that were computed."""

    def __init__(self, *given):
        self.memory = Memory(VALUES, (given, {}))
        self.computed = 0

    def __call__(self, function, *args, **kwargs):
        def compute():
            self.computed += 1
            return function(*args, **kwargs)

        return self.memory.run(function.__name__, function, args, kwargs, compute)

    def again(self):
        """The first run is over, another begins."""
        if self.memory.recording:
            self.memory.close()
        self.memory.begin()
        self.computed = 0


def test_the_same_operation_on_the_same_objects_is_remembered():
    x = torch.arange(6.0)
    run = Counted(x)
    first = run(torch.mul, run(torch.exp, x), 2.0)
    run.again()
    assert run(torch.mul, run(torch.exp, x), 2.0) is first
    assert run.computed == 0


def test_other_arguments_and_other_objects_are_computed():
    x = torch.arange(6.0)
    run = Counted(x)
    made = run(torch.exp, x)
    run.again()
    assert torch.equal(run(torch.mul, run(torch.exp, x), 3.0), made * 3.0)
    assert torch.equal(run(torch.exp, x + 0), made)
    assert run.computed == 2


def test_what_is_written_into_is_made_anew_and_with_it_what_shares_its_memory():
    x = torch.arange(6.0)
    run = Counted(x)

    def code():
        table = run(torch.zeros_like, x)
        part = run(torch.reshape, table, (2, 3))
        run(torch.Tensor.add_, table, 1.0)
        return part, run(torch.exp, x)

    first = code()
    run.again()
    second = code()
    assert torch.equal(first[0], torch.ones(2, 3))
    assert torch.equal(second[0], torch.ones(2, 3))
    assert second[0] is not first[0]
    assert second[1] is first[1]
    assert run.computed == 3
    assert not run.memory.spoiled


def test_a_memory_is_of_no_use_once_what_it_keeps_may_be_changed():
    x = torch.arange(6.0)
    run = Counted(x)
    made = run(torch.exp, x)
    run.again()
    run(torch.Tensor.add_, run(torch.reshape, made, (2, 3)), 1.0)
    assert run.memory.spoiled


def test_a_given_value_that_is_written_into_spoils_it_at_once():
    x = torch.arange(6.0)
    run = Counted(x)
    run(torch.Tensor.add_, x, 1.0)
    run.memory.close()
    assert run.memory.spoiled


def test_numpy_is_remembered_too():
    run = Counted()
    first = run(np.arange, 4)
    run.again()
    assert run(np.arange, 4) is first
    assert run(np.arange, 5) is not first


def test_two_that_are_made_alike_and_written_into_are_two():
    run = Counted()
    for _ in range(2):
        one, other = run(torch.zeros, 3), run(torch.zeros, 3)
        run(torch.Tensor.add_, one, 1.0)
        assert torch.equal(other, torch.zeros(3))
        run.again()

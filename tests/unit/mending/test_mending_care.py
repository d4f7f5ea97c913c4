"""What may end the process is not run, where the code was edited."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.mending.care import Care, HarmfulError, Tables
from aligner.registry import load
from aligner.values import Values

torch = pytest.importorskip("torch")

VALUES = Values(load("torch"))


@pytest.mark.parametrize(
    ("word", "args"),
    [
        ("add", (torch.zeros(0, 3), 1.0)),
        ("getitem", (np.zeros((2, 0)), 0)),
        ("floordiv", (torch.arange(4), 0)),
        ("mod", (torch.arange(4), torch.tensor([1, 0, 2, 3]))),
        ("gather_elements", (torch.zeros(4, 1), 1, torch.tensor([[0, 3]]))),
        ("gather", (torch.zeros(4, 6), torch.tensor([0, 5]), 0)),
        ("embedding", (torch.tensor([7]), torch.zeros(7, 2))),
        ("unsorted_segment_sum", (torch.zeros(3, 2), torch.tensor([0, 1, 4]), 4)),
        ("gather_nd", (torch.zeros(4, 6), torch.tensor([[0, 5], [4, 0]]))),
        ("cross_entropy", (torch.zeros(4, 6), torch.tensor([0, 5, 6, 1]))),
        ("nll_loss", (torch.zeros(6), torch.tensor(6))),
        ("getitem", (torch.zeros(4, 6), (slice(None), torch.tensor([6])))),
        ("getitem", (torch.zeros(2, 4, 6), (..., torch.tensor([6])))),
        ("getitem", (torch.zeros(2, 4, 6), (..., torch.tensor([4]), slice(None)))),
        ("getitem", (torch.zeros(4, 6), (None, torch.tensor([4])))),
    ],
)
def test_what_a_kernel_may_die_of_is_not_run(word, args):
    care = Care(VALUES, empty=False)
    with pytest.raises(HarmfulError):
        care.run(word, None, args, {}, lambda: pytest.fail("it ran"))


def test_values_without_elements_are_run_where_the_code_has_them_anyway():
    trusting = Care(VALUES, empty=False, trusts=True)
    args = (torch.zeros(0, 3), 1.0)
    assert trusting.run("add", torch.add, args, {}, lambda: 5) == 5
    assert Care(VALUES, trusting.empty).run("add", torch.add, args, {}, lambda: 6) == 6


@pytest.mark.parametrize(
    ("word", "args"),
    [
        ("gather_elements", (torch.zeros(4, 4), 1, torch.tensor([[0, 3]]))),
        ("gather", (torch.zeros(4, 6), torch.tensor([0, -4]), 0)),
        ("embedding", (torch.tensor([6]), torch.zeros(7, 2))),
        ("cross_entropy", (torch.zeros(4, 6), torch.tensor([0, 5, -100, 1]))),
        ("cross_entropy", (torch.zeros(4, 6), torch.zeros(4, 6))),
        ("getitem", (torch.zeros(4, 6), (slice(None), torch.tensor([5])))),
        ("getitem", (torch.zeros(2, 4, 6), (..., torch.tensor([5]), None))),
        ("getitem", (torch.zeros(2, 4, 6), (0, ..., torch.tensor([3]), slice(1, 9)))),
        ("getitem", (torch.zeros(4, 6), torch.zeros(4, dtype=torch.bool))),
        ("truediv", (torch.arange(4), 0)),
    ],
)
def test_the_rest_is_run(word, args):
    assert Care(VALUES, empty=False).run(word, None, args, {}, lambda: 7) == 7


def test_what_layers_keep_is_not_written_into_but_where_the_code_does_so_anyway():
    table, cache = torch.zeros(4), torch.zeros(4)
    tables = Tables({id(table), id(cache)})
    Care(VALUES, empty=False, trusts=True, tables=tables).run("setitem", None, (cache, 0, 1.0), {}, lambda: None)
    care = Care(VALUES, empty=False, tables=tables)
    assert care.run("setitem", None, (cache, 1, 1.0), {}, lambda: 7) == 7
    assert care.run("add", None, (table, 1.0), {}, lambda: 7) == 7
    for word in ("setitem", "iadd", "mul_"):
        with pytest.raises(HarmfulError):
            care.run(word, None, (table, 1.0), {}, lambda: pytest.fail("it ran"))


def test_what_is_not_run_as_it_stands_is_not_bounded():
    large = torch.zeros(1, 1).expand(1 << 13, 1 << 12)
    assert Care(VALUES, empty=False).run("neg", None, (large,), {}, lambda: 7) == 7


LONG = torch.zeros(1, 1).expand(1 << 13, 1)


@pytest.mark.parametrize(
    ("word", "args"),
    [
        ("add", (LONG, LONG.mT)),
        ("neg", (LONG.expand(-1, 1 << 12),)),
        ("full", ((1 << 12, 1 << 12), 1.0)),
        ("tile", (LONG, (1, 1 << 12))),
        ("arange", (1 << 24,)),
        ("getitem", (torch.zeros(2, 1 << 12), (slice(None), torch.zeros(1 << 22, dtype=torch.int64)))),
        ("gather", (torch.zeros(3, 1 << 12), torch.zeros(1 << 14, dtype=torch.int64), 0)),
    ],
)
def test_what_takes_much_more_than_the_code_as_it_stands_is_not_run(word, args):
    tables = Tables()
    with pytest.raises(HarmfulError, match="numbers"):
        Care(VALUES, empty=False, tables=tables).run(word, None, args, {}, lambda: pytest.fail("it ran"))
    Care(VALUES, empty=False, trusts=True, tables=tables).run(word, None, args, {}, lambda: None)
    assert Care(VALUES, empty=False, tables=tables).run(word, None, args, {}, lambda: 7) == 7

"""What tensors of the port hold while a pass runs, and hold again after it."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from aligner.registry import load  # noqa: E402 - only after it is known to be there
from aligner.replay.lent import Lent  # noqa: E402 - as above


def lent(tensor, step=0, owned=frozenset()):
    made = Lent(load("torch"))
    made.begin(step, set(owned))
    made.lend(step, tensor, torch.full(tensor.shape, 7.0), tensor.numpy().copy())
    return made


def test_a_table_holds_the_reference_s_values_until_it_is_given_back():
    table = torch.zeros(3)
    made = lent(table)
    assert table.tolist() == [7.0] * 3
    made.returned()
    assert table.tolist() == [0.0] * 3


def test_what_is_run_again_begins_with_its_own_and_what_comes_next_does_not():
    table = torch.zeros(3)
    made = lent(table)
    made.begin(1, set())
    assert table.tolist() == [7.0] * 3
    made.begin(0, set())
    assert table.tolist() == [0.0] * 3


def test_what_the_port_has_written_since_stays():
    table = torch.zeros(3)
    made = lent(table)
    table += 1.0
    made.returned()
    assert table.tolist() == [8.0] * 3


def test_the_model_s_own_are_not_written_to():
    table = torch.zeros(3)
    lent(table, owned={id(table)})
    assert table.tolist() == [0.0] * 3


def test_nothing_is_kept_of_what_is_gone():
    table = torch.zeros(3)
    made = lent(table)
    del table
    gc.collect()
    made.returned()
    assert not made._loans

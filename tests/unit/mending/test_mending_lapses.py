"""What people forget, from the text of a function."""

from __future__ import annotations

from functools import partial

import pytest

from aligner.mending.lapses import carried, chosen, scaled, unread
from tests.unit.mending.edited import edited


def test_a_variable_that_nobody_reads_is_tried_where_others_are_read_after_it(tmp_path):
    lines = "seen = x > 0\n        count = x + 1\n        y = x / (k - 1) + seen"
    found = edited(tmp_path, unread, lines)
    assert any("y = x / (count) + seen" in text or "y = x / count + seen" in text for text in found)
    assert any("y = x / (k - 1) + count" in text for text in found)
    assert not any("seen = count" in text or "count = count" in text for text in found)


def test_nothing_is_tried_where_all_is_read(tmp_path):
    assert not edited(tmp_path, unread, "a = x + 1\n        y = a * 2\n        y = y + 1")


def test_all_but_the_one_that_a_loop_is_at(tmp_path):
    found = edited(tmp_path, chosen, "for i in range(3):\n            y = [j for j in range(3)]")
    assert any("[j for j in range(3) if j != i]" in text for text in found)


def test_there_is_no_one_to_leave_out_without_a_loop(tmp_path):
    assert not edited(tmp_path, chosen, "y = [j for j in range(3)]")


def test_a_number_times_a_size(tmp_path):
    found = edited(tmp_path, partial(scaled, factors=["self.heads"]), "y = x * sqrt(2.0 / 27.0)")
    assert "sqrt(2.0 / (27.0 * self.heads))" in "".join(found)
    assert "sqrt((2.0 / self.heads) / 27.0)" in "".join(found)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("y = f(x, k) - t", "y = f(x, k - t)"),
        ("y = f(x, k) - t", "y = f(x - t, k)"),
        ("y = f(x, k - t)", "y = f(x, k) - t"),
    ],
)
def test_an_operand_inside_of_a_call_or_outside(tmp_path, line, other):
    assert any(other in text for text in edited(tmp_path, carried, line))

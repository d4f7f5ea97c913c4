"""What a function does too much, told from its text."""

from __future__ import annotations

import pytest

from aligner.mending.dropped import dropped
from tests.unit.mending.edited import NET, edited


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = (x + self.bias) * n", "y = x * n"),
        ("y = (x + self.bias) * n", "y = (x + self.bias)"),
        ("y = ops.abs(x + n)", "y = ops.abs(x)"),
        ("y = x - ops.abs(n)", "y = x - n"),
        ("y = x.swapaxes(1, 2) @ n", "y = x @ n"),
        ("y = self.norm(x) + n", "y = x + n"),
        ("y = mint.nn.functional.relu(x)", "y = x"),
        ("x = x * n\n        y = self.out(x)", "y = self.out(x)"),
        ("x += n\n        y = self.out(x)", "y = self.out(x)"),
        ("x = self.scale(x)\n        y = self.out(x)", "y = self.out(x)"),
    ],
)
def test_a_step_is_left_out(tmp_path, wrong, right):
    assert NET.format(right) in edited(tmp_path, dropped, wrong)


@pytest.mark.parametrize("line", ["y = ops.concat([x, n])", "y = x", "y = ops.zeros(3)"])
def test_nothing_is_left_of_what_works_on_nothing(tmp_path, line):
    assert edited(tmp_path, dropped, line) == []

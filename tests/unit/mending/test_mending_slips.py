"""Names, steps and parts that are taken for others, told from the text of a function."""

from __future__ import annotations

from functools import partial

import pytest

from aligner.mending.figures import operated, sliced
from aligner.mending.slips import accumulated, chained, of_each, offset, own_names
from tests.unit.mending.edited import NET, edited

BREAK = "\n        "


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = roll(x, self.n)", "y = roll(x, n)"),
        ("y = roll(x, n)", "y = roll(x, self.n)"),
        ("y = self.n(x) + self.n", "y = self.n(x) + n"),
    ],
)
def test_names_of_the_layer_and_of_its_code(tmp_path, wrong, right):
    assert NET.format(right) in edited(tmp_path, partial(own_names, both={"n"}), wrong)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (
            f"x = ops.matmul(self.grid, n){BREAK}y = x - self.shift.expand_dims(1)",
            f"x = self.grid - self.shift.expand_dims(1){BREAK}y = ops.matmul(x, n)",
        ),
        (f"x = self.norm(x){BREAK}y = ops.relu(x)", f"x = ops.relu(x){BREAK}y = self.norm(x)"),
        (f"x = x.softmax(-1){BREAK}y = x * n", f"x = x * n{BREAK}y = x.softmax(-1)"),
    ],
)
def test_two_steps_in_the_other_order(tmp_path, wrong, right):
    assert NET.format(right) in edited(tmp_path, chained, wrong)


@pytest.mark.parametrize("lines", [f"x = self.norm(x){BREAK}y = x * x", "y = x * n", f"n = x{BREAK}y = x + 1"])
def test_steps_that_do_not_follow_from_each_other_stay(tmp_path, lines):
    assert edited(tmp_path, chained, lines) == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("n = x.mean()", "n = n + x.mean()"),
        (f"a = x{BREAK}a = x / 2", f"a = x{BREAK}a = a + x / 2"),
        ("y = x", None),
        ("n = n * 2", None),
    ],
)
def test_what_a_name_had_is_added_to(tmp_path, wrong, right):
    assert edited(tmp_path, accumulated, wrong) == ([] if right is None else [NET.format(right)])


@pytest.mark.parametrize(
    ("wrong", "right"), [("x[:, :h, :w]", "x[:, a : a + h, b : b + w]"), ("x[:, :h, w]", None), ("x[:h]", None)]
)
def test_parts_begin_where_names_say_that_nobody_reads(tmp_path, wrong, right):
    lines = f"(h, w), (a, b) = n{BREAK}y = " + "{}"
    told = edited(tmp_path, offset, lines.format(wrong))
    assert told == ([] if right is None else [NET.format(lines.format(right))])


@pytest.mark.parametrize(("wrong", "right"), [("x[..., n:]", "x[..., n - 1:-1]"), ("x[..., n - 1:-1]", "x[..., n:]")])
def test_what_begins_late_may_begin_before_and_end_there(tmp_path, wrong, right):
    assert NET.format(f"y = {right}") in edited(tmp_path, sliced, f"y = {wrong}")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("arange(h * w) // h", "arange(h * w) % w"), ("(arange(x.h * x.w) % x.w)", "(arange(x.h * x.w) // x.h)")],
)
def test_of_rows_and_columns_the_others_are_taken(tmp_path, wrong, right):
    assert NET.format(f"y = {right}") in edited(tmp_path, operated, f"y = {wrong}")


@pytest.mark.parametrize(("wrong", "right"), [("x[n] = y", "x[n] += y"), ("x[:, n] += y", "x[:, n] = y")])
def test_elements_are_written_over_or_added_to(tmp_path, wrong, right):
    lines = f"y = x{BREAK}" + "{}"
    assert NET.format(lines.format(right)) in edited(tmp_path, operated, lines.format(wrong))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = ops.gather(x.reshape(-1, 4), n, 0)", "n + (ops.arange(x.shape[0]) * x.shape[1]).reshape(-1, 1), 0)"),
        (
            "y = mint.index_select(x.flatten(0, 1), 0, n)",
            "0, n + (mint.arange(x.shape[0]) * x.shape[1]).reshape(-1, 1)",
        ),
        ("y = ops.reshape(x, (-1, 4))[n]", "[n + (ops.arange(x.shape[0]) * x.shape[1]).reshape(-1, 1, 1)]"),
    ],
)
def test_rows_of_each_item(tmp_path, wrong, right):
    assert any(right in text for text in edited(tmp_path, of_each, wrong))


def test_rows_of_what_was_not_joined_stay(tmp_path):
    assert (
        edited(
            tmp_path, of_each, "y = ops.gather(x, n, 0) + x[n] + ops.gather(x.abs(), n, 0) + x.reshape(-1, 4)[0, :2]"
        )
        == []
    )

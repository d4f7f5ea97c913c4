"""Halves as every other element, told from the text of a function."""

from __future__ import annotations

import pytest

from aligner.mending.halves import paired, spread
from tests.unit.mending.edited import NET, edited


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("a, y = ops.chunk(x, 2, axis=-1)", "a, y = x[..., 0::2], x[..., 1::2]"),
        ("a, y = mint.split(x, n, dim=1)", "a, y = x[:, 0::2], x[:, 1::2]"),
        (
            "a, y = mint.chunk(self.both(x), 2, -1)",
            "a = self.both(x)\n        a, y = a[..., 0::2], a[..., 1::2]",
        ),
        ("a, y = x.chunk(2, -1)", "a, y = x[..., 0::2], x[..., 1::2]"),
        ("y = x[..., :n] * ops.sin(x[..., n:])", "y = x[..., 0::2] * ops.sin(x[..., 1::2])"),
        ("y = x[:, ::2] * x[:, 1::2]", "y = x[:, :x.shape[1] // 2] * x[:, x.shape[1] // 2:]"),
        ("y = x[..., 0::2, :] * x[..., 1::2, :]", "y = x[..., :x.shape[-2] // 2, :] * x[..., x.shape[-2] // 2:, :]"),
        (
            "x = x.reshape(n, -1, 2); y = x[..., 0] * x[..., 1]",
            "x = x.reshape(n, 2, -1); y = x[..., 0, :] * x[..., 1, :]",
        ),
        ("x = x.view((n, 2, 4)); y = x[..., 0, :] * 3", "x = x.view((n, 4, 2)); y = x[..., 0] * 3"),
        ("y = ops.concat([x, n], axis=-1)", "y = ops.stack([x, n], axis=-1).flatten(start_dim=-2)"),
        ("y = np.concatenate([x, n], axis=-1)", "y = np.stack([x, n], axis=-1).reshape(x.shape[:-1] + (-1,))"),
        ("y = mint.stack((x, n), dim=-1).reshape(n, -1)", "y = mint.cat((x, n), dim=-1)"),
        (
            "y = ops.cat([-x[..., n:], x[..., :n]], -1)",
            "y = ops.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(start_dim=-2)",
        ),
    ],
)
def test_halves_are_read_as_every_other(tmp_path, wrong, right):
    found = edited(tmp_path, paired, wrong)
    assert NET.format(right) == found[0]


def test_what_is_reshaped_next_need_not_be_flat(tmp_path):
    found = edited(tmp_path, paired, "y = ops.concat([x, n], axis=-1).reshape(4, -1)")
    assert NET.format("y = ops.stack([x, n], axis=-1).reshape(4, -1)") in found


@pytest.mark.parametrize("line", ["a, y = ops.chunk(x, 2, axis=n)", "y = ops.concat([x, n, x], axis=-1)", "y = x[:n]"])
def test_nothing_is_made_of_what_is_not_cut_into_two(tmp_path, line):
    assert edited(tmp_path, paired, line) == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = ops.tile(x, (1, n, 1, 1))", "y = ops.repeat_interleave(x, n, 1)"),
        ("y = x.repeat(1, 1, 2)", "y = x.repeat_interleave(2, -1)"),
        ("y = np.tile(x, (1, 2))", "y = np.repeat(x, 2, -1)"),
        ("y = np.repeat(x, 2, axis=-1)", "y = np.tile(x, (2,))"),
        ("y = mint.repeat_interleave(x, n // 2, dim=1)", "y = mint.tile(x, (1, n // 2, 1, 1))"),
        ("y = x.repeat_interleave(2, -1)", "y = x.tile((2,))"),
        ("y = ops.repeat_interleave(x, n, 0)", "y = ops.tile(x, (n, 1))"),
        (
            "y = mint.tile(x, (1, 2)), mint.tile(n, (2, 1))",
            "y = mint.repeat_interleave(x, 2, -1), mint.repeat_interleave(n, 2, 0)",
        ),
    ],
)
def test_what_is_repeated_as_a_whole_is_repeated_one_by_one(tmp_path, wrong, right):
    assert NET.format(right) in edited(tmp_path, spread, wrong)

"""Heads that are cut before they are heads, told from the text of a function."""

from __future__ import annotations

import pytest

from aligner.mending.grouped import grouped
from tests.unit.mending.edited import NET, edited


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (
            "a = x[..., : n * 3].reshape(b, s, n, 3); y = x[..., n * 3 :].reshape(b, s, n, k)",
            "a = x.reshape(b, s, n, -1)[..., : 3]; y = x.reshape(b, s, n, -1)[..., 3 :]",
        ),
        (
            "a = x[:, :, k:2 * k]\n        y = ops.reshape(a, (b, s, n, 4))",
            "a = x.reshape(b, s, n, -1)[..., k // n : (2 * k) // n]\n        y = ops.reshape(a, (b, s, n, 4))",
        ),
        (
            "q, k, v = ops.chunk(self.qkv(x), 3, axis=-1)\n        y = k.view(b, s, n, -1)",
            "q, k, v = ops.chunk(self.qkv(x).reshape(b, s, n, -1), 3, axis=-1)\n        y = k.view(b, s, n, -1)",
        ),
        (
            "x = x.reshape(b, s, n, -1)\n        k, y = x[..., :m], x[..., m : m + 1]",
            "x = x.reshape(b, s, n, -1)\n        k, y = x.reshape(b, s, -1)[..., : n * m].reshape(b, s, n, -1), "
            "x.reshape(b, s, -1)[..., n * m : n * (m + 1)].reshape(b, s, n, -1)",
        ),
        (
            "x = self.qkv(x).view(b, n, -1)\n        k, y = x.chunk(2, axis=-1)",
            "x = self.qkv(x).view(b, n, -1)\n        "
            "k, y = (each.reshape(b, n, -1) for each in x.reshape(b, -1).chunk(2, axis=-1))",
        ),
    ],
)
def test_groups_are_cut_within_instead_of_across(tmp_path, wrong, right):
    assert NET.format(right) in edited(tmp_path, grouped, wrong)


@pytest.mark.parametrize(
    "line",
    [
        "y = x[..., :n]",
        "y = x[:, :n].transpose(0, 1)",
        "y = x[:n].reshape(n, -1)",
        "a, y = x.chunk(2, axis=1)",
        "y = x.reshape(*n)",
    ],
)
def test_nothing_is_made_of_what_is_not_split_into_groups(tmp_path, line):
    assert edited(tmp_path, grouped, line) == []

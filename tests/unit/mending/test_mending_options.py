"""Other ways to tell a call what it is told, from its text."""

from __future__ import annotations

import pytest

from aligner.mending.options import compared, decided, opposed, over_all, reduced, switched, untold
from tests.unit.mending.edited import edited


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("resize(x, mode='nearest', align_corners=True)", ["resize(x, mode='bilinear', align_corners=True)"]),
        ("resize(x, 2, True)", ["resize(x, 2, False)"]),
        ('gelu(x, approximate="none")', ['gelu(x, approximate="tanh")']),
        ("scatter(x, n, x, reduction='none')", ["scatter(x, n, x, reduction='add')"]),
        ("f(x, 'words', 1, None)", []),
    ],
)
def test_what_a_call_is_told(tmp_path, line, others):
    found = edited(tmp_path, switched, f"y = {line}")
    assert all(any(f"y = {other}\n" in text for text in found) for other in others)
    assert bool(found) == bool(others)


def test_axes_that_are_reduced(tmp_path):
    lines = "m = x.mean((0, 2), keepdims=True)\n        y = (x - m).std(axis=(0, 2)) + x.view((0, 2))"
    found = edited(tmp_path, reduced, lines)
    assert "x.mean((2,), keepdims=True)\n        y = (x - m).std(axis=(2,)) + x.view((0, 2))" in found[0]
    assert any("x.mean((0, 1, 2), keepdims=True)\n        y = (x - m).std(axis=(0, 2))" in one for one in found)


def test_what_torch_need_not_be_told(tmp_path):
    found = edited(tmp_path, untold, "y, z = ops.meshgrid(x, n)\n        y = ops.std(x, ddof=1) + x.var(0)")
    assert [text.split("construct")[1].split("return")[0].split("\n", 1)[1].strip() for text in found] == [
        "y, z = ops.meshgrid(x, n, indexing='ij')\n        y = ops.std(x, ddof=1) + x.var(0)",
        "y, z = ops.meshgrid(x, n)\n        y = ops.std(x, ddof=1) + x.var(0, ddof=1)",
    ]


def test_what_is_scattered_is_added_where_torch_says_so_by_the_name(tmp_path):
    found = edited(tmp_path, untold, "y = ops.tensor_scatter_elements(x, n, x, axis=1)")
    assert "y = ops.tensor_scatter_elements(x, n, x, axis=1, reduction='add')\n" in found[0]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ('y = x if mode == "a" else n', ['x if mode in ("a", "b")', 'x if mode == "b"']),
        (
            'y = x if mode in ("a", "b") else n',
            ['x if mode == "b"', 'x if mode in ("a", "b", "c")'],
        ),
        ('y = x if mode not in ("a", "b") else n', ['x if mode != "b"']),
        ("y = x if n == 1 else n", []),
    ],
)
def test_words_that_a_value_is_compared_with(tmp_path, line, others):
    lines = f'z = mode == "a", mode == "b", mode != "c"\n        {line}'.replace('"', "'")
    found = [text for text in edited(tmp_path, compared, lines) if line.replace('"', "'") not in text]
    assert all(any(other.replace('"', "'") in text for text in found) for other in others)
    assert bool(found) == bool(others)


def test_what_a_condition_decides(tmp_path):
    found = edited(tmp_path, decided, "y = x if n == 0 else x + n")
    assert [text.split("y = ")[1].split("\n")[0] for text in found] == ["x", "x + n"]


def test_the_other_end_is_asked_for(tmp_path):
    found = edited(tmp_path, opposed, "y = x[max(a, b) : min(n, ops.amax(x)) + 1]")
    assert any("x[min(a, b) : max(n, ops.amin(x)) + 1]" in text for text in found)
    assert any("x[min(a, b) : min(n, ops.amax(x)) + 1]" in text for text in found)


def test_a_layer_that_pads_may_do_so_by_other_values(tmp_path):
    found = edited(tmp_path, untold, "y = nn.Pad(paddings=((0, 0), (n, n)))(x)")
    assert [text.count('mode="REFLECT"') + 2 * text.count('mode="SYMMETRIC"') for text in found] == [1, 2]


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("mask.size", "mask.sum()"),
        ("mask.numel()", "mask.sum()"),
        ("(x * mask).mean()", "((x * mask).sum() / mask.sum())"),
        ("ops.mean(x * self.mask)", "((x * self.mask).sum() / self.mask.sum())"),
        ("mask.size(0)", None),
        ("(x * mask).mean(1)", None),
        ("(x + mask).mean()", None),
    ],
)
def test_what_is_counted_or_averaged_over_all(tmp_path, line, other):
    found = edited(tmp_path, over_all, f"y = {line} + 1")
    assert found if other else not found
    assert other is None or f"y = {other} + 1\n" in found[0]


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("np.stack((np.tile(a, 2), np.repeat(b, 3)))", "np.stack((np.repeat(a, 2), np.tile(b, 3)))"),
        ("x.repeat(3)", "x.repeat_interleave(3)"),
        ("ops.tensor_scatter_update(x, at, y)", "ops.tensor_scatter_add(x, at, y)"),
    ],
)
def test_rows_repeated_in_the_other_order_and_what_is_written_over(tmp_path, line, other):
    assert any(f"y = {other}\n" in text for text in edited(tmp_path, opposed, f"y = {line}"))

"""Windows with their ends or without, and items of a list by turn, from the text of the code."""

from __future__ import annotations

import pytest

from aligner.mending.spacing import by_turn, spaced
from tests.unit.mending.edited import edited


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("np.hanning(n)", ["np.hanning(n + 1)[:-1]", "np.hanning(n + 2)[1:-1]", "np.hanning(n + 1)[1:]"]),
        ("np.hamming(n + 1)[:-1]", ["np.hamming(n)"]),
        ("np.linspace(0, x, n)", ["np.linspace(0, x, n, endpoint=False)", "np.linspace(0, x, n + 1)[:-1]"]),
        ("np.linspace(*n)", []),
        ("np.hanning(n)[2:]", []),
        ("np.arange(n)", []),
    ],
)
def test_ends_of_windows_and_rows(tmp_path, line, others):
    found = edited(tmp_path, spaced, f"y = {line}")
    assert all(any(f"y = {other}\n" in text for text in found) for other in others)
    assert bool(found) == bool(others)


@pytest.mark.parametrize(
    ("loop", "others"),
    [
        ("for i in range(n): y = x[i % 2](y)", ["x[min(i, 1)](y)", "x[i](y)", "x[max(i - 1, 0)](y)"]),
        ("for i, z in enumerate(n): y = x[i](y)", ["x[min(i, 1)](y)", "x[-1 - i](y)", "x[i // 2](y)"]),
        ("y = [x[min(i, 3)](n) for i in range(n)]", ["[x[i % 3](n) for", "[x[min(i, 1)](n) for"]),
        ("for i in range(n): y = y + x[i]", []),
        ("for i in range(n): y = x[n](y[i:])", []),
        ("for i in range(n): y = x[i * n](y[0])", []),
    ],
)
def test_items_by_turn(tmp_path, loop, others):
    found = edited(tmp_path, by_turn, loop)
    assert all(any(other in text for text in found) for other in others)
    assert bool(found) == bool(others)
    assert all("x[i % 2](y)" not in text for text in found if "% 2](y)" in loop)

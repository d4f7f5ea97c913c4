"""Items that a line takes of a value, along another axis."""

from __future__ import annotations

import pytest

from aligner.mending.columns import columns
from aligner.mending.sources import Sources


@pytest.mark.parametrize(
    ("said", "others"),
    [
        (
            "x[:, 0], x[:, 1]",
            ["x[0], x[1]", "x[:, :, 0], x[:, :, 1]", "x[:, :, :, 0], x[:, :, :, 1]", "x[..., 0], x[..., 1]"],
        ),
        ("x[..., 0] + y(x[..., 1])", ["x[:, :, :, 0] + y(x[:, :, :, 1])", "x[:, :, 0] + y(x[:, :, 1])"]),
        ("x[0] + x[0]", []),
        ("x[0] + y[1]", []),
        ("x[:, 0] + x[:, 1:2]", []),
    ],
)
def test_all_that_a_line_takes(tmp_path, said, others):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x, y):\n    return {said}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in columns(Sources({}), str(file), 2)]
    assert found[: len(others)] == [f"def f(x, y):\n    return {other}\n" for other in others]
    assert bool(found) == bool(others)

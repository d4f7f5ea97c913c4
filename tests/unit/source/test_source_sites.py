"""Where a layer was built, told by a line alone as Pythons before 3.11 tell it, and with its columns."""

from __future__ import annotations

import ast

import pytest

from aligner.source.sites import Place, call

TEXT = """
one = nn.LayerNorm(
    width,
)
two, three = nn.LayerNorm(8), nn.LayerNorm(9)
four = Sequential(Linear(3, 3))
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "net.py").write_text(TEXT, encoding="utf-8")
    return str(tmp_path / "net.py")


@pytest.mark.parametrize(
    ("line", "columns", "name", "found"),
    [
        (2, None, "LayerNorm", "nn.LayerNorm(width)"),
        (5, None, "LayerNorm", None),
        (5, (30, 5, 45), "LayerNorm", "nn.LayerNorm(9)"),
        (6, None, "Linear", "Linear(3, 3)"),
        (6, None, "Conv2d", None),
        (1, None, "LayerNorm", None),
    ],
)
def test_the_call_of_a_class_that_stands_there(file, line, columns, name, found):
    node = call(Place(file, line, columns), name)
    assert (None if node is None else ast.unparse(node)) == found


def test_a_file_that_is_gone_or_no_python_has_none(tmp_path):
    (tmp_path / "net.py").write_text("nn.LayerNorm(", encoding="utf-8")
    assert call(Place(str(tmp_path / "net.py"), 1, None), "LayerNorm") is None
    assert call(Place(str(tmp_path / "gone.py"), 1, None), "LayerNorm") is None

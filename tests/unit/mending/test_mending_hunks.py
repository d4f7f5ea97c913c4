"""Whether an edit is in code that any layer may use."""

from __future__ import annotations

import pytest

from aligner.mending.hunks import line_by_line, shared, sizes
from aligner.mending.sources import Sources

TEXT = """LIMIT = 3


def cap(x):
    return x * 2


class Layer:
    def construct(self, x):
        return cap(x) + 1
"""


@pytest.mark.parametrize(("old", "new", "wanted"), [("x * 2", "x * 3", True), ("+ 1", "+ 2", False), ("3", "4", True)])
def test_what_stands_outside_of_all_classes_is(tmp_path, old, new, wanted):
    file = tmp_path / "port.py"
    file.write_text(TEXT)
    edited = Sources({str(file): TEXT.replace(old, new, 1)})
    assert shared(Sources({}), edited) is wanted


def test_lines_of_a_hunk_one_by_one():
    whole = {"file": "a.py", "line": 3, "column": 1, "before": ["a", "b", "c"], "after": ["x", "b", "z"]}
    longer = {"file": "a.py", "line": 9, "column": 1, "before": ["a"], "after": ["a", "b"]}
    found = [(one["line"], one["before"], one["after"]) for one in line_by_line([whole, longer])]
    assert found == [(3, ["a"], ["x"]), (5, ["c"], ["z"]), (9, ["a"], ["a", "b"])]


@pytest.mark.parametrize(
    ("reference", "told"), [((), [8]), (("x * -8.0",), []), (("x.reshape(n, 8)",), []), (("x * 18 + x8",), [8])]
)
def test_a_size_that_the_reference_writes_out_as_well_is_none_of_this_input(reference, told):
    edits = [{"before": ["x * 4"], "after": ["x * 8"]}]
    assert sizes(edits, [(8, 2)], reference) == told

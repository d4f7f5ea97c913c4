"""Rows of numbers of a file, as the reference's tables have them."""

from __future__ import annotations

from aligner.mending.constants import tabled
from aligner.mending.sources import Sources

FILE = """HOUR, DAY = 3600, 86400
EDGES = [60, HOUR, 6 * HOUR, DAY]


def bucket(x):
    return search(EDGES, x)
"""


def test_one_that_is_worked_out_of_others_is_as_in_the_table(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(FILE, encoding="utf-8")
    (edits,) = tabled(Sources({}), str(file), 6, [(60, 3600, 10800, 86400), (1, 2, 3)])
    assert "EDGES = [60, HOUR, 10800, DAY]" in Sources({}).edited(edits).text(str(file))

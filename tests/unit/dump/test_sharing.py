"""Records on the same bytes: names of one array, or nothing in common; and files that are mostly holes."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from aligner.dump import journal, sections
from aligner.dump.reader import open_dump
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from tests.unit.dump.dumps import HEADER, fill, forged, make, record, section


@pytest.fixture
def good(tmp_path):
    arrays = [np.full(6, value, "<f4") for value in (1, 2, 2, 3)]
    return make(tmp_path / "x.h5", [record(order, array) for order, array in enumerate(arrays)])


def change(path, **columns):
    index = section(path, "index")
    for name, (row, value) in columns.items():
        index["records"][name][row] = value
    index["tables"]["dtype"].append("int32")
    index["tables"]["shape"] += [[2, 3], [3]]
    return forged(path, "index", json.dumps(index).encode())


def test_names_of_one_array_are_read(good):
    with open_dump(change(good)) as dump:
        assert dump.entries[1].place == dump.entries[2].place
        assert [entry.load()[0] for entry in dump.entries] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    "columns",
    [
        {"offset": (0, 616)},
        {"offset": (3, 612)},
        {"offset": (3, 640)},
        {"dtype": (2, 1)},
        {"shape": (2, 1)},
        {"shape": (2, 2), "size": (2, 12)},
        {"checksum": (2, 7)},
    ],
)
def test_records_that_share_some_of_their_bytes_are_refused(good, columns):
    """Each of a million records of a gigabyte could begin a byte later: nobody would ever have read them."""
    with pytest.raises(DumpError, match="two records share some of their bytes"):
        open_dump(change(good, **columns))


def test_in_a_journal_they_are_left_out_and_told_of(tmp_path):
    path = tmp_path / "x.h5"
    writer = DumpWriter(path, HEADER)
    fill(writer, [record(order, np.full(6, order, "<f4")) for order in range(3)])
    dump, told = path.read_bytes(), journal.path_of(path).read_bytes()
    writer.close()
    path.write_bytes(dump)
    line = ["record", 0, "forward", "x", 0, "output.0", 9, "float32", [6], 616, 24, 7, "values"]
    journal.path_of(path).write_bytes(told + journal.line(json.dumps(line).encode()))
    with open_dump(path) as dump:
        assert [entry.order for entry in dump.entries] == [0, 1, 2]
        assert dump.notes[-1].facts["records"] == 1


@pytest.mark.parametrize("depth", [1000, 1001])
def test_calls_in_calls(good, depth):
    calls = section(good, "calls")
    row = {name: column[0] for name, column in calls["calls"].items()}
    calls["calls"] = {name: [value] * depth for name, value in row.items()}
    calls["calls"]["first"] = list(range(depth))
    calls["calls"]["last"] = list(range(2 * depth, depth, -1))
    forged(good, "calls", json.dumps(calls).encode())
    with open_dump(good) as dump:
        if depth > sections.MOST_LEVELS:
            with pytest.raises(DumpError, match="inside too many others"):
                dump.calls
        else:
            assert len(dump.calls) == depth


def test_a_layer_in_a_hundred_thousand_others(good):
    forged(good, "layers", json.dumps([["a." * 100_000, "Net", "Net", {}, False, False]]).encode())
    with open_dump(good) as dump, pytest.raises(DumpError, match="inside too many others"):
        dump.layers


def test_terabytes_of_holes_are_refused(good):
    os.truncate(good, 1 << 40)
    with pytest.raises(DumpError, match="nearly all of it is holes"):
        open_dump(good)

"""Tables of numbers, read as text: the same as Python's parser gives, however the JSON is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aligner.dump.columns import from_json_with
from aligner.dump.index import decode

INDEX = {
    "tables": {"layer": ["a", '"records":{"step":[1]}', "\\", "]"]},
    "records": {"step": [0, 1, 2], "offset": [608, 1 << 40, 0], "none": []},
    "notes": [["", "x", {"records": {"step": [7]}}]],
}


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("order", [("tables", "records", "notes"), ("notes", "records", "tables"), ("records",)])
def test_it_is_what_python_reads(separators, order):
    value = {name: INDEX[name] for name in order}
    data = json.dumps(value, separators=separators).encode()
    found = from_json_with("records", data)
    assert plain(found) == value
    quick = isinstance(found["records"]["step"], np.ndarray)
    assert quick == (separators == (",", ":") and order[0] != "notes")


@pytest.mark.parametrize(
    "text",
    [
        '{"records":{"a":[1,,2]}}', '{"records":{"a":[,1]}}', '{"records":{"a":[1,]}}', '{"records":{"a":[1]',
        '{"records":{"a":[1],}}', '{"records":{"a":[1] "b":[2]}}', '{"records":{"a":[1]]}', '{"records":{"a":[1}',
        '{"records":{"a":1]}}', '{"records":{a:[1]}}', '{"records":{"a":[1]}', '{"records":{', '"records":{"a":[1]}',
        '{"records":{"a":[1]}}}', '{"records":{"a":[1]},}',
    ],
)  # fmt: skip  # a table
def test_what_is_no_json_is_refused_as_ever(text):
    with pytest.raises(ValueError):
        from_json_with("records", text.encode())


@pytest.mark.parametrize(
    "records",
    [
        {"a": [1.5]}, {"a": ["1"]}, {"a": [None]}, {"a": [[1]]}, {"a": {"b": [1]}}, {"a": [-1]}, {"a": True}, [1], {},
        None, "x", {'a"records': {"a": [1]}}, {"层": [1]},
    ],
)  # fmt: skip  # a table
def test_other_things_are_left_to_python(records):
    assert plain(from_json_with("records", json.dumps({"records": records}, separators=(",", ":")).encode())) == {
        "records": records
    }


def test_a_number_that_is_too_large_stays_too_large():
    found = from_json_with("records", b'{"records":{"a":[1,%d]}}' % 10**30)
    assert found["records"]["a"].tolist() == [1, (1 << 63) - 1]


def test_the_last_of_two_columns_counts_as_in_python():
    assert plain(from_json_with("records", b'{"records":{"a":[1],"a":[2]}}')) == {"records": {"a": [2]}}


@pytest.mark.parametrize("wrong", [3, [], "x", None])
@pytest.mark.parametrize("part", ["tables", "records"])
def test_an_index_whose_tables_are_none_is_refused(part, wrong):
    names = ("phase", "layer", "slot", "dtype", "form", "shape")
    content = {"tables": {name: [] for name in names}, "records": {}, part: wrong}
    with pytest.raises(ValueError, match="tables are none"):
        decode(content, 0, 0)

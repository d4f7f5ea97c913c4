"""Findings of a dump that are damaged: a DumpError that is told in both languages, whoever reads them."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare import cases, casts, edits, growth
from aligner.compare.expected import TRUTH, Expectations
from aligner.compare.force import found_by_force
from aligner.compare.trails import Trails
from aligner.errors import DumpError
from aligner.findings import CAST, CHECK, CODE, EDIT, EXPECTED, GROWN, OPERATIONS
from tests.chinese import english
from tests.unit.compare.memory_dump import MemoryDump, Recorder


def dump(*findings):
    net = Recorder("Net")
    net.call("", "Net", lambda v: v, np.ones((2, 4), np.float32))
    found = MemoryDump(net)
    found.findings += findings
    return found


def by_steps(facts):
    Trails(dump((CODE, {"layer": "fc1", **facts})), dump((CODE, {"layer": "fc1", **facts})))._trail(0, "fc1", 0)


def by_force(facts):
    reference, port = dump(), dump((CHECK, facts))
    port.header.update(forced=True, reference_token=reference.token)
    found_by_force(reference, port, Expectations(reference, port))


READERS = {
    "checks": by_force,
    "first lines": lambda facts: edits.firsts(dump((EDIT, {"first": [{}, None], **facts}))),
    "steps": by_steps,
    "growth": lambda facts: growth.doubt([], dump((GROWN, facts))),
    "rounding": lambda facts: Expectations(dump((EXPECTED, {**facts, "by": TRUTH})), dump()),
    "casts": lambda facts: casts._told(dump((CAST, {"layer": "fc1", **facts}))),
    "operations": lambda facts: cases.ran(dump((OPERATIONS, {"layer": "", **facts})), "", "a", "b"),
}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"at": 3, "steps": 3, "values": 3, "rows": 3, "dtype": "float16", "by": "amp", "operations": 3},
        {"at": [0, "a", "x", "s"], "where": "there", "values": [[]], "steps": [["add", [0], [7], [], "net.py", 1, ""]]}
        | {"rows": [["a"]], "dtype": "float16", "by": "amp", "operations": {"float16": 3}},
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_damaged_findings_are_told_in_both_languages(reader, facts):
    with pytest.raises(DumpError, match="damaged") as caught:
        READERS[reader](facts)
    chinese = caught.value.text("zh")
    assert "已损坏" in chinese.splitlines()[0]
    assert [word for word in english(chinese) if word != "net"] == [], chinese

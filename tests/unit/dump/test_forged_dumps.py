"""JSON that somebody forged, with checksums that fit: a DumpError that says what cannot be, and no other exception."""

from __future__ import annotations

import json
import sys
import zlib

import numpy as np
import pytest

from aligner.cli import main
from aligner.dump import journal, sections
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.structures import structure_from
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError
from tests.chinese import english
from tests.unit.dump.dumps import HEADER, fill, forged, make, record, section

DEPTHS = (201, 210, 500, 700, 900, 960, 980, 5000, 100_000)
DEEP = '"DEEP"'


@pytest.fixture
def good(tmp_path):
    return make(tmp_path / "x.h5", [record(n, np.ones(3, "<f4")) for n in range(3)])


def read(path):
    """Everything that is not values; how deep the stack is must not matter."""
    with open_dump(path) as dump:
        return dump.header, dump.layers, dump.calls, dump.findings, list(dump.notes), list(map(repr, dump.entries))


def refused(path, *words):
    with pytest.raises(DumpError) as caught:
        read(path)
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert len(text.splitlines()) == 2
    assert all(word in text for word in words), text
    chinese = caught.value.text("zh").replace(str(path), "")
    assert english(chinese) == [], chinese


def nested(value, depth, ends):
    """The JSON of `value`, whose "DEEP" is nested."""
    text = json.dumps(value)
    assert DEEP in text
    return text.replace(DEEP, ends[0] * depth + "1" + ends[1] * depth).encode()


PLACES = {
    "header": lambda header: {**header, "mine": "DEEP"},
    "index": lambda index: {**index, "notes": [["", "dump-changed", {"path": "DEEP"}]]},
    "layers": lambda layers: [["", "Net", "Net", {"eps": "DEEP"}, True, False]],
    "calls": lambda calls: {**calls, "tables": {**calls["tables"], "structure": [{"args": [{"tuple": "DEEP"}]}]}},
}


@pytest.mark.parametrize("ends", ["[]", ('{"a":', "}"), ('{"tuple":[', "]}")])
@pytest.mark.parametrize("name", PLACES)
def test_json_that_is_nested_too_deep(good, name, ends):
    """From 500 to 980 levels Python's parser takes it, and whoever walked through it ended with a RecursionError."""
    value = PLACES[name](section(good, name))
    for depth in DEPTHS:
        refused(forged(good, name, nested(value, depth, ends)), "nested too deep")


def test_findings_that_are_nested_too_deep(tmp_path):
    path = tmp_path / "x.h5"
    with DumpWriter(path, HEADER) as writer:
        writer.finding("check", {"a": 1})
    for depth in DEPTHS:
        refused(forged(path, "findings", nested([["check", {"a": "DEEP"}]], depth, "[]")), "nested too deep")


@pytest.mark.parametrize("depth", [10, 100, 150])
def test_json_that_is_nested_as_deep_as_a_net_may_be_is_read(good, depth):
    forged(good, "header", nested(PLACES["header"](section(good, "header")), depth, "[]"))
    header = _from_far_down(300, good)[0]  # in a notebook the stack is deep before we are called
    assert len(json.dumps(header["mine"])) == 2 * depth + 1


def _from_far_down(frames, path):
    return _from_far_down(frames - 1, path) if frames else read(path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"[[[[","b":"]]]]"}',
        b'["\\\\", [[1]], "\\"[[[[[", "\\\\\\"]]]"]',
        b"[" * 60 + b"]" * 60,
        b'{"a":' * 60 + b"1" + b"}" * 60,
        '["\u2028[", {"层": [[]]}]'.encode(),
        b"3",
        b'"[["',
        b"[]",
    ],
)
def test_how_deep_json_is_nested_is_told_from_its_text(text):
    def depth(value):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    assert sections._depth(text) == depth(json.loads(text))


def test_a_number_with_a_million_digits_is_refused_at_once():
    parse = sections._PARSE_INT or int
    with pytest.raises(ValueError):
        parse("9" * 1_000_000)
    assert sections._bounded("-12") == -12
    with pytest.raises(ValueError):
        sections._bounded("9" * 401)
    assert hasattr(sys, "set_int_max_str_digits") == (sections._PARSE_INT is None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mapping", [[["a"], "b"]]),
        ("mapping", [["a", ["b"], 1.0]]),
        ("mapping", [["a", "b", {}]]),
        ("mapping", [["a"]]),
        ("mapping", [1]),
        ("mapping", {"a": "b"}),
        ("mapping", "ab"),
        ("parameters", [["fc", "weight"]]),
        ("parameters", [["fc", ["weight"], "x"]]),
        ("parameters", [7]),
        ("parameters", 7),
        ("selected", [["*"]]),
        ("selected", 7),
        ("command", 7),
        ("command", [["a"]]),
        *((name, value) for name in ("framework", "amp", "steps", "reference_token") for value in ([], {})),
    ],
)
def test_a_header_of_another_form(good, name, value):
    header = section(good, "header")
    refused(forged(good, "header", json.dumps({**header, name: value}).encode()), name, "in the header")


def test_a_header_that_is_none(good):
    for text in (b"[]", b"null", b'"x"', b"{"):
        refused(forged(good, "header", text))


def test_what_is_not_known_in_a_header_is_left_alone(good):
    header = {**section(good, "header"), "timing": {"free": [1, {"a": None}]}, "later": [[["x"]]]}
    forged(good, "header", json.dumps(header).encode())
    assert read(good)[0]["later"] == [[["x"]]]


@pytest.mark.parametrize(
    "change",
    [
        {"last": -2},
        {"first": 9, "last": 8},
        {"first": -1},
        {"first": 1 << 62},
        {"last": 1 << 70},
        {"step": -1},
        {"number": -1},
        {"number": 1.0},
        {"number": True},
        {"first": None},
        {"first": "1"},
        {"first": [1]},
        {"layer": 99},
        {"phase": 1.5},
        {"inputs": 99},
    ],
)
def test_a_call_that_cannot_be(good, change, tmp_path):
    """One that ended before it began was a KeyError in the middle of a comparison."""
    calls = section(good, "calls")
    for name, value in change.items():
        calls["calls"][name][0] = value
    refused(forged(good, "calls", json.dumps(calls).encode()), "is damaged")
    assert main(["compare", str(good), str(good)]) == 3
    assert main(["show", str(good)]) == 3


STRUCTURES = (
    1, None, [], "x", {"args": 1}, {"args": [1]}, {"args": [[]]}, {"args": {}}, {"args": [], "kwargs": [["a"]]},
    {"args": [], "kwargs": [[1, {"none": True}]]}, {"args": [], "kwargs": {"a": {"none": True}}},
    {"args": [], "kwargs": [["a", {"none": True}], ["a", {"none": True}]]},
    {"tensor": 1}, {"tensor": ["x"]}, {"value": []}, {"value": {"a": 1}}, {"list": {}}, {"list": [1]},
    {"tuple": "ab"}, {"dict": [[[], {"none": True}]]}, {"dict": [["a", 1]]}, {"dict": {"a": {"none": True}}},
    {"dict": [[1.5, {"none": True}]]}, {"value": 10**400},
    {"fields": [[1, {"none": True}]]}, {"object": "A", "fields": 7},
)  # fmt: skip


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_that_is_none(good, structure):
    calls = section(good, "calls")
    calls["tables"]["structure"][0] = structure
    refused(forged(good, "calls", json.dumps(calls).encode()), "nested is damaged")


@pytest.mark.parametrize("number", [10**400, -(10**310)])
@pytest.mark.parametrize("name", ["header", "index", "layers"])
def test_a_whole_number_that_no_float_reaches(good, name, number):
    """`float(...)` of it is an OverflowError wherever somebody takes it for a figure."""
    text = nested(PLACES[name](section(good, name)), 0, "[]").replace(b": 1", b": %d" % number, 1)
    if name == "header":
        text = text.replace(b'"steps": 1', b'"steps": %d' % number)
    refused(forged(good, name, text))


def test_a_structure_of_a_later_aligner_is_let_through():
    later = {"args": [{"set": [1, 2]}, {"opaque": "Cache"}], "kwargs": []}
    assert structure_from(later) is later


@pytest.mark.parametrize(
    "text",
    [b"[" * 380, b'{"format":1}', b"{}", b"[1]", b"3", b"null", b'{"format":1,"state":"closed","token":[]}', b""],
)
@pytest.mark.parametrize("end", [b"\n", b" "])
def test_first_bytes_that_are_forged(good, text, end):
    whole = good.read_bytes()
    block = (whole.partition(b"\n")[0] + end + text).ljust(496) + b"\n"
    good.write_bytes(block + b"crc32 %08x\n" % zlib.crc32(block) + whole[512:])
    refused(good, "is damaged")


@pytest.mark.parametrize("size", [1e400, "12", -1, None, [1], 1.0, True])
def test_a_size_that_is_none(good, size):
    whole = good.read_bytes()
    content = json.loads(whole[:512].split(b"\n")[1])
    text = whole.partition(b"\n")[0] + b"\n" + json.dumps({**content, "size": size}).encode()
    block = text.ljust(496) + b"\n"
    good.write_bytes(block + b"crc32 %08x\n" % zlib.crc32(block) + whole[512:])
    refused(good, "first 512 bytes")


def killed(path, *lines):
    """A capture that was killed, with these lines at the end of its journal."""
    writer = DumpWriter(path, HEADER)
    fill(writer, [record(n, np.ones(3, "<f4")) for n in range(3)])
    dump, told = path.read_bytes(), journal.path_of(path).read_bytes()
    writer.close()
    path.write_bytes(dump)
    journal.path_of(path).write_bytes(told + b"".join(map(journal.line, lines)))
    return path


def row(**changes):
    values = [0, "forward", "x", 0, "output.0", 99, "float32", [3], 608, 12, 7, "values"]
    names = sections.RECORD_COLUMNS
    return json.dumps(["record", *({**dict(zip(names, values)), **changes}[name] for name in names)]).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'["note","","dump-changed",{"path":' + b"[" * 900 + b"]" * 900 + b"}]",
        b'["call",0,"forward","x",0,9,8,{"args":[]},{"none":true}]',
        b'["call",0,"forward","x",0,8,9,{"args":[1]},{"none":true}]',
        b'["call",0,"forward","x",0,8,9,[],{"none":true}]',
        b'["layer",["a"],"b","c",{},true,true]',
        b"null",
        b"[]",
        b"{}",
        row(step=1 << 62),
        row(call=1 << 70),
        row(checksum=-1),
        row(layer=["x"]),
        row(dtype=[]),
        row(shape=[1 << 50]),
    ],
)
def test_lines_of_a_journal_that_are_forged_are_told_of_and_left_out(tmp_path, line):
    path = killed(tmp_path / "x.h5", line)
    with open_dump(path) as dump:
        assert len(dump.entries) == 3
        assert [note.facts["lines"] + note.facts["records"] for note in dump.notes[1:]] == [1]
    recover(path)
    assert len(read(path)[5]) == 3


@pytest.mark.parametrize("line", [row(offset=100), row(offset=0), row(offset=1 << 61, order=98)])
def test_what_is_recovered_can_be_read(tmp_path, line):
    """A journal whose records lie where no data are was recovered into a dump that nobody could open."""
    path = killed(tmp_path / "x.h5", line)
    recover(path)
    assert len(read(path)[5]) == 3


def test_a_header_in_a_journal_is_looked_at_as_well(tmp_path):
    refused(killed(tmp_path / "x.h5", b'["header",{"mapping":[[["a"],"b"]]}]'), "mapping in the header")


def test_a_forged_header_is_no_traceback(good, capsys):
    """`mapping` with a list for a name was a bare TypeError."""
    header = {**section(good, "header"), "mapping": [[["a"], "b"]]}
    forged(good, "header", json.dumps(header).encode())
    assert main(["compare", str(good), str(good)]) == 3
    assert "mapping in the header is damaged" in capsys.readouterr().err

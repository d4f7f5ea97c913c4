"""`aligner compare` on real dumps: report, JSON, exit codes, options."""

from __future__ import annotations

import io
import json

import pytest

from aligner import cli
from aligner.cli.compare import _Progress
from tests.unit.report import small_dumps


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return {
        "ref": str(small_dumps.write(folder / "ref.h5")),
        "same": str(small_dumps.write(folder / "same.h5", framework="mindspore")),
        "off": str(small_dumps.write(folder / "off.h5", shift=0.01)),
        "train": str(small_dumps.write(folder / "train.h5", training=True)),
    }


def compare(capsys, *arguments):
    code = cli.main(["compare", *arguments, "--lang", "en", "-q"])
    streams = capsys.readouterr()
    assert streams.err == "" or code >= 2
    return code, streams.out


def test_aligned(dumps, capsys):
    code, out = compare(capsys, dumps["ref"], dumps["same"])
    assert code == 0
    assert out.startswith("ALIGNED  ")
    assert max(map(len, out.splitlines()[:1])) <= 60


def test_diverged_names_the_layer(dumps, capsys):
    code, out = compare(capsys, dumps["ref"], dumps["off"])
    assert code == 1
    assert out.startswith("DIVERGED  first layer over 1e-03: norm (BatchNorm)")
    assert "eps: 1e-05 in the reference, 1e-03 in the port" in out


def test_json_is_one_document(dumps, capsys):
    code, out = compare(capsys, dumps["ref"], dumps["off"], "--json")
    assert code == 1
    found = json.loads(out)
    assert found["first_divergence"]["layer"] == "norm"
    assert [origin["layer"] for origin in found["origins"]] == ["norm"]


def test_tolerance_rule_and_jobs(dumps, capsys):
    assert compare(capsys, dumps["ref"], dumps["off"], "--tolerance", "0.5")[0] == 0
    code, out = compare(capsys, dumps["ref"], dumps["off"], "--rule", "abs", "--tolerance", "2e-2", "--jobs", "2")
    assert (code, "|d| <= 2e-02" in out) == (0, True)


def test_jobs_change_nothing(dumps, capsys):
    assert compare(capsys, dumps["ref"], dumps["off"]) == compare(capsys, dumps["ref"], dumps["off"], "--jobs", "3")


def test_limit_and_all(dumps, capsys):
    assert " more (--limit N" in compare(capsys, dumps["ref"], dumps["off"], "--limit", "1")[1]
    assert " more (--limit N" not in compare(capsys, dumps["ref"], dumps["off"], "--all")[1]


def test_strict_counts_warnings(dumps, capsys):
    assert compare(capsys, dumps["ref"], dumps["train"])[0] == 0
    code, out = compare(capsys, dumps["ref"], dumps["train"], "--strict")
    assert code == 1
    assert out.rstrip().endswith("--strict: diverged, because there are warnings (5).")


def test_unreadable_dump_is_three(dumps, tmp_path, capsys):
    other = tmp_path / "notes.h5"
    other.write_text("no dump")
    assert cli.main(["compare", dumps["ref"], str(other)]) == 3
    assert cli.main(["compare", dumps["ref"], str(tmp_path / "none.h5")]) == 3
    shown = capsys.readouterr().err
    assert shown.count("aligner: error: ") == 2


def test_progress_is_for_terminals_only():
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen, pipe = Screen(), io.StringIO()
    for stream in (screen, pipe):
        progress = _Progress(stream, "en")
        progress.PERIOD = 0
        for done in range(1, 4):
            progress(done, 3, done * 1000)
    assert pipe.getvalue() == ""
    assert "2 of 3 pairs, 2.0 kB" in screen.getvalue()
    assert screen.getvalue().endswith(" \r"), "the line is taken away at the end"

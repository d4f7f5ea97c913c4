"""`aligner doctor`: what is found, what a broken adapter looks like, and that nothing of it needs a framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from aligner import cli, registry
from aligner.adapter import Finding
from aligner.cli import doctor


class Usable:
    """An adapter with one good finding and one problem."""

    name = "usable"

    def version(self):
        return "1.2"

    def doctor(self):
        yield Finding(True, "doctor-library", {"name": "usable", "version": "1.2"})
        yield Finding(False, "doctor-library-old", {"name": "x", "version": "1", "wanted": "2"})


class Broken:
    """An adapter that cannot even be made."""

    def __init__(self):
        raise OSError("libascend.so: cannot open shared object file")


def adapters(monkeypatch, **classes):
    module = sys.modules[__name__]
    points = {
        name: EntryPoint(name, f"{module.__name__}:{cls.__name__}", registry.GROUP) for name, cls in classes.items()
    }
    monkeypatch.setattr(registry, "available", lambda: points)


def states(capsys):
    capsys.readouterr()
    cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    return {(row["subject"], row["id"]): row["state"] for row in found["findings"]}


def test_without_a_framework_it_is_well(monkeypatch, capsys):
    adapters(monkeypatch, nothing_of_that_name=Usable)
    assert cli.main(["doctor", "--lang", "en"]) == 0
    assert states(capsys)["nothing_of_that_name", "doctor-absent"] == "note"


def test_findings_of_an_adapter_are_shown_and_counted(monkeypatch, capsys):
    adapters(monkeypatch, json=Usable)  # "json" can be imported, as a framework would
    assert cli.main(["doctor", "--lang", "en"]) == 2
    assert "PROBLEM" in capsys.readouterr().out
    assert states(capsys)["json", "doctor-library-old"] == "bad"


def test_a_broken_adapter_is_a_finding_not_a_crash(monkeypatch, capsys):
    adapters(monkeypatch, json=Broken)
    assert cli.main(["doctor", "--lang", "en"]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "libascend.so" in out


def test_no_adapter_at_all_is_a_problem(monkeypatch, capsys):
    monkeypatch.setattr(registry, "available", dict)
    assert cli.main(["doctor"]) == 2
    assert states(capsys)["adapters", "doctor-no-adapters"] == "bad"


def test_little_disk_is_noted(monkeypatch, tmp_path):
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    assert doctor._disk(str(tmp_path)).message == "doctor-disk-little"


def test_a_library_that_does_not_import_is_a_problem(tmp_path):
    (tmp_path / "h5py.py").write_text("raise ImportError('libhdf5.so is missing')")
    done = subprocess.run(
        [sys.executable, "-m", "aligner", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2, done.stderr
    rows = {row["subject"]: row for row in json.loads(done.stdout)["findings"]}
    assert "libhdf5.so is missing" in rows["h5py"]["text"]


@pytest.mark.parametrize(("text", "wanted"), [("1.26.4", (1, 26)), ("3.1", (3, 1)), ("2.0.0rc1", (2, 0)), ("2", (2,))])
def test_version_numbers(text, wanted):
    assert doctor._numbers(text) == wanted

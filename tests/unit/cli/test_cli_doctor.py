"""`aligner doctor`: what is found, what a broken adapter looks like, and that nothing of it needs a framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.metadata import EntryPoint

import pytest

from aligner import cli, registry
from aligner.adapter import Finding
from aligner.cli import doctor, surroundings


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


class Crashing:
    """One whose libraries take the process down."""

    def __init__(self):
        os.kill(os.getpid(), 11)


class Chatty(Usable):
    """One that prints where its answer goes, and takes numbers that JSON does not know."""

    def doctor(self):
        sys.stdout.write("[WARNING] a framework says hello\n")
        os.write(1, b"even from below Python\n")
        yield Finding(True, "doctor-library", {"name": "chatty", "version": sys.version_info})


def test_a_framework_that_crashes_is_a_line_and_not_the_end(monkeypatch, capsys):
    adapters(monkeypatch, json=Crashing, wave=Usable)
    assert cli.main(["doctor", "--lang", "en"]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "json ended the process that imported it: SIGSEGV" in out
    assert "wave 1.2, adapter loaded" in out


def test_what_a_framework_prints_is_no_answer(monkeypatch, capsys):
    adapters(monkeypatch, json=Chatty)
    assert states(capsys)["json", "doctor-library"] == "good"


def test_a_file_of_the_folder_at_hand_is_not_imported(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "torch.py").write_text("raise RuntimeError('nor this one')")
    command = [sys.executable, "-c", "import sys; sys.path.pop(0); from aligner.cli import main; main(['doctor'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "not this one" not in done.stdout + done.stderr


def test_variables_that_change_what_runs_are_noted(monkeypatch, capsys):
    monkeypatch.setattr(registry, "available", dict)
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "/somewhere/dump.json")
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS", "2")
    monkeypatch.setenv("MS_JIT", "0")
    found = states(capsys)
    for message in ("doctor-dump-config", "doctor-variable", "doctor-ms-jit"):
        assert found["environment", message] == "note"


def test_without_frameworks_it_answers_at_once(monkeypatch, capsys):
    monkeypatch.setattr(registry, "available", dict)
    started = time.monotonic()
    cli.main(["doctor"])
    assert time.monotonic() - started < 1
    assert "adapter" in capsys.readouterr().out


@pytest.mark.parametrize(("encoding", "speaks"), [("utf-8", True), ("gbk", True), ("ascii", False), (None, False)])
def test_a_terminal_without_chinese_is_told(encoding, speaks):
    assert surroundings.terminal_speaks(encoding) is speaks


@pytest.mark.parametrize(
    ("version", "bounds", "fit"),
    [
        ("6.33.6", ">=7.34.1", False),
        ("7.36", ">=7.34.1", True),
        ("1.26.4", "<2.0.0,>=1.20.0", True),
        ("2.1.0", "<2.0.0,>=1.20.0", False),
        ("2.0", "==2.0.0", True),
        ("2.0.1", "!=2.0.1", False),
        ("", ">=1", False),
        ("5.0", "~=4.2", True),  # a form that is not known is passed over
    ],
)
def test_what_packages_ask_for(version, bounds, fit):
    assert surroundings.fits(version, bounds) is fit


def test_a_package_that_does_not_get_what_it_asks_for(monkeypatch):
    monkeypatch.setattr(
        surroundings, "requires", lambda name: ["protobuf>=7.34.1", "numpy<2; extra == 'x'", "pillow>=99"]
    )
    monkeypatch.setattr(surroundings, "version", lambda name: "6.33.6")
    facts = {"package": "mindspore", "library": "protobuf", "wanted": ">=7.34.1", "found": "6.33.6"}
    assert list(surroundings.unmet("mindspore")) == [("doctor-requirement", facts)]


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

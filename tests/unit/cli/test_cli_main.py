"""The command itself: help without numpy, two languages, errors as two lines, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aligner import cli
from aligner.cli import parser as parsing

HEAVY = ("numpy", "h5py", "torch", "mindspore")


def run(*arguments, **environ):
    done = subprocess.run(
        [sys.executable, "-m", "aligner", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", **environ},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    script = (
        "import sys; from aligner.cli import main; code = main(sys.argv[1:]);"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules];"
        "sys.exit(f'imported {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_is_localised_and_ends_with_examples(name, language, capsys):
    assert cli.main([name, "--help", "--lang", language]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii() == (language == "en")
    examples = shown.rpartition({"en": "examples:", "zh": "示例:"}[language])[2]
    assert examples.count(f"$ aligner {name}") >= 3
    for word in ("usage:", "positional arguments", "optional arguments", "show this help"):
        assert word not in shown or (language == "en" and word in ("usage:", "show this help"))


def test_overview_lists_the_commands(capsys, golden):
    assert cli.main(["--help", "--lang", "en"]) == 0
    golden("overview.en.txt", capsys.readouterr().out)
    assert cli.main(["--help", "--lang", "zh"]) == 0
    golden("overview.zh.txt", capsys.readouterr().out)


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("aligner 0.")


def test_no_command_is_a_usage_error(capsys):
    assert cli.main([]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "compare" in streams.err


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["cmpare"], "Did you mean compare"),
        (["compare", "--tolerence", "1", "a", "b"], "Did you mean --tolerance?"),
        (["compare", "--tol", "1", "a", "b"], "has no option --tol"),
        (["compare", "a"], "Missing on the command line of `aligner compare`: PORT"),
        (["compare", "a", "b", "c"], "does not know what to do with: c"),
        (["compare", "a", "b", "--rule", "mean"], "'mean' is no value of --rule"),
        (["compare", "a", "b", "--tolerance"], "--tolerance of `aligner compare` wants a value"),
        (["compare", "a", "b", "--tolerance", "-1"], "'-1' is no number from 0 up"),
        (["compare", "a", "b", "--tolerance", "nan"], "'nan' is no number"),
        *(
            ([*start, value], f"'{value}' is no value of {start[-1]}: wanted a whole number from 1 up")
            for start in (["compare", "a", "b", "--limit"], ["capture", "net.py:build", "-o", "a", "--steps"])
            for value in ("0", "-1", "1.5", "many", "1_000", "²", "9" * 5000)
        ),
        (["capture", "net.py:build", "-o", "a", "--seed", "x"], "'x' is no value of --seed: wanted a whole number"),
        (["capture", "net.py:build", "-o", ""], "No name for the dump"),
        (["capture", "nix.py", "-o", "a"], "nix.py: no such script"),
        (["compare", "a", "b", "--limit", "3", "--all"], "contradict each other"),
        (["compare", "a", "b", "--json=yes"], "takes no value"),
        (["show", "a", "--lang", "fr"], "'fr' is no value of --lang"),
    ],
)
def test_usage_errors_say_what_and_what_to_do(arguments, found, capsys):
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    lines = streams.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("aligner: error: ")
    assert found in lines[0]


def test_usage_errors_in_chinese(capsys):
    assert cli.main(["compare", "a", "--lang", "zh"]) == 2
    assert "命令行缺少：PORT" in capsys.readouterr().err
    assert cli.main(["capture", "net.py:build", "-o", "a", "--steps", "0", "--lang", "zh"]) == 2
    assert "'0' 不是 --steps 的有效值：应为大于等于 1 的整数" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["net.py:build:x", "net.py:", ":build", "net.py:build()", "net.py::build", "net.py:3", "a:b:c"]
)
@pytest.mark.parametrize("place", ["first", "last"])
def test_what_is_nearly_a_factory_is_shown_how_one_is_written(text, place, capsys, tmp_path, monkeypatch):
    """It was taken for a script that is not there, or for a module called net.py:build."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def build(): pass\n")
    given = [text, "-o", "a.h5"] if place == "first" else ["-o", "a.h5", text]
    for language, said in (("en", "Write it like this: net.py:build."), ("zh", "请写成：net.py:build。")):
        assert cli.main(["--lang", language, "capture", *given]) == 2
        assert said in capsys.readouterr().err


REFUSED = {
    "folder": ("folder", "folder is a folder"),
    "folder/": ("folder", "folder is a folder"),
    ".": ("folder", "is a folder"),
    "old.h5": ("exists", "--force"),
    "nix/a.h5": ("no folder", "there is no folder"),
    "nix/": ("names a folder", "ends like a folder's name"),
    "old.h5/a.h5": ("no folder", "there is no folder"),
    "x" * 300: ("too long", "File name too long"),
}


@pytest.mark.parametrize("command", [["capture", "net.py:build"], ["capture"], ["import", "dumped"]], ids="/".join)
@pytest.mark.parametrize("name", REFUSED, ids=[kind for kind, _ in REFUSED.values()])
def test_where_no_dump_can_be_written_the_command_line_is_wrong(command, name, tmp_path, monkeypatch, capsys):
    """Exit code 2, before anything runs; 3 says that something cannot be compared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "dumped").mkdir()
    (tmp_path / "old.h5").write_bytes(b"kept")
    (tmp_path / "net.py").write_text("raise ValueError('it ran')\n")
    script = ["net.py"] if command == ["capture"] else []
    assert cli.main([*command, "-o", name, *script]) == 2
    told = capsys.readouterr().err
    assert REFUSED[name][1] in told
    assert "it ran" not in told
    if name != "old.h5":
        assert "--force" not in told, "which would not help"
        assert cli.main([*command, "-o", name, "--force", *script]) == 2
    assert (tmp_path / "old.h5").read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dumped", "folder", "net.py", "old.h5"]


def test_options_may_stand_anywhere(monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr("aligner.cli.doctor.run", lambda options: seen.update(vars(options)) or 0)
    assert cli.main(["-q", "--lang", "zh", "doctor", "--json", "-v"]) == 0
    assert (seen["quiet"], seen["lang"], seen["json"], seen["verbose"]) == (True, "zh", True, True)


def test_an_internal_error_is_no_divergence(monkeypatch, capsys):
    def broken(options):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("aligner.cli.doctor.run", broken)
    assert cli.main(["doctor"]) == 4
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in shown
    assert "Traceback" not in shown
    assert cli.main(["doctor", "-v"]) == 4
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("ALIGNER_DEBUG", "1")
    assert cli.main(["doctor"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("aligner.cli.doctor.run", interrupted)
    assert cli.main(["doctor"]) == 130
    told = capsys.readouterr().err
    assert "Interrupted" in told
    assert "aligner show" not in told, "there is no dump"


def test_a_reader_that_goes_away_is_quiet():
    script = "from aligner.cli import main; import sys; sys.exit(main(['compare', '--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_an_ascii_locale_does_not_end_the_program():
    code, out, _ = run("--help", LC_ALL="C", PYTHONIOENCODING="ascii", ALIGNER_LANG="zh", PYTHONUTF8="0")
    assert code == 0
    assert "Find the layer" in out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--lang", "zh", "compare"], "zh"),
        (["compare", "--lang=zh"], "zh"),
        (["capture", "train.py", "--lang", "zh"], "en"),
        (["capture", "-m", "train", "--lang", "zh"], "en"),
        (["capture", "net.py:build", "--lang", "zh"], "zh"),
        (["compare", "a", "b"], "en"),
    ],
)
def test_language_of_the_arguments(arguments, wanted, monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", "en")
    assert parsing.spoken_language(arguments) == wanted


def test_a_command_that_reads_its_own_arguments_gets_them_raw(monkeypatch):
    seen = {}

    def own(argv, language, stream_errors):
        seen.update(argv=argv, language=language)
        return 7

    monkeypatch.setattr("aligner.cli.capture.main", own)
    assert cli.main(["-q", "capture", "train.py", "-x", "--help", "--", "--version"]) == 7
    assert seen["argv"] == ["-q", "train.py", "-x", "--help", "--", "--version"]


def test_an_unknown_option_before_the_command_is_named(capsys):
    assert cli.main(["--nix"]) == 2
    assert "`aligner` has no option --nix." in capsys.readouterr().err

"""Every sample, as its folder's expected.json says: clean ports are aligned, planted mistakes are found where they are.

All ports run through the Python API in this process, for a framework takes seconds to start; a selection runs through
the commands that the READMEs show.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Optional

import pytest

import aligner
from aligner.cli import main
from aligner.compare.verdict import Origin
from aligner.errors import ReplayError
from aligner.record import Key, Phase
from aligner.report.origins import statement
from aligner.report.terminal import Terminal
from aligner.report.text import report_lines

torch = pytest.importorskip("torch", reason="the samples' references are PyTorch nets")
pytest.importorskip("mindspore", reason="the samples' ports are MindSpore nets")

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted(path.parent for path in ROOT.glob("samples/*/expected.json"))
EXPECTED = {sample.name: json.loads((sample / "expected.json").read_text()) for sample in SAMPLES}
CASES = [(sample, port) for sample, ports in EXPECTED.items() for port in ports]
PLANTED = [(sample, port) for sample, port in CASES if port != "port.py"]
MISSING = [(sample, port) for sample, port in CASES if EXPECTED[sample][port].get("allow_missing")]
COMMANDS = [
    ("lenet_bn", "port_bn_eps.py"),
    ("renamed", "port.py"),
    ("conv_valid", "port_no_bias.py"),
    ("transformer", "port_no_scale.py"),
]
CLEAN = 1e-5
# What is known to be answered otherwise, with the reason; xfail is strict, so a line leaves when its reason does.
PENDING: dict[tuple[str, str], str] = {}

Files = Callable[[str], Path]
Answers = Callable[[str, str], aligner.Comparison]


def named(cases: list[tuple[str, str]], pending: Optional[dict[tuple[str, str], str]] = None) -> pytest.MarkDecorator:
    """The cases as parameters with ids that read well: "lenet_bn-bn_eps"."""
    rows = []
    for sample, port in cases:
        reason = (pending or {}).get((sample, port))
        marks = [pytest.mark.xfail(reason=reason)] if reason else []
        rows.append(pytest.param(sample, port, id=f"{sample}-{port[:-3].replace('port_', '')}", marks=marks))
    return pytest.mark.parametrize(("sample", "port"), rows)


def build(sample: str, file: str) -> Any:
    """What `build()` of this file returns; the file is run anew."""
    path = ROOT / "samples" / sample / file
    space: dict[str, Any] = {"__name__": f"{sample}_{path.stem}", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space["build"]()


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Each sample's reference dump, captured when it is first asked for."""
    folder = tmp_path_factory.mktemp("references")

    def dump(sample: str) -> Path:
        path = folder / f"{sample}.h5"
        if not path.exists():
            net, inputs = build(sample, "reference.py")
            with torch.no_grad(), aligner.capture(net, path):
                net(*inputs)
        return path

    return dump


@pytest.fixture(scope="module")
def answers(references: Files, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Each port replayed, captured and compared, when it is first asked for."""

    @cache
    def compare(sample: str, port: str) -> aligner.Comparison:
        allowed = EXPECTED[sample][port].get("allow_missing", False)
        dump = tmp_path_factory.mktemp("port") / "port.h5"
        replay = aligner.replay(references(sample), build(sample, port), allow_missing=allowed)
        with replay, replay.capture(dump):
            replay.model(*replay.inputs(step=0))
        return aligner.compare(references(sample), dump)

    return compare


@named([(sample, port) for sample, port in CASES if EXPECTED[sample][port]["outcome"] == "aligned"], PENDING)
def test_aligned(sample: str, port: str, answers: Answers) -> None:
    result = answers(sample, port)
    wanted = EXPECTED[sample][port]
    worst = max(verdict.error for verdict in result.verdicts if verdict.error is not None)
    assert (result.outcome, result.exit_code) == ("aligned", 0)
    assert (result.origins, result.first) == ((), None)
    assert result.counts["unmatched"] == 0
    if not wanted.get("below_tolerance"):
        assert worst < CLEAN
        assert (result.suspects, result.warnings) == ((), ())
        return
    assert worst == pytest.approx(wanted["error"], rel=0.5)
    assert result.suspects[0].layer == wanted["origin"]
    check_proofs(result.suspects)
    assert {found.layer for found in result.suspects} <= {wanted["origin"], *wanted["also"]}


@named([(sample, port) for sample, port in CASES if EXPECTED[sample][port]["outcome"] == "diverged"], PENDING)
def test_planted_mistake_is_found(sample: str, port: str, answers: Answers) -> None:
    wanted = EXPECTED[sample][port]
    result = answers(sample, port)
    assert (result.outcome, result.exit_code) == ("diverged", 1)
    assert result.origins
    origin = result.origins[0]
    assert (origin.layer, origin.where) == (wanted["origin"], wanted["where"])
    check_proofs(result.origins)
    if origin.where == "glue":
        assert list(origin.between or ()) == wanted["between"]
    assert {found.layer for found in result.origins} <= {wanted["origin"], *wanted.get("also", ())}
    assert result.first is not None
    assert result.first.key.layer == wanted["first"]
    if wanted["error"] is not None and origin.where != "parameters":
        assert result.first.error == pytest.approx(wanted["error"], rel=0.1)


def check_proofs(origins: tuple[Origin, ...]) -> None:
    """What is confirmed took the error away, and stands before what is not."""
    for origin in origins:
        confirmed = [cause.confirmed for cause in origin.causes]
        assert confirmed == sorted(confirmed, reverse=True)
        for cause in origin.causes[: sum(confirmed)]:
            assert cause.error_after is not None
            assert cause.error_after < 1e-5
            assert cause.error_before is None or cause.error_after < 0.1 * cause.error_before


def excerpt(result: aligner.Comparison) -> str:
    """What a README shows of the report: the answer and the first origin, up to the worst element."""
    report = report_lines(result, Terminal(width=80))
    end = next(i for i, line in enumerate(report) if line.startswith("  worst by the rule at"))
    return "\n".join([*report[:end], "  ..."])


def scrubbed(text: str) -> str:
    """Without the figures of round-off and the line breaks behind them, which another processor has otherwise."""
    words = " ".join(text.split())
    zeros = r"(?<=\()0(?=\))|(?<=to )0(?=:)|(?<= of )0(?= is left)"
    return re.sub(zeros + r"|\b0\.0e\+00\b|\b\d(\.\d)?e-(0[6-9]|1\d)\b", "round-off", words)


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_readme_shows_the_answer(sample: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What the README says that the port it runs is answered with; `pytest --accept` writes it anew."""
    readme = ROOT / "samples" / sample / "README.md"
    told = readme.read_text(encoding="utf-8")
    (port,) = re.findall(r"/(port_\w+\.py):build --from", told)
    (shown,) = re.findall(r"^```text\n(.*?)\n```$", told, re.DOTALL | re.MULTILINE)
    dumps, allowed = [tmp_path / "ref.h5", tmp_path / "port.h5"], EXPECTED[sample][port].get("allow_missing")
    more = ["--from", str(dumps[0]), *(["--allow-missing"] if allowed else [])]
    for dump, file, options in zip(dumps, ("reference.py", port), ([], more)):
        assert main(["capture", f"{ROOT / 'samples' / sample / file}:build", "-o", str(dump), "-q", *options]) == 0
    answer = excerpt(aligner.compare(*dumps))
    if request.config.getoption("--accept"):
        readme.write_text(told.replace(shown, answer), encoding="utf-8")
        shown = answer
    assert scrubbed(shown) == scrubbed(answer)


@named(MISSING)
def test_parameters_left_over_are_named(sample: str, port: str, references: Files) -> None:
    layer = EXPECTED[sample][port]["origin"]
    with pytest.raises(ReplayError, match=rf"\b{layer}\."):
        aligner.replay(references(sample), build(sample, port))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`aligner ARGUMENTS` as a user runs it from his own folder."""
    command = [sys.executable, "-m", "aligner", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@named(COMMANDS)
def test_by_commands(sample: str, port: str, tmp_path: Path) -> None:
    wanted = EXPECTED[sample][port]
    files = ROOT / "samples" / sample
    options = ["--allow-missing"] if wanted.get("allow_missing") else []
    reference = run(tmp_path, "capture", f"{files}/reference.py:build", "-o", "ref.h5")
    assert reference.returncode == 0, reference.stderr
    replay = run(tmp_path, "capture", f"{files}/{port}:build", "--from", "ref.h5", "-o", "port.h5", *options)
    assert replay.returncode == 0, replay.stderr
    answer = run(tmp_path, "compare", "ref.h5", "port.h5", "--json")
    told = json.loads(answer.stdout)
    assert told["outcome"] == wanted["outcome"]
    if wanted["outcome"] == "aligned":
        assert answer.returncode == 0
        assert max(pair["error"] for pair in told["pairs"] if pair["error"] is not None) < CLEAN
        return
    assert answer.returncode == 1
    assert told["origins"][0]["layer"] == wanted["origin"]
    assert told["origins"][0]["where"] == wanted["where"]
    assert told["first_divergence"]["layer"] == wanted["first"]


def test_a_mistake_below_the_tolerance_is_a_warning_that_counts_when_strict(tmp_path: Path) -> None:
    files = ROOT / "samples" / "transformer"
    for arguments in (
        ("reference.py:build", "-o", "ref.h5"),
        ("port_gelu_tanh.py:build", "--from", "ref.h5", "-o", "port.h5"),
    ):
        done = run(tmp_path, "capture", f"{files}/{arguments[0]}", *arguments[1:])
        assert done.returncode == 0, done.stderr
    answer = run(tmp_path, "--lang", "en", "compare", "ref.h5", "port.h5")
    assert answer.returncode == 0
    words = " ".join(answer.stdout.split())
    assert words.startswith("ALIGNED")
    assert "blocks.0.gelu (GELU), below the tolerance; wrong by itself" in words
    assert "tanh approximation" in words
    assert re.search(
        r"the error as a whole falls from 2\.\de-04 to \d\.\de-0[78]: confirmed same in 1 more, .* blocks\.1\.gelu",
        words,
    )
    assert run(tmp_path, "compare", "ref.h5", "port.h5", "--strict").returncode == 1


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_reference_is_the_same_on_every_run(sample: str) -> None:
    (first, first_inputs), (second, second_inputs) = build(sample, "reference.py"), build(sample, "reference.py")
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert repr(first_inputs) == repr(second_inputs)


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_folder_is_complete(sample: str) -> None:
    folder = ROOT / "samples" / sample
    files = {path.name for path in folder.glob("port*.py")}
    told = (folder / "README.md").read_text()
    assert files == set(EXPECTED[sample])
    assert len(files) > 1
    assert [file for file in files if file not in told] == []


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_each_file_needs_its_own_framework_only(sample: str) -> None:
    for path in (ROOT / "samples" / sample).glob("*.py"):
        other = "mindspore" if path.name == "reference.py" else "torch"
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not any(module.partition(".")[0] == other for module in modules), path


@named(PLANTED)
def test_planted_port_is_the_correct_one_with_one_mistake(sample: str, port: str) -> None:
    """A change in port.py must reach its planted siblings: what differs is a few lines, one of them marked."""
    folder = ROOT / "samples" / sample
    clean, planted = (code_lines(folder / file) for file in ("port.py", port))
    changes = [line for line in difflib.ndiff(clean, planted) if line[0] in "+-"]
    assert 0 < len(changes) <= 10
    assert sum("# planted: " in line for line in changes) == 1


def code_lines(path: Path) -> list[str]:
    """The file's lines after its docstring."""
    text = path.read_text()
    end = ast.parse(text).body[0].end_lineno
    return text.splitlines()[end:]


@named(PLANTED)
def test_every_figure_is_named_and_fits_the_others(sample: str, port: str, answers: Answers) -> None:
    """The order, the record and the counts of an origin's block are those of the table and of the arrays."""
    result = answers(sample, port)
    records = {v.key: v for v in result.verdicts}
    for origin in result.origins:
        first = Key(origin.step, Phase(origin.phase), origin.seen, origin.call, origin.slot)
        side = records[first].reference or records[first].port
        assert side is not None
        assert origin.order == side.order, "the same number as in the table"
        key = origin.measured
        assert key is not None
        assert key in records or origin.place.key is None
        if origin.place.key is not None and origin.place.port is not None:
            assert f"{key.slot} " in statement(origin, 1e-3, "en"), (
                "it was that of the first, with the worst one's figure"
            )
        found = origin.deviation
        if found is not None and not found.nonfinite:
            assert origin.own_error == found.scaled, "the rule's figure"
            assert found.worst is not None
            reference, made = found.worst_values
            share = abs(made - reference) / (min(1.0, found.rms) + abs(reference))
            assert share == pytest.approx(origin.own_error, rel=1e-4), "the worst element is the one with that error"
    report = "\n".join(report_lines(result, Terminal(width=200), None))
    places = f"origins    {len(result.origins)} place" if result.origins else "origins    by"
    assert places in report
    assert "error falls" not in report
    at = result.counts["origin"]
    assert f"{at} at an origin" in report or not at

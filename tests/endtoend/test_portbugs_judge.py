"""The judge of the port-bug benchmark: right answers count, wrong ones are told, and the corpus is doubted too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "portbugs"
MODULES = ("judge", "corpus", "table")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The modules of the benchmark, which lie beside each other as a script's do; gone afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield import_module("judge")
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


def planted(*layers: str, where: str = "layer", between: Optional[tuple[str, str]] = None, below: bool = False) -> Any:
    """A bug at these layers whose cause is "wrong-eps"."""
    corpus = sys.modules["corpus"]
    origins = tuple(corpus.Origin(layer, (where,), ("wrong-eps",), between) for layer in layers)
    return corpus.Bug("net-bug", "net", "default", "A mistake.", (), origins, below)


def entry(layer: str, *causes: str, where: str = "layer", between: Optional[list[str]] = None) -> dict[str, Any]:
    """What compare says of a wrong place; the causes are confirmed but for those with a question mark."""
    told = [{"id": cause.rstrip("?"), "confirmed": not cause.endswith("?")} for cause in causes]
    return {"layer": layer, "where": where, "between": between, "own_error": 0.1, "causes": told}


def answer(*origins: dict[str, Any], error: float = 0.1, over: str = "norm", **more: Any) -> dict[str, Any]:
    """A document with these origins, where one layer's output is off by `error`."""
    place = {"order": 1}
    pair = {"layer": over, "phase": "forward", "slot": "output.0", "error": error, "outcome": "origin"}
    return {"origins": list(origins), "pairs": [{**pair, "reference": place, "port": place}], "port": {}, **more}


def test_a_right_answer_is_right_in_every_question(bench: ModuleType) -> None:
    one = bench.judge(planted("norm"), answer(entry("norm", "other", "wrong-eps")))
    assert (one.first, one.every, one.alone, one.where, one.cause, one.confirmed) == (True,) * 6
    assert one.between is None
    assert (one.misses, one.faults) == ((), ())


BEFORE = "a = 1\nb = f(\n    a,\n)\nc = b\n"


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        ("a = 2\nb = f(\n    a,\n)\nc = b\n", {1}),
        ("a = 1\nb = f(\n    -a,\n)\nc = b\n", {2, 3, 4}),
        ("a = 1\nc = b\n", {1, 2}),
        (BEFORE, set()),
    ],
)
def test_a_bug_has_changed_whole_statements_or_what_stands_around_the_gap(
    bench: ModuleType, after: str, lines: set[int]
) -> None:
    assert sys.modules["corpus"].changed(BEFORE, after) == lines


@pytest.mark.parametrize(
    ("kind", "line", "until", "told"),
    [
        ("other", 4, None, "the line"),
        ("other", 5, None, "another"),
        ("between", 2, 4, "between"),
        ("between", 5, 6, "another"),
        (None, 0, None, "none"),
    ],
)
def test_the_line_that_is_shown_is_one_that_was_changed(
    bench: ModuleType, kind: Optional[str], line: int, until: Optional[int], told: str
) -> None:
    last = {"port": {"line": until}, "reference": None} if until else None
    shown = {**entry("net", where="glue"), "line": kind and {"kind": kind, "port": {"line": line}, "until": last}}
    assert bench.judge(planted("net", where="glue"), answer(shown), {4}).line == told


def test_a_third_cause_comes_too_late(bench: ModuleType) -> None:
    one = bench.judge(planted("norm"), answer(entry("norm", "a", "b", "wrong-eps")))
    assert not one.cause
    assert one.misses == ("cause: norm is wrong-eps, not a, b",)


def test_a_cause_without_proof_is_not_confirmed(bench: ModuleType) -> None:
    one = bench.judge(planted("norm"), answer(entry("norm", "wrong-eps?")))
    assert one.cause
    assert not one.confirmed


def test_a_stranger_is_an_extra_and_may_not_come_first(bench: ModuleType) -> None:
    last = bench.judge(planted("norm"), answer(entry("norm", "wrong-eps"), entry("fc")))
    assert (last.first, last.alone) == (True, False)
    first = bench.judge(planted("norm"), answer(entry("fc"), entry("norm", "wrong-eps")))
    assert (first.first, first.every) == (False, True)


def test_both_of_two_bugs_must_be_named(bench: ModuleType) -> None:
    one = bench.judge(planted("norm", "fc"), answer(entry("norm", "wrong-eps")))
    assert (one.first, one.every, one.cause) == (True, False, False)
    assert "origin: fc was not named" in one.misses


def test_two_bugs_in_the_code_of_one_layer_need_two_answers(bench: ModuleType) -> None:
    bug = planted("net", "net", where="glue")
    said = entry("net", "wrong-eps", where="glue", between=["a", "b"])
    assert not bench.judge(bug, answer(said)).every
    assert bench.judge(bug, answer(said, entry("net", "wrong-eps", where="glue", between=["c", "d"]))).every


def test_where_and_between_are_told_apart(bench: ModuleType) -> None:
    bug = planted("net", where="glue", between=("a", "b"))
    right = bench.judge(bug, answer(entry("net", "wrong-eps", where="glue", between=["a", "b"])))
    assert (right.where, right.between) == (True, True)
    beside = bench.judge(bug, answer(entry("net", "wrong-eps", where="glue", between=["b", "c"])))
    assert (beside.where, beside.between) == (True, False)
    assert not bench.judge(bug, answer(entry("net", "wrong-eps"))).where


def test_a_bug_below_the_tolerance_is_found_among_the_suspects(bench: ModuleType) -> None:
    one = bench.judge(planted("norm", below=True), answer(error=1e-4, suspects=[entry("norm", "wrong-eps")]))
    assert one.first
    assert one.cause
    assert one.plain == "nothing"


@pytest.mark.parametrize(
    ("below", "error", "fault"),
    [(False, 1e-7, "no record differs"), (True, 1e-2, "called below"), (False, 1e-4, "not called below")],
)
def test_an_unfair_question_is_a_fault_of_the_corpus(bench: ModuleType, below: bool, error: float, fault: str) -> None:
    assert bench.judge(planted("norm", below=below), answer(error=error)).faults[0].startswith(fault)


@pytest.mark.parametrize(
    ("layer", "verdict"), [("block", "origin"), ("block.norm", "inside"), ("blocks", "elsewhere"), ("fc", "elsewhere")]
)
def test_the_plain_rule_takes_the_first_output_over_the_tolerance(bench: ModuleType, layer: str, verdict: str) -> None:
    assert bench.judge(planted("block"), answer(over=layer)).plain == verdict


def test_anything_said_of_a_correct_port_is_a_false_alarm(bench: ModuleType) -> None:
    assert not bench.alarm("net", "float32", 0, answer()).false
    assert bench.alarm("net", "float32", 1, answer()).false
    assert bench.alarm("net", "float16", 0, answer(suspects=[entry("norm")])).false


def test_the_table_counts_only_what_was_asked(bench: ModuleType) -> None:
    table = import_module("table")
    judged = [bench.judge(planted("norm"), answer(entry("norm", "wrong-eps?"))), bench.failed(planted("fc"), "raised")]
    row = next(line for line in table.answers(judged).splitlines() if line.startswith("| default"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["2", "1 (50.0 %)", "1 (50.0 %)"]
    assert cells[6] == "-", "nobody was asked for the place between two layers"
    assert cells[8] == "0 (0.0 %)"

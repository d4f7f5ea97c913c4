"""The port-bug corpus keeps to its form: every edit applies, every id is its own, every expectation can be judged."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aligner.explain.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "portbugs"


def load_corpus() -> ModuleType:
    """benchmarks/ is no package: its file is loaded by its place."""
    spec = importlib.util.spec_from_file_location("portbugs_corpus", FOLDER / "corpus.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


corpus = load_corpus()
NETS = corpus.nets()
BUGS = [bug for net in NETS for bug in corpus.bugs(net)]
each_bug = pytest.mark.parametrize("bug", BUGS, ids=[bug.id for bug in BUGS])
each_net = pytest.mark.parametrize("net", NETS, ids=[net.name for net in NETS])


def defined(path: Path) -> set[str]:
    """The functions that a file offers."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@each_net
def test_a_net_has_a_reference_and_a_port_in_both_precisions(net: Path) -> None:
    assert "build" in defined(net / "reference.py")
    assert {"build", "build_float16"} <= defined(net / "port.py")


@each_net
def test_ports_stand_alone(net: Path) -> None:
    """A port that reads a file beside it would not run from the folder that its bugs are written to."""
    imported = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
        for node in ast.walk(ast.parse((net / "port.py").read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= {"__future__", "mindspore", "numpy", "math", "typing", "collections"}


@each_bug
def test_the_edits_apply_and_leave_a_program(bug: Any) -> None:
    text = (corpus.NETS / bug.net / "port.py").read_text()
    wrong = corpus.planted(text, bug)
    assert wrong != text
    assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text)), "only comments or spaces were changed"


@each_bug
def test_an_expectation_can_be_judged(bug: Any) -> None:
    assert bug.id.startswith(f"{bug.net}-")
    assert bug.note.endswith(".")
    assert bug.origins
    for origin in bug.origins:
        assert origin.causes
        assert origin.between is None or "glue" in origin.where
    assert len({(origin.layer, origin.between) for origin in bug.origins}) == len(bug.origins)


@each_bug
def test_every_cause_that_is_accepted_is_one_that_can_be_told(bug: Any) -> None:
    """An id that no rule makes is accepted from nobody: it only looks like a fair question."""
    assert [cause for origin in bug.origins for cause in origin.causes if cause not in catalogue()] == []


@each_bug
def test_no_cause_is_accepted_twice(bug: Any) -> None:
    assert all(len(set(origin.causes)) == len(origin.causes) for origin in bug.origins)


def test_the_corpus_is_large_enough_to_tell() -> None:
    assert len(NETS) >= 12
    assert len(BUGS) >= 150
    assert min(Counter(bug.net for bug in BUGS).values()) >= 10
    assert sum(bug.double for bug in BUGS) >= 10
    assert sum(bug.below for bug in BUGS) >= 10
    kinds = Counter(bug.kind for bug in BUGS)
    assert set(kinds) == set(corpus.KINDS)
    assert 0.4 <= kinds["glue"] / len(BUGS) <= 0.6, "half of all porting bugs lie between the layers"


def test_ids_are_unique() -> None:
    assert [bug_id for bug_id, times in Counter(bug.id for bug in BUGS).items() if times > 1] == []


def test_no_two_bugs_are_the_same_port() -> None:
    texts: dict[str, str] = {}
    for bug in BUGS:
        text = corpus.planted((corpus.NETS / bug.net / "port.py").read_text(), bug)
        assert text not in texts, f"{bug.id} is the same port as {texts[text]}"
        texts[text] = bug.id


def test_an_edit_that_does_not_apply_is_refused() -> None:
    bug = corpus.Bug("x-y", "x", "glue", "A note.", (corpus.Edit("a", "b", 2),), ())
    with pytest.raises(corpus.CorpusError, match=r"x-y: 'a' occurs 1 times"):
        corpus.planted("a", bug)

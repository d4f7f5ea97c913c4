"""The benchmark of real ports keeps to its form, and its judge counts what is right and tells what is wrong.

What its truths say is proved by benchmarks/realports/truth.py, in an environment with other people's nets.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aligner.explain.catalogue import catalogue

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FOLDERS = (BENCHMARKS / "realports", BENCHMARKS / "portbugs")
PAIRS = sorted(path.parent.name for path in (FOLDERS[0] / "nets").glob("*/port.py"))
HELD_OUT = (
    "edgenext_xx_small efficientnet_b0 hrnet_w32 inception_v3 mnasnet1_0 resnet50 skresnet18 vit_small"  # drawn once
)
each_pair = pytest.mark.parametrize("name", PAIRS)


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which lie beside each other as a script's do; gone afterwards."""
    before = set(sys.modules)
    sys.path[:0] = map(str, FOLDERS)
    try:
        yield SimpleNamespace(**{name: import_module(name) for name in ("pairs", "verdicts", "sheet")})
    finally:
        for folder in FOLDERS:
            while str(folder) in sys.path:
                sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if Path(origin).parent in FOLDERS:
                del sys.modules[name]


def difference(bench: SimpleNamespace, *layers: str, **more: Any) -> Any:
    """A true difference at these layers, which a reader knows by the cause "wrong-eps"."""
    return bench.pairs.Difference("net-eps", "net", "A mistake.", (), layers, causes=("wrong-eps",), **more)


def verdict(bench: SimpleNamespace, *differences: Any, outcome: str = "diverged", entries: Any = ()) -> Any:
    """What the judge says of an answer with these places."""
    told = [one for one in differences if not one.hidden]
    case = bench.verdicts.Verdict("net", "net", False, False, len(told))
    return bench.verdicts.judge(case, differences, {"outcome": outcome, "origins": list(entries), "counts": {}})


def entry(layer: str, *causes: str, line: str = "", port: str = "") -> dict[str, Any]:
    """What compare says of a wrong place; the causes are confirmed but for those with a question mark."""
    told = [{"id": cause.rstrip("?"), "confirmed": not cause.endswith("?")} for cause in causes]
    spot = {"text": line} if line else None
    return {"layer": layer, "port_layer": port or layer, "where": "layer", "causes": told, "line": spot}


@each_pair
def test_a_pair_keeps_to_the_form(name: str, bench: SimpleNamespace) -> None:
    pair = bench.pairs.pair(name)
    assert (pair.folder / "reference.py").exists()
    for one in (*pair.differences, *pair.planted):
        assert one.id.startswith(f"{name}-")
        assert one.note.endswith(".")
        assert one.layers
        assert set(one.causes) <= set(catalogue()), set(one.causes) - set(catalogue())
        assert bool(one.edits) != one.hidden, "what must be named is made or mended by an edit"
    assert not any(one.hidden for one in pair.planted)


def test_the_corpus_is_large_enough_to_tell(bench: SimpleNamespace) -> None:
    pairs = [bench.pairs.pair(name) for name in bench.pairs.names()]
    planted = Counter(one.pair for pair in pairs for one in pair.planted)
    assert len(pairs) == len(PAIRS) == 28
    assert sum(planted.values()) >= 60
    assert len(planted) >= 20
    ids = Counter(one.id for pair in pairs for one in (*pair.differences, *pair.planted))
    assert [one for one, times in ids.items() if times > 1] == []


def test_the_pairs_that_are_held_out_stay_the_same(bench: SimpleNamespace) -> None:
    """A pair that joined the others later would have been looked at."""
    assert bench.pairs.held_out() == HELD_OUT.split()


def test_a_right_port_called_right_is_clean(bench: SimpleNamespace) -> None:
    assert verdict(bench, outcome="aligned").clean
    assert verdict(bench, outcome="aligned").misses == ()


def test_an_origin_under_a_right_port_is_false(bench: SimpleNamespace) -> None:
    one = verdict(bench, outcome="aligned", entries=[entry("norm", "eps?"), entry("act", "eps")])
    assert (one.clean, one.false_origins, one.false_confirmed) == (False, 2, 1)
    assert one.misses == ("false: norm layer eps", "false: act layer eps confirmed")


def test_a_difference_is_named_by_its_layer_on_either_side_or_by_its_line(bench: SimpleNamespace) -> None:
    wrong = difference(bench, "stages.*.norm", lines=("self.norm(",))
    for place in (entry("stages.1.norm"), entry("a", port="stages.1.norm"), entry("a", line="x = self.norm(x)")):
        assert verdict(bench, wrong, entries=[place]).named == 1
    assert verdict(bench, wrong, entries=[entry("stages.1")]).misses == (
        "not named: net-eps",
        "false: stages.1 layer",
    )


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("layer*.*", "layer1.0", ["layer1.0.conv1", "layer1", "norm.0"]),
        ("blocks.**.act", "blocks.0.mlp.act", ["blocks.0.mlp.act2", "blocks.act"]),
        ("stages.[12].?.bn", "stages.2.0.bn", ["stages.3.0.bn", "stages.2.10.bn", "stages.2.0.bnx"]),
        ("", "", ["head"]),
    ],
)
def test_a_star_stays_between_two_dots(bench: SimpleNamespace, pattern: str, fits: str, others: list[str]) -> None:
    """Or whatever is named inside a block would count as its glue."""
    assert bench.pairs.matches(pattern, fits)
    assert not [path for path in others if bench.pairs.matches(pattern, path)]


def test_a_true_place_behind_a_false_one_is_not_first(bench: SimpleNamespace) -> None:
    one = verdict(bench, difference(bench, "norm"), entries=[entry("act"), entry("norm", "other", "wrong-eps?")])
    assert (one.named, one.first, one.caused, one.proved) == (1, False, 1, 0)
    assert "first is act layer" in one.misses


def test_what_moves_nothing_is_neither_asked_nor_false(bench: SimpleNamespace) -> None:
    hidden = difference(bench, "norm", hidden=True)
    assert verdict(bench, hidden, outcome="aligned", entries=[entry("norm")]).clean
    assert verdict(bench, hidden, outcome="aligned").clean


def test_pairs_that_are_held_out_have_tables_of_their_own(bench: SimpleNamespace) -> None:
    verdicts = [
        bench.verdicts.Verdict(name, name, False, held_out, 0, outcome="aligned")
        for name, held_out in (("open", False), ("closed", True))
    ]
    text = bench.sheet.report(verdicts)
    seen, unseen = text.split("## Published ports, held out")
    assert "| open |" in seen
    assert "| closed |" not in seen
    assert "| closed |" in unseen


@pytest.mark.parametrize("name", ["truth", "carry", "seen", "weights", "packages", "pairs"])
def test_the_truth_is_found_without_aligner(name: str) -> None:
    tree = ast.parse((FOLDERS[0] / f"{name}.py").read_text())
    imported = [
        node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    assert imported
    assert not [module for module in imported if module.startswith("aligner")]

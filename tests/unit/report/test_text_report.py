"""The text report: golden files for each kind of answer, and what must hold for all of them."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from aligner.compare.verdict import LayerPair, Outcome
from aligner.report import lines, text
from aligner.report.terminal import Terminal
from tests.unit.report import comparisons


def report(comparison, limit=20, **terminal):
    out = io.StringIO()
    text.write(comparison, out, Terminal(**terminal), limit)
    return out.getvalue()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", comparisons.SCENARIOS)
def test_golden(name, language, golden):
    golden(f"{name}.{language}.txt", report(comparisons.SCENARIOS[name](), language=language))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", comparisons.SCENARIOS)
def test_it_fits(name, width, language):
    for row in report(comparisons.SCENARIOS[name](), width=width, language=language).splitlines():
        assert lines.width(row) <= width, row


@pytest.mark.parametrize("name", comparisons.SCENARIOS)
def test_english_is_ascii_without_control_characters(name):
    shown = report(comparisons.SCENARIOS[name]())
    assert shown.isascii()
    assert "\x1b" not in shown


def test_hostile_names_show_and_do_not_act():
    shown = report(comparisons.hostile())
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[31m" in shown


@pytest.mark.parametrize("name", [*comparisons.SCENARIOS, "hostile"])
def test_colour_changes_nothing_but_colour(name):
    made = {**comparisons.SCENARIOS, "hostile": comparisons.hostile}[name]()
    painted = report(made, color=True)
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == report(made)


def test_the_answer_is_in_the_first_line():
    first = report(comparisons.diverged()).splitlines()[0]
    assert first == "DIVERGED  first layer over 1e-03: bn1 (BatchNorm) output.0"
    assert report(comparisons.aligned()).splitlines()[0].startswith("ALIGNED  10 pairs, largest error 3.1e-07")


def test_limit_cuts_lists_and_says_so():
    made = comparisons.diverged()
    assert "3 more" in report(made, limit=3)
    assert "more (" not in report(made, limit=None)


def test_every_unmatched_layer_is_listed():
    shown = report(comparisons.unmatched())
    assert "dropout (Dropout) output.0" in shown
    assert "0.71  bn1 = stem.1" in shown


def test_many_origins_are_counted():
    made = comparisons.diverged(origins=tuple(comparisons.origin(layer=f"l{i}") for i in range(8)))
    shown = report(made)
    assert "origin 1 of 8" in shown
    assert "3 more origins" in shown
    assert "origin 8 of 8" in report(made, limit=None)


def test_one_mistake_in_many_layers_is_one_block():
    shown = report(comparisons.proved())
    assert shown.count("wrong by itself") == 1
    assert "origin 1 of" not in shown
    assert "and 3 more" in shown
    assert "blocks.5.norm2" in report(comparisons.proved(), limit=None)


def test_a_mistake_below_the_tolerance_is_told_like_an_origin():
    rows = report(comparisons.below())
    assert rows.startswith("ALIGNED")
    warnings = rows[rows.index("\nwarnings") :]
    for words in ("blocks.0.norm1 (LayerNorm)", "epsilon=1e-05", "4.7e-04", "2.4e-07: confirmed", "--strict"):
        assert words in warnings
    assert warnings.count("\n  -") == 2, "one mistake, and the warning that is no suspect"


def test_the_way_origins_were_found_is_told():
    assert "origins    1 place, 1 mistake; from the free run" in report(comparisons.diverged())
    assert "origins    12 places, 1 mistake; by the forced pass (77" in report(comparisons.proved())


def test_a_program_is_offered_where_nothing_is_proved():
    offered = "repro: aligner compare ref.h5 port.h5 --repro repro"
    assert report(comparisons.unknown()).splitlines()[-1] == offered
    assert "repro:" not in report(comparisons.proved())
    assert "repro:" not in report(comparisons.guessed())


def test_rounding_that_has_grown_is_no_mistake():
    assert "4 over 1e-03 only" in report(comparisons.grown())
    assert "no layer errs by itself" in report(comparisons.grown()).replace("\n        ", "")


def test_next_command_is_there_only_when_something_is_wrong():
    assert text.next_command(comparisons.aligned()) is None
    assert text.next_command(comparisons.diverged()) == "aligner show ref.h5 bn1 --against port.h5"
    assert text.next_command(comparisons.below()) == "aligner show ref.h5 blocks.0.norm1 --against port.h5"
    assert text.next_command(comparisons.glue()) == "aligner show ref.h5 bn1 --against port.h5"
    assert text.next_command(comparisons.other_inputs()) == "aligner show ref.h5 '' --against port.h5"


def test_ports_name_is_told_where_it_differs():
    made = comparisons.diverged(origins=(comparisons.origin(port_layer="stem.norm"),))
    assert "in the port: stem.norm" in report(made)


def test_an_empty_comparison_is_not_called_aligned():
    empty = comparisons.comparison((), "incomparable", layers=())
    assert report(empty).startswith("INCOMPARABLE  no pair of records could be compared")


def test_covered_records_are_counted():
    covered = comparisons.verdict("relu", "output.0", 7, None, Outcome.COVERED, port=None)
    shown = report(comparisons.comparison((*comparisons.aligned().verdicts, covered), "aligned"))
    assert "1 record without such a layer on the other" in shown
    assert "1 by effect" in shown
    elsewhere = replace(covered, reason="covered-elsewhere", facts={"layer": "fc", "slot": "input.0"})
    shown = report(comparisons.comparison((*comparisons.aligned().verdicts, elsewhere), "aligned"))
    assert "1 compared by value elsewhere (relu)" in " ".join(shown.split())


def test_a_right_port_takes_few_lines_and_all_tells_the_rest():
    few, every = report(comparisons.aligned()), report(comparisons.aligned(), limit=None)
    assert len(few.split("\n\n")) == 2
    assert "  rule " in every
    assert "  rule " not in few


def test_unsure_pairs_are_shown_whatever_they_come_from():
    made = replace(comparisons.diverged(), layers=(LayerPair("a", "b", 0.6, "replay"),))
    assert "0.60  a = b" in report(made)


@pytest.mark.parametrize(
    ("message", "facts", "shown"),
    [
        ("other-thread", {"layer": "fc", "side": "port"}, "port, fc: called from another thread"),
        ("of-a-later-version", {"why": "\x1b[31m"}, "of-a-later-version (why=\\x1b[31m)"),
        ("only-port", {}, "Only the port has this. If that is meant"),
        ("did-you-mean", {"wrong": 1}, "did-you-mean (wrong=1)"),
    ],
)
def test_warnings_from_other_versions_are_shown_as_they_stand(message, facts, shown):
    rows = report(comparisons.diverged(warnings=((message, facts),)), width=100).splitlines()
    assert rows[rows.index("warnings") + 1].startswith(f"  - {shown}")

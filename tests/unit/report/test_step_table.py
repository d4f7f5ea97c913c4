"""The table of steps: what is wrong is never cut away, whatever the columns are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aligner.compare.steps import StepRow, Steps
from aligner.record import Key, Phase
from aligner.report.lines import width
from aligner.report.step_table import step_lines
from aligner.report.terminal import Terminal, terminal
from tests.unit.report import comparisons

WRONG = Key(0, Phase.GRADIENT, "encoder.layers.11.attention.output.dense", 0, "weight")
RATE = ((0.5,), (0.5,))


def compared(*rows):
    return replace(comparisons.aligned(), steps=Steps(rows))


def row(step, loss=(0.431307, 1.72523), norm=(0.499999, 0.5), rates=RATE, same=True, **more):
    return StepRow(step, same, loss, norm, rates, **more)


def wrong(step, stage="clip", key=WRONG, **more):
    return row(step, first=key._replace(step=step), origin=0, stage=stage, wrong=1, **more)


SCENARIOS = {
    "clip": [row(0), *(wrong(step) for step in range(1, 6))],
    "folded": [*(row(step, (2.0, 2.0), (1.0, 1.0)) for step in range(4)), wrong(4, "update"), row(5, inherited=7)],
    "differing": [
        wrong(0, "data", rates=((0.001,), (0.01,)), same=False),
        wrong(1, "loss", rates=((0.001, 0.1), (1e-5,))),
    ],
    "skipped": [wrong(0, "update", skipped=(True, False), norm=(None, 3.0)), row(1, (None, None))],
}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_golden(columns, language, golden):
    shown = []
    for name, rows in SCENARIOS.items():
        table = step_lines(compared(*rows), Terminal(columns, language=language), 20)
        assert max(map(width, table)) <= columns
        shown += [f"[{name}]", *table, ""]
    golden(f"steps-{columns}.{language}.txt", "\n".join(shown))


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
@pytest.mark.parametrize("stage", ["data", "forward", "loss", "backward", "gradient", "clip", "update"])
def test_the_stage_is_readable_in_any_width(stage, columns):
    table = "\n".join(step_lines(compared(wrong(0, stage), wrong(1, stage)), Terminal(columns), 20))
    assert "first that is wrong" in table
    assert {"clip": "gradient"}.get(stage, stage) + (":" if stage != "loss" else "") in table
    assert ("weight" in table) == (stage != "loss")


def test_what_is_left_out_is_told():
    table = step_lines(compared(*SCENARIOS["clip"]), Terminal(60), 20)
    assert table[-1] == "  the same on both sides, not shown: data, lr"
    assert "not shown" not in "".join(step_lines(compared(*SCENARIOS["clip"]), Terminal(100), 20))


def test_numbers_that_are_apart_by_the_tolerance_never_look_equal():
    table = "\n".join(step_lines(compared(wrong(0, loss=(1.000, 1.001))), Terminal(40), 20))
    assert "1 | 1.001" in table


def test_a_pipe_breaks_no_line(tmp_path):
    with open(tmp_path / "log", "w", encoding="utf-8") as stream:
        piped = terminal(stream, {})
        assert (piped.width, piped.table_width) == (60, 100)
        assert terminal(stream, {"COLUMNS": "70"}).table_width == 70
    assert Terminal(80).table_width == 80

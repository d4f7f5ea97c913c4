"""The steps of a training in a notebook: a sound page in both languages, whatever is known of a step."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from aligner.compare.steps import Steps
from aligner.errors import UsageError
from aligner.notebook.step_curve import step_curve
from tests.unit.notebook import test_notebook_html as pages
from tests.unit.report import comparisons
from tests.unit.report.test_step_table import SCENARIOS, row, wrong

GAPS = [row(0, (math.nan, 1.0), (None, math.inf)), row(1, (1.0, 1.0)), row(2, (None, None), (None, None))]
EVERY = {**SCENARIOS, "gaps": GAPS, "one": [wrong(0)], "nothing": [row(0, (None, None), (None, None))], "none": []}


@pytest.fixture(autouse=True)
def words_of_drawings(monkeypatch):
    monkeypatch.setattr(pages, "ALLOWED", pages.ALLOWED | {"rect"})


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", EVERY)
def test_it_is_a_sound_page(name, language, monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", language)
    steps = Steps(EVERY[name])
    page = pages.Page(steps._repr_html_())
    shown = replace(comparisons.diverged(), steps=steps)
    assert pages.Page(shown._repr_html_()).text
    assert page.rows == (len(steps) + 1 if steps else 0)
    assert page.text
    assert "nan" not in re.sub(r"<title>.*?</title>|<td.*?</td>", "", steps._repr_html_())


def test_steps_that_are_wrong_are_marked_with_what_is_wrong():
    drawing = step_curve(SCENARIOS["folded"], "en")
    assert drawing.count("<rect") == 4  # two steps in two panels
    assert "step 4: update: encoder.layers.11.attention.output.dense weight" in drawing
    assert "step 5: (inherited: 7 values)" in drawing
    assert drawing.count("<polyline") == 4


def test_a_line_has_a_gap_where_a_number_is_not_finite():
    values = [(1.0, 1.0), (2.0, math.inf), (1.5, 1.4)]
    drawing = step_curve([row(n, pair, (None, None)) for n, pair in enumerate(values)], "en")
    assert drawing.count("<polyline") == 3
    assert "grad norm" not in drawing


def test_the_table_begins_a_little_before_what_is_wrong():
    steps = Steps([*(row(n) for n in range(60)), wrong(60), *(row(n) for n in range(61, 100))])
    page = pages.Page(steps._repr_html_())
    assert page.rows == 21
    assert [*re.findall(r"<td[^>]*>(\d\d)</td>", steps._repr_html_())] == [*map(str, range(58, 78))]
    assert "80 more rows" in page.text
    assert steps[60].stage == "clip"


def test_matplotlib_draws_both_sides():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = Steps([*GAPS, *SCENARIOS["folded"]]).plot()
    losses, norms = figure.axes
    assert [line.get_label() for line in losses.lines] == ["reference", "port"]
    assert len(losses.patches) == len(norms.patches) == 1
    assert losses.lines[0].get_ydata()[1:2] == [1.0]
    assert Steps(SCENARIOS["clip"]).plot((norms, losses)) is figure
    with pytest.raises(UsageError, match="it was given 1"):
        Steps(GAPS).plot([losses])


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(UsageError, match=r"pip install 'aligner\[plot\]'"):
        Steps(GAPS).plot()

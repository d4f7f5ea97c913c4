"""The static pages: well formed, no script, hostile names harmless, no more than 20 rows, both languages."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import aligner
from aligner.compare.verdict import Outcome
from aligner.notebook import html
from aligner.notebook.curve import COLUMNS, curve
from tests.unit.report import comparisons, small_dumps

ALLOWED = set(
    "div span b br code table thead tbody tr th td ul li svg title line text polyline circle".split()  # noqa: SIM905  # a list of words reads best so
)
VOID = {"br", "line", "polyline"}


class Page(HTMLParser):
    """Checks what a browser would make of the page."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.words, self.rows = [], [], 0
        self.feed(page)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"{tag}: an attribute twice"
        for name, value in attributes:
            assert not name.startswith("on"), name
            assert name not in ("href", "src", "srcset", "id", "class"), name
            assert "url(" not in (value or ""), value
        self.rows += tag == "tr"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


@pytest.fixture(autouse=True)
def english(monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", "en")


EVERY = {**comparisons.SCENARIOS, "hostile": comparisons.hostile}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", EVERY)
def test_every_comparison_is_a_sound_page(name, language, monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", language)
    made = EVERY[name]()
    page = Page(made._repr_html_())
    assert {"en": "reference: ", "zh": "标杆: "}[language] in page.text
    for layer in {verdict.key.layer for verdict in made.verdicts}:
        Page(made[layer]._repr_html_())
        for pair in made[layer]:
            Page(pair._repr_html_())


def test_hostile_names_are_text():
    page = comparisons.hostile()._repr_html_()
    assert "<img" not in page
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert '<img src=x onerror="alert(1)"></script>' in Page(page).text


def test_outcomes_are_words_not_only_colours():
    text = Page(comparisons.diverged()._repr_html_()).text
    for word in ("DIVERGED", "origin", "inherited", "eps: 1e-05 in the reference, 1e-03 in the port"):
        assert word in text


def test_causes_and_their_proof_are_shown():
    text = Page(comparisons.proved()._repr_html_()).text
    for words in (
        "why LayerNorm's eps",
        "change Write nn.LayerNorm",
        "from 4.7e-04 to 2.4e-07: confirmed",
        "in 11 more",
    ):
        assert words in text
    assert text.count("wrong by itself") == 1
    assert "by the forced pass (77 values" in text


def test_what_is_wrong_below_the_tolerance_is_shown():
    made = comparisons.below()
    text = Page(made._repr_html_()).text
    assert "blocks.0.norm1 (LayerNorm), below the tolerance; wrong by itself" in text
    assert "from 4.7e-04 to 2.4e-07: confirmed" in text
    assert "2 pairs hold NaN" in text


def test_colours_are_tints_behind_the_notebooks_own_text():
    page = comparisons.diverged()._repr_html_()
    assert not re.search(r"[\"; ]color:(?!inherit)", page), "text keeps the theme's colour"
    assert not re.search(r"background:(?!none|rgba)", page)


def test_twenty_rows_and_the_rest_counted():
    many = tuple(comparisons.verdict(f"layer{i}", "output.0", i, 0.1, Outcome.INHERITED) for i in range(500))
    page = comparisons.comparison(many)._repr_html_()
    assert Page(page).rows == 21
    assert "480 more rows" in page
    assert len(page) < 30_000


def test_the_curve_keeps_every_peak():
    errors = [1e-7] * 5000
    errors[3210] = 0.5
    many = tuple(
        comparisons.verdict(f"l{i}", "output.0", i, e, Outcome.ORIGIN if e > 1e-3 else Outcome.ALIGNED)
        for i, e in enumerate(errors)
    )
    drawn = curve(comparisons.comparison(many), "en")
    points = re.search(r'points="([^"]*)"', drawn)[1].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) == COLUMNS
    assert heights.count(min(heights)) == 1
    assert "l3210 output.0  5.0e-01" in drawn


def test_the_curve_copes_with_zero_inf_and_nothing():
    verdicts = tuple(
        comparisons.verdict(f"l{i}", "output.0", i, e) for i, e in enumerate([0.0, float("inf"), 1e-30, 1e30])
    )
    drawn = curve(comparisons.comparison(verdicts), "en")
    assert "nan" not in re.search(r'points="([^"]*)"', drawn)[1]
    assert curve(comparisons.comparison(()), "en") == ""


def test_dump_layer_and_entry(tmp_path):
    with aligner.open(small_dumps.write(tmp_path / "ref.h5", model="<b>Net</b>")) as dump:
        page = Page(dump._repr_html_())
        assert "<b>Net</b>" in page.text
        assert "4 layers, 4 calls, 9 records" in page.text
        view = dump["conv"]
        assert "in_channels=3" in Page(view._repr_html_()).text
        assert "rms" in Page(view.output._repr_html_()).text


def test_worst(tmp_path):
    paths = [small_dumps.write(tmp_path / "ref.h5"), small_dumps.write(tmp_path / "port.h5", shift=0.01)]
    result = aligner.compare(*paths)
    assert Page(result["norm"].output.worst(3)._repr_html_()).rows == 4
    assert "same values" in Page(html.worst_html(result["conv"].output.worst())).text

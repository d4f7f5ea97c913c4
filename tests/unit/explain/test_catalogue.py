"""The catalogue's form: what every entry must hold to, whoever wrote it."""

from __future__ import annotations

import ast
import json
import re
import string
from pathlib import Path

import pytest

from aligner import messages
from aligner.explain.catalogue import LANGUAGES, catalogue, sentences, spoken, torch_words
from aligner.explain.catalogue.phrases import PHRASES
from aligner.explain.phrase import phrase
from tests import examples
from tests.chinese import english, faults, holes

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = sorted(catalogue().values(), key=lambda entry: entry.id)
CHINESE = re.compile("[\u4e00-\u9fff]")


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def texts(entry):
    return {"title": entry.title, "evidence": entry.evidence, "fix": entry.fix}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_says_the_same_in_both_languages(entry):
    for word, (one, other) in texts(entry).items():
        assert placeholders(one) == placeholders(other), word
        assert bool(one) == bool(other), word
        assert not CHINESE.search(one), word
        # What is code only reads alike in both.
        assert one == other or CHINESE.search(other), word


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_has_a_title_and_a_fix_without_full_stops(entry):
    for word, pair in texts(entry).items():
        for text in pair:
            assert text == text.strip(), word
            assert not text.endswith((".", "。")) or text.endswith("..."), word
            assert "\n" not in text, word
    assert entry.title[0], "no title"
    assert entry.fix[0], "no fix"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_id_is_words_joined_by_hyphens(entry):
    assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", entry.id)


EXAMPLES = examples.read()


def test_every_entry_has_an_example_of_facts_that_its_rule_made():
    """A new cause has none until a test has run its rule: pytest THAT_TEST --accept writes it."""
    assert sorted(EXAMPLES) == [entry.id for entry in ENTRIES]


@pytest.mark.parametrize("cause", sorted(EXAMPLES))
@pytest.mark.parametrize("words", ["mindspore", "torch"])
def test_an_example_is_told_in_both_languages(cause, words):
    facts = {**EXAMPLES[cause], "words": words}
    assert holes(cause, facts) == []
    assert faults(cause, facts) == []


@pytest.mark.parametrize("entry", [*ENTRIES, *torch_words.entries(catalogue())], ids=lambda entry: entry.id)
def test_chinese_sentences_have_no_english_words(entry):
    assert [word for _, chinese in texts(entry).values() for word in english(chinese)] == []


@pytest.mark.parametrize("name", sorted(PHRASES))
def test_a_phrase_says_the_same_in_both_languages(name):
    first, other = PHRASES[name]
    assert placeholders(first) == placeholders(other)
    assert english(other) == []
    assert not CHINESE.search(first)


def test_every_phrase_is_used():
    known = {
        node.value
        for folder in ("explain", "training", "compare")
        for path in (ROOT / "aligner" / folder).rglob("*.py")
        if path.name != "phrases.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    built = tuple(name for name in known if name.endswith("-") and len(name) > 5)  # f"layout-{...}"
    assert {name for name in PHRASES if name not in known and not name.startswith(built)} == set()


@pytest.mark.parametrize("sample", sorted(ROOT.glob("samples/*/expected.json")), ids=lambda path: path.parent.name)
def test_samples_expect_causes_that_can_be_told(sample):
    causes = {port["cause"] for port in json.loads(sample.read_text(encoding="utf-8")).values() if port.get("cause")}
    assert causes - {entry.id for entry in ENTRIES} == set()


PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/**/*.md"), *ROOT.glob("benchmarks/**/*.md")}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_causes_and_messages_that_there_are(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([a-z0-9]+(?:-[a-z0-9.]+)+)`", text) + re.findall(r'"(?:id|cause)": "([a-z0-9.-]+)"', text)
    assert set(named) - {entry.id for entry in ENTRIES} - set(messages.catalogue()) == set()


def test_a_fact_of_an_older_dump_stays_as_it_is():
    facts = {"setting": "input and weight", "dtype": "bfloat16"}
    assert "input and weight" in sentences("ascend-matmul-precision-mode", facts, "zh")[0]


def test_a_phrase_stands_in_a_chinese_sentence_without_spaces():
    facts = {"setting": phrase("input-weight"), "dtype": "bfloat16"}
    assert sentences("ascend-matmul-precision-mode", facts, "zh")[0].endswith("被舍入的是输入与权重")


@pytest.mark.parametrize("fact", [phrase("weights"), (phrase("along-axis", "+1", 2), "and so on")])
def test_english_among_facts_is_seen(fact):
    """The test of the tests above: what is a phrase passes, and what is written out does not."""
    facts = {**EXAMPLES["ascend-matmul-precision-mode"], "setting": fact}
    assert bool(faults("ascend-matmul-precision-mode", facts)) == (fact != phrase("weights"))
    assert faults("ascend-matmul-precision-mode", {**facts, "setting": spoken({"x": fact}, "en")["x"]})


def test_sentences_are_filled_in_the_language_asked_for():
    facts = {
        "setting": "eps",
        "port_value": "1e-07",
        "reference_value": "1e-05",
        "written": "nn.LayerNorm(epsilon=1e-05)",
    }
    title, evidence, fix = sentences("setting-differs", facts, "en")
    assert title == "eps is 1e-07, the reference has 1e-05"
    assert evidence == ""
    assert fix == "Write nn.LayerNorm(epsilon=1e-05) in the port"
    assert all(CHINESE.search(sentences("setting-differs", facts, language)[0]) for language in LANGUAGES[1:])


def test_a_cause_of_a_newer_aligner_is_told_by_its_id():
    assert sentences("of-another-day", {}, "zh") == ("of-another-day", "", "")


def test_a_missing_fact_stays_visible():
    assert "<port_value>" in sentences("setting-differs", {}, "en")[0]


CODE = re.compile(r"[._=(]|^(momentum|dilation|eps|relu,|torch's)$")
"""Settings and functions keep their small letters."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_begins_with_a_capital_and_has_no_full_stop(entry):
    for text, _ in texts(entry).values():
        assert not text[:1].islower() or CODE.search(text.split()[0])
        assert not text.endswith((";", ":"))
        assert not text.endswith(".") or text.endswith("...")

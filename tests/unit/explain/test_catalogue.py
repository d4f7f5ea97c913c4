"""The catalogue's form: what every entry must hold to, whoever wrote it."""

from __future__ import annotations

import re
import string

import pytest

from aligner.explain.catalogue import LANGUAGES, catalogue, sentences

ENTRIES = sorted(catalogue().values(), key=lambda entry: entry.id)
CHINESE = re.compile("[\u4e00-\u9fff]")


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def texts(entry):
    return {"title": entry.title, "evidence": entry.evidence, "fix": entry.fix}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_says_the_same_in_both_languages(entry):
    for word, (english, chinese) in texts(entry).items():
        assert placeholders(english) == placeholders(chinese), word
        assert bool(english) == bool(chinese), word
        assert not CHINESE.search(english), word
        # What is code only reads alike in both.
        assert english == chinese or CHINESE.search(chinese), word


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
    for english, _ in texts(entry).values():
        assert not english[:1].islower() or CODE.search(english.split()[0])
        assert not english.endswith((";", ":"))
        assert not english.endswith(".") or english.endswith("...")

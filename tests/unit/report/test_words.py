"""Every phrase stands in both languages with the same facts, and is used."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from aligner.compare.tolerance import RULES
from aligner.compare.verdict import Outcome
from aligner.record import Phase
from aligner.report.words import WORDS, say

ROOT = Path(__file__).resolve().parents[3]


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_both_languages_say_the_same(word):
    english, chinese = WORDS[word]
    assert english.strip()
    assert chinese.strip()
    assert placeholders(english) == placeholders(chinese)


@pytest.mark.parametrize(
    "word",
    [f"outcome-{o.value}" for o in Outcome] + [f"phase-{p.value}" for p in Phase] + [f"rule-{rule}" for rule in RULES],
)
def test_every_outcome_phase_and_rule_has_a_word(word):
    assert word in WORDS


def test_every_word_is_used():
    constants = [
        node.value
        for path in (ROOT / "aligner").rglob("*.py")
        if path.name not in ("words.py", "reservations.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    built = tuple(c for c in constants if c.endswith("-"))  # f"outcome-{...}"
    unused = {
        word
        for word in WORDS
        if word not in constants and not any(word.startswith(start) and word[len(start) :] for start in built)
    }
    assert unused == set()


def test_counts_bring_their_noun():
    assert say("times", "en", count=1) == "1 call"
    assert say("times", "en", count=0) == "0 calls"
    assert say("times", "zh", count=2) == "2 次调用"

"""Every sentence stands in both languages with the same facts, and is used."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from aligner import messages

ROOT = Path(__file__).resolve().parents[2]


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("name", sorted(messages.catalogue()))
def test_both_languages_say_the_same(name):
    english, chinese = messages.catalogue()[name]
    assert english.strip()
    assert chinese.strip()
    assert placeholders(english) == placeholders(chinese)
    assert english.count("\n") == chinese.count("\n"), "the second line says what to do, in both"


def test_every_message_is_used():
    strings = {
        node.value
        for folder in ("aligner", "hooks")
        for path in (ROOT / folder).rglob("*.py")
        if "messages" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(messages.catalogue()) - strings == set()


@pytest.mark.parametrize(
    ("chosen", "environ", "wanted"),
    [
        (None, {}, "en"),
        ("zh", {"LANG": "en_US.UTF-8"}, "zh"),
        (None, {"LANG": "zh_CN.UTF-8"}, "zh"),
        (None, {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        (None, {"LC_ALL": "C", "ALIGNER_LANG": "zh"}, "zh"),
    ],
)
def test_language(chosen, environ, wanted):
    assert messages.language(chosen, environ) == wanted

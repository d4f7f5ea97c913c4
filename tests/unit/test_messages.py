"""Every sentence stands in both languages with the same facts, and is used."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

from aligner import errors, messages
from tests.chinese import english

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


@pytest.mark.parametrize("name", sorted(messages.catalogue()))
def test_a_chinese_sentence_has_no_english_words(name):
    """Commands and lines of code stand in it as they are typed."""
    text = re.sub("aligner (?:[a-z]+|FOLDER)[ -~]*|pip install [ -~]*|python [ -~]+", "", messages.catalogue()[name][1])
    assert [word for word in english(text) if word not in NAMES] == []
    assert not re.search("[\u3000-\u9fff]", messages.catalogue()[name][0])


_WORDS = (
    "Python pynative graph construct net protobuf script trace eval eager cpu npu smi info build def return from "
    "import self path shell steps demo training fork npy true mindtorch mindnlp docs encoder mindspore as ms replay "
    "meta py"
)
NAMES = {*_WORDS.split(), "Transformer"}
"""What messages name besides the words of the catalogue of causes: options, commands, code."""


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_a_reason_is_told_in_the_language_of_the_message(language):
    error = errors.because(errors.Reason("why-sparse", "float32 COOTensor|x"))
    said = messages.text("value-unreadable", language, {"slot": "output.0", "reason": error})
    wanted = messages.catalogue()["why-sparse"][language == "zh"].format("float32 COOTensor/x")
    assert said.endswith(wanted)


@pytest.mark.parametrize("reason", ["no values can be read", "why-of-another-day|x", "why-unshown|one part"])
def test_a_reason_of_an_older_or_newer_dump_stays_as_it_is(reason):
    assert messages.text("value-unreadable", "zh", {"slot": "a", "reason": reason}).endswith(reason)


def test_foreign_words_are_handed_on():
    assert errors.because(ValueError("first\nsecond")) == "first"
    assert errors.because(ValueError()) == "ValueError"
    assert str(errors.Reason("why-meta")) == messages.catalogue()["why-meta"][0]


PHRASE = re.compile(r"[a-z]{2,} [a-z]{2,}")


def test_no_message_is_handed_an_english_phrase():
    """What is raised or noted with an id has numbers, names, code and other ids for facts."""
    found = []
    for path in [path for folder in ("aligner", "hooks") for path in (ROOT / folder).rglob("*.py")]:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        for call in calls:
            if not any(isinstance(each, ast.Constant) and each.value in messages.catalogue() for each in call.args):
                continue
            words = [n.value for k in call.keywords for n in ast.walk(k.value) if isinstance(n, ast.Constant)]
            found += [f"{path.name}: {word}" for word in words if PHRASE.search(str(word))]
    assert found == []


def test_a_reason_has_the_parts_that_its_text_tells():
    """One with fewer would be told as its bare id."""
    for path in [path for folder in ("aligner", "hooks") for path in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            given = node.args if isinstance(node, ast.Call) else []
            place = next((n for n, a in enumerate(given) if isinstance(a, ast.Constant) and is_reason(a.value)), None)
            if place is not None and not any(isinstance(each, ast.Starred) for each in given):
                wanted = len(placeholders(messages.catalogue()[given[place].value][0]))
                assert len(given) - place - 1 == wanted, f"{path.name}:{node.lineno}"


def is_reason(word):
    return isinstance(word, str) and word.startswith("why-") and word in messages.catalogue()


@pytest.mark.parametrize("folder", ["aligner/dump", "aligner/compare"])
def test_damage_is_told_by_ids(folder):
    """What a ValueError of another kind said of a dump stood in English in Chinese messages."""
    found = []
    for path in (ROOT / folder).rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef) or function.name in PROGRAMMERS:
                continue
            for node in ast.walk(function):
                raised = node.exc if isinstance(node, ast.Raise) else None
                name = getattr(getattr(raised, "func", None), "id", "")
                demanded = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("demand")
                if name == "ValueError" or (demanded and not is_reason(getattr(node.args[1], "value", None))):
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize("folder", ["aligner/ingest", "aligner/capture", "aligner/replay", "hooks/aligner_hooks"])
def test_reasons_have_ids_where_reports_tell_them(folder):
    """A ValueError with words of ours would be told in English in a Chinese report."""
    told = ("tensors.py", "constructions.py", "construction.py", "npy.py", "task.py", "expectation.py")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / folder).rglob("*.py")
        if path.name in told
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name not in PROGRAMMERS
        for node in ast.walk(function)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if node.exc.func.id == "ValueError" and not isinstance(node.exc.args[0], ast.Name)
    ]
    assert found == []


PROGRAMMERS = {"from_numpy", "overwrite", "mindspore_type", "word", "dtype_of", "torch_type"} | {
    *("stream", "_pass", "parsed", "_tell"),
}
"""Who calls these wrongly reads English: no report tells of it."""


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

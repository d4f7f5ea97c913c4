"""Text by the columns it takes: wide characters, escapes, cutting and wrapping."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.report import lines


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("模型", 4), ("a模", 3), ("e\u0301", 1), ("", 0)])
def test_width_counts_columns(text, columns):
    assert lines.width(text) == columns


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a.b", "a.b"), ("\x1b[31mred", "\\x1b[31mred"), ("a\u202eb", "a\\u202eb"), ("a\nb", "a\\nb"), ("层", "层")],
)
def test_printable_shows_what_would_act(text, shown):
    assert lines.printable(text) == shown


@settings(deadline=None)
@given(st.text())
def test_printable_text_is_printable(text):
    assert lines.printable(text).isprintable()


@settings(deadline=None)
@given(st.text(), st.integers(3, 40))
def test_cut_left_keeps_the_tail_and_the_room(text, columns):
    text = lines.printable(text)
    cut = lines.cut_left(text, columns)
    assert lines.width(cut) <= columns
    assert cut == text or (cut.startswith("..") and text.endswith(cut[2:]))


def test_cut_left_keeps_the_end_of_a_name():
    assert lines.cut_left("model.layers.154.attn.softmax", 12) == "..tn.softmax"


@settings(deadline=None)
@given(st.text(alphabet="ab 模，.", max_size=60), st.integers(10, 30))
def test_wrap_loses_nothing_but_blanks(text, columns):
    rows = lines.wrap(text, columns)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_wrap_keeps_the_width_for_words_shorter_than_a_line():
    text = "the first layer over the tolerance is encoder.3.norm1 " * 4
    rows = lines.wrap(text, 30)
    assert max(map(lines.width, rows)) <= 30
    assert len(rows) > 5


def test_wrap_lets_a_long_name_stand_whole():
    name = "a." * 40 + "z"
    assert name in lines.wrap(f"layer {name} end", 20)


def test_wrap_breaks_chinese_anywhere_but_before_punctuation():
    rows = lines.wrap("模型一二三四五，六七八", 14)
    assert rows == ["模型一二三四", "五，六七八"]


def test_no_break_space_holds_and_is_printed_as_a_blank():
    assert lines.wrap(f"aaaa bb{lines.NO_BREAK}cc", 9) == ["aaaa", "bb cc"]


def test_hang_indents_what_follows():
    assert lines.hang("ab", "one two three", 10, 4) == ["ab  one", "    two", "    three"]


@pytest.mark.parametrize(
    "text", ["plain", "with space", "it's", "$(touch x)", "a\x1b[31mb", "back\\slash\x07'", "模\u202e"]
)
def test_shell_word_comes_back_from_bash(text):
    done = subprocess.run(
        ["bash", "-c", f"printf %s {lines.shell_word(text)}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.decode() == text
    assert lines.shell_word(text).isprintable()

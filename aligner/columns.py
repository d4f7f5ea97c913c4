"""How many columns of a terminal a text takes: Chinese is twice as wide as it is long."""

from __future__ import annotations

from unicodedata import combining, east_asian_width


def width(text: str) -> int:
    """How many columns the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, columns: int) -> str:
    """The text's beginning in at most `columns`."""
    while width(text) > columns:
        text = text[: columns if len(text) > columns else -1]
    return text

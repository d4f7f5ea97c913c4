"""Pieces of static HTML: escaped text, badges, tables. No script, no style sheet, no external file.

Colours carry nothing alone and sit behind the text as tints, so that a notebook's own text colour stays readable on
them in a light and in a dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from aligner.report.lines import printable

TINTS = {
    "aligned": "46,160,67",
    "rounding": "31,136,190",
    "origin": "224,49,49",
    "diverged": "224,49,49",
    "inherited": "217,130,43",
    "nonfinite": "190,75,219",
    "unmatched": "134,142,150",
    "not_run": "134,142,150",
    "covered": "134,142,150",
    "incomparable": "134,142,150",
}
_CELL = "padding:2px 10px;border-bottom:1px solid rgba(128,128,128,.25);background:none;color:inherit"


def text(value: object) -> str:
    """Text from outside: control and direction characters shown as escapes, then HTML's own characters."""
    return escape(printable(str(value)), quote=True)


def code(value: object) -> str:
    """A name or a number, in a type whose letters cannot be confused."""
    return f'<code style="background:none;color:inherit;overflow-wrap:break-word">{text(value)}</code>'


def badge(word: str, outcome: str) -> str:
    """An outcome's word on its tint."""
    tint = TINTS.get(outcome, "134,142,150")
    style = (
        f"display:inline-block;padding:0 7px;border-radius:4px;border:1px solid rgba({tint},.8);"
        f"background:rgba({tint},.18);color:inherit;font-weight:600"
    )
    return f'<span style="{style}">{text(word)}</span>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table of cells that are HTML already; the first `left` columns are set left, the rest right."""
    head = "".join(f'<th scope="col" style="{_CELL};{_align(i, left)}">{text(t)}</th>' for i, t in enumerate(titles))
    body = "".join(
        "<tr style='background:none'>"
        + "".join(f'<td style="{_CELL};{_align(i, left)}">{cell}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    style = "border-collapse:collapse;border:0;margin:.4em 0;font-variant-numeric:tabular-nums;color:inherit"
    return f'<table style="{style}"><thead><tr style="background:none">{head}</tr></thead><tbody>{body}</tbody></table>'


def _align(column: int, left: int) -> str:
    return (
        "text-align:left;max-width:36em;overflow-wrap:break-word"
        if column < left
        else "text-align:right;white-space:nowrap"
    )


def block(*parts: str) -> str:
    """The outermost element: takes font colour from the notebook."""
    inner = "".join(part for part in parts if part)
    return f'<div style="color:inherit;line-height:1.5;max-width:56em">{inner}</div>'


def line(*parts: str) -> str:
    """One line of running text."""
    return f'<div style="margin:.2em 0">{" ".join(part for part in parts if part)}</div>'


def facts(sentences: Iterable[str]) -> str:
    """Sentences (plain text) as a list."""
    return listed(text(sentence) for sentence in sentences)


def listed(parts: Iterable[str]) -> str:
    """Pieces of HTML as a list."""
    items = "".join(f"<li>{part}</li>" for part in parts)
    return f'<ul style="margin:.2em 0 .4em;padding-left:1.4em">{items}</ul>'


def quiet(*parts: str) -> str:
    """What stands in the background: smaller and fainter."""
    return f'<div style="margin:.2em 0;opacity:.75;font-size:90%">{"<br>".join(part for part in parts if part)}</div>'

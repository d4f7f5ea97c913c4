"""Text by the columns it takes on a terminal: width, cutting, padding, wrapping, and what must not be printed.

Layer names come from users' code and dumps: a Chinese name is twice as wide as it is long, and an escape code
in a name must show, not act.
"""

from __future__ import annotations

import shlex
from typing import TextIO
from unicodedata import east_asian_width

from aligner.columns import width as width

NO_BREAK = "\u00a0"
_CLOSING = ",.;:)]，。；：、！？）」』》"


def printable(text: str) -> str:
    """The text with everything that would move the cursor, colour or reorder the line shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cut_left(text: str, columns: int) -> str:
    """The text's end in at most `columns`, with ".." for what is missing: the tail tells layers apart."""
    if width(text) <= columns:
        return text
    kept: list[str] = []
    room = columns - 2
    for character in reversed(text):
        room -= width(character)
        if room < 0:
            break
        kept.append(character)
    return ".." + "".join(reversed(kept)) if columns > 2 else "." * columns


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled up with blanks; `right` puts it at the right edge."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most `columns`; breaks at blanks and beside wide characters, never at a no-break space.

    A word that is longer than a line stands out rather than being cut: it is a layer's name that someone copies.
    """
    rows: list[str] = []
    row = ""
    for piece in _pieces(text):
        if row and width(row) + width(piece.rstrip(" ")) > columns:
            rows.append(row)
            row = ""
        row += piece if row else piece.lstrip(" ")
    rows.append(row)
    return [row.replace(NO_BREAK, " ").rstrip() for row in rows if row.strip()]


def _pieces(text: str) -> list[str]:
    """The text in unbreakable pieces: words with the blanks after them, wide characters one by one.

    Closing punctuation stays with what it closes, as Chinese typesetting wants.
    """
    pieces: list[str] = []
    open_word = False
    for character in text:
        wide = east_asian_width(character) in "WF"
        clings = character in _CLOSING or character == " "
        if pieces and (clings or (open_word and not wide)):
            pieces[-1] += character
        else:
            pieces.append(character)
        open_word = not wide and character != " "
    return pieces


def hang(label: str, text: str, columns: int, indent: int) -> list[str]:
    """`label`, then `text` beside it from column `indent` on, wrapped there."""
    rows = wrap(text, columns - indent) or [""]
    first = pad(label, indent - 1) + " " if indent else label
    return [(first + rows[0]).rstrip(), *(" " * indent + row for row in rows[1:])]


def shell_word(text: str) -> str:
    """The text as one word of a shell's command line; what cannot be printed is written as an escape bash reads."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = (c if c.isprintable() and c not in "\\'" else c.encode("unicode_escape").decode("ascii") for c in text)
    return "$'" + "".join("\\'" if c == "'" else c for c in escaped) + "'"


def readable_language(language: str, stream: TextIO) -> str:
    """The language, or English where the stream's encoding has no Chinese characters."""
    try:
        "标杆".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "en"
    return language

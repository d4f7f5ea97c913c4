"""Text by the columns it takes on a terminal: width, cutting, padding, wrapping, and what must not be printed.

Layer names come from users' code and dumps: a Chinese name is twice as wide as it is long, and an escape code
in a name must show, not act.
"""

from __future__ import annotations

from unicodedata import combining, east_asian_width


def printable(text: str) -> str:
    """The text with everything that would move the cursor, colour or reorder the line shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def width(text: str) -> int:
    """How many columns the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


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
    return (".." + "".join(reversed(kept)))[: max(columns, 0)]


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled up with blanks; `right` puts it at the right edge."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most `columns`; breaks at blanks and beside any wide character, and inside a word only if it must."""
    columns = max(columns, 8)
    rows: list[str] = []
    row = ""
    for piece in _pieces(text):
        if row and width(row) + width(piece.rstrip()) > columns and not _clings(piece):
            rows.append(row.rstrip())
            row = ""
        piece = piece if row else piece.lstrip()
        while width(piece.rstrip()) > columns:
            rows.append(piece[:columns])
            piece = piece[columns:]
        row += piece
    return [*rows, row.rstrip()] if row.strip() else rows


def _clings(piece: str) -> bool:
    """Closing punctuation stays with what it closes, as Chinese typesetting wants."""
    return piece.strip() in tuple("，。；：、！？）」』》")


def _pieces(text: str) -> list[str]:
    """The text in unbreakable pieces: words with the blanks after them, and wide characters one by one."""
    pieces: list[str] = []
    word = ""
    for character in text:
        if east_asian_width(character) in "WF":
            if word:
                pieces.append(word)
            pieces.append(character)
            word = ""
        elif character == " ":
            word += character
            pieces.append(word)
            word = ""
        else:
            word += character
    return [*pieces, word] if word else pieces

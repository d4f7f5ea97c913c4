"""Names in a dump: what a record's dataset is called, and which text may stand in a key.

A dump is untrusted: a layer path with a line break or an escape sequence would write into the terminal of whoever
lists it. The writer spells such characters out, the reader refuses them.
"""

from __future__ import annotations

import unicodedata

from aligner.record import Key, Phase, display

MAX_NAME = 1000  # bytes of a dataset's name; the index holds the whole path
_HARMFUL = ("Cc", "Cs", "Zl", "Zp")
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _harmful(character: str) -> bool:
    """Control characters, line breaks, half characters, and what turns the direction of writing."""
    return unicodedata.category(character) in _HARMFUL or character in _TURNING


def is_plain(text: str) -> bool:
    """Whether the text may be printed as it is."""
    return text.isprintable() or not any(map(_harmful, text))


def plain(text: str) -> str:
    """The text with harmful characters spelled out, "\\x1b"; the same for the same text in every dump."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _harmful(c) else c for c in text)


def group(key: Key) -> tuple[bytes, bytes]:
    """The two groups a record's dataset stands in: its step and its phase."""
    return b"step-%04d" % key.step, key.phase.value.encode()


def dataset(key: Key, order: int) -> bytes:
    """The dataset's name in its groups: alphabetical order is the order of execution."""
    call = "" if key.phase is Phase.PARAMETER else f"#{key.call}"
    name = f"{order:06d} {display(key.layer)}{call} {key.slot}"
    if not name.isascii() or not name.isprintable() or "/" in name or "%" in name:
        name = "".join(c if c.isprintable() and c not in "/%" else _percent(c) for c in name)
    encoded = name.encode("utf-8", "surrogatepass")
    return encoded if len(encoded) <= MAX_NAME else encoded[: MAX_NAME - 3].decode("utf-8", "ignore").encode() + b"..."


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))

"""Where text goes: how wide it is, whether it may be coloured, and in which language it speaks.

Everything from the outside (stream, environment) is a parameter, so that tests compare exact text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, TextIO

from aligner.report.lines import readable_language

PIPE_WIDTH = 60
WIDEST = 100
NARROWEST = 40

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}


@dataclass(frozen=True)
class Terminal:
    """What a report may assume about its reader."""

    width: int = PIPE_WIDTH
    color: bool = False
    language: str = "en"
    wide: Optional[int] = None
    """Columns of a table, where it may be wider than text: in a pipe, where nothing breaks a line."""

    @property
    def table_width(self) -> int:
        """Columns of a table, each row of which is one line."""
        return self.width if self.wide is None else self.wide

    def paint(self, text: str, *styles: str) -> str:
        """The text in a colour; words carry the meaning, so without colour nothing is lost."""
        codes = ";".join(_CODES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.color and codes else text


def terminal(stream: TextIO, environ: Mapping[str, str], language: str = "en", color: str = "auto") -> Terminal:
    """What `stream` is: 60 columns in a pipe (tables 100), the terminal's own width (100 at most) otherwise."""
    live = stream.isatty()
    wide = environ.get("COLUMNS", "")
    told = int(wide) if wide.isdigit() else 0
    width = told or (_own_width(stream) if live else PIPE_WIDTH)
    return Terminal(
        max(NARROWEST, min(width, WIDEST)),
        _coloured(live, environ, color),
        readable_language(language, stream),
        None if live or told else WIDEST,
    )


def _own_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPE_WIDTH
    except (OSError, ValueError):
        return PIPE_WIDTH


def _coloured(live: bool, environ: Mapping[str, str], color: str) -> bool:
    if color != "auto":
        return color == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return live and environ.get("TERM") != "dumb"

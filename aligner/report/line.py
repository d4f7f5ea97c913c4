"""The line of the port's code that is not the reference's, in words."""

from __future__ import annotations

import os
from typing import Optional

from aligner.explain.line import Fork, Spot
from aligner.report.lines import printable
from aligner.report.words import say


def line_rows(fork: Optional[Fork], language: str) -> list[tuple[str, str]]:
    """Both lines as they stand in the files, and what is known of them; nothing where no line is known."""
    if fork is None:
        return []
    spans = zip((fork.port, fork.reference), fork.until)
    port, reference = (_span(start, end, language) for start, end in spans)
    ours, theirs = map(printable, fork.arguments or ("", ""))
    operation = "" if fork.port is None else printable(fork.port.operation)
    seen = say(f"line-{fork.kind}", language, ours=ours, theirs=theirs, operation=operation)
    rows = [("label-line", port), ("label-there", reference), ("label-seen", seen)]
    return [(say(label, language), text) for label, text in rows]


def there(fork: Fork, language: str) -> str:
    """The reference's line."""
    return _spot(fork.reference, language)


def _spot(spot: Optional[Spot], language: str) -> str:
    if spot is None:
        return say("line-nowhere", language)
    place = f"{os.path.basename(spot.file)}:{spot.line}" if spot.file else say("line-unknown", language)
    return printable(f"{place} `{spot.text}`")


def _span(start: Optional[Spot], end: Optional[Spot], language: str) -> str:
    """Two lines of one file, or the one if it is the same."""
    if start is None or end is None or (start.file, start.line) == (end.file, end.line):
        return _spot(start or end, language)
    return say("line-span", language, start=_spot(start, language), end=_spot(end, language))

"""An edit of the port's code, in words: the lines as they stand and as they shall, and what running them showed."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator
from typing import Optional

from aligner.explain.edit import Edit, Hunk
from aligner.explain.line import Fork
from aligner.record import display
from aligner.report.figures import figure
from aligner.report.line import there
from aligner.report.lines import NO_BREAK, printable
from aligner.report.words import say

Row = tuple[str, str]


def edit_rows(edit: Edit, fork: Optional[Fork], language: str) -> list[Row]:
    """Where, before and after; the reference's line if it is known for sure; the proof."""
    rows: list[Row] = []
    for hunk in edit.hunks:
        place = f"{os.path.basename(hunk.file)}:{hunk.line}"
        rows.append((say("label-edit", language), printable(place)))
        rows += [("", f"{sign}{NO_BREAK}{text}") for sign, text in _lines(hunk)]
    if fork is not None and fork.sure and fork.reference is not None:
        rows.append((say("label-there", language), there(fork, language)))
    before, after = figure(edit.before), figure(edit.after)
    if not edit.setting:  # its cause has the proof
        word = "edit-proof" if math.isfinite(edit.before) else "edit-proof-whole"
        rows.append((say("label-proof", language), say(word, language, before=before, after=after)))
    if edit.sizes:
        rows.append(("", say("edit-sizes", language, sizes=", ".join(map(str, edit.sizes)))))
    if edit.unseen:
        rows.append(("", say("edit-unseen", language, calls=", ".join(map(printable, edit.unseen[:3])))))
    if edit.broken:
        layers = ", ".join(printable(display(layer)) for layer in edit.broken[:3])
        rows.append(("", say("edit-broken-setting" if edit.setting else "edit-broken", language, layers=layers)))
    return rows


def _lines(hunk: Hunk) -> Iterator[tuple[str, str]]:
    """Lines that go and lines that come; blanks before them stay together."""
    for line in difflib.ndiff(hunk.before.splitlines(), hunk.after.splitlines()):
        if line[0] in "+-":
            yield line[0], printable(line[2:].strip()).replace(" ", NO_BREAK)

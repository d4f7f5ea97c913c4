"""What is said of parameters that went over in another form."""

from __future__ import annotations

import re
from typing import Optional

from aligner.compare.combined import FOLDED_BIAS, FOLDED_WEIGHT, NORMED, RAISED
from aligner.record import Scalar
from aligner.replay.items import Match
from aligner.replay.transfer import Transfer

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A number in a path."""

COMBINED = (
    {FOLDED_WEIGHT: "weights-folded", FOLDED_BIAS: "", NORMED: "weights-normed", RAISED: "weights-raised"},
    {FOLDED_WEIGHT: "weights-unfolded", FOLDED_BIAS: "", NORMED: "weights-unnormed", RAISED: ""},
)
"""Messages about parameters that are made of several, in the reference and in the port."""


def forms(transfer: Transfer) -> list[tuple[str, dict[str, Scalar]]]:
    """Messages about the parameters that went over in another form; alike ones of numbered layers once."""
    found: dict[tuple[str, str, str, str, str], int] = {}
    for match in transfer.matches:
        form = _form(match) if match.reformed else None
        if form is not None:
            one, other, norm = (
                NUMBER.sub("*", name)
                for name in (*(i.name or ".".join(i.slot).lstrip(".") for i in (match.reference, match.port)), form[2])
            )
            told = (*form[:2], one, other, norm)
            found[told] = found.get(told, 0) + 1
    return [
        (message, {"rows": rows, "reference": one, "port": other, "norm": norm, "count": count})
        for (message, rows, one, other, norm), count in found.items()
    ]


def _form(match: Match) -> Optional[tuple[str, str, str]]:
    """The message, which rows, and which norm; None for what is told of beside another parameter."""
    sides = (("weights-of-rows", match.reference.view), ("weights-in-rows", match.port.view))
    for message, view in sides:
        if view.stop:
            each = f", {view.heads} x {(view.stop - view.start) // view.heads}" if view.heads > 1 else ""
            return message, f"{view.start}:{view.stop}{each}", ""
    for known, item in zip(COMBINED, (match.reference, match.port)):
        if item.recipe is not None:
            message = known[item.recipe.word]
            added = f"{item.recipe.eps:+g}" if item.recipe.word == RAISED else ""
            return (message, added, item.recipe.layer("variance")) if message else None
    if match.reference.view.plain and match.port.view.plain and match.reference.whole == match.port.whole:
        return None  # only its name is another one
    return ("weights-turned" if any(view.turned for _, view in sides) else "weights-reshaped"), "", ""

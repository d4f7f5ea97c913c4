"""Notes of a dump as people read them: one for all layers of which the same is to be said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from aligner.record import Note, display

SEVERAL = {"mindspore-untold": "mindspore-untold-several"}
"""A message about one layer -> the one about several for the same reason."""

NAMED = 6
"""Layers that are named; of others only their number is told."""


def together(notes: Iterable[Note]) -> Iterator[Note]:
    """The notes in order; those that say the same of several layers once, in the place of the first."""
    groups: dict[object, list[Note]] = {}
    for number, note in enumerate(notes):
        alone = note.message not in SEVERAL
        groups.setdefault(number if alone else (note.message, note.facts.get("reason")), []).append(note)
    for first, *others in groups.values():
        if not others:
            yield first
            continue
        layers = [display(note.layer) for note in (first, *others)]
        more = ", ..." if len(layers) > NAMED else ""
        facts = {**first.facts, "count": len(layers), "layers": ", ".join(layers[:NAMED]) + more}
        yield replace(first, layer="", message=SEVERAL[first.message], facts=facts)

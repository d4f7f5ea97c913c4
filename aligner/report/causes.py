"""Why an origin is wrong, what to change, and what proves it, in words: labelled sentences that every output prints."""

from __future__ import annotations

import math
from collections.abc import Iterable

from aligner.compare.verdict import Comparison, Origin
from aligner.explain.catalogue import sentences
from aligner.explain.kinds import KIND
from aligner.explain.lines import CAUSES as LINES
from aligner.explain.lines import EDITED, FRAMEWORK
from aligner.explain.suspect import Cause
from aligner.report.edit import edit_rows
from aligner.report.families import differ, likeliest
from aligner.report.figures import figure
from aligner.report.lines import printable
from aligner.report.words import say

Row = tuple[str, str]
"""A label ("why") and a sentence."""

ALSO = 2
"""Further causes that are told, in a line each."""


def cause_rows(origin: Origin, comparison: Comparison, language: str) -> list[Row]:
    """The likeliest cause in full and others in a line each; or that none is known."""
    if origin.edit is not None and not origin.edit.setting:  # what is to be changed is shown, and proved
        proved = [cause for cause in origin.causes if cause.confirmed and cause.id != EDITED]
        return [(say("label-why", language), printable(sentences(c.id, c.facts, language)[0])) for c in proved[:1]]
    first = likeliest(origin)
    if first is None:
        return [] if origin.where == "inputs" else _unknown(origin, comparison, language)
    if first.id == FRAMEWORK or is_lost(origin):
        words = zip(("why", "seen", "change"), sentences(first.id, first.facts, language))
        return [(say(f"label-{name}", language), printable(text)) for name, text in words if text]
    if origin.line is not None and first.id in LINES.values():  # the line has been told
        return [(say("label-also", language), text) for text in _further(first, origin.causes, language)]
    title, evidence, fix = (printable(text) for text in sentences(first.id, first.facts, language))
    label = "why" if first.confirmed else "guess"
    rows = [(label, title), ("seen", evidence), ("change", fix), ("proof", proof(first, language))]
    if origin.edit is not None:
        rows.remove(("change", fix))
    if _same_settings(origin, comparison):  # the layer was ported right: the framework may be what is wrong
        rows.insert(2, ("set", say("settings-none-differ", language)))
    told = [(say(f"label-{name}", language), text) for name, text in rows if text]
    if origin.edit is not None:  # the line says what to write
        at = [name for name, _ in told].index(say("label-proof", language))
        told[at:at] = edit_rows(origin.edit, None, language)
    return told + [(say("label-also", language), text) for text in _further(first, origin.causes, language)]


def is_lost(origin: Origin) -> bool:
    """Whether it is what a resumed run has lost: read from both dumps, and no guess that a trial is to prove."""
    return any(cause.id.startswith("resume-") for cause in origin.causes[:1])


def proof(cause: Cause, language: str) -> str:
    """What became of the trial: both errors."""
    before, after = (figure(error) for error in (cause.error_before, cause.error_after))
    if cause.error_after is None:
        return say("proof-none", language)
    made = cause.change and not cause.id.startswith("data-")  # of data the port's own are set right, not their loader
    done = say("proof-change" if made else "proof-undone", language)
    known = cause.error_before is not None and math.isfinite(cause.error_before)  # not where the shapes differ
    errors = "proof-errors" if known else "proof-error"
    end = say("proof-confirmed" if cause.confirmed else "proof-open" if cause.ran else "proof-numbers", language)
    return say(errors, language, done=done, before=before, after=after) + end


def _further(first: Cause, causes: Iterable[Cause], language: str) -> list[str]:
    """Other causes; guesses only where nothing is proved, for a proof ends the guessing.

    That the reference's kind of layer is right says nothing of what the port's own does wrong: that may be guessed.
    """
    ended = first.confirmed and first.id != KIND
    others = [c for c in causes if c is not first and not c.refuted and (c.confirmed or not ended)]
    others = [c for c in others if c.id != first.id and (not c.change or c.change != first.change)]  # else the same
    words = ["also-confirmed" if other.confirmed else "also-possible" for other in others]
    return [
        say(word, language, cause=printable(sentences(other.id, other.facts, language)[0]))
        for word, other in [*zip(words, others)][:ALSO]
    ]


def _unknown(origin: Origin, comparison: Comparison, language: str) -> list[Row]:
    """That nothing fits; where settings differ and nothing was tried, they or the line speak for themselves."""
    specs = comparison.specs.get(origin.layer) if origin.where == "layer" else None
    if any(cause.change for cause in origin.causes):
        word = "cause-refuted"
    elif origin.line is not None or (specs is not None and differ(*specs)):
        return []
    else:
        word = "cause-none" if specs is None else "cause-none-same"
    return [(say("label-why", language), say(word, language))]


def _same_settings(origin: Origin, comparison: Comparison) -> bool:
    specs = comparison.specs.get(origin.layer) if origin.where == "layer" else None
    return specs is not None and not differ(*specs)


def unproved(comparison: Comparison) -> list[Origin]:
    """Layers that are wrong by themselves for a reason that no setting tells: what a program of their own may show."""
    places = (*comparison.origins, *comparison.suspects)
    return [
        o
        for o in places
        if (o.where == "layer" and (_same_settings(o, comparison) or not any(cause.confirmed for cause in o.causes)))
        or any(cause.id == FRAMEWORK for cause in o.causes)
    ]

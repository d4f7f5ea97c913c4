"""The answer: the one sentence that a report begins with."""

from __future__ import annotations

from typing import Optional

from aligner.compare import sides
from aligner.compare.asides import OTHER_NETS
from aligner.compare.moved import ABSENT, APART, BOTH, TOLD, UNJUDGED
from aligner.compare.verdict import Comparison, Origin, Outcome, Side, Verdict
from aligner.explain.catalogue import sentences
from aligner.record import Phase, display
from aligner.report import lines
from aligner.report.causes import is_lost
from aligner.report.figures import exact, figure
from aligner.report.stops import stop_sentence
from aligner.report.words import say, told

EMPTY = {
    "no-finite-value": "answer-no-finite",
    "no-element": "answer-no-element",
    "output-zero": "answer-output-zero",
}
"""Warnings of an agreement that says less than it seems to: they stand in the answer's line as well."""

ENDS = (sides.LACKING, sides.UNSEEN, sides.ORDER, sides.ARRANGED, OTHER_NETS)
"""Those of the net's own outputs, and of a loss that was not judged."""

ENDED = ({"only-reference-ended"}, {"only-port-ended"})
"""Reasons of what has no counterpart, if all of it is missing for one capture's early end."""

LEFT = TOLD[ABSENT]


def answer(comparison: Comparison, language: str) -> str:
    """The one sentence: which layer is the first that differs, and by how much."""
    return unbroken(comparison, language).replace(lines.NO_BREAK, " ")


def unbroken(comparison: Comparison, language: str) -> str:
    """The same with no-break spaces between words that belong together on a line; a mix-up of the dumps first."""
    mixup = comparison.mixup
    if mixup is None:
        return _whole(comparison, language)
    said = told(mixup.message, mixup.facts, language, lines=1)
    if mixup.void:
        return said
    return said.rstrip(".。") + ("；" if language == "zh" else "; ") + _whole(comparison, language)


def _whole(comparison: Comparison, language: str) -> str:
    """The judgement, with what stopped and what is to be said of the net's own outputs."""
    if comparison.stops:
        return _stopped(comparison, language)
    facts = dict(comparison.warnings)
    ends = (say(f"answer-{name}", language, **facts[name]) for name in ENDS if name in facts)
    return _judgement(comparison, language) + _resumed(comparison, language) + "".join(ends)


def _resumed(comparison: Comparison, language: str) -> str:
    """Where the port's run begins in the reference's."""
    begun = comparison.resumed
    return "" if begun is None else say("answer-resumed", language, step=begun.step, steps=begun.steps)


def _stopped(comparison: Comparison, language: str) -> str:
    """Where a net stopped, and what became of all that ran before."""
    said = stop_sentence(comparison, language)
    compared = any(verdict.deviation is not None for verdict in comparison.verdicts)
    if comparison.first is None and not compared:
        return said + say("before-stop-nothing", language)
    return said + say("before-stop", language, judgement=_judgement(comparison, language))


def _judgement(comparison: Comparison, language: str) -> str:
    tolerance = exact(comparison.tolerance)
    both = [v for v in comparison.verdicts if v.reference is not None and v.port is not None]
    pairs = [v for v in both if v.outcome is not Outcome.COVERED]
    if comparison.outcome == "aligned" or (comparison.stops and comparison.first is None):
        return _aligned(comparison, pairs, language)
    first, lost = comparison.first, next(iter(comparison.origins), None)
    if lost is not None and is_lost(lost):
        title = sentences(lost.causes[0].id, lost.causes[0].facts, language)[0]
        title = title[:1].lower() + title[1:] if language == "en" else title
        return lines.printable(title)
    if sides.NONE in dict(comparison.warnings) and not any(verdict.fails for verdict in comparison.verdicts):
        return say("answer-outputs-none", language, pairs=len(pairs), tolerance=tolerance)
    wrong_input = next((origin for origin in comparison.origins if origin.where == "inputs"), None)
    if wrong_input is not None:
        return say("answer-input", language, slot=lines.printable(wrong_input.slot)) + _sizes(
            first, comparison, language
        )
    stage = _stage(first, comparison)
    if stage is not None:
        place = {"layer": lines.printable(display(stage.layer)), "slot": lines.printable(stage.slot)}
        counts = {"step": stage.step, "count": len(stage.owners), "total": stage.of}
        word = "loss-gradient" if stage.where == "loss" and stage.phase == Phase.BACKWARD.value else stage.where
        return say(f"answer-{word}", language, **counts, **place)
    if first is None or first.outcome is Outcome.UNMATCHED:
        return _unmatched(comparison, pairs, language)
    place = {"layer": lines.printable(display(first.key.layer)), "kind": lines.printable(first.kind)}
    place["slot"] = lines.printable(first.key.slot)
    word = "answer-parameter" if first.key.phase is Phase.PARAMETER else "answer-layer"
    if first.outcome is Outcome.INCOMPARABLE:
        word = "answer-shapes"
    elif first.outcome is Outcome.NONFINITE or (first.deviation is not None and first.deviation.nonfinite):
        word = "answer-nonfinite"
    if first.reason in UNJUDGED:
        agreeing = sum(not v.outcome.fails for v in pairs)
        return _moved("answer-moved", comparison, language, pairs=agreeing, tolerance=tolerance)
    said = say(word, language, tolerance=tolerance, **place) + _sizes(first, comparison, language)
    return said + _moved("answer-moved-too", comparison, language)


def _unmatched(comparison: Comparison, pairs: list[Verdict], language: str) -> str:
    """What one side alone has; where that comes of a capture's early end, in which step that was."""
    left = [v for v in comparison.verdicts if v.outcome is Outcome.UNMATCHED and v.fails]
    if not left:
        return say("answer-nothing", language)
    known = {"pairs": len(pairs), "count": len(left), "tolerance": exact(comparison.tolerance)}
    if pairs and {v.reason for v in left} in ENDED:
        side = "port" if left[0].port is None else "reference"
        return say(f"answer-ended-{side}", language, **known, step=max(v.key.step for v in pairs))
    name = lines.printable(display((comparison.first or left[0]).key.layer))
    return say("answer-unmatched", language, **known, layer=name)


def _stage(first: Optional[Verdict], comparison: Comparison) -> Optional[Origin]:
    """The first origin, if it lies between a backward run and the next step and nothing went wrong before it."""
    origin = next(iter(comparison.origins), None)
    if origin is None or origin.where not in ("data", "loss", "clip", "update", "program"):
        return None
    return origin if first is None or first.outcome is Outcome.UNMATCHED or first.origin == 0 else None


def _moved(word: str, comparison: Comparison, language: str, **known: object) -> str:
    """That values of other weights than those recorded differ, from which step on, and whose weights these are."""
    found = {reason: [v for v in comparison.verdicts if v.reason == reason] for reason in APART}
    found[BOTH] = [v for v in comparison.verdicts if v.reason == BOTH]
    reason = next((reason for reason, verdicts in found.items() if verdicts), None)
    if reason is None:
        return ""
    every = [verdict for verdicts in found.values() for verdict in verdicts]
    whose = say(f"whose-{reason.partition('-')[2]}", language)
    return say(word, language, **known, count=len(every), step=min(v.key.step for v in every), whose=whose)


def _aligned(comparison: Comparison, pairs: list[Verdict], language: str) -> str:
    """How far the worst pair is off; what is over the tolerance by rounding alone, and what is wrong below it."""
    tolerance = exact(comparison.tolerance)
    cancelled = [v for v in pairs if v.outcome is Outcome.ROUNDING and v.key.phase is not Phase.FORWARD]
    pairs = [v for v in pairs if not any(v is one for one in cancelled)] if cancelled else pairs
    errors = [v.error for v in pairs if v.error is not None]
    error = figure(max(errors) if errors else None, comparison.tolerance)
    rounding = (v.error for v in pairs if v.outcome is Outcome.ROUNDING and v.error is not None)
    grown = sum(error > comparison.tolerance for error in rounding)
    known = {"pairs": len(pairs), "error": error, "tolerance": tolerance, "count": grown}
    sentence = say("answer-grown" if grown else "answer-aligned", language, **known)
    sentence += _emptiness(comparison, pairs, language)
    if comparison.suspects:
        word = "answer-casts" if all(place.cast for place in comparison.suspects) else "answer-suspects"
        return sentence + say(word, language, count=len(comparison.suspects))
    return sentence + (say("answer-none-wrong", language) if grown and comparison.checked else "")


def _emptiness(comparison: Comparison, pairs: list[Verdict], language: str) -> str:
    """What makes the agreement say less than it seems to."""
    facts = dict(comparison.warnings)
    said = "".join(say(word, language, **facts[name]) for name, word in EMPTY.items() if name in facts)
    measured = [v.deviation for v in pairs if v.deviation is not None and v.key.phase is Phase.FORWARD]
    if measured and all(deviation.exact for deviation in measured):
        said = say("answer-whole", language) + said
    return said + (say("answer-left", language, count=facts[LEFT]["steps"]) if LEFT in facts else "")


def _sizes(verdict: Optional[Verdict], comparison: Comparison, language: str) -> str:
    """How far off, in words that stay together when the line is broken."""
    if verdict is None:
        return ""
    deviation = verdict.deviation
    if deviation is None:
        shown = [shapes(verdict, language)]
    elif deviation.nonfinite:
        shown = [f"NaN {deviation.nan[0]}/{deviation.nan[1]}", f"Inf {deviation.inf[0]}/{deviation.inf[1]}"]
    else:
        shown = [say("max-abs", language, value=figure(deviation.max_abs))]
        shown.append(say("error", language, value=figure(verdict.error, comparison.tolerance)))
    return "".join("  " + text.replace(" ", lines.NO_BREAK) for text in shown if text)


def shapes(verdict: Verdict, language: str) -> str:
    """The two shapes where they differ, else why the pair cannot be compared."""
    reference, port = verdict.reference, verdict.port
    if reference is not None and port is not None and reference.shape != port.shape:
        return say("shapes", language, reference=_shape(reference), port=_shape(port))
    return told(verdict.reason, verdict.facts, language) if verdict.reason else ""


def _shape(side: Side) -> str:
    return "(" + ", ".join(str(n) for n in side.shape) + ")"

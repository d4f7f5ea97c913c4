"""The block "warnings": what is wrong within the tolerance, told like an origin, and what else a reader should know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

from aligner.compare.verdict import Comparison
from aligner.record import Scalar
from aligner.report import lines
from aligner.report.families import Family, families
from aligner.report.figures import figure
from aligner.report.origins import NAMED, headline, others, reasons, row_lines, statement
from aligner.report.terminal import Terminal
from aligner.report.words import say, told

BELOW = ("below-tolerance", "short-by-cast")
"""The message that stands for a suspect; its block says more."""


def warning_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """All warnings, a suspected mistake first."""
    if not comparison.warnings:
        return []
    shown = [terminal.paint(say("warnings", terminal.language), "yellow")]
    suspected = families(comparison.suspects, comparison.specs)
    for family in suspected[:limit]:
        shown += _suspect_lines(family, comparison, terminal, None if limit is None else NAMED)
    if limit is not None and len(suspected) > limit:
        shown.append("  " + say("more", terminal.language, count=len(suspected) - limit))
    for message, facts in plain_warnings(comparison):
        shown += lines.hang("  -", told(message, facts, terminal.language), terminal.width, 4)
    return shown


def plain_warnings(comparison: Comparison) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    """The warnings that no suspect stands for."""
    return (item for item in comparison.warnings if item[0] not in BELOW or not comparison.suspects)


def below(family: Family, comparison: Comparison, language: str) -> str:
    """What is wrong within the tolerance, or explained by the type it computes in, in one sentence."""
    head = family.head
    if head.cast:
        error = figure(head.own_error, comparison.tolerance)
        return say("below-cast", language, layer=headline(head, language), type=lines.printable(head.cast), error=error)
    said = statement(head, comparison.tolerance, language)
    return say("below", language, layer=headline(head, language), statement=said)


def _suspect_lines(family: Family, comparison: Comparison, terminal: Terminal, named: Optional[int]) -> list[str]:
    """One mistake below the tolerance: the same rows as an origin's, without the single elements."""
    language = terminal.language
    shown = lines.hang("  -", below(family, comparison, language), terminal.width, 4)
    found = [*reasons(family.head, comparison, language), *others(family, comparison.tolerance, language, named)]
    return shown + row_lines([*found, ("", say("below-strict", language))], terminal, 4)

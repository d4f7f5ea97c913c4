"""The cast map: a few lines on what layers compute in, shown before any number, the exceptions first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from aligner.compare.casts import KEPT_BY_O2, LEVELS, Cast
from aligner.compare.verdict import Comparison
from aligner.record import display
from aligner.report import lines
from aligner.report.causes import Row
from aligner.report.terminal import Terminal
from aligner.report.words import say

NAMED = 4
KINDS_SHOWN = 8


def cast_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The block "computed in"; nothing where everything computes in float32."""
    rows = cast_rows(comparison, terminal.language, limit)
    if not rows:
        return []
    indent = max(lines.width(label) for label, _ in rows) + 4
    shown = [say("casts", terminal.language)]
    for label, text in rows:
        shown += lines.hang("  " + label, text, terminal.width, indent)
    return shown


def cast_rows(comparison: Comparison, language: str, limit: Optional[int]) -> list[Row]:
    """Pairs of types, and in which layers: each exception by its layers, then what is usual by kinds."""
    groups: dict[tuple[str, str, str, str], list[Cast]] = {}
    usual: dict[str, list[Cast]] = {}
    for cast in comparison.casts:
        if cast.exception:
            groups.setdefault((cast.kind, cast.part, _types(cast), cast.exception), []).append(cast)
        elif not cast.part:
            usual.setdefault(_types(cast), []).append(cast)
    level = _level(comparison)
    rows = [(_types(casts[0]), _exception(casts, level, language, limit)) for casts in groups.values()]
    if limit is not None and len(rows) > limit:
        rows[limit:] = [("", say("more", language, count=len(rows) - limit))]
    return rows + [(types, _usual(casts, level, language)) for types, casts in usual.items()]


def _types(cast: Cast) -> str:
    return f"{lines.printable(cast.reference.dtype)} | {lines.printable(cast.port.dtype)}"


def _level(comparison: Comparison) -> Optional[str]:
    word = comparison.port.get("amp")
    return word if word in LEVELS else None


def _exception(casts: Sequence[Cast], level: Optional[str], language: str, limit: Optional[int]) -> str:
    """One kind of layer that stands out, by name."""
    head = casts[0]
    kind = lines.printable(head.kind)
    known = casts if limit is None else casts[:NAMED]
    names = ", ".join(lines.printable(display(cast.layer)) for cast in known)
    if len(known) < len(casts):
        names = say("family-rest", language, layers=names, count=len(casts) - len(known))
    title = say("cast-part", language, part=head.part, kind=kind) if head.part else kind
    row = say("cast-exception", language, kind=title, count=str(len(casts)), layers=names)
    remark = _remark(head, level, language)
    return say("cast-remark", language, row=row, remark=remark) if remark else row


def _remark(cast: Cast, level: Optional[str], language: str) -> str:
    """What the port's AMP level has to do with it."""
    if cast.exception == "left":
        return say("cast-left", language)
    if cast.exception != "careful" or (level is None and cast.port.dtype != "float32"):
        return ""
    if cast.port.dtype == "float32":
        return say("cast-reference", language)
    if level == "O3":
        return say("cast-as-level", language, level=level)
    if level == "O2" and (cast.part or not cast.kind.startswith(KEPT_BY_O2)):
        return say("cast-not-kept", language, level=level, kept=", ".join(KEPT_BY_O2))
    return say("cast-kept", language, level=level, kind=cast.part or lines.printable(cast.kind))


def _usual(casts: Sequence[Cast], level: Optional[str], language: str) -> str:
    """All that has these types as a rule, by kinds."""
    kinds = Counter(lines.printable(cast.kind) for cast in casts).most_common()
    told = ", ".join(f"{kind} {count}" for kind, count in kinds[:KINDS_SHOWN])
    if len(kinds) > KINDS_SHOWN:
        told = say("family-rest", language, layers=told, count=sum(count for _, count in kinds[KINDS_SHOWN:]))
    if level is not None and casts[0].reference.dtype == "float32":
        return say("cast-level", language, level=level, count=len(casts), kinds=told)
    return say("cast-usual", language, count=len(casts), kinds=told)

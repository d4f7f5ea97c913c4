"""What numbers say of a function, held to the operations that ran: one that nobody called is a chance likeness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Optional

from aligner.explain.case import Case
from aligner.explain.glue import vocabulary
from aligner.explain.suspect import Suspect

MADE_OF: Mapping[str, tuple[str, ...]] = {
    "Softsign": ("softsign", "abs"),
    "Softplus": ("softplus", "exp", "logaddexp", "logsigmoid"),
    "LogSigmoid": ("logsigmoid", "softplus", "exp", "sigmoid"),
    "exp": ("exp",),
}
"""Functions that other formulas come to as well, as x / (1 + x) of positive numbers: one of these must have run."""

ROOTS = "sqrt"


def checked(case: Case, found: Iterable[Suspect]) -> Iterator[Suspect]:
    """The suspects; a square too many is a root that lacks, where the reference took a root and the port none."""
    for suspect in found:
        function = str(suspect.facts.get("function", ""))
        if case.operations is None or suspect.cause not in ("activation-twice", "activation-missing"):
            yield suspect
        elif function == "square" and suspect.cause == "activation-twice" and (ran := _ran(case)) is not None:
            yield _rooted(suspect) if ran[0][ROOTS] > ran[1][ROOTS] else suspect
        elif function not in MADE_OF or _called(case, suspect.cause, MADE_OF[function]):
            yield suspect


def _ran(case: Case) -> Optional[tuple[Counter[str], Counter[str]]]:
    if case.operations is None:
        return None
    ours, theirs = (Counter(map(vocabulary.plain, names)) for names in case.operations)
    return ours, theirs


def _called(case: Case, cause: str, words: tuple[str, ...]) -> bool:
    """Whether one of these ran where the function is said to be; where nothing was heard, it may have."""
    ran = _ran(case)
    side = ran[0 if cause == "activation-missing" else 1] if ran else Counter[str]()
    return not side or any(side[word] for word in words)


def _rooted(suspect: Suspect) -> Suspect:
    facts = {**suspect.facts, "function": ROOTS, "reference_code": f"{ROOTS}(...)", "port_code": "..."}
    facts.update(reference_function=ROOTS, port_function="identity", other="...")
    return replace(suspect, cause="function-missing", facts=facts)

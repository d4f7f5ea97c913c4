"""Which operations ran between two layers on one side only: evidence where numbers prove nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aligner.explain.case import Case
from aligner.explain.patterns.pair import usual
from aligner.explain.suspect import Suspect

MOST = 6
"""Names that are listed."""

WORDS = {
    "masked_fill_": "masked_fill",
    "add_": "add",
    "sub_": "sub",
    "mul_": "mul",
    "div_": "div",
    "true_divide": "div",
    "truediv": "div",
    "iadd": "add",
    "radd": "add",
    "rmul": "mul",
    "rsub": "sub",
    "multiply": "mul",
    "divide": "div",
    "subtract": "sub",
    "swapaxes": "transpose",
    "permute": "transpose",
    "view": "reshape",
    "flatten": "reshape",
    "concat": "cat",
    "concatenate": "cat",
    "bmm": "matmul",
    "batchmatmul": "matmul",
    "reducemean": "mean",
    "reducesum": "sum",
    "realdiv": "div",
}
"""One word for one operation, whatever a framework calls it."""


def suspects(case: Case) -> Iterator[Suspect]:
    """One, where the two lists differ."""
    if case.operations is None:
        return
    ours, theirs = (Counter(_word(name) for name in names) for names in case.operations)
    if not ours or not theirs or ours == theirs:
        return
    facts = usual(case)
    facts.update(missing=_listed(ours - theirs) or "-", extra=_listed(theirs - ours) or "-")
    yield Suspect("operations-differ", facts, weight=0.15)


def _word(name: str) -> str:
    plain = name.lower().rsplit(".", 1)[-1].strip("_")
    return WORDS.get(plain, plain)


def _listed(counts: Counter[str]) -> str:
    names = [name if count == 1 else f"{name} x{count}" for name, count in sorted(counts.items())]
    return ", ".join(names[:MOST]) + (" ..." if len(names) > MOST else "")

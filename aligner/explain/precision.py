"""Causes told from the type that a layer's values are in, and from what a short type cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain import setting_rules, spelling
from aligner.explain.case import Case, Value, distance
from aligner.explain.patterns.pair import Floats
from aligner.explain.suspect import Suspect
from aligner.record import Scalar
from aligner.vocabulary import KINDS

NORMS = {"LayerNorm", "BatchNorm", "GroupNorm", "InstanceNorm", "RMSNorm"}
SHORT = ("float16", "bfloat16")

HALF_SMALLEST = 2.0**-25
"""What float16 rounds to zero."""
HALF_ROOT = 255.9
"""The square of anything larger is infinite in float16."""
HALF_EPS = 2.0**-10
SHORT_EXPECTED = 1e-4
"""Rounding beyond this means that the layer is meant to compute in a short float."""

LIKELY = 0.7

NAMED = 6
"""Operations that are named."""
HALF_ERROR = 4e-3
"""More than a few roundings to float16 make."""
OVERFLOWN, HINT = 0.75, 0.3
FEW_ROWS = 16
"""One row of so many that is zero is no chance."""

SHARE = 0.3
"""Two runs that are so much of the error apart explain it."""
SURE, DOUBTED = 0.85, 0.4


def suspects(case: Case, facts: dict[str, Scalar]) -> Iterator[Suspect]:
    """For a layer's output; `facts` are those that every suspect has."""
    if case.actual is None or case.expected is None:
        return
    made, wanted = case.actual.dtype, case.expected.dtype
    if made == "float64" and wanted in ("float32", *SHORT):
        yield Suspect("tensor-default-float64", facts, weight=LIKELY)
    if case.repeated:
        before = distance(case.actual.load(), case.expected.load())
        told = {**facts, "distance": f"{case.repeated:.1e}"}
        yield Suspect("nondeterministic-reduction", told, weight=SURE if case.repeated >= SHARE * before else DOUBTED)
    norm = setting_rules.family(case.reference.kind) in NORMS
    if _overflowed(case):
        yield Suspect("layernorm-fp16-variance-overflow", facts, weight=LIKELY)
    if case.computed is not None:
        wanted, made = case.computed
    elif case.rounding > SHORT_EXPECTED:
        return
    if made not in SHORT or wanted in SHORT:
        return
    facts = {**facts, "port_dtype": made, "reference_dtype": wanted}
    if norm:
        yield Suspect("amp-levels-norm-dtype", facts, weight=LIKELY)
        eps = case.port.attributes.get("eps")
        if made == "float16" and isinstance(eps, float) and eps < HALF_SMALLEST:
            told = {**facts, "port_value": spelling.literal(eps)}
            yield Suspect("layernorm-fp16-eps-underflow", told, weight=LIKELY)
    elif case.reference.kind.lower().endswith("loss"):
        yield Suspect("loss-in-fp16", facts, weight=LIKELY)


def in_short(case: Case, facts: dict[str, Scalar]) -> Iterator[Suspect]:
    """Sums, softmaxes and powers that the port's own code does in a short type, for code between layers and layers of
    the user's own: a guess that a run in float32 proves, where a switch and no line of the code casts.
    """
    own = case.where == "layer" and case.reference.kind not in KINDS and case.port.kind not in KINDS
    if case.shortened is None or case.actual is None or case.expected is None or not (own or case.where == "glue"):
        return
    if case.expected.shape != case.actual.shape:
        return
    before = distance(case.actual.load(), case.expected.load())
    switched, lost = case.rounding > SHORT_EXPECTED, not np.isfinite(before) or _vanished(case)
    if not switched and not lost and before > HALF_ERROR:
        return  # what one cast in float32 code makes is smaller
    dtype, delicate, others = case.shortened
    here = case.operations[1] if case.operations is not None else ()  # of all in the parent's code, those in the gap
    operations = delicate if switched and not lost else (*delicate, *others)
    operations = tuple(name for name in operations if name in here) or operations
    if not operations:
        return
    told = {**facts, "dtype": dtype, "operations": ", ".join(operations[:NAMED])}
    weight = OVERFLOWN if lost else LIKELY if before < HALF_ERROR else HINT
    tried = case.expected.dtype if own and (switched or lost) else ""
    yield Suspect("short-float-operations", told, dtype=tried, weight=weight)


def _vanished(case: Case) -> bool:
    """Numbers that came out as zero, as what is divided by an overflow does: whole rows, or nearly all."""
    if case.actual is None or case.expected is None or not np.isfinite(case.actual.load()).all():
        return False
    made, wanted = _rows(case.actual), _rows(case.expected)
    there = (wanted != 0).any(axis=1)
    gone = there & (made == 0).all(axis=1)
    return bool(wanted.shape[1] > 1 and gone.sum() * FEW_ROWS >= max(1, there.sum()))


def _overflowed(case: Case) -> bool:
    """Rows of large inputs that came out as the bias alone, or not finite, and no other rows did."""
    if setting_rules.family(case.reference.kind) not in ("LayerNorm", "RMSNorm") or not case.inputs:
        return False
    given, wanted, made = (_rows(value) for value in (case.inputs[0], case.expected, case.actual))
    if not given.shape == wanted.shape == made.shape or not np.isfinite(wanted).all():
        return False
    large = np.abs(given).max(axis=1) > HALF_ROOT
    bias = case.port_parameters.get("bias")
    rest = made - (bias.load() if bias is not None and bias.shape == made.shape[1:] else 0.0)
    flat = ~np.isfinite(made).all(axis=1) | (np.abs(rest) <= HALF_EPS * (1 + np.abs(made))).all(axis=1)
    return bool(large.any() and (flat == large).all())


def _rows(value: Optional[Value]) -> Floats:
    array = np.zeros((0, 1)) if value is None else value.load()
    return np.asarray(array, np.float64).reshape(-1, array.shape[-1] if array.ndim else 1)

"""Causes told from what a layer was not given at all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aligner.explain.case import Case, Value
from aligner.explain.suspect import Suspect

FEW = 3
"""A tensor of so few different values tells what to look at."""


def suspects(case: Case) -> Iterable[Suspect]:
    """An argument that the reference's code hands over and the port's does not."""
    if case.where != "glue" or case.actual is not None or case.expected is None:
        return
    given = case.expected
    slot = given.slot.partition(".")[2]
    facts = {
        "layer": case.layer or "(net)",
        "port_layer": case.port_layer or "(net)",
        "kind": case.reference.kind,
        "port_kind": case.port.kind,
        "given": given.layer,
        "slot": slot,
        "shape": str(list(given.shape)),
    }
    yield Suspect("mask-not-passed" if _mask(given, slot) else "argument-missing", facts, weight=0.9)


def _mask(given: Value, slot: str) -> bool:
    if "mask" in slot:
        return True
    values = given.load().reshape(-1)
    return values.size > 1 and bool(np.unique(values[:: max(1, values.size // 4096)]).size <= FEW)

"""What is no longer held to the reference where the port does not run so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aligner.adapter import Adapter
from aligner.replay.frames import Frame, Plan
from aligner.replay.values import Values

_Calls = set[tuple[str, int]]


def yielding(values: Values, stack: Sequence[Frame]) -> _Calls:
    """After an exception: calls that make too much, which the code may cut off; else the innermost that is held."""
    if values.odd - values.free:
        return values.odd - values.free
    culprit = next((f for f in reversed(stack) if f.call and (f.path, f.number) not in values.free), None)
    return {(culprit.path, culprit.number)} if culprit is not None else set()


def unweighed(plan: Plan, adapter: Adapter, model: Any) -> _Calls:
    """All but layers with weights: frameworks raise late, and not where the cause is; these are certain."""
    weighed = {parameter.layer for parameter in adapter.parameters(model)}
    around = plan.uses.around
    return {(c.layer, c.number) for c in plan.calls if c.layer in around or c.layer not in weighed}

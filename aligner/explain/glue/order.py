"""The port uses a value that the reference makes only later: its layers run in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aligner.explain.glue.formulas import solved
from aligner.explain.glue.hand import name
from aligner.explain.glue.place import Place
from aligner.explain.patterns.pair import numbers
from aligner.explain.suspect import Suspect


def suspects(place: Place) -> Iterator[Suspect]:
    """The later value that the port's is."""
    pair = place.pair
    for value in place.case.later:
        held = numbers(value) if value.shape == pair.actual.shape else None
        left = None if held is None else pair.proved(np.asarray(held), pair.actual)
        if left is not None:
            reference = solved(place, place.wanted, pair.expected)
            code = reference.text if reference else f"[{name(place.case.expected)}]" if place.case.expected else "..."
            facts = {"other": code, "instead": f"[{name(value)}]"}
            facts.update(reference_code=code, port_code=facts["instead"])
            yield pair.suspect("wrong-tensor", left, 0.85, None, **facts)
            return

"""What the numbers hint at where it is not known what the code did: none of it is proved by them.

Two values that are related by a sum, a factor or an order are so by more mistakes than one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from aligner.explain import lines
from aligner.explain.case import Case, Value
from aligner.explain.code import is_code
from aligner.explain.inquiry import current
from aligner.explain.patterns.pair import Floats, Pair, numbers
from aligner.explain.patterns.relations import relations
from aligner.explain.suspect import Suspect
from aligner.record import display

NEAREST = 24
"""Values that the code had in hand and that are looked at, the latest first."""

WEIGHT = 0.5


class _Held(NamedTuple):
    value: Value
    array: Floats

    @property
    def name(self) -> str:
        call = f" #{self.value.call}" if self.value.call else ""
        return f"[{display(self.value.layer)} {self.value.slot}{call}]"


def suspects(case: Case) -> Iterator[Suspect]:
    """How the two values are related: by what was in hand, else by themselves. None where the line is known."""
    pair = Pair.of(case) if is_code(case) and case.order is None and next(lines.suspects(case), None) is None else None
    if pair is not None and not (pair.alike and pair.before <= pair.limit / 20.0):
        yield from current().ask("guesses", partial(_related, case, pair))


def _related(case: Case, pair: Pair) -> Iterator[Suspect]:
    found = list(_in_hand(case, pair)) if pair.alike else []
    yield from found or ([] if any(case.alone) else relations(pair))  # a layer more relates them in any way


def _in_hand(case: Case, pair: Pair) -> Iterator[Suspect]:
    values = (case.known if case.where == "glue" else (*case.parameters.values(), *case.inputs))[::-1]
    fitting = (value for value in values if value.shape == pair.expected.shape)
    held = [_Held(value, array) for value in islice(fitting, NEAREST) if (array := numbers(value)) is not None]
    wanted = next((one for one in held if pair.proved(one.array, pair.expected) is not None), None)
    for one in held:
        if one is wanted:
            continue
        if wanted is not None and (left := pair.proved(one.array, pair.actual)) is not None:
            yield _told(pair, "wrong-tensor", left, other=wanted.name, instead=one.name)
            return
        for cause, times in (("addend-missing", 1.0), ("addend-extra", -1.0), ("addend-sign", 2.0)):
            left = pair.proved(np.asarray(pair.actual + times * one.array), pair.expected)
            if left is not None:
                given = cause == "addend-missing" and one.value.slot.startswith("input.")
                yield _told(pair, "residual-missing" if given else cause, left, other=one.name)
                return


def _told(pair: Pair, cause: str, left: float, other: str, instead: str = "") -> Suspect:
    codes = {
        "wrong-tensor": (other, instead),
        "addend-extra": ("...", f"... + {other}"),
        "addend-sign": (f"... + {other}", f"... - {other}"),
    }
    ours, theirs = codes.get(cause, (f"... + {other}", "..."))
    facts = {"other": other, "instead": instead, "reference_code": ours, "port_code": theirs}
    return pair.suspect(cause, left, WEIGHT, None, **facts)

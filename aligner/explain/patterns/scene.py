"""A wrong layer as rules need it: its inputs and parameters as numbers, its settings, and the pair of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

import numpy as np

from aligner.explain import port_words, spelling
from aligner.explain.case import Case
from aligner.explain.patterns.pair import Floats, Pair, numbers
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Attribute


@dataclass(frozen=True, eq=False)
class Scene:
    """One wrong output of a layer, with what it was made of."""

    case: Case
    pair: Pair

    @staticmethod
    def of(case: Case) -> Optional[Scene]:
        """The case as numbers; None where there are none to compare."""
        pair = Pair.of(case)
        return None if pair is None else Scene(case, pair)

    @property
    def kind(self) -> str:
        """The reference's word for the layer."""
        return self.case.reference.kind

    @cached_property
    def inputs(self) -> list[Floats]:
        """The tensors the layer was given, those that are real numbers."""
        found = (numbers(value) for value in self.case.inputs)
        return [array for array in found if array is not None and array.size]

    @property
    def x(self) -> Optional[Floats]:
        """The first of them."""
        return self.inputs[0] if self.inputs else None

    def parameter(self, role: str) -> Optional[Floats]:
        """One of the reference's parameters, in float64."""
        value = self.case.parameters.get(role)
        found = None if value is None else numbers(value)
        return None if found is None else np.asarray(found, np.float64)

    def setting(self, name: str, default: Any = None) -> Any:
        """One of the reference's settings."""
        found = self.case.reference.attributes.get(name)
        return default if found is None else found

    def number(self, name: str, default: float) -> float:
        """A setting that is one number."""
        found = self.setting(name, default)
        return float(found) if isinstance(found, (int, float)) else default

    def whole(self, name: str) -> int:
        """A setting that counts something, at least 1."""
        return max(int(self.number(name, 1)), 1)

    def axis(self, name: str, rank: int) -> Optional[int]:
        """A setting that is an axis of `rank`, the last where it is not given; None where it is none."""
        found = self.setting(name, -1)
        return int(found) if isinstance(found, int) and -rank <= found < rank else None

    def change(self, name: str) -> dict[str, Attribute]:
        """What a copy of the port's layer is given, where it has this setting with another value."""
        theirs, ours = self.case.port.attributes, self.case.reference.attributes
        if name in theirs and name in ours and theirs[name] != ours[name]:
            return {name: ours[name]}
        return {}

    def setting_suspect(
        self, cause: str, left: float, weight: float, name: str, found: object, /, **facts: Fact
    ) -> Suspect:
        """A suspect for a setting that the numbers give away: `found` is what the port computed with."""
        rank = None if self.x is None else self.x.ndim
        known = name in self.case.reference.attributes
        wanted = self.case.reference.attributes.get(name)
        return self.pair.suspect(
            cause,
            left,
            weight,
            change=self.change(name),
            setting=name,
            port_value=spelling.literal(found) if isinstance(found, str) and isinstance(wanted, str) else str(found),
            reference_value=spelling.literal(self.case.reference.attributes[name]) if known else "?",
            written=port_words.written(self.case, self.case.reference, [name] if known else [], rank),
            **facts,
        )

"""What a layer's own code did, step by step, as a dump tells of it: operations, their lines, fingerprints of values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Optional

import numpy as np

from aligner.explain.line import Spot
from aligner.fingerprint import Fingerprint, Prints, apart

EQUAL = 1e-7
"""How far a fingerprint may be off that was stored in float32."""

IN_STEPS = ("scaled_dot_product_attention", "normalize", "cosine_similarity", "einsum")
"""Functions whose steps were run as well."""

WRITTEN_OUT = 2e-6
"""How far what the steps make may be off."""

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


_Passed = tuple[tuple[int, str, int, str], ...]


@dataclass(frozen=True)
class Step:
    """One operation. `given` and `made` are numbers of values."""

    name: str
    given: tuple[int, ...]
    made: tuple[int, ...]
    arguments: tuple[str, ...]
    file: str
    line: int
    text: str

    @property
    def at(self) -> tuple[str, int]:
        """The line, to be told from others."""
        return self.file, self.line

    @property
    def spot(self) -> Spot:
        """Where it stands."""
        return Spot(self.file, self.line, self.text, self.name)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The plain numbers among its arguments, in their order; switches, types and names are none."""
        found: list[str] = []
        for argument in self.arguments:
            name, _, value = argument.rpartition("=")
            items = value.strip("(,)").split(", ")
            if not name.startswith("_") and all(_NUMBER.fullmatch(item) for item in items):
                found += items
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Trail:
    """The steps of one layer's first call; a value without a fingerprint tells nothing.

    `handed` are values that go into a layer or leave the code, each with file, line and text of where it does; `came`
    are those that come out of a layer.
    """

    values: tuple[Optional[Fingerprint], ...]
    steps: tuple[Step, ...]
    handed: _Passed = ()
    came: _Passed = ()
    built: tuple[Step, ...] = ()
    """What made its tables, when it was built."""

    @staticmethod
    def parsed(facts: Mapping[str, Any]) -> Trail:
        """From a finding.

        Raises:
            LookupError, TypeError, ValueError: it is damaged.
        """
        values = tuple(Fingerprint.parsed(*value) if len(value) == 3 else None for value in facts["values"])
        steps = []
        for name, given, made, arguments, file, line, text in facts["steps"]:
            numbers = tuple(map(int, given)), tuple(map(int, made))
            if any(not 0 <= number < len(values) for side in numbers for number in side):
                raise ValueError("a value that is not there")
            steps.append(Step(str(name), *numbers, tuple(map(str, arguments)), str(file), int(line), str(text)))
        first = int(facts.get("built", 0))
        built, steps = steps[:first], _in_steps(values, steps[first:])
        passed = [
            tuple((int(one), str(file), int(line), str(text)) for one, file, line, text in facts.get(name, ()))
            for name in ("handed", "came")
        ]
        if any(not 0 <= number < len(values) for rows in passed for number, *_ in rows):
            raise ValueError("a value that is not there")
        return Trail(values, tuple(steps), passed[0], passed[1], tuple(built))

    def numbers(self, step: Step) -> tuple[str, ...]:
        """The plain numbers that a step is given, as arguments or as tensors of one element."""
        lone = (self.values[value] for value in step.given if value not in self.makers)
        return (
            *step.numbers,
            *(f"{known.plain[0]:.6g}" for known in lone if known is not None and known.size == 1),
        )

    def way(self, value: int) -> Optional[tuple[Spot, Spot]]:
        """The line where a value comes out of a layer, and the last that hands it on; both are that one where it came
        in otherwise. None where it was not heard to be handed on.
        """
        same = {value, *self._twins(value)}
        lines = [
            [Spot(file, line, text, "") for number, file, line, text in rows if number in same]
            for rows in (self.came, self.handed)
        ]
        return ((lines[0] or lines[1])[-1], lines[1][-1]) if lines[1] else None

    @cached_property
    def known(self) -> Prints:
        """Its values, to look for others among them."""
        return Prints(self.values)

    @cached_property
    def making(self) -> Mapping[int, Sequence[int]]:
        """All steps that make a value."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            for value in dict.fromkeys(step.made):
                found.setdefault(value, []).append(number)
        return found

    @cached_property
    def makers(self) -> Mapping[int, int]:
        """The step that made a value first; none made what was given from outside.

        What comes of nothing that was heard, but equals a value made before, is that value: in another type.
        """
        made: dict[int, int] = {}
        outside = set[int]()
        for number, step in enumerate(self.steps):
            for value in (one for one in step.given if one not in made and one not in outside):
                twins = set(self._twins(value))
                twin = next((other for other in made if other < value and other in twins), None) if twins else None
                if twin is None:
                    outside.add(value)
                else:
                    made[value] = made[twin]
            for value in step.made:
                made.setdefault(value, number)
        return made

    def _twins(self, value: int) -> list[int]:
        """The values that equal this one."""
        known = self.values[value]
        if known is None or known.size < 2:
            return []
        return [int(number) for number in np.nonzero(self.known.apart(known) <= EQUAL)[0]]


def _in_steps(values: Sequence[Optional[Fingerprint]], steps: Sequence[Step]) -> list[Step]:
    """Without what was done in one as well as in steps: what the last of these made stands for its result."""
    others: dict[int, int] = {}
    found: list[Step] = []
    for step in steps:
        twin = _last_of(step, found, values) if step.name in IN_STEPS and len(step.made) == 1 else None
        if twin is not None:
            others[step.made[0]] = twin
            continue
        found.append(replace(step, given=tuple(others.get(value, value) for value in step.given)))
    return found


def _last_of(step: Step, before: Sequence[Step], values: Sequence[Optional[Fingerprint]]) -> Optional[int]:
    whole = values[step.made[0]]
    for other in reversed(before):
        made = values[other.made[0]] if other.at == step.at else None
        if made is not None and whole is not None and made.shape == whole.shape and apart(made, whole) <= WRITTEN_OUT:
            return other.made[0]
    return None

"""What a program makes by itself of parameters and buffers between two steps: why that is another value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.training import Owner, as_it_begins
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase
from aligner.training.numbers import averaged
from aligner.words.training import BY_PROGRAM

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.verdict import Origin
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

LOOKED, BASES = 4, 64
"""Parameters that are looked into, and for each so many others that it may be an average of."""


class ByProgram:
    """Of one comparison; `names` are the port's own, by the reference's parameter, `ports` the parameters."""

    def __init__(self, dumps: tuple[Dump, Dump], ports: Mapping[Owner, Owner], names: Mapping[Owner, str]) -> None:
        self._dumps, self._ports, self._names = dumps, ports, names

    def suspects(self, origin: Origin) -> Iterator[Suspect]:
        """The one that fits, of the first of the parameters that are wrong."""
        shown = [self._name(owner) for owner in origin.owners[:3]]
        facts: dict[str, Any] = {"count": len(origin.owners), "parameters": ", ".join(shown)}
        if len(origin.owners) > len(shown):
            facts["parameters"] += ", ..."
        changed = [[self._changes(side, origin.step, owner) for owner in origin.owners[:LOOKED]] for side in (0, 1)]
        if not any(changed[1]):
            yield Suspect("program-changes-missing", facts, weight=0.9)
        elif not any(changed[0]):
            yield Suspect("program-changes-alone", facts, weight=0.9)
        else:
            yield self._average(origin, facts) or Suspect("program-changes-otherwise", facts, weight=0.6)

    def _name(self, owner: Owner) -> str:
        """With a point in it, as code has it."""
        name = self._names.get(owner, ".".join(filter(None, owner)))
        return name if "." in name else f"net.{name}"

    def _average(self, origin: Origin, facts: Mapping[str, Any]) -> Optional[Suspect]:
        """Both sides' moving averages of other parameters, by their factors."""
        for owner in origin.owners[:LOOKED]:
            ours, theirs = (self._factors(side, origin.step, owner) for side in (0, 1))
            for base, factor in ours.items():
                if base in theirs and abs(theirs[base] - factor) > 1e-4:
                    numbers = {"reference": f"{factor:.4g}", "port": f"{theirs[base]:.4g}"}
                    return Suspect("moving-average-factor", {**facts, **numbers, "of": self._name(base)}, weight=0.9)
        return None

    def _factors(self, side: int, step: int, owner: Owner) -> Mapping[Owner, float]:
        """What remains of a parameter, by the other one that the rest comes of."""
        before, after = self._both(side, step, owner)
        if before is None or after is None:
            return {}
        found: dict[Owner, float] = {}
        for other in self._bases(owner, after.shape):
            of = _floats(self._dumps[0].find(Key(step, Phase.UPDATE, other[0], 0, other[1])))
            factor = None if of is None else averaged(before, after, of)
            found.update({} if factor is None else {other: factor})
        return found

    def _bases(self, owner: Owner, shape: tuple[int, ...]) -> Sequence[Owner]:
        found = [
            (entry.key.layer, entry.key.slot)
            for entry in self._dumps[0].entries
            if entry.key.phase is Phase.PARAMETER and tuple(entry.shape) == shape
        ]
        return [one for one in found if one != owner][:BASES]

    def _changes(self, side: int, step: int, owner: Owner) -> bool:
        before, after = self._both(side, step, owner)
        return before is not None and after is not None and not np.array_equal(before, after)

    def _both(self, side: int, step: int, owner: Owner) -> tuple[Optional[Floats], Optional[Floats]]:
        """What a side's program was given, which is the reference's, and what it has made of that."""
        name = self._ports.get(owner, owner) if side else owner
        key = Key(step, Phase.UPDATE, owner[0], 0, owner[1])
        before = self._dumps[0].find(key) or as_it_begins(self._dumps[0], key)
        after = self._dumps[side].find(key._replace(layer=name[0], slot=name[1], call=BY_PROGRAM))
        one, two = _floats(before), _floats(after)
        return (one, two) if one is not None and two is not None and one.shape == two.shape else (None, None)


def _floats(entry: Any) -> Optional[Floats]:
    return None if entry is None else np.asarray(entry.load(), np.float64)

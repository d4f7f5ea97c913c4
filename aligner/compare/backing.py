"""Gradients that are another where all values agree: cut off on one side, or in one branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.explain.case import MINDSPORE
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase, display
from aligner.training.numbers import EXACT, term

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.training import Owner
    from aligner.compare.verdict import Origin
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

SHOWN = 3
"""Layers and rows that are named."""

NONE = 1e-9
"""A gradient of this part of the other one is none."""


class Backing:
    """Of one comparison; `words` are the port's, "mindspore" or "torch", and `ports` its parameters."""

    def __init__(self, dumps: tuple[Dump, Dump], words: str, ports: Mapping[Owner, Owner]) -> None:
        self._dumps, self._words = dumps, words
        self._layers = {ours[0]: theirs[0] for ours, theirs in reversed([*ports.items()])}

    def suspects(self, origin: Origin, scale: float) -> Iterator[Suspect]:
        """The one that fits, of the worst value; the port's gradients are so many times the reference's."""
        keys = None if origin.place is None else (origin.place.key, origin.place.port)
        if keys is None or keys[0] is None or keys[1] is None:
            return
        ours, theirs = (_floats(dump.find(key)) for dump, key in zip(self._dumps, keys) if key is not None)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return
        theirs = theirs / scale
        facts = self._facts(keys[0].layer, keys[0].slot)
        found = self._cut(facts, ours, theirs) or self._rows(facts, ours, theirs)
        found = found or self._branch(facts, keys[0]) or self._times(facts, ours, theirs)
        yield found or Suspect("gradient-path-differs", facts, weight=0.6)

    def unmoved(self, origin: Origin, without: tuple[frozenset[Owner], frozenset[Owner]]) -> Iterator[Suspect]:
        """Where wrong updates are of parameters that one side's optimizer alone has been given no gradient of: the last
        of them is nearest to where that is cut off. `without` are both sides', by the reference's names."""
        owners = {*origin.owners}
        for cause, one, other in (("gradient-cut", 1, 0), ("gradient-not-cut", 0, 1)):
            if owners and owners <= without[one] - without[other]:
                layer, slot = origin.owners[-1]
                name = (layer, slot) if other == 0 else (self._layers.get(layer, layer), slot)
                given = _floats(self._dumps[other].find(Key(origin.step, Phase.GRADIENT, name[0], 0, name[1])))
                norm = "-" if given is None else f"{np.linalg.norm(given):.3g}"
                yield Suspect(cause, {**self._facts(layer, slot), "norm": norm}, weight=0.95)

    def _facts(self, layer: str, slot: str) -> dict[str, Any]:
        words = {} if self._words == MINDSPORE else {"words": self._words}
        return {"layer": display(layer), "slot": slot, **words}

    def _cut(self, facts: Mapping[str, Any], ours: Floats, theirs: Floats) -> Optional[Suspect]:
        """Nothing comes back at all."""
        sizes = [float(np.linalg.norm(one)) for one in (ours, theirs)]
        least = sizes.index(min(sizes))
        if sizes[least] > NONE * sizes[1 - least]:
            return None
        cause = "gradient-not-cut" if least == 0 else "gradient-cut"
        return Suspect(cause, {**facts, "norm": f"{sizes[1 - least]:.3g}"}, weight=0.9)

    def _rows(self, facts: Mapping[str, Any], ours: Floats, theirs: Floats) -> Optional[Suspect]:
        """Rows of a table that the reference leaves out, as it does with the one of the padding."""
        if ours.ndim != 2 or facts["slot"].startswith(("output.", "input.")):
            return None
        none = ~ours.any(axis=1)
        more = none & theirs.any(axis=1)
        if not more.any() or np.linalg.norm((theirs - ours)[~more]) > EXACT * np.linalg.norm(ours):
            return None
        rows = np.flatnonzero(more)
        shown = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
        return Suspect("gradient-rows-not-left-out", {**facts, "rows": shown}, weight=0.9)

    def _branch(self, facts: Mapping[str, Any], key: Key) -> Optional[Suspect]:
        """To one of the layers that take the value a gradient comes back on one side alone."""
        made = self._dumps[0].find(key._replace(phase=Phase.FORWARD)) if key.slot.startswith("output.") else None
        for entry in self._dumps[0].entries if made is not None else ():
            at = entry.key
            taken = at.step == key.step and at.phase is Phase.FORWARD and at.slot.startswith("input.")
            if not taken or made is None or entry.content != made.content:
                continue
            theirs = at._replace(layer=self._layers.get(at.layer, at.layer))
            if self._dumps[1].find(theirs) is None:
                continue
            ours, other = (
                dump.find(one._replace(phase=Phase.BACKWARD)) is not None
                for dump, one in zip(self._dumps, (at, theirs))
            )
            if ours != other:
                cause = "gradient-branch-cut" if ours else "gradient-branch-not-cut"
                return Suspect(cause, {**facts, "branch": display(at.layer)}, weight=0.9)
        return None

    def _times(self, facts: Mapping[str, Any], ours: Floats, theirs: Floats) -> Optional[Suspect]:
        found = term(theirs, {"gradient": ours})
        return (
            None if found is None else Suspect("gradient-times", {**facts, "factor": f"{found.factor:.6g}"}, weight=0.8)
        )


def _floats(entry: Optional[Entry]) -> Optional[Floats]:
    return None if entry is None else np.asarray(entry.load(), np.float64)

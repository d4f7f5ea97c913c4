"""Whether a net still runs on the weights that were recorded of it: an optimizer or a merge may have come by.

They are looked at whenever a call from outside begins, by a fingerprint: a version counter does not see what is
written through `.data`. What a layer changes itself while it runs, of what it does not learn (a BatchNorm's running
statistics), is its own doing and part of what is captured; that is accepted when the call ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Optional

from aligner.adapter import Adapter, Handle, Parameter
from aligner.dtypes import DTYPES
from aligner.findings import MOVED
from aligner.fingerprint import print_of
from aligner.record import Array, Key, Phase

Place = tuple[str, str]
Mark = Optional[bytes]
"""None where the values cannot be read: then nothing is known, and nothing is said."""


class Weights:
    """Those of one model during its capture; `tell` gets a finding whenever other layers than before have moved."""

    def __init__(self, adapter: Adapter, model: object) -> None:
        self._adapter = adapter
        self._model = model
        self._accepted: dict[Place, Mark] = {}
        """What was recorded, and what layers have made of it by themselves since."""
        self._known = False
        self._fresh: dict[Place, Mark] = {}
        """What has just been read, for the call that begins now."""
        self._before: dict[Place, Mark] = {}
        self._looked: list[tuple[Place, Mark, bool]] = []
        self._compiled = False
        """Whether something compiled runs now."""
        self._moved: dict[Place, None] = {}
        self._told: tuple[str, ...] = ()

    def record(self, write: Callable[[Key, str, Callable[[], Array]], None]) -> list[list[object]]:
        """Have all of them written into the dump; the header's table of parameters."""
        table: list[list[object]] = []
        row: list[object]
        for parameter in self._adapter.parameters(self._model):
            key = Key(0, Phase.PARAMETER, parameter.layer, 0, parameter.role)
            write(key, parameter.dtype, partial(self._recorded, parameter))
            row = [parameter.layer, parameter.role, parameter.name, parameter.trainable, parameter.buffer]
            table.append(row if parameter.kept else [*row, False])
        self._known = True
        return table

    def _recorded(self, parameter: Parameter) -> Array:
        array = self._adapter.read(parameter)
        self._fresh.pop((parameter.layer, parameter.role), None)
        self._accepted[parameter.layer, parameter.role] = _mark(array)
        return array

    def accepted(self, parameter: Parameter) -> Array:
        """The values of one that an optimizer has updated, which is what it is to have from now on."""
        array = self._recorded(parameter)
        self._moved.pop((parameter.layer, parameter.role), None)
        return array

    def changed(self, parameter: Parameter) -> bool:
        """Whether one is not as it was recorded, or as layers have made it by themselves since."""
        place = parameter.layer, parameter.role
        mark = self._fresh[place] = self._read(parameter)
        return None not in (mark, self._accepted.get(place)) and mark != self._accepted[place]

    def listen(self, handles: list[Handle]) -> None:
        """Be told of what runs compiled, until the handle is removed that is added to these."""
        runs = getattr(self._adapter, "compiled_runs", None)  # an adapter of others' may not have it
        if runs is not None:
            handles.append(runs(self._look, self._over))

    def _look(self) -> None:
        """Something compiled is about to run, and its layers' weights cannot be read while it does."""
        self._looked = list(self._marks(""))
        self._compiled = True

    def _over(self) -> None:
        """It has run. Which thread its layers were told of on says nothing: it may be the one that called it."""
        self._compiled = False

    def begin(self, path: str, step: int, order: int, tell: Callable[[str, Mapping[str, Any]], None]) -> bool:
        """A call from outside begins; whether other layers than before were found to have moved."""
        if self._compiled:  # what changed meanwhile and is not learnt, the compiled layers have changed
            self._accept((place, mark) for place, mark, learnt in self._looked if not learnt)
            marks: Iterable[tuple[Place, Mark, bool]] = (one for one in self._looked if _inside(one[0][0], path))
        else:
            marks = self._marks(path)
        found = {place: mark for place, mark, _ in marks}
        self._fresh.clear()
        self._before = found
        if not self._known:  # weights are not recorded: they count as they are when the net first runs
            self._accepted.update({place: mark for place, mark in found.items() if place not in self._accepted})
        for place, mark in found.items():
            unread = mark is None or (place in self._accepted and self._accepted[place] is None)
            if unread or self._accepted.get(place) == mark:
                self._moved.pop(place, None)
            else:
                self._moved[place] = None
        layers = tuple(dict.fromkeys(layer for layer, _ in sorted(self._moved)))
        if layers == self._told:
            return False
        self._told = layers
        tell(MOVED, {"step": step, "order": order, "layers": list(layers)})
        return True

    def end(self, path: str) -> None:
        """It is over: what its layers made of what they do not learn is theirs."""
        if self._compiled:
            return
        found = ((place, mark) for place, mark, _ in self._marks(path, self._before))
        self._accept((place, mark) for place, mark in found if mark != self._before.get(place))
        self._before = {}

    def _accept(self, found: Iterable[tuple[Place, Mark]]) -> None:
        self._accepted.update((place, mark) for place, mark in found if place not in self._moved)

    def _marks(self, path: str, learnt: Container[Place] = ()) -> Iterator[tuple[Place, Mark, bool]]:
        """Of all parameters of a layer and of those inside it, whether they are learnt; not of these learnt ones."""
        for parameter in self._adapter.parameters(self._model):
            place = parameter.layer, parameter.role
            if _inside(parameter.layer, path) and not (parameter.trainable and place in learnt):
                yield place, self._fresh.get(place) or self._read(parameter), parameter.trainable

    def _read(self, parameter: Parameter) -> Mark:
        if parameter.dtype not in DTYPES:
            return None
        try:
            return _mark(self._adapter.read(parameter))
        except Exception:  # of a kind that has no values: the capture itself has said so
            return None


def _inside(layer: str, path: str) -> bool:
    return not path or layer == path or layer.startswith(f"{path}.")


def _mark(array: Array) -> bytes:
    """Of a view in another order of axes, its memory as it lies: to put it in order takes longer than to read it."""
    return print_of(array.T if array.flags.f_contiguous else array)

"""The reference's weights for copies of the port's layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.reformed import Part, parts
from aligner.dtypes import DTYPES
from aligner.record import Key, Phase
from aligner.replay.frames import Plan

if TYPE_CHECKING:
    from aligner.compare.formed import Formed
    from aligner.dump.reader import Dump


class Weights:
    """Loads them, as they were when the port was captured."""

    def __init__(self, adapter: Adapter, model: Any, reference: Dump, port: Dump, plan: Plan) -> None:
        self._adapter, self._reference, self._plan = adapter, reference, plan
        self._layers = dict(adapter.layers(model))
        self._owners = {id(p.tensor): (p.layer, p.role) for p in adapter.parameters(model)}
        """A tied weight is known by the first of its layers."""
        self._reformed = _reformed(parts(reference, port))

    def load(
        self,
        copy: object,
        layer: str,
        roles: Sequence[str],
        turned: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """Values of the reference's parameters, with the axes of some in another order."""
        own = {p.role: p for p in self._adapter.parameters(copy) if p.layer == ""}
        for role in roles:
            entry = self._reference.find(Key(0, Phase.PARAMETER, layer, 0, role))
            if entry is None or role not in own:
                raise ValueError(f"no parameter {role}")
            value = np.ascontiguousarray(entry.raw().transpose(turned[role])) if role in turned else entry.raw()
            self._adapter.load(own[role], value, entry.dtype)

    def load_inside(self, copy: object, layer: object, ours: str) -> None:
        """Values of the reference's for parameters that layers inside the copy have for the first time."""
        known = {(p.layer, p.role) for p in self._adapter.parameters(layer)}
        for parameter in self._adapter.parameters(copy):
            key = Key(0, Phase.PARAMETER, f"{ours}.{parameter.layer}".lstrip("."), 0, parameter.role)
            entry = self._reference.find(key) if parameter.layer else None
            if entry is not None and (parameter.layer, parameter.role) not in known and entry.shape == parameter.shape:
                self._adapter.load(parameter, entry.raw(), entry.dtype)

    def load_all(self, copy: object, path: str) -> None:
        """The reference's own weights for those that the port has rounded to a shorter type."""
        shared = {
            (p.layer, p.role): self._owners.get(id(p.tensor)) for p in self._adapter.parameters(self._layers[path])
        }
        for parameter in self._adapter.parameters(copy):
            owner = shared.get((parameter.layer, parameter.role))
            if owner is None:
                continue
            layer = self._plan.layers.get(owner[0], owner[0])
            key = Key(0, Phase.PARAMETER, owner[0], 0, owner[1])
            if key in self._reformed:
                part = self._reformed[key]
                if part is not None and part.shape == parameter.shape:
                    self._adapter.load(parameter, part.raw(), part.dtype)
                continue
            entry = self._reference.find(key._replace(layer=layer))
            if entry is not None and entry.shape == parameter.shape and not DTYPES[entry.dtype].exact:
                self._adapter.load(parameter, entry.raw(), entry.dtype)


def _reformed(parts: Iterable[Part]) -> Mapping[Key, Optional[Formed]]:
    """By the port's record of a parameter in another form: the reference's so; None where that is no single one."""
    found: dict[Key, Optional[Formed]] = {}
    for part in parts:
        whole = part.port.key == part.whole[1] and part.port.key not in found
        found.update(dict.fromkeys(part.keys(1), part.reference if whole else None))
    return found

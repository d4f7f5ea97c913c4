"""Whether the dropout layers of a net let everything through: looked at, not assumed."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from aligner.adapter import Adapter
from aligner.structure import Tensors


class Dropouts:
    """Compares what each dropout layer gets with what it returns, by a digest: no tensor is kept meanwhile."""

    def __init__(self, adapter: Adapter) -> None:
        self.active: set[str] = set()
        """Those that were seen at work."""
        self._adapter = adapter
        self._given: dict[str, bytes] = {}

    def watch(self, path: str) -> None:
        """This layer is one."""
        self._given[path] = b""

    def enter(self, path: str, inputs: Tensors) -> None:
        """It is called with these."""
        if path in self._given:
            self._given[path] = self._digest(inputs)

    def leave(self, path: str, outputs: Tensors) -> None:
        """It returns these."""
        given = self._given.get(path)
        made = self._digest(outputs) if given else b""
        if made and made != given:
            self.active.add(path)

    def state(self, silenced: bool) -> str:
        """A word for the header."""
        return "active" if self.active else "silenced" if silenced else "inactive"

    def _digest(self, tensors: Tensors) -> bytes:
        """Of the first; none where its values cannot be read, of which the capture says why."""
        if not tensors:
            return b""
        try:
            array = self._adapter.to_numpy(tensors[0][1])
        except ValueError:
            return b""
        return blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()

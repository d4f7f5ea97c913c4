"""What a call writes into a container that it is given is its own result: who is given the container passes it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from aligner.adapter import Adapter
from aligner.effects import Arguments, Effects, repeated
from aligner.replay.judgement import Place
from aligner.structure import Tensors, flatten_arguments


class Written:
    """The values that calls of one run have written so."""

    def __init__(self, adapter: Adapter) -> None:
        self._is_tensor = adapter.is_tensor
        self._places: dict[int, tuple[object, Place]] = {}

    def watching(self, given: Arguments, own: Arguments) -> Callable[[Optional[Place]], None]:
        """To be called after a call with the place of its code: what it has written into what it was `given` is written
        into the caller's own.
        """
        effects = Effects(*given)

        def ended(place: Optional[Place]) -> None:
            changes = effects.found()
            if given is not own:
                repeated(changes, *own)
            for change in changes:
                found: Tensors = []
                flatten_arguments(tuple(change.new.values()), {}, self._is_tensor, found)
                if place is not None:  # the innermost call has ended first
                    for _, tensor in found:
                        self._places.setdefault(id(tensor), (tensor, place))

        return ended

    def place(self, tensor: object, other: Place) -> Place:
        """Where a value was made: in the code that wrote it, or there."""
        return self._places.get(id(tensor), (None, other))[1]

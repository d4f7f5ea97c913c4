"""What a call writes into a container that it is given is its own result, as are results that the reference's has not:
who has them then passes them on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aligner.adapter import Adapter
from aligner.effects import Arguments, Effects, repeated
from aligner.replay.judgement import Place
from aligner.structure import Tensors, flatten_arguments


class Written:
    """The values that calls of one run have made so."""

    def __init__(self, adapter: Adapter) -> None:
        self._is_tensor = adapter.is_tensor
        self._places: dict[int, tuple[object, Place]] = {}

    def watching(self, given: Arguments, own: Arguments) -> Callable[[Place], None]:
        """To be called after a call with the place of its code: what it has written into what it was `given` is written
        into the caller's own.
        """
        effects = Effects(*given)

        def ended(place: Place) -> None:
            changes = effects.found()
            if given is not own:
                repeated(changes, *own)
            for change in changes:
                found: Tensors = []
                flatten_arguments(tuple(change.new.values()), {}, self._is_tensor, found)
                self.note([tensor for _, tensor in found], place)

        return ended

    def note(self, tensors: Sequence[object], place: Place) -> None:
        """These were made there; the innermost call ends first."""
        for tensor in tensors:
            self._places.setdefault(id(tensor), (tensor, place))

    def place(self, tensor: object, other: Place) -> Place:
        """Where a value was made: in the code that wrote it, or there."""
        return self._places.get(id(tensor), (None, other))[1]

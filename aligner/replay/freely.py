"""Free runs of a port in which something is changed at its layers, and what the net hands on then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.dtypes import DTYPES, decode
from aligner.patches import together
from aligner.record import Array, Key, Phase
from aligner.source.ear import replaced
from aligner.structure import Tensors, flatten_result

Called = Callable[[Key, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Makes one call of a layer: the call's address with an empty slot, the layer's own function, what it is given."""


class FreeRuns:
    """Runs all steps as the free run did."""

    def __init__(self, adapter: Adapter, model: Any, run: Callable[[int], object], steps: Sequence[int]) -> None:
        self._adapter, self._model, self._run, self._steps = adapter, model, run, steps
        self._numbers: dict[str, int] = {}
        self._step = 0

    def ends(self, called: Called) -> dict[Key, Array]:
        """What the net hands on, by address."""
        found: dict[Key, Array] = {}
        with together() as handle:
            try:
                for path, layer in self._adapter.layers(self._model):
                    owner, name = self._adapter.computing(layer)
                    inner = getattr(owner, name)
                    handle.add(replaced(owner, name, partial(self._called, path, inner, called, found)))
                for step in self._steps:
                    self._step, self._numbers = step, {}
                    self._run(step)
            finally:
                handle.remove()
        return found

    def _called(
        self, path: str, inner: Callable[..., Any], called: Called, found: dict[Key, Array], *args: Any, **kwargs: Any
    ) -> Any:
        key = Key(self._step, Phase.FORWARD, path, self._numbers.get(path, 0), "")
        self._numbers[path] = key.call + 1
        output = called(key, inner, args, kwargs)
        if path == "":
            made: Tensors = []
            flatten_result(output, self._adapter.is_tensor, made)
            for slot, tensor in made:
                array = decode(self._adapter.to_numpy(tensor), self._adapter.dtype(tensor))
                found[key._replace(slot=slot)] = np.array(array)
        return output


@contextmanager
def as_it_was(
    adapter: Adapter, model: Any, seed: Optional[int], silence_dropout: bool, reset: Callable[[], object]
) -> Iterator[None]:
    """Begin as the free run began, with the buffers of then by `reset`, and leave no trace of this one."""
    buffers = [(p, np.array(adapter.read(p))) for p in adapter.parameters(model) if p.buffer and p.dtype in DTYPES]
    random = adapter.random_state()
    with ExitStack() as stack:
        if random is not None:
            stack.callback(adapter.set_random_state, random)
        for parameter, values in buffers:
            stack.callback(adapter.load, parameter, values, parameter.dtype)
        reset()
        if seed is not None:
            adapter.seed(seed)
        if silence_dropout and adapter.training(model):
            stack.callback(adapter.silence_dropout(model).remove)
        yield

"""How MindTorch's layers are described, spelled and copied: as torch's are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import mindspore
import numpy as np

from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindtorch_ import precision, tensors
from aligner_hooks.mindtorch_.layers import LAYERS, parametrized
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.mindtorch_.spec import SPECS
from aligner_hooks.torchlike.constructions import Constructions
from aligner_hooks.torchlike.copies import Copies


@contextmanager
def _apart() -> Iterator[None]:
    """Initial values are drawn from numpy's random numbers and MindSpore's seed: both go back to where they were."""
    state, seed = np.random.get_state(), mindspore.get_seed()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if seed is not None:
            mindspore.set_seed(seed)  # this seeds numpy as well
        np.random.set_state(state)


def _no_hook(hook: Any) -> bool:
    return False


class _Values:
    """MindTorch's tensors as copying asks for them."""

    def cast(self, model: Any, dtype: str) -> None:
        precision.cast(model, dtype)

    def own(self, tensor: Any) -> Optional[Any]:
        """Always: a deep copy of a parameter or buffer may share its values, or come out of another class."""
        values = tensors.lowered_from(tensors.to_numpy(tensor), tensors.dtype(tensor))
        return _like(tensor, values)

    def full(self, like: Any, start: float, beside: Any) -> Any:
        word = tensors.dtype(like)
        if beside is not None and "float" in word:
            word = tensors.dtype(beside)
        filled = tensors.lowered_from(np.full(tuple(like.shape), start, np.float32), "float32")
        return _like(like, filled.astype(tensors.mindspore_type(word)))


def _like(tensor: Any, values: Any) -> Any:
    """These values as a parameter or a tensor, whichever `tensor` is."""
    raised = package().raised(values)
    if not isinstance(tensor, package().nn.Parameter):
        return raised
    made = package().nn.Parameter(raised, requires_grad=bool(tensor.requires_grad))
    if package().maker == OPENI:
        made.name = tensor.name
    return made


CONSTRUCTIONS = Constructions(package().nn, SPECS, parametrized, _apart)


class _MindTorchCopies(Copies):
    """Copies of layers that cast go on casting as these do."""

    def instead(self, module: Any) -> Iterator[tuple[int, Any]]:
        yield from super().instead(module)
        strategy = vars(module).get(casts.STRATEGY)  # it lives in C++
        if strategy is not None:
            yield id(strategy), strategy

    def copied(self, layer: Any) -> Any:
        """A copy keeps the attribute of `to_float`, and forgets the flag behind it."""
        made = super().copied(layer)
        for place in LAYERS.walk(made):
            for cell in precision.with_parts(place.content) if package().maker == OPENI else ():
                if cell.mixed_precision_type is not None:
                    cell.set_mixed_precision_type(cell.mixed_precision_type)
        return made


COPIES = _MindTorchCopies(LAYERS, CONSTRUCTIONS, _Values(), _no_hook)

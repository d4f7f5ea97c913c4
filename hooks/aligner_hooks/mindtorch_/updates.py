"""The updates that MindTorch's optimizers make, of which ever package they are.

mindnlp's tell of their `step` themselves, as torch's do. OpenI's are MindSpore's under torch's names: they are called
with the gradients, or their `step` is, and one of the user's own has a `step` alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Optional

from mindspore import nn
from mindspore.experimental import optim

from aligner.adapter import Apply, Group, Kept, Optimizer, Update
from aligner.patches import Handle, Listeners, patch, together
from aligner_hooks.mindsporelike import optimizers, training
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.torchlike import training as torchlike
from aligner_hooks.torchlike.training import Optimizers

_WITH_GROUPS: type = optim.Optimizer
_TORCHS = Optimizers(package().torch, "mindtorch")


def updates(begun: Update, ended: Callable[[object], None]) -> Handle:
    """Be told before and after each update."""
    if package().maker != OPENI:
        own = import_module("mindtorch.optim.optimizer")
        before, after = own.register_optimizer_step_pre_hook, own.register_optimizer_step_post_hook
        return torchlike.updates(before, after, begun, ended)
    with together() as handle:
        handle.add(training.updates(begun, ended).remove)
        covered: set[type] = set()
        cover = partial(_cover, handle, covered, (begun, ended))
        for known in _kinds(_WITH_GROUPS):
            cover(known)
        handle.add(patch(_WITH_GROUPS, "__init__", _beginning, cover).remove)
    return handle


def kinds() -> tuple[type, ...]:
    """What optimizers are instances of."""
    if package().maker != OPENI:
        return (import_module("mindtorch.optim.optimizer").Optimizer,)
    return nn.Optimizer, _WITH_GROUPS


def _kinds(base: type) -> Iterator[type]:
    """A class and all that are made of it."""
    made: list[type] = type.__subclasses__(base)
    yield base
    for kind in made:
        yield from _kinds(kind)


def _cover(handle: Handle, covered: set[type], listener: object, kind: type) -> None:
    """Be told of the `step` of this class, wherever it has it from."""
    for base in kind.__mro__:
        if base not in covered and "step" in vars(base):
            covered.add(base)
            handle.add(patch(base, "step", _stepping, listener).remove)


def _beginning(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """The first optimizer of a class that the program has only made now."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for cover in [*listeners.values()]:
            cover(type(self))
        original(self, *args, **kwargs)

    return __init__


def _stepping(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not training.is_told(listeners):
            return original(self, *args, **kwargs)
        word = next((name for name in kwargs if name != "closure"), "")
        handed = kwargs[word] if word else args[0] if args else None
        owned = optimizers.parameters(self)
        gradients: Sequence[Any] = [one.grad for one in owned] if handed is None else handed

        def run(given: Optional[tuple[Any, ...]]) -> Any:
            if given is None:
                return original(self, *args, **kwargs)
            if handed is None:
                _grant(owned, given)
                return original(self, *args, **kwargs)
            return original(self, *args, **{**kwargs, word: given}) if word else original(self, given, *args[1:])

        return training.around(listeners, self, gradients, run)

    return step


def _grant(owned: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Have gradients stand where an optimizer looks for them that is given none."""
    for parameter, gradient in zip(owned, gradients):
        parameter.grad = gradient


def optimizer(made: Any) -> Optimizer:
    """Kind, groups and state, as they are now."""
    return optimizers.optimizer(made) if package().maker == OPENI else _TORCHS.read(made)


def rebuilt(old: Any, kind: str, wanted: Sequence[Group], kept: Kept, count: int) -> Apply:
    """The update of another optimizer on the same parameters."""
    if package().maker == OPENI:
        return optimizers.rebuilt(old, kind, wanted, kept, count)
    return _TORCHS.rebuilt(kind, wanted, kept, count)


def owned(made: Any) -> Sequence[Any]:
    """What an optimizer updates, in the order of the gradients that it is given."""
    return optimizers.parameters(made) if package().maker == OPENI else torchlike.parameters(made)


def made_of(made: Any, gradients: Sequence[Any]) -> None:
    """Have an optimizer make its update in its own way."""
    step = getattr(made, "step", None)
    if step is None:  # one of MindSpore's own
        made(gradients)
        return
    first = next(iter(inspect.signature(step).parameters), "closure")
    if first == "closure":
        _grant(owned(made), gradients)
        step()
    else:
        step(gradients)


def clipped(gradients: Sequence[Any], norm: float) -> Sequence[Any]:
    """Scaled down where the norm of all of them is larger."""
    return _TORCHS.clipped(gradients, norm)

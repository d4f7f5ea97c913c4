"""Dropout made inactive in train mode without touching the net: what draws is told to keep everything.

A function mode of torch's hears every call of a function that drops, under whatever name somebody has imported it, and
whenever: nobody's module is looked into, and no function is replaced that somebody could keep. A mode is heard in its
own thread; in other threads it is put on for the length of each outermost call of a layer, and in a backward pass where
a checkpoint computes again. Nothing is written to the net, so its settings read as they are, and a script that calls
`net.train()` in between does not bring dropout back. Layers with a dropout of their own (DropPath, StochasticDepth) are
put into eval mode by themselves.

torch before 1.13 has no such modes: there the functions are replaced where torch keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from aligner.patches import Handle, Listeners, hold, patch, together
from aligner_hooks.torch_ import calls, layers, operations
from aligner_hooks.torch_.eager import is_traced
from aligner_hooks.torch_.ears import Ears

# Names of torch's functions that drop -> where their switch stands among the arguments; of attention, the rate.
_DROPOUTS = {
    **dict.fromkeys(("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"), 2),
    **dict.fromkeys(("feature_dropout", "native_dropout"), 2),
    **dict.fromkeys(("dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_"), 2),
}
_ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def silence(model: Any) -> Handle:
    """Make dropout inactive in every call of a layer, and in the net's own dropout layers, until removed."""
    with together() as handle:
        for place in layers.walk(model):
            if _drops_by_itself(place.content):
                handle.add(hold(place.content, "training", False).remove)
        if not operations.has_modes():
            _replace_functions(handle)
            return handle
        token = object()
        _WANTED.add(token)
        handle.add(lambda: _WANTED.discard(token))
        handle.add(_EARS.listen(_nobody).remove)
        handle.add(calls.surround(_in_this_thread).remove)
        handle.add(patch(CheckpointFunction, "backward", _computing_again).remove)
        return handle


_WANTED: set[object] = set()
"""Those who want silence."""


def _nobody() -> None:
    """Is told nothing: the mode is there to be on."""


@contextmanager
def _in_this_thread() -> Iterator[None]:
    """The mode is put on in the thread that asks for silence; any other one has it while it calls a layer, and so has
    a backward pass, in which torch takes modes off.
    """
    stack = operations.overrides()._get_current_function_mode_stack()
    mode = None if any(isinstance(one, _Keeping) for one in stack) else operations.put_on(_mode)
    try:
        yield
    finally:
        if mode is not None:
            operations.take_off(mode)


def _computing_again(original: Any, listeners: Listeners) -> Any:
    def backward(*args: Any) -> Any:
        with _in_this_thread() if listeners else nullcontext():
            return original(*args)

    return backward


_EARS = Ears(lambda: operations.put_on(_mode), operations.take_off)


class _Keeping:
    """The mode, but for its base: some torch has none."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What is traced or exported in a capture goes on dropping.
        if _WANTED and str(getattr(function, "__module__", "")).startswith("torch") and not is_traced():
            args, kwargs = _kept(str(function.__name__).partition(".")[0], args, kwargs or {})
        return function(*args, **(kwargs or {}))


def _mode() -> Any:
    return type("Keeping", (_Keeping, operations.overrides().TorchFunctionMode), {})()


def _kept(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments with which a function of this name drops nothing."""
    if name in _DROPOUTS:
        return _with(args, kwargs, _DROPOUTS[name], "training" if "training" in kwargs else "train", False)
    if name in _ATTENTION:
        return _with(args, kwargs, _ATTENTION[name], "dropout_p", 0.0)
    if name in _RECURRENT:
        # (input, hidden, weights, bias, layers, dropout, ...), or with packed input
        # (data, batch_sizes, hidden, weights, bias, layers, dropout, ...): weights are the last list.
        weights = max((i for i, value in enumerate(args) if isinstance(value, list)), default=len(args))
        return _with(args, kwargs, weights + 3, "dropout", 0.0)
    return args, kwargs


def _with(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str, value: object
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """With another value of the argument that stands at this place or has this name."""
    if len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _replace_functions(handle: Handle) -> None:
    """torch._VF is where torch.nn.functional finds them, so names a script imported beforehand are reached too."""
    for owner in (torch._VF, torch):
        for name in (*_DROPOUTS, *_RECURRENT):
            if hasattr(owner, name):
                handle.add(patch(owner, name, _replacing).remove)


def _replacing(original: Any, listeners: Listeners) -> Any:
    def kept(*args: Any, **kwargs: Any) -> Any:
        if listeners:
            args, kwargs = _kept(original.__name__, args, kwargs)  # type: ignore[assignment]  # what ** takes
        return original(*args, **kwargs)

    return kept


def _drops_by_itself(module: Any) -> bool:
    """A layer whose dropout does not go through torch's functions: known by its name, since nothing else shows it."""
    if not module.training:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return "drop" in str(getattr(module, "original_name", "")).lower()
    name = type(module).__name__.lower()
    foreign = not type(module).__module__.startswith("torch.nn.")
    return foreign and ("drop" in name or "stochasticdepth" in name)

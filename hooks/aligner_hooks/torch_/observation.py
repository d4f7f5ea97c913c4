"""Hooks on one layer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from aligner.adapter import After, Before, Handle
from aligner_hooks.torch_.eager import Hold, is_rehearsal


class Observer:
    """The hooks on one layer, removed together."""

    def __init__(self, *handles: Handle) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        """Take the hooks off; twice is harmless."""
        while self._handles:
            self._handles.pop().remove()


def observe(layer: Any, before: Before, after: After) -> Handle:
    """Tell of every run of the layer: its inputs before other hooks touch them, its output as it is handed on.

    A call of `layer.forward(...)` bypasses hooks, and layers inside a scripted one run in C++: neither is told of.
    """
    hold = Hold()
    try:
        if isinstance(layer, torch.jit.ScriptModule):
            return Observer(hold, *_hook_scripted(layer, before, after))
        return Observer(hold, *(_hook(layer, before, after) if _hooks_see_kwargs() else _wrap(layer, before, after)))
    except BaseException:
        hold.remove()
        raise


@cache
def _hooks_see_kwargs() -> bool:
    """Whether hooks are given keyword arguments: torch 2.0 and later."""
    return "with_kwargs" in inspect.signature(nn.Module.register_forward_hook).parameters


def _hook(layer: Any, before: Before, after: After) -> tuple[Handle, ...]:
    # Closures that return nothing: whatever a callback returns must not become the layer's input or output.
    def on_entry(module: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if not is_rehearsal():
            before(args, kwargs)

    def on_exit(module: Any, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        if not is_rehearsal():
            after(args, kwargs, output)

    entry = layer.register_forward_pre_hook(on_entry, prepend=True, with_kwargs=True)
    return entry, layer.register_forward_hook(on_exit, with_kwargs=True)


def _hook_scripted(layer: Any, before: Before, after: After) -> tuple[Handle, ...]:
    """Hooks on a scripted layer fire when Python calls it; one that stands inside another refuses them."""
    try:
        return _hook(layer, before, after)
    except (RuntimeError, AttributeError, TypeError):
        return ()


class _Wrapped:
    """A layer's own `forward` replaced on the instance."""

    def __init__(self, layer: Any, forward: Any) -> None:
        self._layer = layer
        self._had: tuple[Any, ...] = (layer.__dict__["forward"],) if "forward" in layer.__dict__ else ()
        self._forward = layer.forward = forward

    def remove(self) -> None:
        """Put back what was there, unless somebody has replaced it since."""
        if self._layer.__dict__.get("forward") is self._forward:
            del self._layer.__dict__["forward"]
            if self._had:
                self._layer.forward = self._had[0]


def _wrap(layer: Any, before: Before, after: After) -> tuple[Handle, ...]:
    """Before torch 2.0 hooks do not see keyword arguments, `forward` does."""
    forward = layer.forward

    def told(*args: object, **kwargs: object) -> object:
        rehearsal = is_rehearsal()
        if not rehearsal:
            before(args, kwargs)
        output = forward(*args, **kwargs)
        if not rehearsal:
            after(args, kwargs, output)
        return output

    return (_Wrapped(layer, told),)

"""Dropout made inactive in train mode without touching the net: the functions that draw are replaced.

All of torch's dropout layers, recurrent layers and attention end in a handful of functions. While dropout is silenced
these are told that nothing is to be dropped. Nothing is written to the net, so its settings read as they are, and a
script that calls `net.train()` in between does not bring dropout back. Layers with a dropout of their own (DropPath,
StochasticDepth) are put into eval mode by themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from aligner.adapter import Handle
from aligner_hooks.torch_ import layers
from aligner_hooks.torchlike.silence import Silencing

_DROPOUTS = (
    "dropout",
    "dropout_",
    "alpha_dropout",
    "alpha_dropout_",
    "feature_dropout",
    "feature_dropout_",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
)
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def silence(model: Any) -> Handle:
    """Make dropout inactive everywhere in this process, and in the net's own dropout layers, until removed."""
    return _SILENCING.want(place.content for place in layers.walk(model) if _drops_by_itself(place.content))


def _replace_functions(silencing: Silencing) -> None:
    # torch._VF is where torch.nn.functional finds them, so names a script imported beforehand are reached too.
    for owner in (torch._VF, torch):
        for name in _DROPOUTS:
            silencing.replace(owner, name, _nothing_dropped)
        for name in _RECURRENT:
            silencing.replace(owner, name, _recurrent_without)
    silencing.replace(functional, "scaled_dot_product_attention", _attention_without)


def _nothing_dropped(original: Any) -> Any:
    def dropout(input: Any, p: float = 0.5, train: bool = True) -> Any:
        return original(input, p, False)

    return dropout


def _recurrent_without(original: Any) -> Any:
    def recurrent(*args: Any) -> Any:
        # (input, hidden, weights, bias, layers, dropout, ...), or with packed input
        # (data, batch_sizes, hidden, weights, bias, layers, dropout, ...): weights are the last list.
        weights = max((i for i, value in enumerate(args) if isinstance(value, list)), default=None)
        if weights is None or len(args) <= weights + 3:
            return original(*args)
        return original(*args[: weights + 3], 0.0, *args[weights + 4 :])

    return recurrent


def _attention_without(original: Any) -> Any:
    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention


def _drops_by_itself(module: Any) -> bool:
    """A layer whose dropout does not go through torch's functions: known by its name, since nothing else shows it."""
    if not module.training:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return "drop" in str(getattr(module, "original_name", "")).lower()
    name = type(module).__name__.lower()
    foreign = not type(module).__module__.startswith("torch.nn.")
    return foreign and ("drop" in name or "stochasticdepth" in name)


_SILENCING = Silencing(_replace_functions)

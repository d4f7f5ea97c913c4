"""Dropout made inactive in train mode without touching the net: the functions that draw are replaced."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mindspore

from aligner.adapter import Handle
from aligner_hooks.mindtorch_.layers import LAYERS
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.torchlike.silence import Silencing

_FUNCTIONAL = ("dropout", "alpha_dropout", "feature_alpha_dropout")


def silence(model: Any) -> Handle:
    """Make dropout inactive everywhere in this process, and in the net's own dropout layers, until removed."""
    return _SILENCING.want(place.content for place in LAYERS.walk(model) if _drops_by_itself(place.content))


def _replace_functions(silencing: Silencing) -> None:
    """OpenI's functions all end in mindspore.ops; mindnlp's in one function that runs an operator by name."""
    functional = import_module(f"{package().home}.functional")
    if package().maker == OPENI:
        # MindSpore's attention finds it where it is defined.
        for owner in (mindspore.ops, import_module("mindspore.ops.function.nn_func")):
            for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "_inner_dropout"):
                silencing.replace(owner, name, _unchanged)
        for name in _FUNCTIONAL[1:]:
            silencing.replace(functional, name, _unchanged)
    else:
        silencing.replace(functional, "execute", _executing)
        for name in _FUNCTIONAL[1:]:
            silencing.replace(functional, name, _unchanged)


def _unchanged(original: Any) -> Any:
    def dropout(input: Any, *args: Any, **kwargs: Any) -> Any:
        return input

    return dropout


def _executing(original: Any) -> Any:
    def execute(name: str, *args: Any, **kwargs: Any) -> Any:
        if "dropout" in name:
            return args[0], None
        return original(name, *args, **kwargs)

    return execute


def _drops_by_itself(module: Any) -> bool:
    """A layer whose dropout does not go through these functions: known by its name, since nothing else shows it."""
    if not module.training:
        return False
    name = type(module).__name__.lower()
    foreign = not type(module).__module__.startswith("mindtorch.")
    alpha = not foreign and name in ("alphadropout", "featurealphadropout")
    return alpha or (foreign and ("drop" in name or "stochasticdepth" in name))


_SILENCING = Silencing(_replace_functions, object.__setattr__)

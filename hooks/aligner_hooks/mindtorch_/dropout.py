"""Dropout made inactive in train mode without touching the net: what draws is told to keep everything."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aligner.patches import Handle, Listeners, hold, patch, together
from aligner_hooks.mindtorch_.layers import LAYERS
from aligner_hooks.mindtorch_.package import OPENI, package

_ALPHA = ("alpha_dropout", "feature_alpha_dropout")


def silence(model: Any) -> Handle:
    """Make dropout inactive everywhere in this process, and in the net's own dropout layers, until removed.

    OpenI's functions end in mindspore.ops, all but two; mindnlp's in one function that runs an operator by name.
    """
    functional = import_module(f"{package().home}.functional")
    with together() as handle:
        for place in LAYERS.walk(model):
            if _drops_by_itself(place.content):
                handle.add(hold(place.content, "training", False).remove)
        if package().maker == OPENI:
            from aligner_hooks.mindsporelike import undropped  # it compiles, and mindnlp's cannot be

            handle.add(undropped.silence(*(getattr(functional, name) for name in _ALPHA)).remove)
        else:
            handle.add(patch(functional, "execute", _executing).remove)
        return handle


def _executing(original: Any, listeners: Listeners) -> Any:
    def execute(name: str, *args: Any, **kwargs: Any) -> Any:
        if listeners and "dropout" in name:
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

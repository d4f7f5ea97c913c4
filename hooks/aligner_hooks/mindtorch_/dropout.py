"""Dropout made inactive in train mode without touching the net: the functions that draw are replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import mindspore

from aligner.adapter import Handle
from aligner_hooks.mindtorch_.layers import LAYERS
from aligner_hooks.mindtorch_.package import OPENI, package

_FUNCTIONAL = ("dropout", "alpha_dropout", "feature_alpha_dropout")


class _Silenced:
    """What is replaced while anybody wants silence, and how many want it."""

    def __init__(self) -> None:
        self.wanted = 0
        self.undo = ExitStack()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put another function in the place of `owner.name`, if there is one."""
        original = getattr(owner, name, None)
        if original is not None:
            self.undo.callback(setattr, owner, name, original)
            setattr(owner, name, make(original))

    def still(self, module: Any) -> None:
        """Put one layer into eval mode, without those inside it."""
        self.undo.callback(object.__setattr__, module, "training", module.training)
        object.__setattr__(module, "training", False)


_SILENCED = _Silenced()


class Silence:
    """One who wants silence; a handle. All is put back when the last one is gone."""

    def __init__(self, model: Any) -> None:
        self._wanted = True
        _SILENCED.wanted += 1
        try:
            if _SILENCED.wanted == 1:
                _replace_functions()
            for place in LAYERS.walk(model):
                if _drops_by_itself(place.content):
                    _SILENCED.still(place.content)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Want it no longer; twice is harmless."""
        if self._wanted:
            self._wanted = False
            _SILENCED.wanted -= 1
            if _SILENCED.wanted == 0:
                _SILENCED.undo.close()


def silence(model: Any) -> Handle:
    """Make dropout inactive everywhere in this process, and in the net's own dropout layers, until removed."""
    return Silence(model)


def _replace_functions() -> None:
    """OpenI's functions all end in mindspore.ops; mindnlp's in one function that runs an operator by name."""
    functional = import_module(f"{package().home}.functional")
    if package().maker == OPENI:
        # MindSpore's attention finds it where it is defined.
        for owner in (mindspore.ops, import_module("mindspore.ops.function.nn_func")):
            for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "_inner_dropout"):
                _SILENCED.replace(owner, name, _unchanged)
        for name in _FUNCTIONAL[1:]:
            _SILENCED.replace(functional, name, _unchanged)
    else:
        _SILENCED.replace(functional, "execute", _executing)
        for name in _FUNCTIONAL[1:]:
            _SILENCED.replace(functional, name, _unchanged)


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

"""What counts as a module: the package's own, and those of the copies that mixed precision makes of its classes.

MindSpore's mixed precision puts rewritten classes in the place of the layers' own. In a net's second rewriting, and in
every later one, these come from nn.Module as it was imported once more, under another name: for Python that is another
class, with a `__call__` of its own, and MindTorch's `net.parameters()` passes over such layers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Optional

from aligner_hooks.mindsporelike.rewritten import first_import
from aligner_hooks.mindtorch_.package import package


@cache
def module_of(kind: type) -> Optional[type]:
    """nn.Module, or the copy of it whose `__call__` runs for modules of this class; None for what is no module."""
    own = package().nn.Module
    for base in kind.__mro__:
        if base is own or (base.__name__ == own.__name__ and first_import(base) is own):
            return base
    return None


class _Kin(type):
    def __instancecheck__(cls, value: Any) -> bool:
        kind: Any = type(value)
        return module_of(kind) is not None


class AnyModule(metaclass=_Kin):
    """A module is an instance of this, whichever of the copies its class comes from."""

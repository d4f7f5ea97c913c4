"""Several modules that are trained beside each other, as one module; the package is handed in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any


@cache
def _class(module: Any) -> Any:
    class Nets(module):
        """Hands a call on to that of its modules that `net` names."""

        def forward(self, *args: Any, net: str, **kwargs: Any) -> Any:
            return self._modules[net](*args, **kwargs)

    Nets.__qualname__ = "Nets"
    return Nets


def together(module: Any, nets: Mapping[str, Any]) -> Any:
    """A module of these; they stay as they are."""
    joined = _class(module)()
    joined.training = any(net.training for net in nets.values())
    for name, net in nets.items():
        joined._modules[name] = net
    return joined


def parts(module: Any, model: Any) -> Mapping[str, Any]:
    """The modules that one was made of by `together`."""
    return dict(model._modules) if isinstance(model, _class(module)) else {}

"""Whose code a layer runs."""

from __future__ import annotations

from typing import Any

from aligner.adapter import Adapter
from aligner.vocabulary import KINDS


def is_own(adapter: Adapter, layer: Any) -> bool:
    """Whether the user has written what the layer computes; a class of his may bear a name of the framework's."""
    if adapter.spec(layer).kind not in KINDS:
        return True
    if not hasattr(adapter, "computing"):  # an adapter of others' may not tell
        return False
    owner, name = adapter.computing(layer)
    home = next((base for base in type(owner).__mro__ if name in vars(base)), None)
    return home is not None and home.__module__.partition(".")[0] not in adapter.packages

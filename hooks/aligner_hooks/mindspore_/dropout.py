"""Dropout made inactive in train mode, wherever MindSpore keeps it, and given back.

Functions and operators are silenced where all that drops ends (see mindsporelike.undropped); in a graph MindSpore
compiles the operators themselves, so those in the net are exchanged. No setting of a cell is written, and a script
that calls `set_train()` in between does not bring dropout back.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn

from aligner.patches import Handle, hold, together
from aligner_hooks.mindspore_.layers import parts, places
from aligner_hooks.mindsporelike import undropped


def silence(model: nn.Cell) -> Handle:
    """Every dropout of the model keeps everything until the handle is removed."""
    with together() as handle:
        handle.add(undropped.silence().remove)
        for _, cell, _ in places(model):
            for each in (cell, *(part for _, part in parts(cell))):
                for name, operator in list(vars(each).items()):
                    kind: Any = type(operator)
                    if issubclass(kind, undropped.CLASSES):
                        handle.add(hold(vars(each), name, undropped.kept(kind)).remove)
        return handle

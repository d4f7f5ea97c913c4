"""Several cells that are trained beside each other, as one cell; and which nets there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore import nn

from aligner.patches import Handle
from aligner_hooks.living import living
from aligner_hooks.mindspore_ import roots
from aligner_hooks.mindsporelike.nets import is_helper, is_optimizer, looped


class Nets(nn.Cell):
    """Hands a call on to that of its cells that `net` names.

    They are no attributes: to set one gives its parameters other names.
    """

    def __init__(self, nets: Mapping[str, nn.Cell]) -> None:
        super().__init__(auto_prefix=False)
        self._cells.update(nets)
        self.training = any(net.training for net in nets.values())

    def construct(self, *args: Any, net: str, **kwargs: Any) -> Any:
        return self._cells[net](*args, **kwargs)


def routed(model: Any) -> Handle:
    """Have outermost calls of its cells be calls of its own."""
    return roots.routed(model, dict(model._cells) if isinstance(model, Nets) else {})


def alive() -> tuple[list[Any], list[Any]]:
    """Optimizers and nets; of a loop the net inside."""
    cells = living(nn.Cell)
    nets = [looped(cell) for cell in cells if not is_helper(cell) and not isinstance(cell, Nets)]
    return [cell for cell in cells if is_optimizer(cell)], [*{id(net): net for net in nets}.values()]

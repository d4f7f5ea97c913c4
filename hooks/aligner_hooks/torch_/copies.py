"""Copies of torch's layers with some settings changed."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import nn

from aligner_hooks.torch_ import parameters
from aligner_hooks.torch_.constructions import CONSTRUCTIONS, is_of_torch
from aligner_hooks.torch_.layers import LAYERS
from aligner_hooks.torchlike.copies import Copies


class _Values:
    """torch's tensors as copying asks for them."""

    def cast(self, model: Any, dtype: str) -> None:
        parameters.cast(model, dtype)

    def own(self, tensor: Any) -> Optional[Any]:
        """What a graph holds cannot be copied by copy.deepcopy."""
        return None if tensor.is_leaf else tensor.detach().clone()

    def full(self, like: Any, start: float, beside: Any) -> Any:
        dtype = beside.dtype if beside is not None and like.is_floating_point() else like.dtype
        values = torch.full(like.shape, start, dtype=dtype, device="cpu" if beside is None else beside.device)
        return nn.Parameter(values) if isinstance(like, nn.Parameter) else values


respecified = Copies(LAYERS, CONSTRUCTIONS, _Values(), is_of_torch).respecified

"""Constructor calls that make a layer of torch like one in hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from aligner_hooks.torch_.spec import SPECS
from aligner_hooks.torchlike.constructions import Constructions

PREAMBLE = "import torch\nfrom torch import nn\n"


@contextmanager
def _apart() -> Iterator[None]:
    """Layers without values, and no random numbers drawn."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if hasattr(torch.device, "__enter__"):
            stack.enter_context(torch.device("meta"))
        yield


def is_of_torch(hook: Any) -> bool:
    """Whether a hook is how torch computes a weight from others (weight_norm, spectral_norm)."""
    return type(hook).__module__.startswith("torch.nn.utils.")


def _computed(layer: Any) -> bool:
    """Whether weights of the layer are computed from others."""
    hooks = layer._forward_pre_hooks.values()
    return nn.utils.parametrize.is_parametrized(layer) or any(is_of_torch(hook) for hook in hooks)


CONSTRUCTIONS = Constructions(nn, SPECS, _computed, _apart)
spelled = CONSTRUCTIONS.spelled

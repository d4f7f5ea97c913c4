"""Training steps in MindSpore, eager: gradients of tensors, and a Task's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import mindspore
from mindspore import Tensor, ops

from aligner.adapter import Told, Train
from aligner.patches import Handle
from aligner_hooks.mindsporelike import training
from aligner_hooks.mindsporelike.optimizers import parameters
from aligner_hooks.mindsporelike.training import Way

_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)


def on_gradient(tensor: Any, told: Told) -> Optional[Handle]:
    """Be told of the gradient of a tensor: of all its uses together."""
    return training.hooked(tensor.register_hook, told) if tensor.dtype in _FLOATS else None


def losses(told: Callable[[object], None]) -> Handle:
    """Be told of what each function that is differentiated makes, before its backward run."""
    return training.losses(told, _is_loss)


def _is_loss(made: Any) -> bool:
    return isinstance(made, Tensor) and made.dtype in _FLOATS and made.size == 1


def put(kept: Any, other: Any) -> None:
    """Other values for a parameter of an optimizer."""
    kept.set_data(other)


def trained(model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
    """One update: forward, loss, gradients of each micro-batch, then what the Task says."""
    made = task.optimizer
    owned = model.trainable_params() if made is None else parameters(made)

    def update(gradients: Sequence[Any]) -> None:
        if made is not None:
            made(gradients)

    return training.trained(model, task, told, Way(mindspore.ParameterTuple(owned), update, _clipped))


def _clipped(gradients: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Scaled down where the norm of all of them is larger."""
    whole = ops.sqrt(ops.stack([(one * one).sum() for one in gradients]).sum())
    factor = ops.minimum(norm / (whole + 1e-6), Tensor(1.0, whole.dtype))
    return [one * factor for one in gradients]

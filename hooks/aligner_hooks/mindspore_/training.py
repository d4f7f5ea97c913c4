"""Training steps in MindSpore, eager: gradients of tensors, updates of optimizers, and a Task's steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Optional

import mindspore
from mindspore import Tensor, nn, ops

from aligner.adapter import Arguments, Told, Train, Update
from aligner.patches import Handle, Listeners, patch
from aligner_hooks.mindspore_ import nesting
from aligner_hooks.mindspore_.optimizers import parameters
from aligner_hooks.mindsporelike import modes
from aligner_hooks.mindsporelike.nets import is_optimizer

_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)


def on_gradient(tensor: Any, told: Told) -> Optional[Handle]:
    """Be told of the gradient of a tensor: of all its uses together.

    MindSpore takes plain functions alone, and looks at how many arguments they have.
    """
    if tensor.dtype not in _FLOATS:
        return None

    def hook(gradient: Any) -> Any:
        return None if nesting.is_inner() else told(gradient)

    try:
        return Handle(tensor.register_hook(hook).remove)
    except RuntimeError:  # nothing differentiates it: it was detached, or is made where no gradient is asked for
        return None


def losses(told: Callable[[object], None]) -> Handle:
    """Be told of what each function that is differentiated makes, before its backward run."""

    def made(output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, Tensor) and first.dtype in _FLOATS and first.size == 1:
            told(first)

    return nesting.outermost(made)


def held(made: Any, wanted: Any) -> Any:
    """The values of one with the derivative of the other."""
    return _Held()(made, wanted)


class _Held(nn.Cell):
    """`made + (wanted - made)` would round; this hands on the very bits."""

    def construct(self, made: Any, wanted: Any) -> Any:
        return ops.stop_gradient(wanted)

    def bprop(self, made: Any, wanted: Any, out: Any, dout: Any) -> Any:
        return dout, ops.zeros_like(wanted)


class _Inside(threading.local):
    """Whether this thread is in an update: one optimizer may call another (LARS)."""

    update = False


_INSIDE = _Inside()


def updates(begun: Update, ended: Callable[[object], None]) -> Handle:
    """Be told before and after each call of an optimizer."""
    return patch(nn.Cell, "__call__", _updating, (begun, ended))


def _updating(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        if not listeners or _INSIDE.update or not is_optimizer(self):
            return original(self, *args, **kwargs)
        gradients = args[0] if args else next(iter(kwargs.values()), ())
        pairs = [*zip(parameters(self), gradients)]
        for begun, _ in [*listeners.values()]:
            instead = begun(self, pairs)
            if instead is not None:
                args, kwargs = (tuple(instead), *args[1:]), {}
        _INSIDE.update = True
        try:
            made = original(self, *args, **kwargs)
        finally:
            _INSIDE.update = False
        for _, ended in [*listeners.values()]:
            ended(self)
        return made

    return __call__


def treated(gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
    """New gradients: these times the factor, clipped in one way or another."""
    made = [one * factor for one in gradients]
    if kind == "norm":
        return list(ops.clip_by_global_norm(tuple(made), bound))
    if kind == "each":
        return [ops.clip_by_norm(one, bound) for one in made]
    return [ops.clip_by_value(one, -bound, bound) for one in made] if kind == "value" else made


def put(kept: Any, other: Any) -> None:
    """Other values for a parameter of an optimizer."""
    kept.set_data(other)


def trained(model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
    """One update: forward, loss, gradients of each micro-batch, then what the Task says."""
    made = task.optimizer
    owned = model.trainable_params() if made is None else parameters(made)
    scale = 1.0 if task.loss_scale is None else float(task.loss_scale)
    weights = mindspore.ParameterTuple(owned)

    def gradients(args: Any, kwargs: Any) -> list[Any]:
        *given, label = args

        def forward(*given: Any) -> Any:
            output = model(*given, **kwargs)
            loss = task.loss(output, label)
            instead: Any = told(output, label, loss)
            loss = loss if instead is None else instead
            return loss * scale if task.loss_scale is not None else loss

        _, found = mindspore.value_and_grad(forward, None, weights)(*given)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        if task.loss_scale is not None:
            found = [one / scale for one in found]
        return found if task.clip_norm is None else _clipped(found, float(task.clip_norm))

    def step(rows: Sequence[Arguments]) -> None:
        total: list[Any] = []
        with modes.held("pynative"):
            for args, kwargs in rows:
                found = gradients(args, kwargs)
                total = [a + b for a, b in zip(total, found)] if total else found
            if made is not None:
                made(tuple(total))
            if task.lr_schedule is not None:
                task.lr_schedule.step()

    return step


def _clipped(gradients: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Scaled down where the norm of all of them is larger."""
    whole = ops.sqrt(ops.stack([(one * one).sum() for one in gradients]).sum())
    factor = ops.minimum(norm / (whole + 1e-6), Tensor(1.0, whole.dtype))
    return [one * factor for one in gradients]

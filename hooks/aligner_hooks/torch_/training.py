"""Training steps in torch: gradients of tensors, updates of optimizers, and a Task's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Optional

import torch

from aligner.adapter import Arguments, Told, Train, Update
from aligner.patches import Handle, Listeners, patch
from aligner_hooks.torch_.eager import Hold, unfused
from aligner_hooks.torchlike import training
from aligner_hooks.torchlike.training import Optimizers

_MODULE = import_module("torch.optim.optimizer")  # torch.optim has no attribute of this name in every version
_BEFORE: Any = getattr(_MODULE, "register_optimizer_step_pre_hook", None)
_AFTER: Any = getattr(_MODULE, "register_optimizer_step_post_hook", None)
OPTIMIZERS = Optimizers(torch, "torch")


def can_tell_of_updates() -> bool:
    """Whether this torch tells of the updates that any optimizer makes: torch 2.0 and later."""
    return _BEFORE is not None and _AFTER is not None


def on_gradient(tensor: Any, told: Told) -> Optional[Handle]:
    """Be told of the gradient of a tensor: of all its uses together."""
    if not tensor.requires_grad:
        return None

    def hook(gradient: Any) -> Any:
        return None if _is_inner() else told(gradient)

    return Handle(tensor.register_hook(hook).remove)


class _Backward:
    """How many runs of `backward` are under way, whatever thread the gradients are made in."""

    runs = 0


_BACKWARD = _Backward()


def _is_inner() -> bool:
    """Whether the gradients of this run are to be differentiated themselves: what `torch.autograd.grad` makes with
    `create_graph` is a part of the loss."""
    return torch.is_grad_enabled() and not _BACKWARD.runs


def losses(told: Callable[[object], None]) -> Handle:
    """Be told of what each backward run begins at, before it does."""
    return patch(torch.autograd, "backward", _beginning, told)


def _beginning(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if loss is not None and loss.numel() == 1:
            for told in [*listeners.values()]:
                told(loss)
        _BACKWARD.runs += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            _BACKWARD.runs -= 1

    return backward


def held(made: Any, wanted: Any) -> Any:
    """The values of one with the derivative of the other."""
    if not made.requires_grad:
        return wanted
    return _Held.apply(made, wanted)


class _Held(torch.autograd.Function):
    """`made + (wanted - made)` would round; this hands on the very bits."""

    @staticmethod
    def forward(ctx: Any, made: Any, wanted: Any) -> Any:
        return wanted.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def updates(begun: Update, ended: Callable[[object], None]) -> Handle:
    """Be told before and after each update; one that calls its parent's is one."""
    return training.updates(_BEFORE, _AFTER, begun, ended)


def treated(gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
    """New gradients: these times the factor, clipped in one way or another."""
    holders = [torch.zeros_like(one) for one in gradients]
    for holder, gradient in zip(holders, gradients):
        holder.grad = gradient * factor
    if kind == "norm":
        torch.nn.utils.clip_grad_norm_(holders, bound)
    elif kind == "value":
        torch.nn.utils.clip_grad_value_(holders, bound)
    for holder in holders if kind == "each" else ():
        torch.nn.utils.clip_grad_norm_([holder], bound)
    return [holder.grad for holder in holders]


def lost(scores: Any, wanted: Any, kind: str) -> tuple[Any, Any]:
    """A cross entropy of rows of scores, and its gradient."""
    given = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        if kind in ("binary", "sigmoid"):
            rows = given.sigmoid() if kind == "sigmoid" else given
            logs = torch.nn.functional.logsigmoid(torch.cat([rows, -rows], -1))
        else:
            logs = torch.log_softmax(given.softmax(-1) if kind == "twice" else given, -1)
        loss = -(wanted * logs).sum()
        (gradient,) = torch.autograd.grad(loss, given)
    return loss.detach(), gradient


def put(kept: Any, other: Any) -> None:
    """Other values for a tensor."""
    with torch.no_grad():
        kept.copy_(other)


def trained(model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
    """One update: forward, loss, backward of each micro-batch, then what the Task says."""
    made = task.optimizer
    owned = model.parameters() if made is None else (p for group in made.param_groups for p in group["params"])
    parameters = [parameter for parameter in owned if parameter.requires_grad]
    scale = 1.0 if task.loss_scale is None else float(task.loss_scale)

    def gradients(args: Any, kwargs: Any) -> list[Any]:
        *given, label = args
        output = model(*given, **kwargs)
        loss = task.loss(output, label)
        instead: Any = told(output, label, loss)
        loss = loss if instead is None else instead
        for parameter in parameters:
            parameter.grad = None
        (loss * scale if task.loss_scale is not None else loss).backward()
        found = [parameter.grad for parameter in parameters]
        if task.loss_scale is not None:
            found = [None if one is None else one / scale for one in found]
        return found if task.clip_norm is None else OPTIMIZERS.clipped(found, float(task.clip_norm))

    def step(rows: Sequence[Arguments]) -> None:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(Hold())
            stack.enter_context(unfused())
            total: list[Any] = [None] * len(parameters)
            for args, kwargs in rows:
                total = [_sum(*pair) for pair in zip(total, gradients(args, kwargs))]
            for parameter, gradient in zip(parameters, total):
                parameter.grad = gradient
            if made is not None:
                made.step()
            if task.lr_schedule is not None:
                task.lr_schedule.step()

    return step


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other

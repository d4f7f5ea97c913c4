"""Training steps in torch: gradients of tensors, updates of optimizers, and a Task's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Optional

import torch

from aligner.adapter import Apply, Arguments, Group, Kept, Optimizer, Told, Train, Update
from aligner.patches import Handle, Listeners, patch
from aligner.record import Attribute
from aligner.words import optimizers as words
from aligner_hooks.groups import groups
from aligner_hooks.torch_.eager import Hold, unfused

_MODULE = import_module("torch.optim.optimizer")  # torch.optim has no attribute of this name in every version
_BEFORE: Any = getattr(_MODULE, "register_optimizer_step_pre_hook", None)
_AFTER: Any = getattr(_MODULE, "register_optimizer_step_post_hook", None)


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
    inside: dict[int, int] = {}

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        inside[id(optimizer)] = inside.get(id(optimizer), 0) + 1
        if inside[id(optimizer)] > 1:
            return
        given = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
        instead = begun(optimizer, given)
        for (parameter, _), gradient in zip(given, instead or ()):
            parameter.grad = gradient

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        left = inside.pop(id(optimizer), 1) - 1
        if left > 0:
            inside[id(optimizer)] = left
        else:
            ended(optimizer)

    handle = Handle(_BEFORE(before).remove)
    handle.add(_AFTER(after).remove)
    return handle


def optimizer(made: Any) -> Optimizer:
    """Kind, groups and state, as they are now."""
    kind, implied = words.kind(type(made).__name__)
    state = [
        (parameter, words.state(kind, name), value)
        for group in made.param_groups
        for parameter in group["params"]
        for name, value in made.state.get(parameter, {}).items()
        if value is not None
    ]
    return Optimizer(kind, f"{type(made).__module__}.{type(made).__name__}", groups(made, implied, _number), state)


def _number(value: Any) -> Optional[float]:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


# A canonical setting -> the argument, by kind.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
    "Adagrad": ("lr", "lr_decay", "weight_decay", "eps"),
}
_STATE = {"momentum": "momentum_buffer", "first": "exp_avg", "second": "exp_avg_sq", "max_second": "max_exp_avg_sq"}
_RMS = {**_STATE, "second": "square_avg", "mean": "grad_avg"}
_KEPT = {"SGD": _STATE, "Adam": _STATE, "RMSprop": _RMS, "Adagrad": {"sum": "sum"}}


def rebuilt(old: Any, kind: str, wanted: Sequence[Group], kept: Kept, count: int) -> Apply:
    """Another optimizer on the same parameters."""
    if kind not in _ARGUMENTS or any(group.settings.get("bias_correction") is False for group in wanted):
        raise ValueError(f"torch has no {kind} that is told so")
    decoupled = any(group.settings.get("decoupled") is True for group in wanted)
    made = (torch.optim.AdamW if kind == "Adam" and decoupled else getattr(torch.optim, kind))(
        [{"params": list(group.parameters), **_arguments(kind, group.settings)} for group in wanted], lr=0.0
    )
    for parameter, word, value in kept:
        if word in _KEPT[kind]:
            state = made.state[parameter]
            state[_KEPT[kind][word]] = value.clone()  # type: ignore[attr-defined]  # a tensor
            if kind != "SGD":
                state["step"] = torch.tensor(float(count))

    def apply(gradients: Sequence[Any]) -> None:
        owned = [parameter for group in made.param_groups for parameter in group["params"]]
        before = [parameter.grad for parameter in owned]
        for parameter, gradient in zip(owned, gradients):
            parameter.grad = gradient
        made.step()
        for parameter, gradient in zip(owned, before):
            parameter.grad = gradient

    return apply


def _arguments(kind: str, settings: Mapping[str, Attribute]) -> dict[str, Any]:
    known = {name: settings[name] for name in _ARGUMENTS[kind] if settings.get(name) is not None}
    if kind == "Adam":
        known["betas"] = (known.pop("beta1", 0.9), known.pop("beta2", 0.999))
    return known


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
        return found if task.clip_norm is None else _clipped(found, float(task.clip_norm))

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


def _clipped(gradients: Sequence[Any], norm: float) -> list[Any]:
    """Scaled down where the norm of all of them is larger."""
    there = [one for one in gradients if one is not None]
    whole = torch.sqrt(torch.stack([(one.detach() ** 2).sum() for one in there]).sum())
    factor = norm / (whole + 1e-6)
    return [None if one is None else one * factor.clamp(max=1.0) for one in gradients]

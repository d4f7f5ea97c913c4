"""Training steps of what runs on MindSpore, eager: gradients, losses, updates by optimizers, and a Task's steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import mindspore
from mindspore import nn, ops

from aligner.adapter import Arguments, Told, Train, Update
from aligner.patches import Handle, Listeners, patch, together
from aligner_hooks.mindsporelike import modes, nesting
from aligner_hooks.mindsporelike.nets import is_optimizer
from aligner_hooks.mindsporelike.optimizers import parameters


def hooked(register: Callable[[Told], Any], told: Told) -> Optional[Handle]:
    """Be told of the gradient of a tensor by its own hook.

    MindSpore takes plain functions alone, and looks at how many arguments they have.
    """

    def hook(gradient: Any) -> Any:
        return None if nesting.is_inner() else told(gradient)

    try:
        return Handle(register(hook).remove)
    except RuntimeError:  # nothing differentiates it: it was detached, or is made where no gradient is asked for
        return None


def losses(told: Callable[[object], None], is_loss: Callable[[Any], bool]) -> Handle:
    """Be told of what each function that is differentiated makes, before its backward run."""

    def made(output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if is_loss(first):
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
    with together() as handle:
        handle.add(modes.uncompiled().remove)
        handle.add(patch(nn.Cell, "__call__", _updating, (begun, ended)).remove)
    return handle


def is_told(listeners: Listeners) -> bool:
    """Whether somebody is to be told of an update that begins now."""
    return bool(listeners) and not _INSIDE.update


def around(
    listeners: Listeners, optimizer: Any, gradients: Sequence[Any], run: Callable[[Optional[tuple[Any, ...]]], Any]
) -> Any:
    """An update that the listeners are told of; `run` gets the gradients that are to take the others' place."""
    pairs = [*zip(parameters(optimizer), gradients)]
    given: Optional[tuple[Any, ...]] = None
    for begun, _ in [*listeners.values()]:
        instead = begun(optimizer, pairs)
        given = given if instead is None else tuple(instead)
    _INSIDE.update = True
    try:
        made = run(given)
    finally:
        _INSIDE.update = False
    for _, ended in [*listeners.values()]:
        ended(optimizer)
    return made


def _updating(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        if not is_told(listeners) or not is_optimizer(self):
            return original(self, *args, **kwargs)

        def run(given: Optional[tuple[Any, ...]]) -> Any:
            return original(self, *args, **kwargs) if given is None else original(self, given, *args[1:])

        return around(listeners, self, args[0] if args else next(iter(kwargs.values()), ()), run)

    return __call__


def treated(gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
    """New gradients: these times the factor, clipped in one way or another."""
    made = [one * factor for one in gradients]
    if kind == "norm":
        return list(ops.clip_by_global_norm(tuple(made), bound))
    if kind == "each":
        return [ops.clip_by_norm(one, bound) for one in made]
    return [ops.clip_by_value(one, -bound, bound) for one in made] if kind == "value" else made


def lost(scores: Any, wanted: Any, kind: str) -> tuple[Any, Any]:
    """A cross entropy of rows of scores, and its gradient."""

    def loss(given: Any) -> Any:  # by primitives: what mindnlp has in the place of others asks for a device
        if kind in ("binary", "sigmoid"):
            rows = ops.Sigmoid()(given) if kind == "sigmoid" else given
            return ops.ReduceSum()(ops.mul(wanted, ops.Softplus()(ops.Concat(-1)((ops.neg(rows), rows)))), ())
        logs = ops.log_softmax(ops.softmax(given, -1) if kind == "twice" else given, -1)
        return ops.neg(ops.ReduceSum()(ops.mul(wanted, logs), ()))

    made, gradient = mindspore.value_and_grad(loss)(scores)
    return made, gradient


@dataclass(frozen=True)
class Way:
    """How a package that runs on MindSpore trains."""

    weights: Any
    """What is differentiated with respect to."""
    update: Callable[[Sequence[Any]], object]
    """Has the optimizer, if there is one, make its update of these gradients."""
    clipped: Callable[[Sequence[Any], float], Sequence[Any]]
    """Gradients, scaled down where the norm of all of them is larger."""
    raised: Callable[[Any, Any], Any] = lambda gradient, weight: gradient
    """MindSpore's gradient of a weight as one of the package's tensors."""


def trained(model: Any, task: Any, told: Callable[[object, object, object], object], way: Way) -> Train:
    """One update: forward, loss, gradients of each micro-batch, then what the Task says."""
    scale = 1.0 if task.loss_scale is None else float(task.loss_scale)

    def gradients(args: Any, kwargs: Any) -> Sequence[Any]:
        *given, label = args

        def forward(*given: Any) -> Any:
            output = model(*given, **kwargs)
            loss = task.loss(output, label)
            instead: Any = told(output, label, loss)
            loss = loss if instead is None else instead
            return loss * scale if task.loss_scale is not None else loss

        _, made = mindspore.value_and_grad(forward, None, way.weights)(*given)
        made = made if isinstance(made, (tuple, list)) else [made]
        found = [way.raised(*pair) for pair in zip(made, way.weights)]
        if task.loss_scale is not None:
            found = [one / scale for one in found]
        return found if task.clip_norm is None else way.clipped(found, float(task.clip_norm))

    def step(rows: Sequence[Arguments]) -> None:
        total: list[Any] = []
        with modes.held("pynative"):
            for args, kwargs in rows:
                found = gradients(args, kwargs)
                total = [a + b for a, b in zip(total, found)] if total else [*found]
            way.update(tuple(total))
            if task.lr_schedule is not None:
                task.lr_schedule.step()

    return step

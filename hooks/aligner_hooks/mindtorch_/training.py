"""Training steps in MindTorch, eager: gradients of tensors, and a Task's steps. Both packages have MindSpore's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Optional

import mindspore

from aligner.adapter import Told, Train
from aligner.patches import Handle, Listeners, patch
from aligner_hooks.mindsporelike import training
from aligner_hooks.mindsporelike.compiler import graph_api
from aligner_hooks.mindsporelike.training import Way
from aligner_hooks.mindtorch_ import tensors, updates
from aligner_hooks.mindtorch_.package import OPENI, package

_FLOATS = ("float16", "float32", "float64", "bfloat16")


def on_gradient(tensor: Any, told: Told) -> Optional[Handle]:
    """Be told of the gradient of a tensor: of all its uses together."""
    if tensors.dtype(tensor) not in _FLOATS:
        return None
    if package().maker == OPENI:
        return _on_asked(tensor, told)
    return training.hooked(lambda hook: _Hooked(tensor, hook), told)


def _stub(answer: Any) -> Any:
    """MindSpore 2.5 takes no tensor from a hook that is not wrapped as one that is still to be computed."""
    from mindspore.common._stub_tensor import StubTensor

    value = None if answer is None else package().lowered(answer)
    return value if value is None or isinstance(value, StubTensor) else StubTensor(tensor=value)


class _Asked(threading.local):
    """What this thread differentiates with respect to, by id: parameters, and arguments that it does not."""

    weights: Optional[set[int]] = None
    others: frozenset[int] = frozenset()


_ASKED = _Asked()


def _on_asked(tensor: Any, told: Told) -> Optional[Handle]:
    """Not told of the zeros that MindSpore 2.5 tells of where nobody has asked for a parameter's or an argument's."""
    is_parameter = isinstance(tensor, package().nn.Parameter)

    def asked(gradient: Any) -> Any:
        weights = _ASKED.weights
        is_asked = weights is None or id(tensor) in weights if is_parameter else id(tensor) not in _ASKED.others
        return _stub(told(gradient)) if is_asked else None

    handle = training.hooked(tensor.register_hook, asked)
    if handle is not None:
        handle.add(patch(type(graph_api("_pynative_executor")), "grad", _differentiating).remove)
    return handle


def _differentiating(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def grad(self: Any, obj: Any, operation: Any, weights: Any, position: Any, *args: Any) -> Any:
        before = _ASKED.weights, _ASKED.others
        _ASKED.weights = {*map(id, weights if isinstance(weights, (tuple, list)) else (weights,))}
        by_argument = any(getattr(operation, name, False) for name in ("get_all", "get_by_position"))
        is_by_weight = bool(getattr(operation, "get_by_list", False)) and not by_argument
        _ASKED.others = frozenset(map(id, args)) if is_by_weight else frozenset()
        try:
            return original(self, obj, operation, weights, position, *args)
        finally:
            _ASKED.weights, _ASKED.others = before

    return grad


class _Hooked:
    """A hook on a tensor of mindnlp's, whose own `register_hook` looks for what its tensors do not have."""

    def __init__(self, tensor: Any, hook: Any) -> None:
        from mindspore._c_expression import TensorPy

        self._remove: Any = TensorPy.remove_hook
        self._number = TensorPy.register_hook(tensor, hook)

    def remove(self) -> None:
        self._remove(self._number)


def losses(told: Callable[[object], None]) -> Handle:
    """Be told of what each function that is differentiated makes, before its backward run."""
    return training.losses(told, _is_loss)


def _is_loss(made: Any) -> bool:
    return tensors.is_tensor(made) and tensors.dtype(made) in _FLOATS and all(size == 1 for size in made.shape)


def held(made: Any, wanted: Any) -> Any:
    """The values of one with the derivative of the other."""
    return _placed(package().raised(training.held(made, wanted)), made)


def _placed(value: Any, like: Any) -> Any:
    """On the device of another tensor: mindnlp's operators ask for it, and MindSpore's own leave it open."""
    if package().maker != OPENI:
        value._device = like.device
    return value


def treated(gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
    """New gradients: these times the factor, clipped in one way or another.

    MindSpore's own clipping does not take mindnlp's tensors.
    """
    if package().maker != OPENI and kind in ("norm", "each"):
        scaled = [one * factor for one in gradients]
        groups = [scaled] if kind == "norm" else [[one] for one in scaled]
        return [one for group in groups for one in updates.clipped(group, bound)]
    plain = [tensors.settled(one) for one in gradients]
    made = training.treated(plain, kind, factor, bound)
    return [_placed(package().raised(one), like) for one, like in zip(made, gradients)]


def lost(scores: Any, wanted: Any, kind: str) -> tuple[Any, Any]:
    """A cross entropy of rows of scores, and its gradient."""
    made = training.lost(tensors.settled(scores), tensors.settled(wanted), kind)
    loss, gradient = (_placed(package().raised(one), scores) for one in made)
    return loss, gradient


def put(kept: Any, other: Any) -> None:
    """Other values for what an optimizer keeps."""
    value = tensors.settled(other)
    if package().maker == OPENI and isinstance(kept, mindspore.Parameter):
        kept.set_data(value)
    else:
        tensors.assign(kept, value)


def trained(model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
    """One update: forward, loss, gradients of each micro-batch, then what the Task says."""
    made = task.optimizer
    weights = tuple(one for one in (model.parameters() if made is None else updates.owned(made)) if one.requires_grad)

    def update(gradients: Sequence[Any]) -> None:
        if made is not None:
            updates.made_of(made, gradients)

    def raised(gradient: Any, weight: Any) -> Any:
        return _placed(package().raised(gradient), weight)

    return training.trained(model, task, told, Way(weights, update, updates.clipped, raised))

"""Updates by optimizers with torch's interface, and what they are told to do; the package is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from aligner.adapter import Apply, Group, Kept, Optimizer, Update
from aligner.patches import Handle
from aligner.record import Attribute
from aligner.words import optimizers as words
from aligner_hooks.groups import groups

Register = Callable[[Any], Any]


def updates(before: Register, after: Register, begun: Update, ended: Callable[[object], None]) -> Handle:
    """Be told before and after each update; one that calls its parent's is one.

    `before` and `after` register what the package calls around each `step`. Gradients are the parameters', unless
    `step` is given some.
    """
    inside: dict[int, int] = {}

    def enter(optimizer: Any, args: Any, kwargs: Any) -> Optional[tuple[Any, Any]]:
        inside[id(optimizer)] = inside.get(id(optimizer), 0) + 1
        if inside[id(optimizer)] > 1:
            return None
        owned = parameters(optimizer)
        gradients = _handed(args[1:], len(owned))
        given = [*zip(owned, (p.grad for p in owned) if gradients is None else gradients)]
        instead = begun(optimizer, given)
        if instead is not None and gradients is not None:
            return (args[0], tuple(instead), *args[2:]), kwargs
        for (parameter, _), gradient in zip(given, instead or ()):
            parameter.grad = gradient
        return None

    def leave(optimizer: Any, args: Any, kwargs: Any) -> None:
        left = inside.pop(id(optimizer), 1) - 1
        if left > 0:
            inside[id(optimizer)] = left
        else:
            ended(optimizer)

    handle = Handle(before(enter).remove)
    handle.add(after(leave).remove)
    return handle


def parameters(optimizer: Any) -> list[Any]:
    """All that it updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _handed(args: Sequence[Any], count: int) -> Optional[Sequence[Any]]:
    """Gradients that an optimizer of the user's own takes as an argument, one for each parameter."""
    first = args[0] if args else None
    return first if isinstance(first, (tuple, list)) and len(first) == count else None


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


class Optimizers:
    """Those of a package with torch's interface, which is called `name` where something has to be said of it."""

    def __init__(self, torch: Any, name: str) -> None:
        self._torch, self._name = torch, name

    def read(self, made: Any) -> Optimizer:
        """Kind, groups and state, as they are now."""
        kind, implied = words.kind(type(made).__name__)
        state = [
            (parameter, words.state(kind, name), value)
            for parameter in parameters(made)
            for name, value in made.state.get(parameter, {}).items()
            if value is not None
        ]
        found = groups(made, implied, self._number)
        return Optimizer(kind, f"{type(made).__module__}.{type(made).__name__}", found, state)

    def _number(self, value: Any) -> Optional[float]:
        if isinstance(value, self._torch.Tensor):
            return float(value) if value.numel() == 1 else None
        return float(value) if isinstance(value, (int, float)) else None

    def rebuilt(self, kind: str, wanted: Sequence[Group], kept: Kept, count: int) -> Apply:
        """Another optimizer on the same parameters.

        Raises:
            ValueError: the package has none that is told so.
        """
        decoupled = any(group.settings.get("decoupled") is True for group in wanted)
        build = getattr(self._torch.optim, "AdamW" if kind == "Adam" and decoupled else kind, None)
        uncorrected = any(group.settings.get("bias_correction") is False for group in wanted)
        if kind not in _ARGUMENTS or build is None or uncorrected:
            raise ValueError(f"{self._name} has no {kind} that is told so")
        made: Any = build(
            [{"params": list(group.parameters), **_arguments(kind, group.settings)} for group in wanted], lr=0.0
        )
        for parameter, word, value in kept:
            if word in _KEPT[kind]:
                self._keep(made.state[parameter], kind, word, value, count)

        def apply(gradients: Sequence[Any]) -> None:
            owned = parameters(made)
            before = [parameter.grad for parameter in owned]
            for parameter, gradient in zip(owned, gradients):
                parameter.grad = gradient
            made.step()
            for parameter, gradient in zip(owned, before):
                parameter.grad = gradient

        return apply

    def _keep(self, state: Any, kind: str, word: str, value: Any, count: int) -> None:
        state[_KEPT[kind][word]] = value.clone()
        if kind != "SGD":
            state["step"] = self._torch.tensor(float(count))

    def clipped(self, gradients: Sequence[Any], norm: float) -> list[Any]:
        """Gradients, scaled down where the norm of all of them is larger."""
        there = [one for one in gradients if one is not None]
        whole = self._torch.sqrt(self._torch.stack([(one.detach() ** 2).sum() for one in there]).sum())
        factor = norm / (whole + 1e-6)
        return [None if one is None else one * factor.clamp(max=1.0) for one in gradients]


def _arguments(kind: str, settings: Mapping[str, Attribute]) -> dict[str, Any]:
    known = {name: settings[name] for name in _ARGUMENTS[kind] if settings.get(name) is not None}
    if kind == "Adam":
        known["betas"] = (known.pop("beta1", 0.9), known.pop("beta2", 0.999))
    return known

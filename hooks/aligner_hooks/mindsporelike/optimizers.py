"""MindSpore's optimizers in canonical words: those of nn, and those of experimental and mint with their groups.

OpenI's MindTorch has the latter under torch's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore import nn
from mindspore.experimental import optim as experimental

from aligner.adapter import Apply, Group, Kept, Optimizer
from aligner.record import Attribute
from aligner.words import optimizers as words
from aligner_hooks.groups import groups
from aligner_hooks.mindsporelike.late import read

_SETTINGS = {"momentum", "dampening", "nesterov", "use_nesterov", "beta1", "beta2", "eps", "epsilon", "decay", "rho"}
_SETTINGS |= {"centered", "use_amsgrad", "loss_scale", "grad_centralization"}


def optimizer(made: Any) -> Optimizer:
    """Kind, groups and state, as they are now; a wrapper around another (LARS) is what it wraps, with its own name."""
    kind, implied = words.kind(type(made).__name__)
    if isinstance(made, (nn.Adam, experimental.Adam, nn.RMSProp)):
        implied = {**implied, words.EPS_FIRST: True}
    with_groups = hasattr(made, "param_groups")
    found = groups(made, implied, number) if with_groups else [*_groups(made, implied)]
    state = [(p, words.state(kind, word), value) for p, word, value in _state(made)]
    return Optimizer(kind, f"{type(made).__module__}.{type(made).__name__}", found, state)


def rebuilt(old: Any, kind: str, wanted: Sequence[Group], kept: Kept, count: int) -> Apply:
    """Another optimizer on the same parameters: of the old one's class where that can be told so."""
    build = _BUILT.get(kind)
    if build is None:
        raise ValueError(f"no {kind} of MindSpore's is known here")
    made = build(old, wanted)
    known = {(id(parameter), word): value for parameter, word, value in kept}
    own: Any = optimizer(made).state
    for parameter, word, value in own:
        if word == words.STEP:
            value.set_data(mindspore.Tensor(np.full(value.shape, count, np.int32)))
        elif (id(parameter), word) in known:
            value.set_data(known[id(parameter), word])
    for stat in getattr(made, "stat", ()) if count else ():  # of SGD: whether its next update is the first one
        stat.set_data(mindspore.Tensor(np.zeros(stat.shape), stat.dtype))
    for name, beta in (("beta1_power", "beta1"), ("beta2_power", "beta2")):
        if hasattr(made, name):
            power = plain(wanted[0].settings, beta) ** count
            getattr(made, name).set_data(mindspore.Tensor(power, mindspore.float32))

    def apply(gradients: Sequence[Any]) -> None:
        made(tuple(gradients))

    return apply


def plain(settings: Mapping[str, Attribute], name: str, default: float = 0.0) -> float:
    """A setting as a number."""
    value = settings.get(name)
    return float(value) if isinstance(value, (int, float)) else default


def _grouped(wanted: Sequence[Group]) -> list[dict[str, Any]]:
    return [
        {
            "params": list(group.parameters),
            "lr": plain(group.settings, "lr"),
            "weight_decay": plain(group.settings, "weight_decay"),
        }
        for group in wanted
    ]


def _one(wanted: Sequence[Group], name: str, default: float = 0.0) -> float:
    """A setting that all groups have in common."""
    found = {plain(group.settings, name, default) for group in wanted}
    if len(found) > 1:
        raise ValueError(f"{name} is one for all groups in MindSpore's nn")
    return found.pop()


def _sgd(old: Any, wanted: Sequence[Group]) -> Any:
    momentum, dampening = _one(wanted, "momentum"), _one(wanted, "dampening")
    nesterov = bool(_one(wanted, "nesterov"))
    rate, scale = plain(wanted[0].settings, "lr"), _one(wanted, "loss_scale", 1.0)
    if momentum and not dampening and not nesterov:
        return nn.Momentum(_grouped(wanted), rate, momentum, loss_scale=scale)
    return nn.SGD(_grouped(wanted), rate, momentum, dampening, nesterov=nesterov, loss_scale=scale)


def _adam(old: Any, wanted: Sequence[Group]) -> Any:
    rate, eps = plain(wanted[0].settings, "lr"), _one(wanted, "eps", 1e-8)
    betas = _one(wanted, "beta1", 0.9), _one(wanted, "beta2", 0.999)
    if not _one(wanted, "bias_correction", 1.0):
        return nn.AdamWeightDecay(_grouped(wanted), rate, *betas, eps)
    if _one(wanted, "decoupled") or hasattr(old, "param_groups"):
        kind = experimental.AdamW if _one(wanted, "decoupled") else experimental.Adam
        return kind(_grouped(wanted), rate, betas, eps)
    scale, amsgrad = _one(wanted, "loss_scale", 1.0), bool(_one(wanted, "amsgrad"))
    return nn.Adam(_grouped(wanted), rate, *betas, eps, loss_scale=scale, use_amsgrad=amsgrad)


def _rmsprop(old: Any, wanted: Sequence[Group]) -> Any:
    rate, eps = plain(wanted[0].settings, "lr"), _one(wanted, "eps", 1e-8)
    alpha, momentum = _one(wanted, "alpha", 0.99), _one(wanted, "momentum")
    return experimental.RMSprop(_grouped(wanted), rate, alpha, eps, 0.0, momentum, bool(_one(wanted, "centered")))


_BUILT = {"SGD": _sgd, "Adam": _adam, "RMSprop": _rmsprop}


def number(value: Any) -> Optional[float]:
    """A plain number, or a tensor's single one: the shortest that is this one in its type, 0.1 and not what float32
    makes of it."""
    if isinstance(value, mindspore.Tensor):
        array = read(value.asnumpy)
        return float(str(array.reshape(-1)[0])) if array.size == 1 and array.dtype.kind in "fiu" else None
    return float(value) if isinstance(value, (int, float)) else None


def parameters(made: Any) -> list[Any]:
    """What it updates, in the order of the gradients that it is given."""
    return list(made.parameters) if not isinstance(made, nn.LARS) else list(made.opt.parameters)


def _groups(made: Any, implied: Mapping[str, Attribute]) -> Iterator[Group]:
    """Parameters of equal settings; weight decay is what each really gets, which none called gamma or beta does
    unless it stands in a group."""
    own: dict[str, Attribute] = dict(implied)
    for name in sorted(_SETTINGS):
        value = getattr(made, name, None)
        if isinstance(value, bool):
            own[words.setting(name)] = value
        elif value is not None and (plain := number(value)) is not None:
            own[words.setting(name)] = plain
    alike: dict[tuple[float, float], list[Any]] = {}
    owned = parameters(made)
    for place, parameter in enumerate(owned):
        alike.setdefault((_rate(made, place), _decay(made, place)), []).append(parameter)
    for (rate, decay), those in alike.items():
        yield Group({**own, "lr": rate, "weight_decay": decay}, those)


def _rate(made: Any, place: int) -> float:
    rate = made.learning_rate
    if getattr(made, "is_group_lr", False):
        rate = rate[place]
    found = _now(rate, made.global_step) if isinstance(rate, nn.Cell) else number(rate)
    return float("nan") if found is None else found


def _decay(made: Any, place: int) -> float:
    decay, flags = getattr(made, "weight_decay", 0.0), getattr(made, "decay_flags", ())
    if place < len(flags) and not flags[place]:
        return 0.0
    if isinstance(decay, (tuple, list)):
        decay = decay[place]
    return (_now(decay, made.global_step) if isinstance(decay, nn.Cell) else number(decay)) or 0.0


def _now(schedule: Any, step: Any) -> Optional[float]:
    """What a schedule says; of a list its last one behind its end, where MindSpore's own would stop the program."""
    table = getattr(schedule, "learning_rate", None)
    if isinstance(table, mindspore.Tensor) and table.ndim == 1 and table.size:
        return number(table[min(int(read(step.asnumpy).reshape(-1)[0]), table.size - 1)])
    return number(schedule(step))


def _state(made: Any) -> Iterator[tuple[Any, str, Any]]:
    """Tuples with a tensor for each parameter, under the attribute they are kept in; what is kept by parameter; and how
    many steps it has made."""
    owned = parameters(made)
    shapes = [tuple(one.shape) for one in owned]
    known = {id(one) for one in owned}
    for name, value in _tuples(made):
        if id(value[0]) not in known and [tuple(getattr(one, "shape", "?")) for one in value] == shapes:
            yield from ((parameter, name, one) for parameter, one in zip(owned, value))
    kept: Any = getattr(made, "state", None)
    for parameter in owned if isinstance(kept, Mapping) else ():
        yield from ((parameter, name, one) for name, one in kept.get(parameter, {}).items() if one is not None)
    for name in ("global_step", "state_step"):
        if isinstance(getattr(made, name, None), mindspore.Tensor):
            yield from ((parameter, name, getattr(made, name)) for parameter in owned)


def _tuples(made: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """What it keeps one of for each parameter. MindSpore 2.5 has another place for its tuples; of an optimizer of the
    user's own a list will do, called by what it has many of."""
    count = len(parameters(made))
    for name in (*vars(made), *vars(made).get("_params_list", ())):
        value = getattr(made, name, None)
        if name == "stat" or not isinstance(value, (tuple, list)) or not value or len(value) != count:
            continue
        if isinstance(value, mindspore.ParameterTuple):
            yield name, value
        elif hasattr(made, "param_groups"):
            yield name if name in words.STATE else name.removesuffix("s"), value

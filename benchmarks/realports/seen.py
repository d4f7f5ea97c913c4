"""One run of a net in either framework: what ran in which order, all parameters, each layer's output, the last one.

Nothing of aligner is used: what it says of these nets is to be judged by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import mindspore as ms
import numpy as np

ALIKE = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
TOGETHER = ("weight", "bias", "running_mean", "running_var")
Array = np.ndarray


@dataclass(frozen=True)
class Unit:
    """Parameters that go over together: those of a leaf layer, or one that stands free."""

    path: str
    key: tuple[Any, ...]
    names: Mapping[str, str]  # word -> full name


@dataclass(frozen=True)
class Seen:
    """One run of a net: its units in the order of running, all parameters, each layer's output, the last output."""

    units: list[Unit]
    values: dict[str, Array]
    outputs: dict[str, Array]
    last: list[Array]


def see_torch(net: Any, inputs: Sequence[Any]) -> Seen:
    """Run the reference once, in eval mode."""
    import torch

    order: list[tuple[str, Any]] = []
    outputs: dict[str, Array] = {}

    def before(name: str) -> Any:
        return lambda module, _: order.append((name, module))

    def after(name: str) -> Any:
        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                outputs.setdefault(name, output.detach().numpy().copy())  # at once: a ReLU in place writes over it

        return keep

    hooks = []
    for name, module in net.named_modules():
        hooks += [module.register_forward_pre_hook(before(name)), module.register_forward_hook(after(name))]
    with torch.no_grad():
        last = net.eval()(*inputs)
    for hook in hooks:
        hook.remove()
    kept = net.state_dict().keys()
    values = {  # a tensor that two layers share stands here once, in the state dict twice
        name: value.detach().numpy()
        for name, value in [*net.named_parameters(), *net.named_buffers()]
        if name in kept and not name.endswith("batches_tracked")
    }
    return Seen(_units(order, _own_torch, list(net.named_modules()), values), values, outputs, arrays(last))


def see_port(net: Any, inputs: Sequence[Array]) -> Seen:
    """Run the port once, in eval mode."""
    order: list[tuple[str, Any]] = []
    outputs: dict[str, Array] = {}

    def before(name: str) -> Any:
        def note(cell: Any, _inputs: Any) -> None:
            order.append((name, cell))

        return note

    def after(name: str) -> Any:
        def keep(_cell: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, ms.Tensor):
                outputs.setdefault(name, output.asnumpy().copy())

        return keep

    hooks = []
    for name, cell in net.cells_and_names():
        hooks += [cell.register_forward_pre_hook(before(name)), cell.register_forward_hook(after(name))]
    net.set_train(False)
    last = net(*[ms.Tensor(value) for value in inputs])
    for hook in hooks:
        hook.remove()
    values = {
        f"{path}.{word}" if path else word: parameter.asnumpy().copy()
        for path, cell in net.cells_and_names()
        for word, parameter in cell._params.items()
        if parameter is not None
    }
    return Seen(_units(order, _own_port, list(net.cells_and_names()), values), values, outputs, arrays(last))


def compute(net: Any, inputs: Sequence[Array]) -> list[Array]:
    """The port's last outputs."""
    net.set_train(False)
    return arrays(net(*[ms.Tensor(value) for value in inputs]))


def _units(
    order: Sequence[tuple[str, Any]], own: Any, everything: Sequence[Any], values: Mapping[str, Array]
) -> list[Unit]:
    """Those that ran in their order, then those that never did."""
    units, seen = [], set()
    for path, layer in [*order, *everything]:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        words = own(layer)
        full = {word: (f"{path}.{word}" if path else word) for word in words}
        full = {word: name for word, name in full.items() if name in values}
        norm = {"gamma", "beta"} <= set(words) or "weight" in words or "running_mean" in words
        alike = {ALIKE.get(word, word): name for word, name in full.items()}
        together = {word: name for word, name in alike.items() if norm and word in TOGETHER}
        if together:
            key = tuple(sorted((word, _plain(values[name])) for word, name in together.items()))
            units.append(Unit(path, key, together))
        free = [name for name in full.values() if name not in together.values()]
        units += [Unit(name, ("free", _plain(values[name])), {"free": name}) for name in free]
    return units


def _plain(value: Array) -> tuple[int, ...]:
    """The shape without axes of one: a 1x1 convolution is a Dense layer."""
    return tuple(size for size in value.shape if size != 1)


def _own_torch(module: Any) -> list[str]:
    return [name for name, value in [*module._parameters.items(), *module._buffers.items()] if value is not None]


def _own_port(cell: Any) -> list[str]:
    return [name for name, value in cell._params.items() if value is not None]


def arrays(value: Any) -> list[Array]:
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in arrays(item)]
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays(item)]
    if value is None:
        return []
    if isinstance(value, ms.Tensor):
        return [value.asnumpy()]
    return [value.detach().numpy()]


def apart(reference: Array, port: Array) -> float:
    """The largest difference, as a part of the reference's largest value."""
    if reference.shape != port.shape:
        return float("inf")
    return float(np.abs(reference.astype(np.float64) - port).max() / max(float(np.abs(reference).max()), 1e-30))


def furthest(reference: Sequence[Array], port: Sequence[Array]) -> Optional[float]:
    """`apart` of the last outputs; None if there are not as many of both."""
    if len(reference) != len(port):
        return None
    return max(apart(one, other) for one, other in zip(reference, port))

"""TorchAdapter: what aligner.adapter asks of a framework, answered for torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional

import torch
from torch import nn

from aligner import patches
from aligner.adapter import (
    After,
    Apply,
    Before,
    Begun,
    Finding,
    Given,
    Group,
    Handle,
    Kept,
    Made,
    Optimizer,
    Parameter,
    Told,
    Train,
    Update,
)
from aligner.record import Array, Attribute, LayerSpec, Note, Scalar
from aligner_hooks.living import living
from aligner_hooks.torch_ import (
    calls,
    casts,
    constructions,
    copies,
    devices,
    dropout,
    executions,
    layers,
    operations,
    parameters,
    randomness,
    spec,
    surroundings,
    tensors,
    training,
)
from aligner_hooks.torchlike import together


class TorchAdapter:
    """The adapter for torch 1.11 and later."""

    name = "torch"
    packages = ("torch",)
    layer_class = nn.Module

    def __init__(self) -> None:
        self._home = torch.device("cpu")
        """Where the model is that was last asked about: what is handed on in it must be there as well."""

    def version(self) -> str:
        return str(torch.__version__)

    def is_model(self, value: object) -> bool:
        return isinstance(value, nn.Module)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def layers(self, model: object) -> Iterator[tuple[str, object]]:
        for place in layers.walk(model):
            yield place.path, place.module

    def type_name(self, layer: object) -> str:
        return spec.type_name(layers.unwrapped(layer))

    def spec(self, layer: object) -> LayerSpec:
        return spec.read(layers.unwrapped(layer))

    def computing(self, layer: object) -> tuple[object, str]:
        return layers.unwrapped(layer), "forward"

    def observe(self, layer: object, before: Before, after: After) -> Handle:
        return calls.observe(layer, before, after)

    def compiled_runs(self, before: Callable[[], None], after: Callable[[], None]) -> Handle:
        return patches.Handle()  # compiled code calls back where it is called, and can be asked there

    def intervene(self, layer: object, given: Given, made: Made) -> Handle:
        return calls.intervene(layer, given, made)

    def overwrite(self, tensor: object, other: object) -> None:
        tensors.overwrite(tensor, other)

    def watch_roots(self, on_root: Callable[[object], None]) -> Handle:
        return calls.watch_roots(on_root)

    def dtype(self, tensor: Any) -> str:
        return tensors.dtype_word(tensor)

    def to_numpy(self, tensor: Any) -> Array:
        return tensors.to_numpy(tensor)

    def from_numpy(self, array: Array, dtype: str) -> object:
        return tensors.from_numpy(array, dtype).to(self._home)

    def parameters(self, model: object) -> Iterator[Parameter]:
        self._is_at(model)
        return parameters.walk(model)

    def read(self, parameter: Parameter) -> Array:
        return tensors.to_numpy(parameter.tensor)

    def load(self, parameter: Parameter, array: Array, dtype: str) -> None:
        parameters.load(parameter, array, dtype)

    def respecified(self, layer: object, changes: Mapping[str, Attribute], dtype: Optional[str] = None) -> object:
        return copies.respecified(layer, changes, dtype)

    def expression(self, layer: object) -> str:
        return constructions.spelled(layers.unwrapped(layer))

    def preamble(self) -> str:
        return constructions.PREAMBLE

    def cast(self, model: object, dtype: str) -> None:
        parameters.cast(model, dtype)

    def operations(self, told: Callable[[str], None]) -> Handle:
        return operations.listen(told)

    def executions(self, begun: Begun) -> Handle:
        return executions.listen(begun)

    def computations(self, told: Callable[[str, str], None]) -> Handle:
        return casts.listen(told)

    def precision(self, model: object, layer: object) -> Optional[tuple[str, str]]:
        return casts.precision(layers.unwrapped(layer))

    def training(self, layer: Any) -> bool:
        return bool(layers.unwrapped(layer).training)

    def set_training(self, model: object, training: bool) -> None:
        layers.set_training(model, training)

    def silence_dropout(self, model: object) -> Handle:
        return dropout.silence(model)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def random_state(self) -> Optional[bytes]:
        return randomness.state()

    def set_random_state(self, state: bytes) -> None:
        randomness.restore(state)

    def device(self, name: str) -> Callable[[object], object]:
        return devices.device(name)

    def running(self, model: object, mode: Optional[str] = "pynative") -> AbstractContextManager[object]:
        self._is_at(model)
        return surroundings.running(mode)

    def thread(self) -> int:
        return threading.get_ident()

    def environment(self, model: object) -> Mapping[str, Scalar]:
        self._is_at(model)
        return surroundings.environment(model)

    def cautions(self, model: object) -> Iterator[Note]:
        return layers.cautions(model)

    def doctor(self) -> Iterator[Finding]:
        return surroundings.doctor()

    def on_gradient(self, tensor: Any, told: Told) -> Optional[Handle]:
        return training.on_gradient(tensor, told)

    def losses(self, told: Callable[[object], None]) -> Handle:
        return training.losses(told)

    def held(self, made: Any, wanted: Any) -> object:
        return training.held(made, wanted)

    def updates(self, begun: Update, ended: Callable[[object], None]) -> Handle:
        return training.updates(begun, ended)

    def optimizer(self, optimizer: Any) -> Optimizer:
        return training.OPTIMIZERS.read(optimizer)

    def rebuilt(self, optimizer: Any, kind: str, groups: Sequence[Group], kept: Kept, count: int) -> Apply:
        return training.OPTIMIZERS.rebuilt(kind, groups, kept, count)

    def lost(self, scores: Any, wanted: Any, kind: str) -> tuple[Any, Any]:
        """A loss by torch's own functions."""
        return training.lost(scores, wanted, kind)

    def treated(self, gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
        """With torch's own clipping."""
        return training.treated(gradients, kind, factor, bound)

    def put(self, kept: Any, other: Any) -> None:
        training.put(kept, other)

    def alive(self) -> tuple[list[Any], list[Any]]:
        return living(torch.optim.Optimizer), living(nn.Module)

    def together(self, nets: Mapping[str, Any]) -> Any:
        return together.together(nn.Module, nets)

    def routed(self, model: Any) -> Handle:
        return calls.route(model, together.parts(nn.Module, model))

    def trained(self, model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
        return training.trained(model, task, told)

    def _is_at(self, model: object) -> None:
        self._home = devices.home(model) or self._home

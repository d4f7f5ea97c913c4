"""MindTorchAdapter: what aligner.adapter asks of a framework, answered for both packages called `mindtorch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional

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
from aligner_hooks.mindsporelike import modes
from aligner_hooks.mindtorch_ import (
    dropout,
    graphs,
    layers,
    operations,
    parameters,
    precision,
    surroundings,
    tensors,
    training,
    updates,
)
from aligner_hooks.mindtorch_.calls import CALLS
from aligner_hooks.mindtorch_.copies import CONSTRUCTIONS, COPIES
from aligner_hooks.mindtorch_.layers import LAYERS
from aligner_hooks.mindtorch_.modules import AnyModule
from aligner_hooks.mindtorch_.package import package
from aligner_hooks.mindtorch_.spec import SPECS
from aligner_hooks.torchlike import together


class MindTorchAdapter:
    """OpenI's MindTorch 0.4.0 on MindSpore 2.5, and the mindtorch of mindnlp 0.5 on MindSpore 2.7; on CPU."""

    name = "mindtorch"
    packages = ("mindtorch", "torch", "mindspore")
    casting = ("to_float",)

    @property
    def layer_class(self) -> type:
        """nn.Module of the package that is installed."""
        base: type = package().nn.Module
        return base

    def version(self) -> str:
        """The package's version; mindnlp's says so."""
        return package().version

    def is_model(self, value: object) -> bool:
        return isinstance(value, AnyModule)

    def is_tensor(self, value: object) -> bool:
        return tensors.is_tensor(value)

    def layers(self, model: object) -> Iterator[tuple[str, object]]:
        for place in LAYERS.walk(model):
            yield place.path, place.module

    def type_name(self, layer: object) -> str:
        return SPECS.type_name(LAYERS.unwrapped(layer))

    def spec(self, layer: object) -> LayerSpec:
        return SPECS.read(LAYERS.unwrapped(layer))

    def computing(self, layer: object) -> tuple[object, str]:
        return LAYERS.unwrapped(layer), "forward"

    def observe(self, layer: object, before: Before, after: After) -> Handle:
        return CALLS.observe(layer, before, after)

    def compiled_runs(self, before: Callable[[], None], after: Callable[[], None]) -> Handle:
        return graphs.around_runs(before, after)

    def intervene(self, layer: object, given: Given, made: Made) -> Handle:
        return CALLS.intervene(layer, given, made)

    def overwrite(self, tensor: object, other: object) -> None:
        tensors.overwrite(tensor, other)

    def watch_roots(self, on_root: Callable[[object], None]) -> Handle:
        return CALLS.watch_roots(on_root)

    def dtype(self, tensor: object) -> str:
        return tensors.dtype(tensor)

    def to_numpy(self, tensor: object) -> Array:
        with CALLS.callback():  # no operator of the net's
            return tensors.to_numpy(tensor)

    def from_numpy(self, array: Array, dtype: str) -> object:
        return tensors.from_numpy(array, dtype)

    def parameters(self, model: object) -> Iterator[Parameter]:
        return parameters.walk(model)

    def read(self, parameter: Parameter) -> Array:
        return tensors.to_numpy(parameter.tensor)

    def load(self, parameter: Parameter, array: Array, dtype: str) -> None:
        parameters.load(parameter, array, dtype)

    def respecified(self, layer: object, changes: Mapping[str, Attribute], dtype: Optional[str] = None) -> object:
        return COPIES.respecified(layer, changes, dtype)

    def expression(self, layer: object) -> str:
        return CONSTRUCTIONS.spelled(LAYERS.unwrapped(layer))

    def preamble(self) -> str:
        return package().preamble

    def cast(self, model: object, dtype: str) -> None:
        precision.cast(model, dtype)

    def operations(self, told: Callable[[str], None]) -> Handle:
        return operations.tell(told)

    def executions(self, begun: Begun) -> Handle:
        return operations.tell_executions(begun)

    def computations(self, told: Callable[[str, str], None]) -> Handle:
        return operations.tell_computed(told)

    def precision(self, model: object, layer: object) -> Optional[tuple[str, str]]:
        return precision.told(model, layer)

    def training(self, layer: Any) -> bool:
        return bool(LAYERS.unwrapped(layer).training)

    def set_training(self, model: object, training: bool) -> None:
        LAYERS.set_training(model, training)

    def silence_dropout(self, model: object) -> Handle:
        return dropout.silence(model)

    def seed(self, seed: int) -> None:
        surroundings.seed(seed)

    def random_state(self) -> Optional[bytes]:
        """None: MindSpore's operators keep their state inside, where it cannot be read."""
        return None

    def set_random_state(self, state: bytes) -> None:
        """Nothing: there is no state that `random_state` could have read."""

    def device(self, name: str) -> Callable[[object], object]:
        return surroundings.device(name)

    def running(self, model: object, mode: Optional[str] = "pynative") -> AbstractContextManager[object]:
        return surroundings.running(mode)

    def thread(self) -> int:
        return graphs.thread()

    def environment(self, model: object) -> Mapping[str, Scalar]:
        return surroundings.environment(model)

    def cautions(self, model: object) -> Iterator[Note]:
        yield from modes.cautions()
        yield from layers.cautions(model)
        yield from precision.cautions(model)

    def doctor(self) -> Iterator[Finding]:
        return surroundings.doctor()

    def eagerly(self) -> Handle:
        return modes.eagerly()

    def on_gradient(self, tensor: object, told: Told) -> Optional[Handle]:
        return training.on_gradient(tensor, told)

    def losses(self, told: Callable[[object], None]) -> Handle:
        return training.losses(told)

    def held(self, made: object, wanted: object) -> object:
        return training.held(made, wanted)

    def updates(self, begun: Update, ended: Callable[[object], None]) -> Handle:
        return updates.updates(begun, ended)

    def optimizer(self, optimizer: object) -> Optimizer:
        return updates.optimizer(optimizer)

    def rebuilt(self, optimizer: object, kind: str, groups: Sequence[Group], kept: Kept, count: int) -> Apply:
        return updates.rebuilt(optimizer, kind, groups, kept, count)

    def lost(self, scores: object, wanted: object, kind: str) -> tuple[object, object]:
        return training.lost(scores, wanted, kind)

    def treated(self, gradients: Sequence[object], kind: str, factor: float, bound: float) -> Sequence[object]:
        return training.treated(gradients, kind, factor, bound)

    def put(self, kept: object, other: object) -> None:
        training.put(kept, other)

    def alive(self) -> tuple[list[Any], list[Any]]:
        return [one for kind in updates.kinds() for one in living(kind)], living(package().nn.Module)

    def together(self, nets: Mapping[str, Any]) -> Any:
        return together.together(package().nn.Module, nets)

    def routed(self, model: Any) -> Handle:
        return CALLS.route(model, together.parts(package().nn.Module, model))

    def trained(self, model: object, task: Any, told: Callable[[object, object, object], object]) -> Train:
        return training.trained(model, task, told)

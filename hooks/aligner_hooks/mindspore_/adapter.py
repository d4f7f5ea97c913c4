"""The MindSpore adapter: one class that puts this package behind aligner's contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, Optional

import mindspore
from mindspore import nn

from aligner.adapter import (
    After,
    Apply,
    Before,
    Begun,
    Finding,
    Given,
    Group,
    Kept,
    Made,
    Optimizer,
    Parameter,
    Told,
    Train,
    Update,
)
from aligner.patches import Handle
from aligner.record import Array, Attribute, LayerSpec, Note, Scalar
from aligner_hooks.mindspore_ import (
    construction,
    copies,
    devices,
    dropout,
    executions,
    hooks,
    layers,
    operations,
    parameters,
    precision,
    roots,
    runtime,
    spec,
    tensors,
    together,
    training,
)
from aligner_hooks.mindsporelike import modes, optimizers
from aligner_hooks.mindsporelike import training as steps
from aligner_hooks.mindsporelike.graphs import compiled
from aligner_hooks.mindsporelike.nets import is_optimizer
from aligner_hooks.mindsporelike.rewritten import written


class MindSporeAdapter:
    """MindSpore, eager and compiled; see aligner.adapter.Adapter for what each method promises.

    Run on MindSpore 2.7, 2.9 and 2.10 on CPU; Ascend and GPU are written from MindSpore's manual.
    """

    name = "mindspore"
    packages = ("mindspore",)
    layer_class = nn.Cell
    casting = ("to_float",)

    def version(self) -> str:
        """The version of MindSpore."""
        return str(mindspore.__version__)

    def is_model(self, value: object) -> bool:
        """Whether it is a Cell of MindSpore itself, and a net or layer rather than an optimizer."""
        if not isinstance(value, nn.Cell) or is_optimizer(value):
            return False
        bases = written(type(value)).__mro__
        return not any(base.__module__.startswith(("mindtorch.", "msadapter.")) for base in bases)

    def is_tensor(self, value: object) -> bool:
        """Whether it is a tensor of MindSpore."""
        return tensors.is_tensor(value)

    def layers(self, model: Any) -> Iterator[tuple[str, object]]:
        """All cells with their paths."""
        return ((place.path, place.cell) for place in layers.places(model))

    def type_name(self, layer: object) -> str:
        """The class as users write it: "mindspore.nn.Conv2d"."""
        return spec.type_name(layer)

    def spec(self, layer: Any) -> LayerSpec:
        """Kind and settings in canonical words."""
        return spec.spec(layer)

    def computing(self, layer: object) -> tuple[object, str]:
        """Its construct, which eager runs look up on the cell."""
        return layer, "construct"

    def observe(self, layer: Any, before: Before, after: After) -> Handle:
        """Call back around each run of the layer."""
        return hooks.observe(layer, before, after)

    def compiled_runs(self, before: Callable[[], None], after: Callable[[], None]) -> Handle:
        return compiled.around_runs(before, after)

    def intervene(self, layer: Any, given: Given, made: Made) -> Handle:
        """Replace what the layer runs on and what it hands on."""
        return hooks.intervene(layer, given, made)

    def overwrite(self, tensor: object, other: object) -> None:
        """Have this tensor object hold the values of another."""
        tensors.overwrite(tensor, other)

    def watch_roots(self, on_root: Callable[[object], None]) -> Handle:
        """Call back when a net that no other cell called is about to run."""
        return roots.watch_roots(on_root)

    def dtype(self, tensor: object) -> str:
        """The word for the tensor's type."""
        return tensors.dtype(tensor)

    def to_numpy(self, tensor: object) -> Array:
        """The tensor's exact bits; an operator that this takes is none of the net's."""
        operations.mute()
        try:
            return tensors.to_numpy(tensor)
        finally:
            operations.unmute()

    def from_numpy(self, array: Array, dtype: str) -> object:
        """A tensor with these bits."""
        return tensors.from_numpy(array, dtype)

    def parameters(self, model: Any) -> Iterator[Parameter]:
        """Parameters and buffers in canonical words."""
        return parameters.parameters(model)

    def read(self, parameter: Parameter) -> Array:
        """The parameter's bits in canonical layout."""
        return parameters.read(parameter)

    def load(self, parameter: Parameter, array: Array, dtype: str) -> None:
        """New values for the parameter."""
        parameters.load(parameter, array, dtype)

    def respecified(self, layer: Any, changes: Mapping[str, Attribute], dtype: Optional[str] = None) -> object:
        """A copy of the layer with other settings."""
        return copies.respecified(layer, changes, dtype)

    def expression(self, layer: Any) -> str:
        """Python that builds such a layer."""
        return construction.expression(layer)

    def preamble(self) -> str:
        """The imports that `expression` needs."""
        return construction.PREAMBLE

    def cast(self, model: Any, dtype: str) -> None:
        """The whole model into another dtype."""
        precision.cast(model, dtype)

    def operations(self, told: Callable[[str], None]) -> Handle:
        """The operators that run, on MindSpore 2.10 and newer."""
        return operations.tell(told)

    def executions(self, begun: Begun) -> Handle:
        """What the operators are given and make, on MindSpore 2.10 and newer."""
        return executions.tell(begun)

    def computations(self, told: Callable[[str, str], None]) -> Handle:
        """What the operators compute in, on MindSpore 2.10 and newer."""
        return operations.tell_computed(told)

    def precision(self, model: Any, layer: Any) -> Optional[tuple[str, str]]:
        """What to_float or an AMP level says."""
        return precision.told(model, layer)

    def training(self, layer: Any) -> bool:
        """Whether the layer is in train mode (cells are born in eval mode)."""
        return bool(layer.training)

    def set_training(self, model: Any, training: bool) -> None:
        """The whole model, and the cells in plain lists that MindSpore's own set_train does not reach."""
        model.set_train(training)
        for place in layers.places(model):
            if place.listed:
                place.cell.set_train(training)

    def silence_dropout(self, model: Any) -> Handle:
        """Make every dropout inactive."""
        return dropout.silence(model)

    def seed(self, seed: int) -> None:
        """Seed MindSpore's random numbers."""
        runtime.seed(seed)

    def random_state(self) -> Optional[bytes]:
        """None: the operators of nn and ops keep their state inside, where it cannot be read.

        `mindspore.get_rng_state` tells of mint's generator only; an unchanged one would prove nothing.
        """
        return None

    def set_random_state(self, state: bytes) -> None:
        """Nothing: there is no state that `random_state` could have read."""

    def device(self, name: str) -> Callable[[object], object]:
        """Select a device."""
        return devices.device(name)

    def running(self, model: object, mode: Optional[str] = "pynative") -> AbstractContextManager[object]:
        """Eagerly, layer by layer, or compiled, or as the program has it."""
        return runtime.running(mode)

    def thread(self) -> int:
        """The thread that called the net; compiled graphs tell of their values from another one."""
        return compiled.thread()

    def environment(self, model: Any) -> Mapping[str, Scalar]:
        """Header facts."""
        return runtime.environment(model)

    def cautions(self, model: Any) -> Iterator[Note]:
        """What of this net cannot be observed, and how it was run."""
        yield from modes.cautions()
        yield from layers.cautions(model)

    def doctor(self) -> Iterator[Finding]:
        """What is usable here and what is wrong."""
        return runtime.doctor()

    def eagerly(self) -> Handle:
        """In PYNATIVE_MODE whatever the program asks for; compiled functions are another matter (MS_JIT)."""
        return modes.eagerly()

    def on_gradient(self, tensor: Any, told: Told) -> Optional[Handle]:
        """Call back when the gradient of a tensor is known."""
        return training.on_gradient(tensor, told)

    def losses(self, told: Callable[[object], None]) -> Handle:
        """Call back before each backward run."""
        return training.losses(told)

    def held(self, made: Any, wanted: Any) -> object:
        """The values of one tensor with the gradient of another."""
        return steps.held(made, wanted)

    def updates(self, begun: Update, ended: Callable[[object], None]) -> Handle:
        """Call back around each update of an optimizer."""
        return steps.updates(begun, ended)

    def optimizer(self, optimizer: Any) -> Optimizer:
        """What an optimizer is and keeps."""
        return optimizers.optimizer(optimizer)

    def rebuilt(self, optimizer: Any, kind: str, groups: Sequence[Group], kept: Kept, count: int) -> Apply:
        """The update of another optimizer on the same parameters."""
        return optimizers.rebuilt(optimizer, kind, groups, kept, count)

    def lost(self, scores: Any, wanted: Any, kind: str) -> tuple[Any, Any]:
        """A loss by MindSpore's own functions."""
        return steps.lost(scores, wanted, kind)

    def treated(self, gradients: Sequence[Any], kind: str, factor: float, bound: float) -> Sequence[Any]:
        """With MindSpore's own clipping."""
        return steps.treated(gradients, kind, factor, bound)

    def put(self, kept: Any, other: Any) -> None:
        """Other values for what an optimizer keeps."""
        training.put(kept, other)

    def alive(self) -> tuple[list[Any], list[Any]]:
        """The optimizers and nets that the program has."""
        return together.alive()

    def together(self, nets: Mapping[str, Any]) -> Any:
        """A cell that holds these."""
        return together.Nets(nets)

    def routed(self, model: Any) -> Handle:
        """Have calls of its cells be calls of its own."""
        return together.routed(model)

    def trained(self, model: Any, task: Any, told: Callable[[object, object, object], object]) -> Train:
        """A function that makes one update."""
        return training.trained(model, task, told)

"""The contract a framework fulfils: the whole of what aligner needs to know about torch, MindSpore or another one.

An adapter is a class without arguments, found by the entry point group "aligner.adapters". It is stateless apart
from what its handles undo. `aligner.testing.AdapterContract` is the test suite each adapter must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Optional, Protocol

from aligner.record import Array, Attribute, LayerSpec, Note, Scalar

Before = Callable[[tuple[object, ...], Mapping[str, object]], None]
After = Callable[[tuple[object, ...], Mapping[str, object], object], None]

Arguments = tuple[tuple[object, ...], Mapping[str, object]]
Given = Callable[[tuple[object, ...], Mapping[str, object]], Arguments]
Made = Callable[[tuple[object, ...], Mapping[str, object], object], object]

Begun = Callable[
    [str, tuple[object, ...], Mapping[str, object], Optional[tuple[str, int]]], Optional[Callable[[object], None]]
]
"""Is told that an operation begins: its name, its arguments, file and line; gives what is to be told what it made."""


class Handle(Protocol):
    """Something that was installed; removing it twice is harmless."""

    def remove(self) -> object: ...


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter or buffer in canonical words: torch's names and torch's layout, whatever the framework calls it.

    `name` is the framework's own full name and is what messages print ("layer1.0.bn1.gamma"); `layer` is the owner's
    path and `role` the canonical name inside it ("weight", "running_mean"); `shape` is the canonical shape
    (MindSpore's Conv1d weight without its extra axis). `tensor` is the framework's object.
    """

    name: str
    layer: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    tensor: object
    buffer: bool = False
    """Kept by the layer but no parameter: running statistics, masks, tables of constants."""
    kept: bool = True
    """Whether checkpoints hold it; else it is what the layer's constructor makes, and nothing is loaded into it."""


@dataclass(frozen=True, eq=False)
class Group:
    """Parameters that an optimizer updates alike. `settings` are in canonical words (aligner.words.optimizers)."""

    settings: Mapping[str, Attribute]
    parameters: Sequence[object]
    """The framework's objects, those of `Parameter.tensor`."""


@dataclass(frozen=True, eq=False)
class Optimizer:
    """An optimizer as it is at this moment: the kind in canonical words, the class as its users know it."""

    kind: str
    type: str
    groups: Sequence[Group]
    state: Sequence[tuple[object, str, object]]
    """What it keeps of a parameter: the parameter, the canonical word ("momentum"), and the tensor or the number."""


@dataclass(frozen=True)
class Finding:
    """One line of `aligner doctor`: `good` or a message with what to do."""

    good: bool
    message: str
    facts: Mapping[str, Scalar]


class Adapter(Protocol):
    """What a framework offers. Every method works on the framework's own objects; only numpy arrays come out."""

    @property
    def name(self) -> str:
        """The framework's name as users write it: "torch"."""

    @property
    def packages(self) -> Sequence[str]:
        """The framework's own packages: whose functions are operations, and no code of the user's."""

    @property
    def layer_class(self) -> type:
        """The class that all layers are of: torch.nn.Module."""

    @property
    def casting(self) -> Sequence[str]:
        """Methods of that class by which a program has one layer compute in a shorter type: "half"."""

    def version(self) -> str:
        """The framework's version."""

    def is_model(self, value: object) -> bool:
        """Whether `value` is a layer of this framework (and not of one that imitates it)."""

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a tensor of this framework."""

    def layers(self, model: object) -> Iterator[tuple[str, object]]:
        """All layers with their dotted paths, the model itself first as ""; a shared layer once, under its first path.

        Layers that the framework does not know of because they stand in a plain list or dict are included under
        the path they would have in a registered list, and `cautions` tells of them.
        """

    def type_name(self, layer: object) -> str:
        """The class with its module, as the framework's users know it: "torch.nn.Conv2d"."""

    def spec(self, layer: object) -> LayerSpec:
        """Kind and settings in canonical words (aligner.vocabulary)."""

    def computing(self, layer: object) -> tuple[object, str]:
        """The object and the name of its method that holds what the layer computes: (layer, "forward").

        Another function that is put there, on the object itself, runs in its place.
        """

    def observe(self, layer: object, before: Before, after: After) -> Handle:
        """Call `before(args, kwargs)` and `after(args, kwargs, output)` whenever the layer runs; change nothing.

        An exception of the callbacks goes up to whoever called the layer. If the layer itself raises, `after` is
        not called. Whoever calls a layer's own forward method passes by: such a layer never ran, for us.
        Inside a compiled graph `after` gets no arguments: their memory has other values by then.
        """

    def compiled_runs(self, before: Callable[[], None], after: Callable[[], None]) -> Handle:
        """Call `before()` and `after()` around each run of something compiled that tells of the layers inside it.

        Parameters can be read in both; in between, where layers are told of on whichever thread, they cannot. `after`
        is called also if the run raises.
        """

    def intervene(self, layer: object, given: Given, made: Made) -> Handle:
        """Run the layer on what `given(args, kwargs)` returns, and hand on what `made(args, kwargs, output)` returns.

        Like `observe` in everything else. `made` gets the arguments that the layer ran on. The layer's own output
        and arguments may be returned as they are.
        """

    def overwrite(self, tensor: object, other: object) -> None:
        """Make `tensor` hold the values of `other`, for whoever else keeps this very object.

        Memory that it shares stays as it is: the tensor of which it is a view, a parameter's values.

        Raises:
            ValueError: it cannot be (a parameter, another shape or dtype); nothing has changed then.
        """

    def watch_roots(self, on_root: Callable[[object], None]) -> Handle:
        """Call `on_root(model)` each time a layer is about to run that no other layer called.

        Hooks that `on_root` installs by `observe` must already fire for this very run.
        """

    def dtype(self, tensor: object) -> str:
        """The dtype's word, a key of aligner.dtypes.DTYPES ("bfloat16"), or the framework's word if unknown there."""

    def to_numpy(self, tensor: object) -> Array:
        """The exact bits on the host in the storage type of aligner.dtypes.

        May share memory with the tensor: write it or copy it before anything else runs.

        Raises:
            ValueError: for a tensor without readable values; the text says why.
            LateError: a kernel of the net's had failed before, and this reading was the first to be told.
        """

    def from_numpy(self, array: Array, dtype: str) -> object:
        """A tensor of this framework with these bits (the counterpart of `to_numpy`), sharing no memory."""

    def parameters(self, model: object) -> Iterator[Parameter]:
        """Parameters and buffers in the order they are defined; a shared one once."""

    def read(self, parameter: Parameter) -> Array:
        """The parameter's bits in canonical layout."""

    def load(self, parameter: Parameter, array: Array, dtype: str) -> None:
        """Give the parameter new values, in canonical layout, keeping the parameter's own dtype and device.

        Raises:
            ValueError: the array has another shape than the parameter.
        """

    def respecified(self, layer: object, changes: Mapping[str, Attribute], dtype: Optional[str] = None) -> object:
        """A copy of the layer with some settings changed, in canonical words; the same weights, sharing nothing.

        The copy has no hooks, is in the layer's train or eval mode, and `spec(copy)` shows the changes. With `dtype`
        ("float32") it computes in that type, its weights cast to it.

        Raises:
            ValueError: this layer cannot be copied with this change (an unknown setting, another shape of weights);
                the text says why.
        """

    def expression(self, layer: object) -> str:
        """Python that builds a layer like this one after the usual imports: "nn.Conv2d(3, 8, 3, padding=1)".

        Weights are left out. The names that it uses are those of `preamble`.

        Raises:
            ValueError: a class of the user's own, or one that cannot be spelled; the text says why.
        """

    def preamble(self) -> str:
        """The import lines that `expression` needs, as text."""

    def cast(self, model: object, dtype: str) -> None:
        """Put all floating parameters and buffers of the model into this dtype, in place, and have it compute so."""

    def operations(self, told: Callable[[str], None]) -> Handle:
        """Call `told(name)` for each operation of the framework that runs ("add", "matmul"), until removed.

        Operations that the framework does not tell of are left out; where it tells of none, nothing is called.
        """

    def executions(self, begun: Begun) -> Handle:
        """Call `begun(name, args, kwargs, where)` before each operation of the framework, until removed.

        `where` is file and line of the user's code, or None. What it returns, if anything, is called with what the
        operation made; one that writes into its first argument and returns nothing has made that. Names are those of
        `operations`. Where the framework does not tell of its operations, nothing is called.
        """

    def computations(self, told: Callable[[str, str], None]) -> Handle:
        """Call `told(name, dtype)` for each operation that makes floating numbers, as it runs, until removed.

        `dtype` is the type of what it makes, after all casts. Casts, views and what only moves values are left out;
        a framework that cannot tell calls nothing. Names as the framework has them, in lower case ("addmm").
        """

    def precision(self, model: object, layer: object) -> Optional[tuple[str, str]]:
        """What a call of this layer that begins now is told to compute in, and by what: ("float16", "to_float").

        None where no switch says anything: then it computes in the types of its inputs and weights.
        """

    def training(self, layer: object) -> bool:
        """Whether the layer is in train mode."""

    def set_training(self, model: object, training: bool) -> None:
        """Put the whole model into train or eval mode."""

    def silence_dropout(self, model: object) -> Handle:
        """Make every dropout of the model inactive in train mode, until the handle is removed.

        That includes rates kept as attributes of recurrent and attention layers, and functional dropout as far
        as the framework lets it be reached.
        """

    def seed(self, seed: int) -> None:
        """Seed the framework's random numbers."""

    def random_state(self) -> Optional[bytes]:
        """The state of the framework's default random numbers, or None where it cannot be read."""

    def set_random_state(self, state: bytes) -> None:
        """Go back to what `random_state` returned."""

    def device(self, name: str) -> Callable[[object], object]:
        """Select a device ("cpu", "gpu", "ascend") and return what moves a model or tensor there.

        Raises:
            AdapterError: when the framework has no such device here.
        """

    def running(self, model: object, mode: Optional[str] = "pynative") -> AbstractContextManager[object]:
        """The surroundings of a forward run, without gradients.

        "pynative": eagerly, layer by layer, compiled wrappers off. "graph": compiled as a whole. None: as the program
        has set it.

        Raises:
            AdapterError: this framework has no such mode.
        """

    def thread(self) -> int:
        """The thread on whose behalf a callback is called: `threading.get_ident()` where layers run in their caller's.

        A framework that runs compiled code in a thread of its own names the one that waits for it.
        """

    def environment(self, model: object) -> Mapping[str, Scalar]:
        """Header facts: at least "device" and "mode" ("pynative" or "graph")."""

    def cautions(self, model: object) -> Iterator[Note]:
        """Layers that cannot be observed fully, and why."""

    def doctor(self) -> Iterator[Finding]:
        """What is usable and what is wrong with this framework here."""


Told = Callable[[object], object]
"""Gets a gradient; what it returns, if anything, takes the gradient's place."""

Kept = Sequence[tuple[object, str, object]]
"""A parameter, the canonical word for what is kept of it, and the tensor."""

Apply = Callable[[Sequence[object]], object]

Update = Callable[[object, Sequence[tuple[object, object]]], Optional[Sequence[object]]]
"""An optimizer and its (parameter, gradient) pairs; what it returns, if anything, are the gradients in their place."""


class Compiles(Protocol):
    """What an adapter offers besides whose framework compiles nets so that no gradient in them can be seen."""

    def eagerly(self) -> Handle:
        """Have the program run eagerly whatever it asks for, until removed; `cautions` tells of it."""


class Trains(Protocol):
    """What an adapter offers besides where training steps can be captured."""

    def on_gradient(self, tensor: object, told: Told) -> Optional[Handle]:
        """Call `told(gradient)` when a backward run knows the gradient of this tensor; None where it has none.

        Of a parameter it is what this run makes of all its uses, before it is added to anything. Numbers are the same
        whether somebody is told or not. Of a run inside of what is differentiated itself nobody is told.
        """

    def losses(self, told: Callable[[object], None]) -> Handle:
        """Call `told(loss)` before each backward run, with what it begins at; a run inside of a loss is none."""

    def held(self, made: object, wanted: object) -> object:
        """A tensor with the values of `wanted` whose gradient goes to `made`."""

    def updates(self, begun: Update, ended: Callable[[object], None]) -> Handle:
        """Call `begun` before and `ended(optimizer)` after each update that any optimizer makes."""

    def optimizer(self, optimizer: object) -> Optimizer:
        """What an optimizer is and keeps now."""

    def rebuilt(self, optimizer: object, kind: str, groups: Sequence[Group], kept: Kept, count: int) -> Apply:
        """An optimizer of this kind with these groups that has made `count` updates and keeps this of its parameters;
        its update, of gradients in the order of the groups' parameters. The other optimizer stays as it is.

        Raises:
            ValueError: this framework has none that is told so; the text says why.
        """

    def treated(self, gradients: Sequence[object], kind: str, factor: float, bound: float) -> Sequence[object]:
        """New gradients: these times the factor, clipped by the framework's own functions: "none", all together to a
        "norm", "each" by its own norm, or elements at a "value"."""

    def lost(self, scores: object, wanted: object, kind: str) -> tuple[object, object]:
        """A loss of rows of scores and its gradient, by the framework's own functions.

        It is the sum of what is wanted of each score times -log_softmax of the row ("classes") or of the row's softmax
        ("twice"), or times -log_sigmoid of each and of its opposite, which has twice as many columns ("binary"), or of
        each one's sigmoid and its opposite ("sigmoid").
        """

    def put(self, kept: object, other: object) -> None:
        """Give a tensor that an optimizer keeps the values of another of its shape."""

    def alive(self) -> tuple[Sequence[object], Sequence[object]]:
        """The optimizers and the nets, with all their layers, that the program has now; of a loop the net inside."""

    def together(self, nets: Mapping[str, object]) -> object:
        """A net that holds these, under these names, and hands a call on to that one which its argument `net` names.
        They stay as they are."""

    def routed(self, model: object) -> Handle:
        """Have the outermost calls of nets that are `together` be calls of the whole, until removed; of a model that
        `together` has not made nothing is changed."""

    def trained(self, model: object, task: Any, told: Callable[[object, object, object], object]) -> Train:
        """A function that makes one update of a Task's training on the arguments of its micro-batches.

        `told(output, label, loss)` is called for each; if it returns something, that is the loss to go on with.
        """


Train = Callable[[Sequence[Arguments]], object]

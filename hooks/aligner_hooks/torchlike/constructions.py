"""Constructor calls that make a layer like one in hand: `expression` prints them, `respecified` makes them.

A call is made of the layer's settings in canonical words. What the vocabulary has no word for (inplace, max_norm) is
read from the layer under the constructor's own name for it, and what is the default is left out.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Optional

from aligner.errors import Reason
from aligner.record import Attribute
from aligner_hooks.torchlike.settings import PADDERS, plain
from aligner_hooks.torchlike.spec import Specs

Settings = Mapping[str, Any]
Arguments = dict[str, Any]
Apart = Callable[[], AbstractContextManager[object]]

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "LayerNorm": {"affine": "elementwise_affine"},
    "RMSNorm": {"affine": "elementwise_affine"},
    "TransformerEncoderLayer": {"eps": "layer_norm_eps"},
    "TransformerDecoderLayer": {"eps": "layer_norm_eps"},
}
_NOT_SETTINGS = ("device", "dtype")


@dataclass(frozen=True, eq=False)
class Construction:
    """A class of torch.nn and what it is called with; arguments are plain, or constructions, or lists of them."""

    cls: Any
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    def text(self) -> str:
        """The call as Python: "nn.Conv2d(3, 8, (3, 3), padding=(1, 1))"."""
        arguments = [_text(value) for value in self.positional]
        arguments += [f"{name}={_text(value)}" for name, value in self.named.items()]
        return f"nn.{self.cls.__name__}({', '.join(arguments)})"

    def build(self, apart: Apart) -> Any:
        """Such a layer without values, made in surroundings where making it draws no random numbers.

        Raises:
            ValueError: the package refuses these settings.
        """
        with apart(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings that the layer in hand has, or that are only tried
            try:
                positional = [_built(value, apart) for value in self.positional]
                return self.cls(*positional, **{name: _built(value, apart) for name, value in self.named.items()})
            except (TypeError, ValueError, RuntimeError, AssertionError, NotImplementedError) as error:
                first = (str(error).splitlines() or [type(error).__name__])[0]
                raise Reason("why-not-made", self.text(), first) from error


class Constructions:
    """The constructor calls of one package: `nn` is where its classes are, `specs` reads its layers.

    `computed(layer)` says whether weights of a layer are computed from others, as in weight_norm. `apart()` is what
    layers are built in.
    """

    def __init__(self, nn: Any, specs: Specs, computed: Callable[[Any], bool], apart: Apart) -> None:
        self.nn = nn
        self.specs = specs
        self.apart = apart
        self._computed = computed

    def spelled(self, layer: Any) -> str:
        """Python that makes a layer like this one.

        Raises:
            ValueError: there is no such call, or the layer's weights would not go into what it makes.
        """
        if any(self._computed(inner) for inner in layer.modules()):
            raise Reason("why-computed-weights", type(layer).__name__)
        return self.of(layer).text()

    def of(self, layer: Any, settings: Optional[Settings] = None) -> Construction:
        """The call that makes a layer like this one, or like it but for these settings.

        Raises:
            ValueError: no class of the package computes as it does, or its settings cannot be said.
        """
        cls = self.specs.known_class(layer)
        if cls is None:
            name = self.specs.type_name(layer)
            raise Reason("why-own-class", name, self.specs.home)
        known = self.specs.read(layer)
        values = known.attributes if settings is None else settings
        make = _SPECIAL.get(known.kind)
        if make is not None:
            return make(self, cls, layer, values)
        renamed = _RENAMED.get(known.kind, {})
        return _call(cls, layer, {renamed.get(word, word): value for word, value in values.items()})

    def built(self, layer: Any, settings: Optional[Settings] = None) -> Any:
        """A layer like this one, or like it but for these settings, without values.

        Raises:
            ValueError: there is no such call, or the package refuses it.
        """
        return self.of(layer, settings).build(self.apart)


def _call(cls: type, layer: Any, arguments: Arguments) -> Construction:
    """Arguments in the constructor's order, the required ones by position, the others by name unless they are usual."""
    if is_recurrent(cls):
        return _recurrent(cls, layer, arguments)
    positional: list[Any] = []
    named: Arguments = {}
    for parameter in inspect.signature(cls).parameters.values():
        name, usual = parameter.name, parameter.default
        if name not in arguments and name not in _NOT_SETTINGS and not name.startswith("_"):
            _add_own(arguments, layer, name)
        if name not in arguments:
            continue
        if usual is parameter.empty:
            positional.append(arguments[name])
        elif not _is_usual(arguments[name], usual):
            named[name] = arguments[name]
    return Construction(cls, tuple(positional), named)


def is_recurrent(cls: type) -> bool:
    """Whether it is one of the LSTM, GRU and RNN classes: they come from one base, whatever a package calls it."""
    return any(base.__name__ == "RNNBase" for base in cls.__mro__)


def _recurrent(cls: type, layer: Any, arguments: Arguments) -> Construction:
    """Their constructors hand all arguments on, so that a signature does not tell them."""
    usual: Arguments = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
    usual.update(proj_size=0, nonlinearity="tanh")
    arguments = {**arguments, "proj_size": getattr(layer, "proj_size", 0)}  # mindnlp's have none
    named = {name: arguments[name] for name in usual if name in arguments}
    unusual = {name: value for name, value in named.items() if not _is_usual(value, usual[name])}
    return Construction(cls, (arguments["input_size"], arguments["hidden_size"]), unusual)


def _add_own(arguments: Arguments, layer: Any, name: str) -> None:
    """What the vocabulary has no word for, as the layer has it; the bias of a norm is a parameter or None."""
    value = getattr(layer, name, inspect.Parameter.empty)
    if name == "bias":
        # Without a weight it does not tell whether there would be one beside it.
        if getattr(layer, "weight", None) is not None:
            arguments[name] = value is not None
    elif value is None or isinstance(value, (bool, int, float, str)):
        arguments[name] = plain(value)


def _is_usual(value: Any, usual: Any) -> bool:
    """Whether it is the default, or the default along every axis."""
    if isinstance(value, tuple) and value and not isinstance(usual, tuple):
        return all(_is_usual(item, usual) for item in value)
    return isinstance(value, bool) is isinstance(usual, bool) and bool(value == usual)


def _text(value: Any) -> str:
    if isinstance(value, Construction):
        return value.text()
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _built(value: Any, apart: Apart) -> Any:
    if isinstance(value, Construction):
        return value.build(apart)
    if isinstance(value, list):
        return [_built(item, apart) for item in value]
    if isinstance(value, dict):
        return {key: _built(item, apart) for key, item in value.items()}
    return value


def _symmetric(padding: Any) -> tuple[int, ...]:
    """One number for each axis.

    Raises:
        ValueError: torch's layers put as much before as after.
    """
    if isinstance(padding, str) or any(before != after for before, after in padding):
        raise Reason("why-uneven", padding)
    return tuple(before for before, _ in padding)


def _convolution(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    kernel, dilation, padding = settings["kernel_size"], settings["dilation"], settings["padding"]
    totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
    same = tuple((total // 2, total - total // 2) for total in totals)
    # Only as a word can torch put more after than before.
    uneven = not isinstance(padding, str) and any(before != after for before, after in padding)
    if uneven and padding == same and set(settings["stride"]) == {1} and "output_padding" not in settings:
        return _call(cls, layer, {**settings, "padding": "same"})
    return _call(cls, layer, {**settings, "padding": _symmetric(padding)})


def _window(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    arguments = {**settings, "padding": _symmetric(settings["padding"])}
    if "Pool" in cls.__name__ and arguments["stride"] == arguments["kernel_size"]:
        del arguments["stride"]  # which is what torch takes then
    return _call(cls, layer, _with_own_stride(arguments))


def _with_own_stride(arguments: Arguments) -> Arguments:
    """`stride=None` so that the layer in hand is not asked for one."""
    return arguments if "stride" in arguments else {**arguments, "stride": None}


def _pad(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    axes = int(re.findall(r"\d", cls.__name__)[-1])
    names = [
        name for name in PADDERS.get(settings["mode"], ()) if name.endswith(f"{axes}d") and hasattr(package.nn, name)
    ]
    if not names or len(settings["padding"]) > axes:
        raise Reason("why-no-padder", axes, settings["padding"], settings["mode"])
    amounts = [amount for pair in settings["padding"] for amount in pair]
    padding = (*amounts, *[0] * (2 * axes - len(amounts)))
    if settings["mode"] != "constant":
        return Construction(getattr(package.nn, names[0]), (padding,), {})
    if cls.__name__.startswith("ZeroPad") and settings["value"] == 0:
        return Construction(cls, (padding,), {})
    return Construction(getattr(package.nn, names[0]), (padding, settings["value"]), {})


def _upsample(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    return _call(package.nn.Upsample, layer, dict(settings))


def _softmax(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    return Construction(package.nn.Softmax, (), {"dim": settings["dim"]})


def _attention(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    arguments = {**settings, "add_bias_kv": layer.bias_k is not None}
    for name in ("kdim", "vdim"):
        if arguments[name] == arguments["embed_dim"]:
            arguments[name] = None
    return _call(cls, layer, arguments)


def _transformer_layer(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    arguments = {("layer_norm_eps" if word == "eps" else word): value for word, value in settings.items()}
    if "bias" in inspect.signature(cls).parameters:
        arguments["bias"] = layer.linear1.bias is not None
    return _call(cls, layer, arguments)


def _stack(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    if not len(layer.layers):
        raise Reason("why-empty-stack", cls.__name__)
    norm = {} if layer.norm is None else {"norm": package.of(layer.norm)}
    return Construction(cls, (package.of(layer.layers[0]), settings["num_layers"]), norm)


def _transformer(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    encoder, decoder = layer.encoder, layer.decoder
    if not (isinstance(encoder, package.nn.TransformerEncoder) and len(encoder.layers)):
        raise Reason("why-own-encoder")
    first = package.specs.read(encoder.layers[0])
    if first.kind != "TransformerEncoderLayer" or not isinstance(decoder, package.nn.TransformerDecoder):
        raise Reason("why-own-encoder")
    inner = {("layer_norm_eps" if word == "eps" else word): value for word, value in first.attributes.items()}
    numbers = {"num_encoder_layers": len(encoder.layers), "num_decoder_layers": len(decoder.layers)}
    return _call(cls, layer, {**inner, **numbers})


def _container(package: Constructions, cls: type, layer: Any, settings: Settings) -> Construction:
    children = dict(layer._modules)
    if cls is package.nn.ModuleDict:
        return Construction(
            cls, ({name: package.of(child) for name, child in children.items()},) if children else (), {}
        )
    if list(children) != [str(i) for i in range(len(children))]:
        raise Reason("why-own-names", cls.__name__, ", ".join(children))
    made = [package.of(child) for child in children.values()]
    if cls is package.nn.Sequential:
        return Construction(cls, tuple(made), {})
    return Construction(cls, (made,) if made else (), {})


_SPECIAL: Mapping[str, Callable[[Constructions, type, Any, Mapping[str, Attribute]], Construction]] = {
    **{f"Conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _convolution for n in (1, 2, 3)},
    **{f"{which}Pool{n}d": _window for which in ("Max", "Avg") for n in (1, 2, 3)},
    "Unfold": _window,
    "Pad": _pad,
    "Upsample": _upsample,
    "Softmax": _softmax,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _transformer_layer,
    "TransformerDecoderLayer": _transformer_layer,
    "TransformerEncoder": _stack,
    "TransformerDecoder": _stack,
    "Transformer": _transformer,
    **dict.fromkeys(("Sequential", "ModuleList", "ModuleDict"), _container),
}

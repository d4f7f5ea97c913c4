"""A layer's kind and settings in the words of aligner.vocabulary.

`_table` says which class has which kind, and who reads its settings. A subclass counts as what it comes from
only if it computes in the same way, that is, does not bring a forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import KINDS
from aligner_hooks.torchlike import settings
from aligner_hooks.torchlike.settings import plain, plain_own

Reader = Callable[[Any], Mapping[str, Attribute]]

# Methods that decide what a class computes; _conv_forward is the part of a convolution that people override.
_COMPUTING = ("forward", "_conv_forward")


class Entry(NamedTuple):
    """What is known of a class."""

    kind: str
    read: Reader


def _named(*names: str, **renamed: str) -> Reader:
    """Settings that stand on the layer under the vocabulary's names, or under others (affine="elementwise_affine")."""
    table = {**{name: name for name in names}, **renamed}

    def read(layer: Any) -> Mapping[str, Attribute]:
        return {word: plain(getattr(layer, attribute)) for word, attribute in table.items()}

    return read


def _classes(nn: Any, *names: str) -> tuple[type, ...]:
    """Those of these classes that the package has."""
    return tuple(getattr(nn, name) for name in names if hasattr(nn, name))


def _table(nn: Any) -> dict[type, Entry]:
    table: dict[type, Entry] = {}

    def add(kind: str, read: Reader, *names: str) -> None:
        for found in _classes(nn, *(names or (kind,))):
            table[found] = Entry(kind, read)

    for n in (1, 2, 3):
        add(f"Conv{n}d", settings.convolution)
        add(f"ConvTranspose{n}d", settings.transposed_convolution)
        add(f"MaxPool{n}d", settings.max_pool(n))
        add(f"AvgPool{n}d", settings.average_pool(n))
        add(f"AdaptiveAvgPool{n}d", settings.adaptive_pool(n))
        add(f"AdaptiveMaxPool{n}d", settings.adaptive_pool(n))
    normed = _named("num_features", "eps", "momentum", "affine", "track_running_stats")
    add("BatchNorm", normed, "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
    add("InstanceNorm", normed, "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
    add("LayerNorm", _named("normalized_shape", "eps", affine="elementwise_affine"))
    add("RMSNorm", settings.rms_norm)
    add("GroupNorm", _named("num_groups", "num_channels", "eps", "affine"))
    add("LocalResponseNorm", _named("size", "alpha", "beta", "k"))
    add("Linear", settings.with_bias("in_features", "out_features"))
    add("Bilinear", settings.with_bias("in1_features", "in2_features", "out_features"))
    add("Embedding", _named("num_embeddings", "embedding_dim", "padding_idx"))
    add("Dropout", _named("p"), "Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
    _add_activations(add)
    add("Flatten", _named("start_dim", "end_dim"))
    add("Unflatten", settings.unflatten)
    add("Upsample", settings.upsample, "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")
    add("PixelShuffle", _named("upscale_factor"))
    add("PixelUnshuffle", _named("downscale_factor"))
    for mode, family in settings.PADDERS.items():
        add("Pad", settings.padder(mode), *family)
    add("Unfold", settings.unfold)
    for kind in ("LSTM", "GRU"):
        add(kind, settings.recurrent())
        add(f"{kind}Cell", _named(*settings.CELL))
    add("RNN", settings.recurrent("nonlinearity"))
    add("RNNCell", _named(*settings.CELL, "nonlinearity"))
    add("MultiheadAttention", settings.attention)
    add("TransformerEncoderLayer", settings.transformer_layer)
    add("TransformerDecoderLayer", settings.transformer_layer)
    add("TransformerEncoder", _named("num_layers"))
    add("TransformerDecoder", _named("num_layers"))
    for kind in ("Transformer", "Sequential", "ModuleList", "ModuleDict", "Identity"):
        add(kind, _named())
    for kind, names in KINDS.items():
        if kind.endswith("Loss"):
            add(kind, _named(*names))
    return table


def _add_activations(add: Callable[..., None]) -> None:
    for kind in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid", "Softsign"):
        add(kind, _named())
    for kind in ("Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink"):
        add(kind, _named())
    for kind in ("GLU", "Softmax", "LogSoftmax", "Softmin"):
        add(kind, _named("dim"))
    add("Softmax", lambda layer: {"dim": -3}, "Softmax2d")
    add("LeakyReLU", _named("negative_slope"))
    add("PReLU", _named("num_parameters"))
    add("RReLU", _named("lower", "upper"))
    add("ELU", _named("alpha"))
    add("CELU", _named("alpha"))
    add("GELU", lambda layer: {"approximate": getattr(layer, "approximate", "none")})
    add("Hardtanh", _named("min_val", "max_val"))
    add("Hardshrink", _named("lambd"))
    add("Softshrink", _named("lambd"))
    add("Softplus", _named("beta", "threshold"))
    add("Threshold", _named("threshold", "value"))


class Specs:
    """Specs of one package's layers: `nn` is where its classes are, which people know as `home` ("torch.nn").

    Layers of the classes `scripted` are compiled: their settings cannot be read. `written(class)` is the class that the
    user wrote, where a package puts another one in its place. Attributes called as in `switches` are no settings.
    """

    def __init__(
        self,
        nn: Any,
        home: str,
        scripted: tuple[type, ...] = (),
        written: Callable[[type], type] = lambda kind: kind,
        switches: tuple[str, ...] = (),
    ) -> None:
        self.home = home
        self.written = written
        self._switches = switches
        self._nn = nn
        self._scripted = scripted
        # Made when they are first asked for.
        self._table: Optional[dict[type, Entry]] = None
        self._usual: Optional[frozenset[str]] = None

    def _find(self, layer: Any) -> Optional[tuple[type, Entry]]:
        """The nearest known class, if it computes as the layer does, and its entry."""
        if self._table is None:
            self._table = _table(self._nn)
        own = self.written(type(layer))
        for known in own.__mro__:
            if known in self._table:
                same = all(getattr(own, name, None) is getattr(known, name, None) for name in _COMPUTING)
                return (known, self._table[known]) if same else None
        return None

    def read(self, layer: Any) -> LayerSpec:
        """Kind and settings; a class without a word in the vocabulary keeps its name and shows its plain attributes."""
        if isinstance(layer, self._scripted):
            return LayerSpec("ScriptModule", {"original": str(getattr(layer, "original_name", ""))})
        if settings.is_transposed_linear(layer):
            return LayerSpec("Linear", dict(settings.transposed_linear(layer)))
        found = self._find(layer)
        if found is not None:
            _, entry = found
            try:
                return LayerSpec(entry.kind, dict(entry.read(layer)))
            except (AttributeError, TypeError, ValueError):
                pass  # a subclass built in a way of its own lacks what its base has: tell of it as of any other
        return LayerSpec(self.written(type(layer)).__name__, plain_own(layer, self._own_attributes()))

    def known_class(self, layer: Any) -> Optional[type]:
        """The class of the package that the layer computes as, if its spec is in that class's words."""
        found = None if isinstance(layer, self._scripted) else self._find(layer)
        return found[0] if found is not None and self.read(layer).kind == found[1].kind else None

    def type_name(self, layer: Any) -> str:
        """The class where its users find it: "torch.nn.Conv2d", not "torch.nn.modules.conv.Conv2d"."""
        own = self.written(type(layer))
        if getattr(self._nn, own.__name__, None) is own:
            return f"{self.home}.{own.__name__}"
        return f"{own.__module__}.{own.__qualname__}"

    def _own_attributes(self) -> frozenset[str]:
        """The public attributes that every module has."""
        if self._usual is None:
            usual = frozenset(name for name in vars(self._nn.Module()) if not name.startswith("_"))
            self._usual = usual.union(self._switches)
        return self._usual

"""Which cause a differing setting, or another kind of layer, is: tables, the first row that fits counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import KINDS


class Difference(NamedTuple):
    """A setting whose values differ. `own` is what the port's layer calls it, mostly the same word."""

    name: str
    own: str
    reference: Attribute
    port: Attribute


Fits = Callable[[Difference, LayerSpec], bool]


class Rule(NamedTuple):
    """A row: this setting of these kinds is this cause where `fits(difference, the port's spec)`."""

    cause: str
    kinds: tuple[str, ...]
    settings: tuple[str, ...]
    fits: Fits


def same(one: Attribute, other: Attribute) -> bool:
    """Equal, with numbers equal to the digits that a float32 keeps, and a list as good as a tuple."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _any(_difference: Difference, _port: LayerSpec) -> bool:
    return True


def _port_is(*values: Attribute) -> Fits:
    return lambda difference, _port: any(same(difference.port, value) for value in values)


def _reference_is(*values: Attribute) -> Fits:
    return lambda difference, _port: any(same(difference.reference, value) for value in values)


def _are(port: Attribute, reference: Attribute) -> Fits:
    return lambda difference, _port: difference.port == port and difference.reference == reference


def _rest_of_one(difference: Difference, _port: LayerSpec) -> bool:
    """Each is one less the other: a share that is kept was given where one that goes was meant."""
    one, other = difference.port, difference.reference
    return isinstance(one, (int, float)) and isinstance(other, (int, float)) and same(one, 1 - other)


def _is_same_mode(difference: Difference, port: LayerSpec) -> bool:
    """The port's padding is what pad_mode "same" makes of the kernel."""
    if difference.port == "same":
        return True
    kernel: Any = port.attributes.get("kernel_size", ())
    dilation: Any = port.attributes.get("dilation", (1,) * len(kernel))
    totals = [spread * (size - 1) for size, spread in zip(kernel, dilation)]
    pairs = tuple((total // 2, total - total // 2) for total in totals)
    return bool(pairs) and any(totals) and same(difference.port, pairs)


def pads(value: Attribute) -> bool:
    """Whether there is a number other than zero in it."""
    return any(_numbers(value))


def around(port: LayerSpec) -> tuple[tuple[int, int], ...]:
    """As much before as behind, so that an odd kernel keeps the size; nothing for another kernel."""
    kernel, dilation = (_numbers(port.attributes.get(name)) for name in ("kernel_size", "dilation"))
    totals = [spread * (size - 1) for size, spread in zip(kernel, dilation or (1,) * len(kernel))]
    even = any(totals) and not any(total % 2 for total in totals)
    return tuple((total // 2, total // 2) for total in totals) if even else ()


def _is_transposed_same_mode(_difference: Difference, port: LayerSpec) -> bool:
    """The port cuts what pad_mode "same" cuts: kernel less stride."""
    kernel, stride, dilation, padding = (
        _numbers(port.attributes.get(name)) for name in ("kernel_size", "stride", "dilation", "padding")
    )
    totals = [max(d * (k - 1) + 1 - s, 0) for k, s, d in zip(kernel, stride, dilation)]
    ends = [edge for total in totals for edge in (total // 2, total - total // 2)]
    return bool(totals) and same(tuple(ends), padding)


def _numbers(value: Any) -> tuple[int, ...]:
    """Flat."""
    if isinstance(value, (tuple, list)):
        return tuple(number for item in value for number in _numbers(item))
    return (value,) if isinstance(value, int) else ()


def _other_order(difference: Difference, _port: LayerSpec) -> bool:
    one, other = _numbers(difference.port), _numbers(difference.reference)
    return bool(one) and sorted(one) == sorted(other)


def _ones_for_kernel(difference: Difference, port: LayerSpec) -> bool:
    """Stride 1 where the reference steps by the kernel."""
    return set(_numbers(difference.port)) == {1} and same(difference.reference, port.attributes.get("kernel_size"))


def _fewer_axes(difference: Difference, _port: LayerSpec) -> bool:
    one, other = difference.port, difference.reference
    return isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)) and len(one) < len(other)


def _other_power(_difference: Difference, port: LayerSpec) -> bool:
    """Whether p is not what nobody changes by intention."""
    return not same(port.attributes.get("p", 2), 2)


CONVOLUTIONS = tuple(f"Conv{n}d" for n in (1, 2, 3))
TRANSPOSED = tuple(f"ConvTranspose{n}d" for n in (1, 2, 3))
MAX_POOLS, AVERAGE_POOLS = (tuple(f"{which}Pool{n}d" for n in (1, 2, 3)) for which in ("Max", "Avg"))
RECURRENT = ("LSTM", "GRU", "RNN")
MARGINS = tuple(kind for kind, names in KINDS.items() if kind.endswith("Loss") and "margin" in names)
REDUCED = tuple(kind for kind, names in KINDS.items() if kind.endswith("Loss") and "reduction" in names)
TRANSFORMERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")

RULES: tuple[Rule, ...] = (
    Rule("layernorm-eps-default", ("LayerNorm",), ("eps",), _port_is(1e-7)),
    Rule("layernorm-multi-axis", ("LayerNorm",), ("normalized_shape",), _fewer_axes),
    Rule("bn-eps-dropped", ("BatchNorm",), ("eps",), _any),
    Rule("bn-momentum-none", ("BatchNorm",), ("momentum",), _reference_is(None)),
    Rule("bn-momentum-convention", ("BatchNorm",), ("momentum",), _rest_of_one),
    Rule("bn-frozen-unfrozen-by-set-train", ("BatchNorm",), ("track_running_stats",), _port_is("always")),
    Rule("bn-use-batch-statistics", ("BatchNorm",), ("track_running_stats",), _any),
    Rule("groupnorm-args-swapped", ("GroupNorm",), ("num_groups",), _any),
    Rule("instancenorm-affine-default", ("InstanceNorm",), ("affine",), _any),
    Rule("rmsnorm-eps-default", ("RMSNorm",), ("eps",), _any),
    Rule("lrn-size-alpha", ("LocalResponseNorm",), ("size", "alpha", "beta", "k"), _any),
    Rule(
        "conv2d-same-vs-pad-stride2", CONVOLUTIONS, ("padding",), lambda d, _: d.port == "same" and any(_numbers(d[2]))
    ),
    Rule("conv2d-pad-mode-same-default", CONVOLUTIONS, ("padding",), _is_same_mode),
    Rule("conv2d-padding-4tuple-order", CONVOLUTIONS, ("padding",), _other_order),
    Rule("conv2d-dilation-dropped", CONVOLUTIONS, ("dilation",), _any),
    Rule("conv2d-has-bias-default", CONVOLUTIONS, ("bias",), _are(False, True)),
    Rule("convtranspose-bias-default", TRANSPOSED, ("bias",), _are(False, True)),
    Rule("convtranspose-pad-mode-same-k3s2", TRANSPOSED, ("padding", "output_padding"), _is_transposed_same_mode),
    Rule("maxpool-pad-mode-same-stem", MAX_POOLS, ("padding",), _is_same_mode),
    Rule("avgpool-pad-mode-same", AVERAGE_POOLS, ("padding",), _is_same_mode),
    Rule("pool-stride-default", (*MAX_POOLS, *AVERAGE_POOLS), ("stride",), _ones_for_kernel),
    Rule("pool-ceil-mode-dropped", (*MAX_POOLS, *AVERAGE_POOLS), ("ceil_mode",), _any),
    Rule("avgpool-count-include-pad", AVERAGE_POOLS, ("count_include_pad",), _any),
    Rule("interpolate-align-corners", ("Upsample",), ("align_corners",), _any),
    Rule("upsample-mode-default-nearest", ("Upsample",), ("mode",), _port_is("nearest")),
    Rule("pad-symmetric-vs-reflect", ("Pad",), ("mode",), _are("symmetric", "reflect")),
    Rule("pad-axis-order", ("Pad",), ("padding",), _other_order),
    Rule("gelu-approximate-default", ("GELU",), ("approximate",), _are("tanh", "none")),
    Rule("gelu-new-vs-erf", ("GELU",), ("approximate",), _are("none", "tanh")),
    Rule("leakyrelu-yolo-0.1", ("LeakyReLU",), ("negative_slope",), _reference_is(0.1)),
    Rule("leakyrelu-slope-default", ("LeakyReLU",), ("negative_slope",), _port_is(0.2)),
    Rule("softplus-beta", ("Softplus",), ("beta", "threshold"), _any),
    Rule("prelu-channel-default", ("PReLU",), ("num_parameters",), _port_is(1)),
    Rule("softmax-axis-default", ("Softmax",), ("dim",), _port_is(-1)),
    Rule("logsoftmax-axis", ("LogSoftmax",), ("dim",), _any),
    Rule("dropout-keep-prob-positional", ("Dropout",), ("p",), _rest_of_one),
    Rule("rnn-batch-first", (*RECURRENT, "MultiheadAttention", *TRANSFORMERS), ("batch_first",), _any),
    Rule("encoder-layer-norm-first", TRANSFORMERS, ("norm_first",), _any),
    Rule("ce-ignore-index-lost", ("CrossEntropyLoss", "NLLLoss"), ("ignore_index",), _any),
    Rule("smoothl1-reduction-default", ("SmoothL1Loss",), ("reduction",), _port_is("none")),
    Rule("smoothl1-beta", ("SmoothL1Loss",), ("beta",), _any),
    Rule("kldiv-reduction-batchmean", ("KLDivLoss",), ("reduction",), _any),
    Rule("kldiv-log-target", ("KLDivLoss",), ("log_target",), _are(False, True)),
    Rule("ce-label-smoothing", ("CrossEntropyLoss",), ("label_smoothing",), _any),
    Rule("huber-delta", ("HuberLoss",), ("delta",), _any),
    Rule("ctc-blank-index", ("CTCLoss",), ("blank",), _any),
    Rule("gaussian-nll-full", ("GaussianNLLLoss",), ("full",), _any),
    Rule("poisson-log-input", ("PoissonNLLLoss",), ("log_input",), _any),
    Rule("poisson-full", ("PoissonNLLLoss",), ("full",), _any),
    Rule("triplet-positional-args", ("TripletMarginLoss",), ("margin", "p"), _other_power),
    Rule("loss-margin", MARGINS, ("margin",), _any),
    Rule("loss-reduction", REDUCED, ("reduction",), _any),
    Rule("parameter-missing", ("Linear", "Bilinear", *RECURRENT, "MultiheadAttention"), ("bias",), _are(False, True)),
    Rule("parameter-missing", ("LayerNorm", "BatchNorm", "GroupNorm", "RMSNorm"), ("affine",), _are(False, True)),
)


EPS = frozenset({"eps", "epsilon", "variance_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"})
SYNONYMS: tuple[frozenset[str], ...] = (
    EPS,
    frozenset({"scale", "scaling", "scale_factor", "softmax_scale", "attn_scale"}),
    frozenset({"num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads"}),
)
"""Words that classes of people's own have for one thing."""


def cause(difference: Difference, reference: LayerSpec, port: LayerSpec) -> str:
    """The most telling id; "setting-differs" where no row fits."""
    name = "eps" if difference.name in EPS else difference.name
    for rule in RULES:
        if name in rule.settings and family(reference.kind) in rule.kinds and rule.fits(difference, port):
            return rule.cause
    return "setting-differs"


def family(kind: str) -> str:
    """The kind, where a class of the user's own is by its name one that people write by hand: LlamaRMSNorm."""
    return "RMSNorm" if kind.lower().endswith("rmsnorm") else kind


QUICK_GELUS = ("quickgelu", "fastgelu", "quickgeluactivation", "fastgeluactivation")
KIND_PAIRS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("hardswish-vs-swish", ("hardswish", "hswish"), ("silu", "swish")),
    ("quick-gelu-vs-gelu", QUICK_GELUS, ("gelu",)),
    ("resize-bilinear-half-pixel", ("upsample",), ("resizebilinear", "resizebilinearv2")),
    ("huber-vs-smoothl1", ("smoothl1loss",), ("huberloss",)),
    ("softmax-ce-reduction-none", ("crossentropyloss",), ("softmaxcrossentropywithlogits",)),
)
"""Cause, and the two kinds that are taken for each other, either way, in small letters."""


def kind_cause(reference: str, port: str) -> str:
    """The cause that another kind of layer is; "kind-differs" where no row fits."""
    found = {family(reference).lower(), family(port).lower()}
    for name, some, others in KIND_PAIRS:
        if len(found) == 2 and found & set(some) and found & set(others):
            return name
    return "kind-differs"


SIZES = {
    *("in_channels", "out_channels", "in_features", "out_features", "in1_features", "in2_features"),
    *("num_embeddings", "embedding_dim", "num_features", "num_channels", "input_size", "hidden_size", "num_layers"),
    *("bidirectional", "d_model", "dim_feedforward", "embed_dim", "kdim", "vdim", "num_parameters"),
}
"""Settings that make the shapes of the weights: a copy with the same weights cannot have another."""

GIVES: Mapping[str, tuple[str, ...]] = {
    "bias": ("bias",),
    "affine": ("weight", "bias"),
    "track_running_stats": ("running_mean", "running_var"),
}
"""Setting that is on or off -> roles of parameters that are there only with it."""


def gives(setting: str, role: str) -> bool:
    """Whether a parameter of this role comes with the setting; every bias comes with "bias", whatever its full name."""
    return "bias" in role if setting == "bias" else role in GIVES.get(setting, ())

"""An operation as source code: what MindSpore 2.5 to 2.10 take alike, what torch takes, and numpy."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from aligner.words.operations import OPERATORS, row

TORCH, MINDSPORE, NUMPY = "torch", "mindspore", "numpy"

_FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("mse_loss", "l1_loss", "binary_cross_entropy"), "{word}({0}, {1}, reduction={reduction})"),
    "smooth_l1_loss": "{word}({0}, {1}, beta={beta}, reduction={reduction})",
    "nll_loss": "{word}({0}, {1}, ignore_index={ignore_index}, reduction={reduction})",
    "cross_entropy": "{word}({0}, {1}, ignore_index={ignore_index}, reduction={reduction}, "
    "label_smoothing={label_smoothing})",
    "adaptive_avg_pool": "adaptive_avg_pool2d({0}, {size})",
    "adaptive_max_pool": "adaptive_max_pool2d({0}, {size})",
    "celu": "celu({0}, {alpha})",
    "cosine_similarity": "cosine_similarity({0}, {1}, {axis}, {eps})",
    "one_hot": "one_hot({0}, {n})",
    "grid_sample": "grid_sample({0}, {1}, {mode}, {pad_mode}, {align_corners})",
    "unfold": "unfold({0}, {kernel}, {dilation}, {pad}, {stride})",
    "layer_norm": "layer_norm({0}, {shape}{more}, eps={eps})",
    "group_norm": "group_norm({0}, {groups}{more}, eps={eps})",
    **dict.fromkeys(("binary_cross_entropy_with_logits", "kl_div"), "{word}({0}, {1}, reduction={reduction})"),
}
"""Functions that both frameworks have, each in a module of its own."""

_MINDSPORE: Mapping[str, str] = {
    **{word: f"{{ops}}.{text}" for word, text in _FUNCTIONS.items()},
    **dict.fromkeys(("prod", "any", "all"), "{0}.{word}({axis}, {keepdims})"),
    "argmin": "{ops}.argmin({0}, {axis}, {keepdims})",
    "transpose": "{0}.transpose({perm})",
    "cat": "{ops}.cat(({all}), axis={axis})",
    "stack": "{ops}.stack(({all}), axis={axis})",
    "mean": "{ops}.mean({0}, {axis}, {keepdims})",
    "sum": "{0}.sum({axis}, keepdims={keepdims})",
    "max": "{0}.max(axis={axis}, keepdims={keepdims})",
    "min": "{0}.min(axis={axis}, keepdims={keepdims})",
    "linear": "{ops}.matmul({0}, {1}.swapaxes(0, 1))",
    "fill": "{ops}.full({shape}, {value})",
    "floats": "({ops}.ones({shape}) * {value})",
    "cast": "{0}.astype({ms}.{dtype})",
    "repeat_interleave": "{ops}.repeat_interleave({0}, {repeats}, axis={axis})",
    "tile": "{ops}.tile({0}, {reps})",
    "expand": "{ops}.broadcast_to({0}, {shape})",
    "interpolate": "{ops}.interpolate({0}, size={size}, mode={mode}, align_corners={align_corners})",
    "argmax": "{ops}.argmax({0}, dim={axis})",
    "gather": "{ops}.gather_elements({0}, {axis}, {1})",
    "scatter": "{ops}.tensor_scatter_elements({0}, {1}, {2}, {axis})",
    "scatter_add": "{ops}.tensor_scatter_elements({0}, {1}, {2}, {axis}, 'add')",
    "std": "{0}.std({axis}, {correction}, {keepdims})",
    "var": "{0}.var({axis}, {correction}, {keepdims})",
    "softmax": "{ops}.softmax({0}, axis={axis})",
    "log_softmax": "{ops}.log_softmax({0}, axis={axis})",
    **dict.fromkeys(("avg_pool", "max_pool"), "{ops}.{word}2d({0}, {kernel}, {stride}{rest})"),
    "normalize": "({0} / {ops}.clamp({ops}.norm({0}, {p}, {axis}, True), {eps}, None))",
    **dict.fromkeys(("segment_sum", "segment_max", "segment_min"), "{ops}.unsorted_{word}({0}, {1}, {n})"),
    "complex": "{ops}.Complex()({0}, {1})",
    "layer_norm": "{ops}.LayerNorm(-1, -1, {eps})({0}, {1}, {2})[0]",
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), "{ops}.{word}({0}, {n}, {axis}, {norm})"),
    **dict.fromkeys(("fft2", "ifft2", "rfft2", "irfft2"), "{ops}.{word}({0}, {s}, {axis}, {norm})"),
}
_ROWS = "{1}.reshape((-1,) + (1,) * ({0}.dim() - 1)).expand_as({0})"
"""The number of its segment beside each element."""

_TORCH: Mapping[str, str] = {
    **{word: f"{{ops}}.nn.functional.{text}" for word, text in _FUNCTIONS.items()},
    **dict.fromkeys(("prod", "any", "all", "argmin"), "{0}.{word}({axis}, keepdim={keepdims})"),
    "transpose": "{0}.permute({perm})",
    "cat": "{ops}.cat(({all}), dim={axis})",
    "stack": "{ops}.stack(({all}), dim={axis})",
    "mean": "{0}.mean({axis}, keepdim={keepdims})",
    "sum": "{0}.sum({axis}, keepdim={keepdims})",
    "max": "{0}.amax({axis}, keepdim={keepdims})",
    "min": "{0}.amin({axis}, keepdim={keepdims})",
    "linear": "{ops}.matmul({0}, {1}.transpose(0, 1))",
    "fill": "{ops}.full({shape}, {value})",
    "cast": "{0}.to({ms}.{dtype})",
    "repeat_interleave": "{ops}.repeat_interleave({0}, {repeats}, dim={axis})",
    "tile": "{ops}.tile({0}, {reps})",
    "expand": "{0}.expand({shape})",
    "interpolate": "{ops}.nn.functional.interpolate({0}, size={size}, mode={mode}, align_corners={align_corners})",
    "argmax": "{0}.argmax({axis})",
    "gather": "{0}.gather({axis}, {1})",
    **dict.fromkeys(("scatter", "scatter_add"), "{0}.{word}({axis}, {1}, {2})"),
    "std": "{0}.std({axis}, correction={correction}, keepdim={keepdims})",
    "var": "{0}.var({axis}, correction={correction}, keepdim={keepdims})",
    "softmax": "{0}.softmax({axis})",
    "log_softmax": "{0}.log_softmax({axis})",
    **dict.fromkeys(("avg_pool", "max_pool"), "{ops}.nn.functional.{word}2d({0}, {kernel}, {stride}{rest})"),
    "normalize": "{ops}.nn.functional.normalize({0}, {p}, {axis}, {eps})",
    "gelu": "{ops}.nn.functional.gelu({0}, approximate={approximate})",
    "softplus": "{ops}.nn.functional.softplus({0}, {beta}, {threshold})",
    "segment_sum": "{ops}.zeros(({n},) + {0}.shape[1:]).index_add(0, {1}, {0})",
    "segment_max": "{ops}.full(({n},) + {0}.shape[1:], -{ops}.inf).scatter_reduce(0, " + _ROWS + ", {0}, 'amax')",
    "segment_min": "{ops}.full(({n},) + {0}.shape[1:], {ops}.inf).scatter_reduce(0, " + _ROWS + ", {0}, 'amin')",
    "leaky_relu": "{ops}.nn.functional.leaky_relu({0}, {slope})",
    "elu": "{ops}.nn.functional.elu({0}, {alpha})",
    "glu": "{ops}.nn.functional.glu({0}, {axis})",
    "pad": "{ops}.nn.functional.pad({0}, {pad}, {mode}, {value})",
    **dict.fromkeys(
        ("silu", "mish", "hardswish", "hardsigmoid", "relu6", "softsign"), "{ops}.nn.functional.{word}({0})"
    ),
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), "{ops}.fft.{word}({0}, {n}, {axis}, {norm})"),
    **dict.fromkeys(("fft2", "ifft2", "rfft2", "irfft2"), "{ops}.fft.{word}({0}, {s}, {axis}, {norm})"),
}
_NUMPY: Mapping[str, str] = {
    "transpose": "{0}.transpose({perm})",
    "cat": "{ops}.concatenate(({all}), axis={axis})",
    "stack": "{ops}.stack(({all}), axis={axis})",
    "mean": "{0}.mean({axis}, keepdims={keepdims})",
    "sum": "{0}.sum({axis}, keepdims={keepdims})",
    "max": "{0}.max({axis}, keepdims={keepdims})",
    "min": "{0}.min({axis}, keepdims={keepdims})",
    "std": "{0}.std({axis}, ddof={correction}, keepdims={keepdims})",
    "var": "{0}.var({axis}, ddof={correction}, keepdims={keepdims})",
    "argmax": "{0}.argmax({axis})",
    "fill": "{ops}.full({shape}, {value})",
    "cast": "{0}.astype({ops}.{dtype})",
    "repeat_interleave": "{ops}.repeat({0}, {repeats}, axis={axis})",
    "tile": "{ops}.tile({0}, {reps})",
    "expand": "{ops}.broadcast_to({0}, {shape})",
    "linspace": "{ops}.linspace({start}, {end}, {steps})",
    "clamp": "{ops}.clip({0}, {min}, {max})",
    "atan2": "{ops}.arctan2({0}, {1})",
    **{word: f"{{ops}}.arc{word[1:]}({{0}})" for word in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "inverse": "{ops}.linalg.inv({0})",
    "cross": "{ops}.cross({0}, {1}, axis={axis})",
    "masked_fill": "{ops}.where({1}, {value}, {0})",
}
_BOTH: Mapping[str, str] = {
    "bucketize": "{ops}.searchsorted({1}, {0}, right={right})",
    "cross": "{ops}.cross({0}, {1}, dim={axis})",
    "cdist": "{ops}.cdist({0}, {1}, float({p}))",
    "diagonal": "{0}.diagonal({offset}, {axis1}, {axis2})",
    "index_select": "{ops}.index_select({0}, {axis}, {1})",
    "linspace": "{ops}.linspace({start}, {end}, {steps})",
    "eye": "{ops}.eye({n})",
    "cumprod": "{ops}.cumprod({0}, {axis})",
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), "{ops}.{word}({0}, {r})"),
    "zeros": "{ops}.zeros({shape})",
    "ones": "{ops}.ones({shape})",
    "reshape": "{0}.reshape({shape})",
    "getitem": "{0}[{index}]",
    "masked_fill": "{0}.masked_fill({1}, {value})",
    "triu": "{ops}.triu({0}, {diagonal})",
    "tril": "{ops}.tril({0}, {diagonal})",
    "arange": "{ops}.arange({start}, {end}, {step})",
    "clamp": "{ops}.clamp({0}, {min}, {max})",
    "pad": "{ops}.pad({0}, {pad}, mode={mode}, value={value})",
    "where": "{ops}.where({0}, {1}, {2})",
    "gelu": "{ops}.gelu({0}, approximate={approximate})",
    "softplus": "{ops}.softplus({0}, {beta}, {threshold})",
    "leaky_relu": "{ops}.leaky_relu({0}, {slope})",
    "square": "{0} * {0}",
    "neg": "-{0}",
    "norm": "{ops}.norm({0}, {p}, {axis}, {keepdims})",
    "meshgrid": "{ops}.meshgrid({all}, indexing={indexing})",
    "logsumexp": "{ops}.logsumexp({0}, {axis}, {keepdims})",
    "roll": "{ops}.roll({0}, {shifts}, {axis})",
    "flip": "{ops}.flip({0}, ({axis},))",
    "elu": "{ops}.elu({0}, {alpha})",
    "cumsum": "{0}.cumsum({axis})",
    **dict.fromkeys(("argsort", "sort"), "{ops}.{word}({0}, {axis}, {descending})"),
    "topk": "{ops}.topk({0}, {k}, {axis}, {largest})",
    **dict.fromkeys(("cummax", "cummin"), "{ops}.{word}({0}, {axis})"),
    "div": "{ops}.div({0}, {1}, rounding_mode={rounding_mode})",
    "addmm": "({0} * {beta} + {ops}.matmul({1}, {2}) * {alpha})",
    "index_add": "{0}.index_add({axis}, {1}.int(), {2})",
    "diff": "{ops}.diff({0}, 1, {axis}{more})",
    "not": "{ops}.logical_not({0})",
    "glu": "{ops}.glu({0}, {axis})",
    "einsum": "{ops}.einsum({equation}, {all})",
}

_OWN = {TORCH: _TORCH, MINDSPORE: _MINDSPORE, NUMPY: _NUMPY}

SEVERAL = frozenset(("topk", "sort", "cummax", "cummin"))
"""Words of operations that make values and where they are, in this order on every side."""

NAMES: Mapping[str, Sequence[str]] = {
    "axis": ("axis", "dim"),
    "keepdims": ("keepdims", "keepdim", "keep_dims"),
    "correction": ("ddof", "unbiased", "correction"),
    "eps": ("eps", "epsilon"),
    "slope": ("negative_slope", "alpha"),
    "include_pad": ("count_include_pad",),
    "pad": ("padding", "pad"),
    "p": ("p", "ord"),
}
"""What an argument may be called that a call lacks so far."""


def spelled(
    word: str,
    operands: Sequence[str],
    given: Mapping[str, Any],
    texts: Mapping[str, str],
    modules: Mapping[str, str],
    side: str,
    part: Optional[int] = None,
) -> str:
    """Source code; `texts` has words for some arguments, `modules` what the code calls the framework's, `part` tells
    which value is meant where the operation makes several.

    Raises:
        LookupError: there are no words for this operation.
    """
    if word == "getitem" and "tensor" in given["index"]:
        rest = iter(operands[1:])
        index = tuple(_Word(next(rest)) if one == "tensor" else one for one in given["index"])
        return f"{operands[0]}[{index_text(index)}]"
    best = word in ("max", "min")
    if part is not None and word not in SEVERAL and not best:
        raise LookupError(word)
    if best and part:
        word = f"arg{word}"
    if word == "reshape":
        operands = [unshaped(operands[0])]
    if word in ("avg_pool", "max_pool"):
        said = {name: text for name, text in texts.items() if name != "stride" or given["stride"] is not None}
        given, texts = _pool(given), {**said, "rest": _pool_rest(given)}
    if word == "scatter" and given["reduction"] == "add":
        word = "scatter_add"
    if word in OPERATORS and len(operands) == 2 and (word != "div" or given.get("rounding_mode") is None):
        return f"({operands[0]} {OPERATORS[word]} {operands[1]})"
    template = _OWN[side].get(word) or _BOTH.get(word)
    if template is None:
        if given or not operands or row(word) is None:
            raise LookupError(word)
        template = "{ops}.{word}({list})"
    if word == "interpolate" and not given.get("align_corners"):  # MindSpore takes it with some ways only
        template = template.replace(", align_corners={align_corners}", "")
    if word == "arange" and (given.get("start"), given.get("step")) == (0, 1):
        template = template.replace("{start}, {end}, {step}", "{end}")
    if given.get("axis", 0) is None and given.get("keepdims") is False:
        template = _OF_ALL.sub("", template)
    if _TIGHT.search(template):
        operands = [bracketed(one) for one in operands]
    values = {key: texts[key] if key in texts else written(key, value) for key, value in given.items()}
    listed = ", ".join(operands)
    more = "".join(f", {one}" for one in operands[1:])
    every = listed + ("," if len(operands) == 1 else "")
    try:
        source = template.format(*operands, all=every, list=listed, more=more, word=word, **{**values, **modules})
    except (IndexError, KeyError) as error:
        raise LookupError(f"{word}: {error}") from error
    return source if part is None or word not in SEVERAL else f"{source}[{part}]"


def _pool(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a pool of two axes, as functions take them.

    Raises:
        LookupError: it is one of one axis, or of three.
    """
    kernel, stride = given["kernel"], given["stride"]
    if isinstance(kernel, tuple) and len(kernel) != 2:
        raise LookupError("pool")
    return {"kernel": kernel, "stride": kernel if stride is None else stride, "rest": ""}


def _pool_rest(given: Mapping[str, Any]) -> str:
    """What a pool does not have by default.

    Raises:
        LookupError: it pads its sides otherwise, which functions cannot.
    """
    pad = given["pad"]
    sides = {*itertools.chain.from_iterable(pad)} if isinstance(pad, tuple) and isinstance(pad[0], tuple) else {pad}
    if len(sides) != 1:
        raise LookupError("pool")
    words = [f", padding={side}" for side in sides if side != 0]
    words += [f", dilation={given['dilation']}"] if given.get("dilation", 1) not in (1, (1, 1)) else []
    words += [", ceil_mode=True"] if given["ceil_mode"] else []
    return "".join(words + ([", count_include_pad=False"] if given.get("include_pad") is False else []))


_OF_ALL = re.compile(r"(, )?(axis=)?\{axis\}, (keep_?dims?=)?\{keepdims\}")
"""What says that all axes are meant and none is kept, as is usual."""

_TIGHT = re.compile(r"\{0\}( \*|[.\[])|-\{0\}")
"""Templates in which an operator or a dot follows the operand."""


def bracketed(text: str) -> str:
    """So that an operator or a dot may follow."""
    try:
        tree = ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        return f"({text})"
    plain = ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple
    return text if isinstance(tree, plain) else f"({text})"


class _Word(str):
    """Source that stands as it is."""


def index_text(index: Sequence[Any]) -> str:
    """What stands in brackets."""
    words = []
    for one in index:
        if isinstance(one, tuple):
            start, stop = ("" if bound is None else bound for bound in one[:2])
            words.append(f"{start}:{stop}" + (f":{one[2]}" if one[2] != 1 else ""))
        else:
            words.append(str(one))
    while len(words) > 2 and words[:2] == [":", ":"]:
        words[:2] = ["..."]
        while len(words) > 2 and words[1] == ":":
            del words[1]
    return ", ".join(words)


WIDER = {MINDSPORE: "expand_dims", TORCH: "unsqueeze"}
"""The method that gives a value one axis more."""


def widened(text: str, shape: Sequence[int], wanted: Sequence[int], side: str) -> Optional[str]:
    """A value of one shape in another that has an axis of one more; None where it has not."""
    places = [at for at, size in enumerate(wanted) if size == 1 and [*wanted[:at], *wanted[at + 1 :]] == [*shape]]
    if not places or side not in WIDER:
        return None
    return f"{text}.{WIDER[side]}({-1 if places[-1] == len(wanted) - 1 else places[-1]})"


def unshaped(text: str) -> str:
    """Without a reshape at its end, which another one makes idle."""
    start = text.rfind(".reshape(")
    inside = text[start + 9 : -1]
    whole = start > 0 and text.endswith(")") and inside.count("(") == inside.count(")")
    return text[:start] if whole and ")" not in inside.split("(")[0] else text


def written(key: str, value: Any) -> str:
    """An argument as it is written."""
    if key == "index":
        return index_text(value)
    if key == "perm":
        return ", ".join(map(str, value))
    return str(value) if key == "dtype" else number_text(value) if isinstance(value, float) else repr(value)


def number_text(value: float) -> str:
    """A number, as short as it is told."""
    if not math.isfinite(value):
        return f'float("{value}")'
    if value == int(value) and abs(value) < 1e6:
        return repr(int(value))
    return repr(float(f"{value:.9g}"))

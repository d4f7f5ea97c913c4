"""An operation as source code."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from aligner.words.operations import OPERATORS, row
from aligner.words.templates import BOTH, LEFT_OUT, MINDSPORE, NUMPY, OVER_SEVERAL, OWN, TORCH

SEVERAL = frozenset(("topk", "sort", "cummax", "cummin", "chunk"))
"""Words of operations that make values and where they are, in this order on every side."""

NAMES: Mapping[str, Sequence[str]] = {
    "axis": ("axis", "dim"),
    "keepdims": ("keepdims", "keepdim", "keep_dims"),
    "correction": ("ddof", "unbiased", "correction"),
    "eps": ("eps", "epsilon"),
    "slope": ("negative_slope", "alpha"),
    "include_pad": ("count_include_pad",),
    "pad": ("padding", "pad", 'pad_mode="pad", padding'),
    "p": ("p", "ord"),
}
"""What an argument may be called that a call lacks so far."""


MASKED = {"where": 0, "masked_fill": 1}
"""Which operand is a mask; it may be of the first axes alone, with a `rest` of them behind it."""

INDEXED = {"gather": 1, "index_select": 1}
"""Which operand is an index."""


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
    if word == "cat":
        operands = [_row(one, modules, side) if _is_figure(one) else one for one in operands]
    if word in MASKED and given.get("rest"):
        spread = f"{bracketed(operands[MASKED[word]])}[..., {', '.join(['None'] * given['rest'])}]"
        operands = [spread if place == MASKED[word] else one for place, one in enumerate(operands)]
    if word in ("avg_pool", "max_pool"):
        said = {name: text for name, text in texts.items() if name != "stride" or given["stride"] is not None}
        given, texts = _pool(given), {**said, "rest": _pool_rest(given)}
    if word == "scatter" and given["reduction"] == "add":
        word = "scatter_add"
    if word in OPERATORS and len(operands) == 2 and (word != "div" or given.get("rounding_mode") is None):
        return f"({operands[0]} {OPERATORS[word]} {operands[1]})"
    if word == "roll" and side == MINDSPORE:
        return _rolled(operands[0], given, texts, modules)
    template = OWN[side].get(word) or BOTH.get(word)
    if side == MINDSPORE and isinstance(given.get("axis"), tuple):
        template = OVER_SEVERAL.get((word, given.get("p")), template if word not in ("norm", "normalize") else None)
        if template is None:
            raise LookupError(word)
    if template is None:
        if given or not operands or row(word) is None:
            raise LookupError(word)
        template = "{ops}.{word}({list})"
    if word == "elu" and given["alpha"] == 1:  # the only one that MindSpore's own has
        template = "{ops}.elu({0})" if side == MINDSPORE else template
    for key, piece, usual in LEFT_OUT.get(word, ()):
        template = template.replace(piece, "") if given.get(key) in usual else template
    if word == "pad" and given["mode"] != "constant":
        template = template.replace(", value={value}", "").replace(", {value}", "")
    if word == "arange" and (given.get("start"), given.get("step")) == (0, 1):
        template = template.replace("{start}, {end}, {step}", "{end}")
    if given.get("keepdims") is False:
        template = _OF_ALL.sub("", template) if given.get("axis", 0) is None else _NOT_KEPT.sub("", template)
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


def _rolled(text: str, given: Mapping[str, Any], texts: Mapping[str, str], modules: Mapping[str, str]) -> str:
    """Moved along an axis, what leaves at the one end coming in at the other: MindSpore has no such kernel on a CPU.

    Raises:
        LookupError: no axis is told.
    """
    axes, shifts = (one if isinstance(one, tuple) else (one,) for one in (given["axis"], given["shifts"]))
    if None in axes:
        raise LookupError("roll")
    said = texts.get("shifts") if len(shifts) == 1 else None
    for axis, shift in zip(axes, shifts):
        cut = f"-{bracketed(said)}" if said and said.isidentifier() else str(-shift)
        text = "{0}.cat({0}.tensor_split({1}, ({2},), {3})[::-1], axis={3})".format(modules["ops"], text, cut, axis)
    return text


def _is_figure(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) is not None


def _row(text: str, modules: Mapping[str, str], side: str) -> str:
    """A number as a value of one: other values are put beside it."""
    return f"[{float(text)}]" if side == NUMPY else f"{modules['ops']}.full((1,), {float(text)})"


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

_NOT_KEPT = re.compile(r", (keep_?dims?=)?\{keepdims\}(?=\))")
"""And what says that the axis is not kept."""

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


_SHAPES = re.compile(r"\.(reshape|view|expand_dims|unsqueeze|squeeze)\([^()]*(\([^()]*\)[^()]*)*\)$")


_MODULES = re.compile(r"([\w.]*\.)?(ops|mint|torch|np|numpy|functional|[FP])")


def unshaped(text: str) -> str:
    """Without reshapes at its end, which another one makes idle."""
    found = _SHAPES.search(text)
    inside = "" if found is None else text[: found.start()]
    return text if not inside or _MODULES.fullmatch(inside) else unshaped(inside)


_FLOATS = frozenset(("alpha", "label_smoothing"))
"""Arguments that MindSpore takes as floats only."""


def written(key: str, value: Any) -> str:
    """An argument as it is written."""
    if key == "index":
        return index_text(value)
    if key == "perm":
        return ", ".join(map(str, value))
    if key in _FLOATS and isinstance(value, (int, float)) and math.isfinite(value):
        return repr(float(value))
    return str(value) if key == "dtype" else number_text(value) if isinstance(value, float) else repr(value)


def number_text(value: float) -> str:
    """A number, as short as it is told."""
    if not math.isfinite(value):
        return f'float("{value}")'
    if value == int(value) and abs(value) < 1e6:
        return repr(int(value))
    return repr(float(f"{value:.9g}"))

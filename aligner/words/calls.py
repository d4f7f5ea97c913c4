"""A call of an operation in the table's words: operands, and arguments in one form.

Axes are counted from the left, layouts are told by what comes of them, slices by where they begin and end: what two
frameworks write in their ways is equal then.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

from aligner.words.operations import NUMBERED, PARAMETERS, bare, row

Shape = tuple[int, ...]


class Taken(NamedTuple):
    """A tensor among the arguments: the number of its value."""

    number: int
    shape: Shape


class Opaque(NamedTuple):
    """An argument that is neither a tensor nor a plain value."""

    text: str


@dataclass(frozen=True)
class Constant:
    """A plain number where a tensor may stand."""

    value: float
    made: Optional[int] = field(default=None, compare=False)
    """Which value it is, where a tensor of one number stands there."""


Operand = Union[int, Constant, None]
"""The number of a value, or a number."""

Where = Union[int, str]
"""Which of the call's arguments: its place, or its keyword."""


@dataclass(frozen=True)
class Operation:
    """A call. `places` tells where the call has its arguments, and `known` whether the table has the operation."""

    word: str
    operands: tuple[Operand, ...]
    arguments: Mapping[str, Any]
    places: Mapping[str, Where] = field(default_factory=dict)
    known: bool = True


MANY = 256
"""Numbers of a table that are told."""

_TYPES = re.compile(r"(?:\w+\.)*((?:b?float|u?int|bool|complex)\d*)", re.IGNORECASE)
_TURNED = ("rsub", "rtruediv", "rdiv", "rpow", "rmatmul", "rfloordiv", "rmod", "searchsorted")
_SWAPS = ("swapaxes", "swapdims")
_FLIPPED = ("t", "mt", "h", "mh")
_SHORT = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64"}
"""Methods that are called as the type is in C."""


def dtype_of(text: str) -> Optional[str]:
    """A type's name in what Python prints of it."""
    found = _TYPES.fullmatch(text)
    return found.group(1).lower() if found else None


def parsed(text: str) -> object:
    """An argument out of a dump's words; "*" stands for a tensor, which is told by `Taken(-1, ())`."""
    try:
        return _plain(ast.parse(re.sub(r"(?<![\w'\"])\*(?![\w'\"])", "__tensor__", text), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return Opaque(text)


def _plain(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id == "__tensor__":
        return Taken(-1, ())
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(map(_plain, node.elts))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice":
        return slice(*map(_plain, node.args))
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id == "Ellipsis":
        return ...
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _plain(node.operand)
        return -value if isinstance(value, (int, float)) else Opaque(ast.unparse(node))
    return Opaque(ast.unparse(node))


def tensors(value: object) -> Iterator[Taken]:
    """All tensors in an argument."""
    if isinstance(value, Taken):
        yield value
    elif isinstance(value, tuple) and not isinstance(value, (Opaque, Constant)):
        for item in value:
            yield from tensors(item)


def numbered(value: Any, taken: Iterator[Taken]) -> Any:
    """The argument with these tensors in the place of those that are not known yet."""
    if isinstance(value, Taken):
        return next(taken, value)
    if isinstance(value, tuple) and not isinstance(value, (Opaque, Constant)):
        return tuple(numbered(item, taken) for item in value)
    return value


def operation(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], made: Sequence[Shape], dtype: str = ""
) -> Operation:
    """The call of an operation that made tensors of these shapes, the first of this type."""
    name = _MINDSPORES[bare(name)] if bare(name) in _MINDSPORES and _is_mindspores(name, args, kwargs) else name
    known, plain = row(name), bare(name)
    word = known.word if known is not None else plain
    names = [*(known.arguments if known is not None else ())]
    found: dict[str, Any] = {}
    places: dict[str, Where] = {}
    operands: list[Any] = []
    numbers = word in NUMBERED
    for number, value in enumerate(args):
        held = [*tensors(value)]
        if held and not (word in ("getitem", "setitem") and number):
            operands += held
        elif numbers and isinstance(value, (int, float)) and not isinstance(value, bool):
            operands.append(Constant(float(value)))
        elif value is not None or word == "clamp":
            key = next((one for one in names if one not in found and _fits(one, value)), f"_{number}")
            found[key] = value
            places[key] = number
    for key, value in kwargs.items():
        held = [*tensors(value)]
        if held:
            operands += held
        elif numbers and isinstance(value, (int, float)) and not isinstance(value, bool):
            operands.append(Constant(float(value)))
        else:
            found[PARAMETERS.get(key, key)] = value
            places[PARAMETERS.get(key, key)] = key
    if word == "arange" and "end" not in places and "start" in places:
        places["end"] = places.pop("start")
    if plain in _TURNED:
        operands.reverse()
    told = {key: value for key, value in found.items() if value is not None and (known is None or key in names)}
    arguments = {**(known.arguments if known is not None else {}), **told}
    first = operands[0].shape if operands and isinstance(operands[0], Taken) else ()
    word, given = _in_one_form(word, plain, arguments, [*args, *kwargs.values()], first, made, operands, dtype)
    return Operation(word, tuple(_operand(one) for one in operands), given, places, known is not None)


_MINDSPORES = {"select": "where", "gather": "index_select"}
"""Names that mean another thing in MindSpore than in torch, and what they mean there."""


def _is_mindspores(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is, by what it is given: torch's take an axis first."""
    values = [*args[1:], *kwargs.values()] if bare(name) == "select" else [*args[1:2], kwargs.get("input_indices")]
    return any(isinstance(value, float) or [*tensors(value)] for value in values)


def _reordered(equation: str) -> Optional[tuple[int, ...]]:
    """The order of axes, where an equation does no more than to change it."""
    given, _, made = equation.replace(" ", "").partition("->")
    alone = given.isalpha() and len({*given}) == len(given) and sorted(given) == sorted(made)
    return tuple(map(given.index, made)) if alone else None


def _operand(one: object) -> Operand:
    return one.number if isinstance(one, Taken) else one if isinstance(one, Constant) else None


def _fits(key: str, value: Any) -> bool:
    """Whether a plain value can be meant by an argument that stands at another place elsewhere."""
    if isinstance(value, bool):
        return key in ("keepdims", "correction", "ceil_mode", "include_pad", "is_causal", "largest", "descending") or (
            key in ("training", "align_corners", "approximate", "log_target")
        )
    if isinstance(value, str):
        return key in ("mode", "approximate", "equation", "indexing", "reduction", "rounding_mode", "pad_mode", "dtype")
    if key == "value" and isinstance(value, tuple):  # a shape
        return False
    return key not in ("keepdims", "ceil_mode", "equation", "indexing", "reduction", "training", "is_causal")


def _in_one_form(
    word: str,
    name: str,
    arguments: dict[str, Any],
    args: Sequence[Any],
    shape: Shape,
    made: Sequence[Shape],
    operands: list[Any],
    dtype: str,
) -> tuple[str, Mapping[str, Any]]:
    """What is written in several ways and means one thing, told in one."""
    result = made[0] if made else ()
    if word in ("reshape", "expand") and name != "t":
        del operands[1:]
        return word, {"shape": result}
    if word == "transpose" or name == "t":
        return "transpose", {"perm": _permutation(name, args[1:], len(shape))}
    if word == "einsum" and len(operands) == 1 and (perm := _reordered(str(arguments["equation"]))) is not None:
        return "transpose", {"perm": perm}
    if word in ("getitem", "setitem"):
        index = _index(name, args, arguments)
        for item in index if isinstance(index, tuple) and not isinstance(index, Taken) else (index,):
            operands.extend(tensors(item))
        if word == "setitem" and len(args) > 2:  # what is written
            operands.extend(tensors(args[2]) if not _is_number(args[2]) else [Constant(float(args[2]))])
        return word, {"index": _indexed(index, shape)}
    if word == "fill":
        value = 1.0 if "ones" in name else 0.0 if "zeros" in name else _number(arguments.get("value"))
        operands.clear()
        return word, {"value": value, "shape": result}
    if word == "cast":
        if not operands:
            numbers = tuple(itertools.islice(flat(args[0]), MANY + 1)) if args else ()
            return "table", {"numbers": numbers if len(numbers) <= MANY else ()}
        del operands[1:]
        told = (dtype_of(one.text) for one in args if isinstance(one, Opaque))
        return word, {"dtype": dtype or _SHORT.get(name) or next(filter(None, told), name)}
    if word == "tile":
        padded = (1,) * (len(result) - len(shape)) + shape
        return word, {"reps": tuple(b // a if a else 1 for a, b in zip(padded, result))}
    if word == "scatter" and (name == "scatteradd" or arguments["reduction"] == "sum"):
        arguments["reduction"] = "add"
    if word == "bucketize":  # numpy's says it the other way round
        return word, {"right": (bool(arguments["right"]) or "right" in args) != (name == "digitize")}
    if word == "arange" and arguments.get("end") is None:
        arguments.update(start=0, end=arguments["start"])
    if word == "interpolate":
        return word, {**{k: v for k, v in arguments.items() if k in ("mode", "align_corners")}, "size": result[2:]}
    if word == "split":
        axis = _counted(arguments.get("axis"), len(shape))
        return word, {"axis": axis, "pieces": tuple(made)}
    if word in ("max", "min") and len(operands) > 1:
        return f"{word}imum", {}
    if name == "clampmax":
        return word, {
            **arguments,
            "min": None,
            "max": arguments["max"] if arguments["min"] is None else arguments["min"],
        }
    if "axis" in arguments:
        arguments["axis"] = _counted(arguments["axis"], len(shape) + (word == "stack"))
    if isinstance(arguments.get("correction"), bool):
        arguments["correction"] = int(arguments["correction"])
    if isinstance(arguments.get("approximate"), bool):
        arguments["approximate"] = "tanh" if arguments["approximate"] else "none"
    return word, {key: _flat(value) for key, value in arguments.items()}


def flat(value: Any) -> Iterator[float]:
    """The plain numbers in rows, or in rows of rows; nothing else."""
    if isinstance(value, (tuple, list)) and not isinstance(value, (Opaque, Constant, Taken)):
        for item in value:
            yield from flat(item)
    elif _is_number(value):
        yield value


def _flat(value: Any) -> Any:
    if isinstance(value, Opaque):
        return dtype_of(value.text) or value.text
    return float(value) if isinstance(value, int) and abs(value) > 1 << 40 else value


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _counted(axis: Any, rank: int) -> Any:
    """An axis counted from the left; of several, sorted ones; of one, itself."""
    if isinstance(axis, tuple):
        found = tuple(_counted(one, rank) for one in axis)
        return found[0] if len(found) == 1 else tuple(sorted(found, key=str)) if found else None
    return axis + rank if isinstance(axis, int) and axis < 0 else axis


def _permutation(name: str, given: Sequence[Any], rank: int) -> Shape:
    order = [*range(rank)]
    numbers = [
        int(one) % rank
        for value in given
        for one in (value if isinstance(value, tuple) else (value,))
        if isinstance(one, int) and not isinstance(one, bool) and rank
    ]
    if name in _FLIPPED or not numbers:
        name, numbers = ("swapaxes", [rank - 2, rank - 1]) if rank > 1 and "m" in name else ("permute", order[::-1])
    if name in ("movedim", "moveaxis") and len(numbers) == 2:
        order.insert(numbers[1], order.pop(numbers[0]))
        return tuple(order)
    plain = not any(isinstance(value, tuple) for value in given)
    if len(numbers) == 2 and (name in _SWAPS or (name == "transpose" and plain and (rank > 2 or numbers))):
        order[numbers[0]], order[numbers[1]] = order[numbers[1]], order[numbers[0]]
        return tuple(order)
    return tuple(numbers)


def _index(name: str, args: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    if name in ("select", "narrow"):
        numbers = [one for one in args[1:] if isinstance(one, int)]
        if len(numbers) < 2:
            return ()
        start = numbers[1]
        last = start if name == "select" else slice(start, start + (numbers[2] if len(numbers) > 2 else 1))
        return (*[slice(None)] * numbers[0], last)
    return args[1] if len(args) > 1 else ()


def _indexed(index: Any, shape: Shape) -> tuple[Any, ...]:
    """Each axis with where its slice begins (None: at its start) and ends (None: at its end), or with its number."""
    items = [*index] if isinstance(index, tuple) and not isinstance(index, (Taken, Opaque)) else [index]
    used = sum(one is not None and one is not Ellipsis for one in items)
    at = next((n for n, one in enumerate(items) if one is Ellipsis), None)
    rest = [slice(None)] * max(0, len(shape) - used)
    items = [*items, *rest] if at is None else [*items[:at], *rest, *items[at + 1 :]]
    found: list[Any] = []
    axis = 0
    for one in items:
        if one is None:
            found.append(None)
            continue
        length = shape[axis] if axis < len(shape) else 1
        axis += 1
        found.append(_item(one, length))
    while len(found) > 1 and found[-1] == (None, None, 1):
        found.pop()
    return tuple(found)


def _item(one: Any, length: int) -> Any:
    if isinstance(one, Taken):
        return "tensor"
    if isinstance(one, slice):
        try:
            start, stop, step = one.indices(length)
        except TypeError:  # a number that was not told
            return "?"
        return (start or None, None if stop == length else stop, step) if step > 0 else (one.start, one.stop, step)
    if isinstance(one, int) and not isinstance(one, bool):
        return one % length if length else one
    return "?"


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two calls' arguments say the same."""
    keys = {*one, *other} - {"shape", "dtype"}
    return all(equal(one.get(key), other.get(key)) for key in keys)


def equal(one: Any, other: Any) -> bool:
    """Whether two arguments say the same; numbers to nine digits."""
    plain = (int, float)
    if isinstance(one, plain) and isinstance(other, plain) and isinstance(one, bool) == isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)

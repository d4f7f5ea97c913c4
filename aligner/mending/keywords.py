"""What calls that build layers say by keywords, and names for it that are right for all that a line builds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import permutations
from typing import Any, Optional

WAYS = ("{}", "{} // 2", "({} - 1) // 2")
POWER = "2**{}"
OF_ONE = ("({}, 1)", "(1, {})")
OF_TWO = ("{}**{}", "{} * {}", "{} // {}", "({} - 1) // 2 * {}")
"""What may be made of something that has a name: a padding of a kernel's size, a dilation of a layer's number."""

ENDS = ("({0}[0], {0}[0], {0}[1], {0}[1])", "({0}, {0}, {1}, {1})")
"""A padding of all four ends, of one for both of either axis."""

EACH = ("kernel_size", "stride", "dilation", "padding")
"""Settings that are one number, or one for each axis."""


def named(
    asks: Mapping[str, Mapping[str, str]], names: Mapping[str, Mapping[str, Any]], call: ast.Call
) -> Optional[dict[str, str]]:
    """A name for each keyword's value that is right for each layer. What the call is given already tells of no other
    value: that may be what is wrong.
    """
    given = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    first = next(iter(asks))
    found: dict[str, str] = {}
    for keyword, text in asks[first].items():
        if all(its[keyword] == text for its in asks.values()):
            found[keyword] = text
            continue
        ways = _ways([*names.values()], keyword)
        right = (w for w in ways if all(_is(_worth(w, names[p]), keyword, its[keyword]) for p, its in asks.items()))
        text = next(right, "") or _chosen({path: its[keyword] for path, its in asks.items()}, names, given)
        if not text:
            return None
        found[keyword] = text
    return found


def _chosen(said: Mapping[str, str], names: Mapping[str, Mapping[str, Any]], but: Set[str]) -> str:
    """One of two values, by something that tells for which layers it is; "" if nothing does."""
    values = [*dict.fromkeys(said.values())]
    for name in [one for one in names[next(iter(said))] if one not in but] if len(values) == 2 else ():
        for one, other in (values, values[::-1]):
            found, rest = ([names[p].get(name) for p, text in said.items() if text == value] for value in (one, other))
            kinds = {type(its) for its in (*found, *rest)}
            if kinds == {bool} and all(found) and not any(rest):
                return f"{one} if {name} else {other}"
            alone = len({*found}) == 1 and found[0] not in rest if kinds in ({int}, {str}) else False
            if alone and (kinds == {str} or found[0] == 0):  # that another size is one layer's may be chance
                return f"{one} if {name} == {found[0]!r} else {other}"
    return ""


def _ways(names: Sequence[Mapping[str, Any]], keyword: str) -> Iterator[str]:
    """What may be made of the names, of two whole numbers at most, one of which is not the same for all."""
    known = [name for name in names[0] if name.isidentifier()]
    yield from (way.format(name) for way in WAYS for name in known)
    whole = [name for name in known if all(type(one.get(name)) is int for one in names)]
    varying = {name for name in whole if len({one[name] for one in names}) > 1}
    pairs = [pair for pair in permutations(whole, 2) if varying & {*pair}]
    akin = [pair for pair in pairs if any(keyword in name for name in pair)]
    yield from (way.format(*pair) for way in OF_TWO for pair in akin)
    if keyword == "padding":
        two = [name for name in known if all(isinstance(one.get(name), tuple) for one in names)]
        yield from (ENDS[0].format(name) for name in two)
        yield from (ENDS[1].format(*pair) for pair in pairs)
    yield from (way.format(name) for way in OF_ONE for name in whole if keyword in EACH and name in varying)
    yield from (POWER.format(name) for name in whole if name in varying)
    yield from (way.format(*pair) for way in OF_TWO for pair in pairs)


def _worth(way: str, names: Mapping[str, Any]) -> object:
    """What a name, or half of it, was when the layer was built."""
    with suppress(ArithmeticError, NameError, TypeError):
        return eval(way, {"__builtins__": {}}, dict(names))  # one of WAYS
    return None


def keywords(text: str, only: str = "") -> Optional[dict[str, str]]:
    """What a call says by keywords, or by one of them, whichever class of the kind it names; None if that is more than
    plain values."""
    with suppress(SyntaxError, ValueError):
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call):
            said = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
            return {name: repr(_single(name, value)) for name, value in said.items() if only in ("", name)} or None
    return None


def _single(keyword: str, value: Any) -> Any:
    """One number where there is the same for each axis."""
    uniform = keyword in EACH and isinstance(value, tuple) and len({*value}) == 1 and type(value[0]) is int
    return value[0] if uniform else value


def _is(value: object, keyword: str, text: str) -> bool:
    """Whether a value says what a literal does; one number is as good as one for each axis."""
    with suppress(ValueError):
        wanted, value = (_single(keyword, one) for one in (ast.literal_eval(text), value))
        return type(value) is type(wanted) and value == wanted
    return False


def says(node: Optional[ast.AST], keyword: str, text: str) -> bool:
    """Whether it is written there already."""
    return isinstance(node, ast.Constant) and _is(node.value, keyword, text)

"""A setting that comes of what a class of the user's is given, changed where it is given: in the call that builds that
class, or one around it.

`self.add = shortcut and ins == outs` is set by an argument that may come from far: `Bottleneck(w, w, shortcut)` in a
stage that is built with `shortcut=True`, by default. So is the dilation of a convolution that a `Unit(planes, planes)`
builds. The layer whose call is changed is built again, to see that it does.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from aligner.adapter import Adapter
from aligner.compare.net import ancestors
from aligner.explain.setting_rules import same
from aligner.record import Attribute
from aligner.source import constructing, sites
from aligner.source.owning import is_own

DEEPEST = 6
"""Calls through which an argument is handed on."""

LARGE = 1 << 22
"""Elements of parameters of a layer that is built again."""

Change = Mapping[str, Attribute]


class Passed(NamedTuple):
    """The layer whose call is changed, and the argument; the layer that is so set, by its path in that one."""

    owner: str
    place: sites.Place
    call: ast.Call
    parameter: str
    value: Attribute
    below: str


def passed(adapter: Adapter, layers: Mapping[str, Any], path: str, change: Change) -> Optional[Passed]:
    """None where no argument is found that makes the layer's settings so."""
    owner = path if is_own(adapter, layers[path]) else _around(layers, path)
    if owner is None:
        return None
    for parameter, value in _arguments(adapter, layers, path, owner, change):
        for other, its, call in _calls(layers, owner, parameter):
            built, below = sites.built(layers[other]), inside(path, other)
            if built is not None and makes(adapter, layers[other], {its: value}, below, change):
                return Passed(other, built.place, call, its, value, below)
    return None


def inside(path: str, owner: str) -> str:
    return "" if path == owner else path[len(owner) + 1 if owner else 0 :]


def _arguments(
    adapter: Adapter, layers: Mapping[str, Any], path: str, owner: str, change: Change
) -> Iterator[tuple[str, Attribute]]:
    for parameter in parameters(layers[owner]):
        for value in values(change):
            if makes(adapter, layers[owner], {parameter: value}, inside(path, owner), change):
                yield parameter, value


def values(change: Change) -> list[Attribute]:
    """What it sets, the plain numbers first: one where it is the same for each axis."""
    found = [one for whole in change.values() for one in _single(whole)]
    return sorted({(type(one), one): one for one in found}.values(), key=lambda one: isinstance(one, tuple))


def _single(value: Attribute) -> Iterator[Attribute]:
    yield value
    if isinstance(value, tuple) and len({*value}) == 1:
        yield from _single(value[0])


def parameters(layer: Any) -> list[str]:
    with suppress(TypeError, ValueError):
        return [*inspect.signature(type(layer)).parameters]
    return []


def makes(adapter: Adapter, layer: Any, given: Mapping[str, Attribute], below: str, change: Change) -> bool:
    """Whether the layer, built with these arguments and else as it was, has those settings in the layer `below`."""
    known = constructing.given(layer)
    if known is None or sum(math.prod(one.shape) for one in adapter.parameters(layer)) > LARGE:
        return False
    try:
        bound = inspect.signature(type(layer)).bind(*known[0], **known[1])
        bound.arguments.update(given)
        with constructing.undrawn(adapter):
            made = type(layer)(*bound.args, **bound.kwargs)
        found = adapter.spec(dict(adapter.layers(made))[below]).attributes
    except Exception:  # the user's constructor may raise whatever it likes
        return False
    return all(n in found and same(found[n], v) and type(found[n]) is type(v) for n, v in change.items())


def _calls(layers: Mapping[str, Any], path: str, parameter: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Calls that give it, from the inner to the outer: the first in which it is no name that is handed on."""
    for _ in range(DEEPEST):
        layer = layers[path]
        built = sites.built(layer)
        call = sites.call(built.place, type(layer).__name__) if built is not None else None
        if built is None or call is None or any(isinstance(one, ast.Starred) for one in call.args):
            return
        node = _argument(call, parameters(layer), parameter)
        if node is None or isinstance(node, ast.Constant):
            yield path, parameter, call
            return
        if not isinstance(node, ast.Name):
            return
        outer = _around(layers, path)
        if outer is None or node.id not in parameters(layers[outer]):
            return
        path, parameter = outer, node.id


def _around(layers: Mapping[str, Any], path: str) -> Optional[str]:
    """The layer in whose constructor this one is built."""
    built = sites.built(layers[path])
    around = (one for one in ancestors(path) if one in layers)
    return None if built is None else next((one for one in around if _holds(type(layers[one]), built.place)), None)


def _holds(kind: type, place: sites.Place) -> bool:
    """Whether the constructor of this class has the place in it."""
    with suppress(OSError, TypeError):
        code = kind.__init__.__code__  # type: ignore[misc]  # of a class of the user's
        lines, first = inspect.getsourcelines(code)
        return code.co_filename == place.file and first <= place.line < first + len(lines)
    return False


def _argument(call: ast.Call, names: Sequence[str], parameter: str) -> Optional[ast.expr]:
    named = {str(one.arg): one.value for one in call.keywords}
    return {**dict(zip(names, call.args)), **named}.get(parameter)

"""A setting of a layer of the user's, changed where it is given: in the call that builds the layer, or one around it.

`self.add = shortcut and ins == outs` is set by an argument that may come from far: `Bottleneck(w, w, shortcut)` in a
stage that is built with `shortcut=True`, by default. The layer whose call is changed is built again, to see that it
does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from aligner.adapter import Adapter
from aligner.compare.net import ancestors
from aligner.explain.setting_rules import same
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.record import Attribute
from aligner.source import constructing, sites
from aligner.words.spelling import written

DEEPEST = 6
"""Calls through which an argument is handed on."""

LARGE = 1 << 22
"""Elements of parameters of a layer that is built again."""


class Passed(NamedTuple):
    """The call that is changed, by the layer that it builds, and the change."""

    path: str
    place: sites.Place
    edits: Sequence[Edit]


def passed(adapter: Adapter, layers: Mapping[str, Any], path: str, change: Mapping[str, Attribute]) -> Optional[Passed]:
    """Of one setting; None where no argument is found that makes it so."""
    if len(change) != 1:
        return None
    ((name, value),) = change.items()
    for parameter in _parameters(layers[path]):
        if not _makes(adapter, layers[path], parameter, value, "", name):
            continue
        for other, its, call in _calls(layers, path, parameter):
            edit = _edit(sites.built(layers[other]), call, type(layers[other]), its, value)
            below = path[len(other) + 1 if other else 0 :] if path != other else ""
            if edit is not None:
                right = _makes(adapter, layers[other], its, value, below, name)
                built = sites.built(layers[other])
                return Passed(other, built.place, (edit,)) if right and built is not None else None
    return None


def _parameters(layer: Any) -> list[str]:
    with suppress(TypeError, ValueError):
        return [*inspect.signature(type(layer)).parameters]
    return []


def _makes(adapter: Adapter, layer: Any, parameter: str, value: Attribute, below: str, name: str) -> bool:
    """Whether the layer, built with this argument and else as it was, has that setting in the layer `below`."""
    known = constructing.given(layer)
    if known is None or sum(_size(one) for one in adapter.parameters(layer)) > LARGE:
        return False
    try:
        bound = inspect.signature(type(layer)).bind(*known[0], **known[1])
        bound.arguments[parameter] = value
        with constructing.undrawn(adapter):
            made = type(layer)(*bound.args, **bound.kwargs)
        found = adapter.spec(dict(adapter.layers(made))[below]).attributes
    except Exception:  # the user's constructor may raise whatever it likes
        return False
    return name in found and same(found[name], value) and type(found[name]) is type(value)


def _size(parameter: Any) -> int:
    size = 1
    for one in parameter.shape:
        size *= one
    return size


def _calls(layers: Mapping[str, Any], path: str, parameter: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Calls that give it, from the inner to the outer: the first in which it is no name that is handed on."""
    for _ in range(DEEPEST):
        layer = layers[path]
        built = sites.built(layer)
        call = sites.call(built.place, type(layer).__name__) if built is not None else None
        if built is None or call is None or any(isinstance(one, ast.Starred) for one in call.args):
            return
        node = _argument(call, _parameters(layer), parameter)
        if node is None or isinstance(node, ast.Constant):
            yield path, parameter, call
            return
        if not isinstance(node, ast.Name):
            return
        around = (one for one in ancestors(path) if one in layers and node.id in _parameters(layers[one]))
        outer = next((one for one in around if _holds(type(layers[one]), built.place)), None)
        if outer is None:
            return
        path, parameter = outer, node.id


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


def _edit(built: Optional[sites.Built], call: ast.Call, kind: type, parameter: str, value: Attribute) -> Optional[Edit]:
    if built is None:
        return None
    sources, file = Sources({}), built.place.file
    node = _argument(call, [*inspect.signature(kind).parameters], parameter)
    if node is not None:
        return edit_of(sources, file, node, written(parameter, value))
    end = sources.span(file, call)[1] - 1
    return Edit(file, end, end, f"{', ' * bool(call.args or call.keywords)}{parameter}={written(parameter, value)}")

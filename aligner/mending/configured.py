"""A setting that comes of an object with settings that a net is given: a dataclass, a namespace, a dict.

What reads it says `config.strides[stage]`, which is right for no other stage once a number stands there. So the object
is copied with another number in it, and the net built with that, to see that nothing but the layers that are to change
does; then the number is changed where it is written.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional

from aligner.adapter import Adapter
from aligner.compare.net import ancestors
from aligner.explain.setting_rules import same
from aligner.mending.passed import LARGE, ROW, Change, Maker, Making, inside, of_class, values
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.source import sites
from aligner.source.owning import is_own
from aligner.source.written import parsed, source, walked
from aligner.words.spelling import written as literal

MOST, BUILDS = 64, 24
"""Fields of an object that are looked at, and nets that are built to find the right one."""

PLAIN = (bool, int, float, str)


class _Holder(NamedTuple):
    """What makes the outermost layer that is given such an object, and by which name."""

    maker: Maker
    parameter: str
    config: Any


class Configured:
    """Of one port."""

    def __init__(self, adapter: Adapter, layers: Mapping[str, Any], making: Making) -> None:
        self._adapter, self._layers, self._making = adapter, layers, making
        self._left = BUILDS

    def written(
        self, path: str, change: Change, changes: Callable[[str], Optional[Change]]
    ) -> Optional[tuple[sites.Place, Sequence[Edit], Sequence[str]]]:
        """The file's number that makes a layer's settings so, and no others than are to be."""
        had = self._adapter.spec(self._layers[path]).attributes
        found = [value for name in change for value in (had.get(name), *_axes(had.get(name)))]
        for holder in self._holders(path):
            for name, now, others in _fields(holder.config, values(change), found):
                node = None if self._is_read(name) else _node(holder, name, now)
                for other in others if node is not None else ():
                    if node is not None and self._builds(holder, name, other, path, change, changes):
                        edit = edit_of(Sources({}), node[0], node[1], literal(name, other))
                        return (holder.maker.place, () if edit is None else (edit,), ())
        return None

    def _holders(self, path: str) -> Iterator[_Holder]:
        found: dict[int, _Holder] = {}
        for one in (path, *ancestors(path)):
            maker = of_class(self._layers, one) if one in self._layers else None
            for parameter, value in maker.given.items() if maker is not None else ():
                if maker is not None and _is_config(value):
                    found[id(value)] = _Holder(maker, parameter, value)  # the outer one stays
        yield from found.values()

    def _is_read(self, name: str) -> bool:
        """Whether code of the port's layers may read it when they run, or a method of its own object: to change it may
        change that, too, which is right."""
        files = (source_of(type(layer)) for layer in self._layers.values() if is_own(self._adapter, layer))
        return any(name in _running(file) for file in dict.fromkeys(files) if file)

    def _builds(
        self,
        holder: _Holder,
        name: str,
        value: Any,
        path: str,
        change: Change,
        changes: Callable[[str], Optional[Change]],
    ) -> bool:
        """Whether what is given the object with this value has the layer as it is to be, and all others, too."""
        maker = holder.maker
        size = sum(math.prod(one.shape) for one in self._adapter.parameters(self._layers[maker.layer]))
        if size > LARGE or not self._left:
            return False
        self._left -= 1
        try:
            given = {**maker.given, holder.parameter: _with(holder.config, name, value)}
            made = self._making.made(maker, given)
        except Exception:  # the user's constructor may raise whatever it likes
            return False
        known = {inside(one, maker.layer): one for one in self._layers if _is_in(one, maker.layer)}
        if {*known} != {*made}:
            return False
        whole = {**dict.fromkeys(known.values()), path: change}
        return all(self._is_so(made[inner], one, whole[one] or changes(one)) for inner, one in known.items())

    def _is_so(self, made: Any, path: str, change: Optional[Change]) -> bool:
        had, has = self._adapter.spec(self._layers[path]), self._adapter.spec(made)
        wanted = {**had.attributes, **(change or {})}
        differs = [n for n in has.attributes if not same(has.attributes[n], had.attributes.get(n))]
        return has.kind == had.kind and all(same(has.attributes[n], wanted.get(n)) for n in differs or change or ())


def _is_config(value: Any) -> bool:
    """An object of a class of the program's with plain values, or a dict of them."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(name, str) for name in value)
    own = type(value).__module__ not in ("builtins", "torch", "mindspore", "numpy")
    return isinstance(value, types.SimpleNamespace) or (own and bool(_plain(getattr(value, "__dict__", None))))


def _plain(inside: Any) -> Mapping[str, Any]:
    known = inside if isinstance(inside, dict) else {}
    return {name: one for name, one in known.items() if isinstance(one, (*PLAIN, tuple, list))}


def _inside_of(config: Any) -> Mapping[str, Any]:
    return _plain(config if isinstance(config, dict) else vars(config))


def _with(config: Any, name: str, value: Any) -> Any:
    other = copy.copy(config)
    if isinstance(other, dict):
        other[name] = value
    else:
        object.__setattr__(other, name, value)  # it may be frozen
    return other


def _fields(config: Any, wanted: Sequence[Any], found: Sequence[Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """What has what the layer has, and that with what it is to have in its place."""
    for name, now in [*_inside_of(config).items()][:MOST]:
        if isinstance(now, PLAIN):
            others = [one for one in wanted if type(one) is type(now) and one != now] if _among(now, found) else []
        else:
            at = [n for n, one in enumerate(now[:ROW]) if _among(one, found)]
            pairs = [(n, one) for one in wanted for n in at if type(one) is type(now[n]) and one != now[n]]
            others = [type(now)([*now[:n], one, *now[n + 1 :]]) for n, one in pairs]
        if others:
            yield name, now, others


def _among(value: Any, found: Sequence[Any]) -> bool:
    return isinstance(value, PLAIN) and any(type(one) is type(value) and same(one, value) for one in found)


def _node(holder: _Holder, name: str, now: Any) -> Optional[tuple[str, ast.expr]]:
    """Where it is written: in a call that makes the object, else where its class or its dict is; None if in several."""
    kind = "dict" if isinstance(holder.config, dict) else type(holder.config).__name__
    files = [holder.maker.place.file, *filter(None, [source_of(type(holder.config))])]
    for of in (_said, _defaulted):
        nodes = [(file, node) for file in dict.fromkeys(files) for node in of(file, kind, name) if _is(node, now)]
        if len(nodes) == 1:
            return nodes[0]
        if nodes:
            return None
    return None


def source_of(kind: type) -> str:
    """The file that a class is written in; "" where there is none."""
    with suppress(OSError, TypeError):
        return inspect.getsourcefile(kind) or ""
    return ""


@lru_cache(maxsize=32)
def _running(file: str) -> frozenset[str]:
    """Names of attributes and items that functions of a file read, but for constructors."""
    functions = [
        one for one in walked(parsed(source(file))) if isinstance(one, ast.FunctionDef) and one.name != "__init__"
    ]
    nodes = [node for one in functions for node in walked(one)]
    items = (
        node.slice.value for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    )
    return frozenset(
        [
            *(node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)),
            *(one for one in items if isinstance(one, str)),
        ]
    )


def _said(file: str, kind: str, name: str) -> Iterator[ast.expr]:
    for node in walked(parsed(source(file))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (kind, "replace"):
            yield from (one.value for one in node.keywords if one.arg == name)


def _defaulted(file: str, kind: str, name: str) -> Iterator[ast.expr]:
    for node in walked(parsed(source(file))):
        if isinstance(node, ast.Dict) and kind == "dict":
            pairs = ((key, value) for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant))
            yield from (value for key, value in pairs if key.value == name)
        elif isinstance(node, ast.ClassDef) and node.name == kind:
            for one in walked(node):
                targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
                if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                    ends = (getattr(target, "id", getattr(target, "attr", "")) for target in targets)
                    yield from [one.value] if name in ends else []
                elif isinstance(one, ast.arguments):
                    named = [*zip(one.args[len(one.args) - len(one.defaults) :], one.defaults)]
                    rest = [(arg, value) for arg, value in zip(one.kwonlyargs, one.kw_defaults) if value is not None]
                    yield from (value for arg, value in (*named, *rest) if arg.arg == name)


def _is(node: ast.expr, now: Any) -> bool:
    with suppress(ValueError):
        return same(ast.literal_eval(node), now)
    return False


def _axes(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _is_in(path: str, owner: str) -> bool:
    return not owner or path == owner or path.startswith(owner + ".")

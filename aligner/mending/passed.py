"""A setting that comes of what a class or a function of the user's is given, changed where it is given: in the call of
it, or one around that.

`self.add = shortcut and ins == outs` is set by an argument that may come from far: `Bottleneck(w, w, shortcut)` in a
stage that is built with `shortcut=True`, by default. So is the dilation of a convolution that a `Unit(planes, planes)`
builds. What is called is called again, to see that it does.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, Callable, NamedTuple, Optional

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

MOST = 512
"""Calls of a port's classes and functions that are made again."""

FEW = 8
"""Values of others of a class that are tried in its call."""

ROW = 16
"""Numbers in a row of which one is tried as it is set."""

Change = Mapping[str, Attribute]
Changes = Callable[[str], Optional[Change]]


class Maker(NamedTuple):
    """A class or a function, and the call of it that made a layer."""

    layer: str
    place: sites.Place
    call: ast.Call
    parameters: list[str]
    made: Callable[..., Any]
    given: Mapping[str, Any]
    names: Mapping[str, Any]
    """Numbers that have a name where it is called."""

    def value(self, parameter: str) -> Any:
        """What it is given, or takes by default."""
        known = inspect.signature(self.made).parameters.get(parameter)  # it may be one of any that it takes
        return self.given.get(parameter, None if known is None else known.default)


class Passed(NamedTuple):
    """An argument; the layer that is so set, by its path in that which the call makes."""

    maker: Maker
    parameter: str
    value: Attribute
    below: str
    more: Change = MappingProxyType({})
    """Other arguments of the call, where one alone does not do it."""

    @property
    def arguments(self) -> Change:
        """All that are to be other than they are."""
        return {self.parameter: self.value, **self.more}


class Making:
    """Calls again what has made the layers of a port, for each that is alike once."""

    def __init__(self, adapter: Adapter, layers: Mapping[str, Any]) -> None:
        self._adapter, self._layers = adapter, layers
        self._known: dict[object, bool] = {}

    def passed(self, path: str, change: Change, changes: Changes) -> Iterator[Passed]:
        """The arguments that make a layer's settings so, from the inner to the outer; `changes` tells of others."""
        layers = self._layers
        maker = of_class(layers, path) if is_own(self._adapter, layers[path]) else _around(layers, path)
        seen = set[tuple[sites.Place, str]]()
        for _ in range(DEEPEST):
            if maker is None:
                break
            for found in self._arguments(path, maker, change, changes):
                for outer, its in _callers(layers, maker, found.parameter):
                    found = Passed(outer, its, found.value, inside(path, outer.layer))
                    if (outer.place, its) not in seen and self.makes(found, change):
                        seen.add((outer.place, its))
                        yield found
            if len(change) > 1:
                yield from self._together(path, maker, change)
            maker = _around(layers, maker.layer, maker.place)  # one argument there may be several here

    def beside(self, found: Passed) -> Iterator[Maker]:
        """The same call where it made other layers."""
        function = inspect.isfunction(found.maker.made)
        for path in self._layers:
            makers = _of_functions(self._layers, path) if function else iter([of_class(self._layers, path)])
            maker = next((one for one in makers if one is not None and one.place == found.maker.place), None)
            if maker is not None and path == maker.layer != found.maker.layer:
                yield maker

    def _together(self, path: str, maker: Maker, change: Change) -> Iterator[Passed]:
        """Arguments of one call that set these only together."""
        alone = [[*self._arguments(path, maker, {name: value}, lambda _: None)] for name, value in change.items()]
        for first, *others in islice(itertools.product(*alone), FEW):
            found = first._replace(more={one.parameter: one.value for one in others})
            handed_on = any(isinstance(_argument(maker, parameter), ast.Name) for parameter in found.arguments)
            if not handed_on and len(found.arguments) == len(alone) and self.makes(found, change):
                yield found

    def makes(self, found: Passed, change: Change) -> bool:
        """Whether what is called makes those settings and no others, with this argument and else as it was."""
        maker, layer = found.maker, self._layers[found.maker.layer]
        had = self._adapter.spec(self._layers[".".join(filter(None, (maker.layer, found.below)))]).attributes
        given = {**maker.given, **found.arguments}
        key = maker.made, found.below, _told(given), _told(change), _told(had)
        if key not in self._known:
            small = sum(math.prod(one.shape) for one in self._adapter.parameters(layer)) <= LARGE
            self._known[key] = small and len(self._known) < MOST and self._sets(found, given, {**had, **change})
        return self._known[key]

    def _sets(self, found: Passed, given: Mapping[str, Any], wanted: Change) -> bool:
        try:
            inner = self.made(found.maker, given)
            if {*inner} != {inside(path, found.maker.layer) for path in self._within(found.maker.layer)}:
                return False
            has = self._adapter.spec(inner[found.below]).attributes
            if any(self._is_other(found.maker.layer, path, one) for path, one in inner.items() if path != found.below):
                return False
        except Exception:  # the user's constructor may raise whatever it likes
            return False
        return {*has} == {*wanted} and all(same(has[n], v) and type(has[n]) is type(v) for n, v in wanted.items())

    def _within(self, owner: str) -> Iterator[str]:
        return (path for path in self._layers if not owner or path == owner or path.startswith(f"{owner}."))

    def made(self, maker: Maker, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The layers that are made with these arguments.

        Raises:
            Exception: whatever the user's constructor raises.
        """
        with constructing.undrawn(self._adapter):
            bound = inspect.signature(maker.made).bind_partial()
            bound.arguments.update(given)
            return dict(self._adapter.layers(maker.made(*bound.args, **bound.kwargs)))

    def spoiled(self, found: Passed, changes: Changes) -> list[str]:
        """Layers that are as the reference has them, and that the argument would set otherwise, too; what the reference
        has is told by `changes`."""
        maker, spoiled = found.maker, list[str]()
        for below, one in self.made(maker, {**maker.given, **found.arguments}).items():
            path = ".".join(filter(None, (maker.layer, below)))
            had, has = (self._adapter.spec(layer).attributes for layer in (self._layers[path], one))
            wanted = (changes(path) or {}).items()
            if any(n in has and same(had.get(n), value) and not same(has[n], value) for n, value in wanted):
                spoiled.append(path)
        return spoiled

    def _is_other(self, outer: str, path: str, made: object) -> bool:
        """Whether a layer beside the one that is asked for would be built otherwise, too; those around it say so."""
        known = self._layers.get(".".join(filter(None, (outer, path))))
        specs = [self._adapter.spec(one) for one in (known, made) if one is not None]
        return len(specs) < len((known, made)) or specs[0].kind != specs[1].kind

    def again(self, found: Passed, change: Change) -> Iterator[Change]:
        """What these arguments may be in another call, for a layer that is to be set so, or as it is."""
        now = {parameter: found.maker.value(parameter) for parameter in found.arguments}
        ways = [found, found._replace(value=now[found.parameter], more={name: now[name] for name in found.more})]
        if not found.more:
            own = now[found.parameter]
            ways[1:1] = (found._replace(value=one) for one in values(change))
            ways += (found._replace(value=one) for one in _near(own))
        return (one.arguments for one in ways if self.makes(one, change))

    def _arguments(self, path: str, maker: Maker, change: Change, changes: Changes) -> Iterator[Passed]:
        for parameter in maker.parameters:
            for value in [
                *values(change),
                *_others(maker, parameter, self._layers.values()),
                *self._row(maker, parameter, changes),
                *_rows(maker, parameter, change),
                *_near(maker.value(parameter)),
            ]:
                found = Passed(maker, parameter, value, inside(path, maker.layer))
                if self.makes(found, change):
                    yield found

    def _row(self, maker: Maker, parameter: str, changes: Changes) -> Iterator[Attribute]:
        """What it is given in a row, or takes by default, with each number as most layers are right with it."""
        row, known = maker.value(parameter), ((path, changes(path)) for path in self._within(maker.layer))
        wanted = {inside(path, maker.layer): change for path, change in known if change}
        kinds = {type(one) for one in row} if isinstance(row, (tuple, list)) else set()
        numbers = [
            one for one in dict.fromkeys(v for each in wanted.values() for v in values(each)) if type(one) in kinds
        ]
        if not numbers or len(row) > ROW:
            return
        best, right = row, self._right(maker, parameter, row, wanted)
        for at, number in itertools.product(range(len(row)), numbers[:FEW]):
            other = type(row)([*best[:at], number, *best[at + 1 :]])
            more = self._right(maker, parameter, other, wanted) if other != best else right
            best, right = (other, more) if more > right else (best, right)
        yield from [best] if best != row else []

    def _right(self, maker: Maker, parameter: str, value: Attribute, wanted: Mapping[str, Change]) -> set[str]:
        """The layers that have what they are to have, with this argument."""
        with suppress(Exception):  # the user's constructor may raise whatever it likes
            made = self.made(maker, {**maker.given, parameter: value})
            specs = {path: self._adapter.spec(made[path]).attributes for path in wanted if path in made}
            return {path for path, has in specs.items() if all(same(has.get(n), v) for n, v in wanted[path].items())}
        return set()


def _others(maker: Maker, parameter: str, layers: Iterable[Any]) -> list[Attribute]:
    """What others of the same class were given for this parameter, and the words that its constructor knows."""
    found: dict[tuple[type, object], Attribute] = {}
    if isinstance(maker.given.get(parameter), str):
        found.update({(str, word): word for word in _words(maker.made) if word != maker.given[parameter]})
    signature = inspect.signature(maker.made)
    for layer in layers:
        known = constructing.given(layer) if type(layer) is maker.made else None
        with suppress(TypeError):
            value = None if known is None else signature.bind(*known[0], **known[1]).arguments.get(parameter)
            if isinstance(value, (bool, int, float, str)) and value != maker.given.get(parameter):
                found.setdefault((type(value), value), value)
    return [*found.values()][:FEW]


def _rows(maker: Maker, parameter: str, change: Change) -> Iterator[Attribute]:
    """What it is given in a row, or takes by default, with one of it as it is set: `strides=(1, 2, 2, 1)`."""
    row = maker.value(parameter)
    form: Callable[[list[Any]], Any] = type(row)
    if isinstance(row, (tuple, list)) and len(row) <= ROW:
        for value, at in itertools.product(values(change), range(len(row))):
            if type(row[at]) is type(value) and row[at] != value:
                yield form([*row[:at], value, *row[at + 1 :]])


def _near(value: Any) -> list[Attribute]:
    """A whole number that is another one's slip: a padding that is worked out tells not which."""
    return [value + 1, value - 1, 2 * value, value // 2] if type(value) is int and value > 1 else []


def _words(made: Any) -> Iterator[str]:
    with suppress(OSError, TypeError, SyntaxError):
        code = inspect.getsource(made.__init__ if inspect.isclass(made) else made)
        for node in ast.walk(ast.parse(textwrap.dedent(code))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
                yield node.value


def _told(given: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """What tells arguments from others: plain ones by what they are, others each by itself."""
    plain = (bool, int, float, str, tuple, list, type(None))
    return tuple((name, repr(one) if isinstance(one, plain) else id(one)) for name, one in sorted(given.items()))


def inside(path: str, owner: str) -> str:
    """The path of a layer in another one."""
    return "" if path == owner else path[len(owner) + 1 if owner else 0 :]


def values(change: Change) -> list[Attribute]:
    """What it sets, the plain numbers first: one where it is the same for each axis."""
    found = [one for whole in change.values() for one in _single(whole)]
    return sorted({(type(one), one): one for one in found}.values(), key=lambda one: isinstance(one, tuple))


def _single(value: Attribute) -> Iterator[Attribute]:
    yield value
    if isinstance(value, tuple) and len({*value}) == 1:
        yield from _single(value[0])
    elif isinstance(value, tuple) and all(isinstance(one, tuple) and len({*one}) == 1 for one in value):
        yield tuple(one[0] for one in value if isinstance(one, tuple))  # as much at both ends


def _callers(layers: Mapping[str, Any], maker: Maker, parameter: str) -> Iterator[tuple[Maker, str]]:
    """The first call, from the inner to the outer, in which it is no name that is handed on."""
    for _ in range(DEEPEST):
        if any(isinstance(one, ast.Starred) for one in maker.call.args):
            return
        node = _argument(maker, parameter)
        if not isinstance(node, ast.Name):
            yield maker, parameter
            return
        outer = _around(layers, maker.layer, maker.place)
        if outer is None or node.id not in outer.parameters:  # what a loop is at, or is worked out there
            yield maker, parameter
            return
        maker, parameter = outer, node.id


def _around(layers: Mapping[str, Any], path: str, place: Optional[sites.Place] = None) -> Optional[Maker]:
    """What called the framework, or another one of these, there: a function, else a class in its constructor."""
    built = sites.built(layers[path])
    if built is None:
        return None
    function = next(_of_functions(layers, path, place or built.place), None)
    if function is not None:
        return function
    around = (one for one in ancestors(path) if one in layers)
    holds = (one for one in around if _holds(type(layers[one]), place or built.place))
    return next((maker for one in holds if (maker := of_class(layers, one)) is not None), None)


def of_class(layers: Mapping[str, Any], path: str) -> Optional[Maker]:
    layer = layers[path]
    built, known = sites.built(layer), constructing.given(layer)
    call = sites.call(built.place, type(layer).__name__) if built is not None else None
    if built is None or known is None or call is None:
        return None
    with suppress(TypeError, ValueError):
        signature = inspect.signature(type(layer))
        given = signature.bind(*known[0], **known[1]).arguments
        return Maker(path, built.place, call, [*signature.parameters], type(layer), given, built.names)
    return None


def names_at(layers: Mapping[str, Any], path: str, place: sites.Place) -> Mapping[str, Any]:
    """What the constructor that this place is in was given, and the layer that it made."""
    holding = (one for one in ancestors(path) if one in layers and _holds(type(layers[one]), place))
    around = next(holding, None)
    maker = of_class(layers, around) if around is not None else None
    return {} if maker is None or around is None else {"self": layers[around], **maker.given}


def _of_functions(layers: Mapping[str, Any], path: str, inner: Optional[sites.Place] = None) -> Iterator[Maker]:
    """Of functions of files' own, from the inner to the outer, or of the one that this place is in; what each returned
    is the outermost layer that it built."""
    built = sites.built(layers[path])
    for place, names, caller in built.callers() if built is not None else ():
        made, call = caller.scope.get(caller.name), sites.call(caller.place, caller.name)
        if inner not in (None, place) or call is None or not inspect.isfunction(made):
            continue
        outermost = path
        for one in ancestors(path):
            its = sites.built(layers[one]) if one in layers else None
            if its is None or all(each.place != caller.place for *_, each in its.callers()):
                break
            outermost = one
        given = {name: names[name] for name in caller.parameters if name in names}
        yield Maker(outermost, caller.place, call, [*caller.parameters], made, given, caller.names)


def _holds(kind: type, place: sites.Place) -> bool:
    """Whether the constructor of this class has the place in it."""
    with suppress(OSError, TypeError):
        code = kind.__init__.__code__  # type: ignore[misc]  # of a class of the user's
        lines, first = inspect.getsourcelines(code)
        return code.co_filename == place.file and first <= place.line < first + len(lines)
    return False


def _argument(maker: Maker, parameter: str) -> Optional[ast.expr]:
    named = {str(one.arg): one.value for one in maker.call.keywords}
    return {**dict(zip(maker.parameters, maker.call.args)), **named}.get(parameter)

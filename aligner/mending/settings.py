"""The call that builds a layer, with other settings: what a trial has proved, written where the user's code says it.

A line may build many layers. What it shall say is to be right for each: the reference's setting is the same for all of
them, or something that has a name there is each one's.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Optional

from aligner.adapter import Adapter
from aligner.explain.setting_rules import same
from aligner.mending.configured import Configured
from aligner.mending.hunks import hunks
from aligner.mending.keywords import keywords, named, says
from aligner.mending.passed import Changes, Making, Passed, names_at
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.record import Attribute, LayerSpec
from aligner.source import sites
from aligner.source.constructing import undrawn
from aligner.source.owning import is_own
from aligner.source.written import parsed, source, walked
from aligner.words.spelling import written as literal

STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

BLOCKS = ("body", "orelse", "finalbody")

WAYS = 4
"""Arguments of which a setting may come that are looked at."""

LARGE = 1 << 22
"""Elements of parameters: a layer that has more is not built again to see what it is."""

Wanted = Callable[[str], Optional[str]]
"""The call that builds a layer of the port's as the reference has it, as far as it is to change; None if not known."""


class Written(NamedTuple):
    """Lines to change, and layers that they build and for which they are not right."""

    edits: Sequence[Mapping[str, Any]]
    broken: Sequence[str]


class Settings:
    """Of one port. What was written before is taken into account."""

    def __init__(self, adapter: Adapter, layers: Mapping[str, Any]) -> None:
        self._adapter, self._layers, self._making = adapter, layers, Making(adapter, layers)
        self._configured = Configured(adapter, layers, self._making)
        self._edits: dict[sites.Place, Sequence[Edit]] = {}
        self._done: dict[tuple[sites.Place, Sequence[Edit]], Written] = {}

    def written(self, path: str, text: str, aim: LayerSpec, wanted: Wanted, changes: Changes) -> Optional[Written]:
        """The change that builds the layer as `text` says: "nn.Conv2d(..., padding=2)", or all of another kind.

        `aim` is its kind and what is to be other than it was; `changes` is the same of any layer. None if that cannot
        be written.
        """
        layer = self._layers.get(path)
        built = sites.built(layer) if layer is not None else None
        if built is None:
            return None
        if is_own(self._adapter, layer) and "..." in text:
            return self._given(path, aim, changes, for_all=False)
        return self._made(path, built, text, aim, wanted, changes)

    def of_own_kind(self, path: str, like: Sequence[str], name: str) -> Optional[tuple[str, Any]]:
        """A layer of a class of the user's in the place of this one, and its text: of the class of one of those that it
        should be `like`, built as that is, else of this name in that file, built of nothing.
        """
        built = sites.built(self._layers[path]) if path in self._layers else None
        if built is None:
            return None
        texts = [said for one in like if one in self._layers and (said := self._said(self._layers[one]))]
        for text in dict.fromkeys((*texts, f"{name}()")):
            kind: Any = built.scope.get(text.partition("(")[0])
            if kind is None or kind is type(self._layers[path]):
                continue
            with suppress(Exception), undrawn(self._adapter):  # it takes other arguments, or is no layer
                made = eval(text, {**built.scope, **built.names})  # the user's own words
                if is_own(self._adapter, made):
                    return text, made
        return None

    @staticmethod
    def _said(layer: Any) -> str:
        """The call that builds a layer, on one line; "" where that is not known, or is of a module's."""
        built = sites.built(layer)
        call = None if built is None else sites.call(built.place, type(layer).__name__)
        if built is None or call is None or not isinstance(call.func, ast.Name):
            return ""
        return " ".join(Sources({}).words(built.place.file, call).split())

    def given(self, path: str, change: Mapping[str, Attribute], alike: Set[str]) -> Optional[Written]:
        """A layer of the user's with other attributes, by what the call that builds it is given; `alike` are those that
        are to have the same. None if that is not right for all that it builds.
        """
        if path not in self._layers or not is_own(self._adapter, self._layers[path]):
            return None
        aim = LayerSpec("", change)
        return self._given(path, aim, lambda other: change if other in alike else None, for_all=True)

    def uncast(self, path: str) -> Optional[Written]:
        """The call that has the layer, or one that it is in, compute in a shorter type, taken out of the text."""
        names = path.split(".")
        around = (self._layers.get(".".join(names[:deep])) for deep in range(len(names), 0, -1))
        found = next((cast for layer in around if layer is not None and (cast := sites.cast(layer)) is not None), None)
        call = None if found is None else sites.call(found.place, found.name)
        if found is None or call is None:
            return None
        return self._taken(found.place, _without(found.place.file, call), ())

    def _given(self, path: str, aim: LayerSpec, changes: Changes, for_all: bool) -> Optional[Written]:
        """The argument of a class or a function of the user's that a setting comes of, wherever it is given; None where
        it is to be right `for_all` and is not."""
        ways = islice(self._making.passed(path, aim.attributes, changes), WAYS)
        told = [self._argued(found, changes) for found in ways]
        whole = next((one for one in told if not one[-1]), None) or self._configured.written(
            path, aim.attributes, changes
        )
        right = whole or next(iter(told if not for_all else ()), None)
        return None if right is None else self._taken(*right)

    def _argued(self, found: Passed, changes: Changes) -> tuple[sites.Place, Sequence[Edit], Sequence[str]]:
        """A call with its arguments as they are to be, and the layers for which it is not right."""
        maker = found.maker
        asks = {maker.layer: {name: literal(name, value) for name, value in found.arguments.items()}}
        names, broken = {maker.layer: maker.names}, self._making.spoiled(found, changes)
        for other in self._making.beside(found):
            inner = ".".join(filter(None, (other.layer, found.below)))
            right = self._making.again(found._replace(maker=other), changes(inner) or {})
            said = next(({name: literal(name, value) for name, value in one.items()} for one in right), None)
            if said is None:
                broken.append(inner)
            else:
                asks[other.layer], names[other.layer] = said, other.names
        said = named(asks, names, maker.call)
        if said is None:
            said = asks[maker.layer]
            broken += [other for other, its in asks.items() if its != said]
        return maker.place, _written(maker.place.file, maker.call, maker.parameters, said), broken

    def _taken(self, place: sites.Place, edits: Sequence[Edit], broken: Sequence[str]) -> Optional[Written]:
        """None where the line is to say something else already: what says two things is right for none."""
        known = place, tuple(edits)
        if known in self._done:
            return self._done[known]
        if not edits or place in self._edits:
            return None
        before, after = (Sources({}).edited(_all(some)) for some in (self._edits, {**self._edits, place: edits}))
        self._edits[place] = edits
        self._done[known] = Written([*hunks(before, after)], broken)
        return self._done[known]

    def _made(
        self, path: str, built: sites.Built, text: str, aim: LayerSpec, wanted: Wanted, changes: Changes
    ) -> Optional[Written]:
        layer = self._layers[path]
        call = sites.call(built.place, type(layer).__name__)
        if call is None:
            return None
        others = {other: wanted(other) for other in self._beside(built.place, path)}
        if "..." in text and _reads(call):
            told = self._configured.written(path, aim.attributes, changes)
            if told is not None:
                return self._taken(*told)
        if "..." in text:
            said = keywords(text) or {}
            for only in (*(said if len(said) > 1 else ()), ""):  # a padding that is "same" follows a dilation
                edits, broken = self._set(path, built, call, text, others, only)
                if edits and not broken and only and self._builds(path, built, call, edits, aim, unknown=False):
                    break
            if broken and (far := self._around(path, built, call, text, wanted)) is not None:
                return far
            if broken and (far := self._given(path, aim, changes, for_all=True)) is not None:
                return far
        else:
            edits, broken = _replaced(built, call, text), [other for other, its in others.items() if its != text]
        if (built.place, tuple(edits)) not in self._done and not self._builds(path, built, call, edits, aim):
            return None
        return self._taken(built.place, edits, broken)

    def _set(
        self,
        path: str,
        built: sites.Built,
        call: ast.Call,
        text: str,
        others: Mapping[str, Optional[str]],
        only: str,
    ) -> tuple[Sequence[Edit], list[str]]:
        """The call with these settings, or one of them, and the others that it builds for which they are not right."""
        kind, broken = type(self._layers[path]), list[str]()
        said = keywords(text, only)
        if said is None:
            return (), broken
        asks = {path: said}
        for other, its in others.items():
            asked = None if its is None else keywords(its, only)
            if asked == {"pad_mode": "'valid'"} and "padding" in said:
                asked = {**said, "padding": "0"}
            if asked is None or {*asked} != {*said}:
                broken.append(other)
            else:
                asks[other] = asked
        if any(its != said for its in asks.values()):
            names = {one: at.names for one in asks if (at := sites.built(self._layers[one])) is not None}
            by_name = named(asks, names, call)
            broken += [other for other, its in asks.items() if by_name is None and its != said]
            said = by_name or said
        return _edits(built.place.file, call, kind, said), broken

    def _around(self, path: str, built: sites.Built, call: ast.Call, text: str, wanted: Wanted) -> Optional[Written]:
        """The same where a function of the user's is given what the call hands on: `linear(a, b, bias=True)`."""
        nodes, whole = _given(call, type(self._layers[path])), keywords(text) or {}
        said = {name: value for name, value in whole.items() if not says(nodes.get(name), name, value)}
        caller = built.caller
        outer = sites.call(caller.place, caller.name) if caller is not None else None
        names = {name: node.id for name in said if isinstance(node := nodes.get(name), ast.Name)}
        if outer is None or caller is None or not {*names.values()} <= {*caller.parameters}:
            return None
        hands_on = any(one.arg is None and isinstance(one.value, ast.Name) for one in call.keywords)  # all it is given
        names.update({name: name for name in said if hands_on and name not in {*nodes, *caller.parameters}})
        if {*names} != {*said}:
            return None
        beside = [other for other in self._layers if other != path and _from(self._layers[other]) == caller.place]
        broken = [o for o in beside if (its := wanted(o)) is None or keywords(its) != whole]
        method = isinstance(outer.func, ast.Attribute) and caller.parameters[:1] in (("self",), ("cls",))
        parameters = caller.parameters[method:]
        asks = {names[name]: value for name, value in said.items()}
        edits = _written(caller.place.file, outer, parameters, asks, hands_on)
        if broken or len({(names[name], value) for name, value in said.items()}) > len({*names.values()}):
            return None
        return self._taken(caller.place, edits, ())

    def _beside(self, place: sites.Place, path: str) -> list[str]:
        """The other layers that the same call builds."""
        built = ((other, sites.built(layer)) for other, layer in self._layers.items() if other != path)
        return [other for other, its in built if its is not None and its.place == place]

    def _builds(
        self,
        path: str,
        built: sites.Built,
        call: ast.Call,
        edits: Sequence[Edit],
        aim: LayerSpec,
        unknown: bool = True,
    ) -> bool:
        """Whether the call builds what was tried; `unknown` where not all it says is known, or the layer is large."""
        if sum(math.prod(parameter.shape) for parameter in self._adapter.parameters(self._layers[path])) > LARGE:
            return unknown
        plain = Sources({})
        start, end = plain.span(built.place.file, call)
        text = plain.edited(edits).text(built.place.file)
        text = text[start : end + len(text) - len(plain.text(built.place.file))]
        try:
            with undrawn(self._adapter):
                names = {**built.scope, **names_at(self._layers, path, built.place), **built.names}
                made = eval(" ".join(text.split("\n")), names)  # the user's own line
        except (NameError, AttributeError):
            return unknown
        except Exception:
            return False
        found = self._adapter.spec(made)
        return found.kind == aim.kind and all(same(found.attributes.get(n), v) for n, v in aim.attributes.items())


def _all(edits: Mapping[sites.Place, Sequence[Edit]]) -> list[Edit]:
    return [edit for some in edits.values() for edit in some]


def _replaced(built: sites.Built, call: ast.Call, text: str) -> Sequence[Edit]:
    """Another layer in its place, by the name that the code has for the framework's module."""
    module, _, rest = text.partition(".")
    kind = rest.partition("(")[0]
    if "(" in module:  # a class of the user's
        edit = edit_of(Sources({}), built.place.file, call, text)
        return () if edit is None else (edit,)
    own = ast.unparse(call.func).rpartition(".")[0]
    if not own and hasattr(built.scope.get(module), kind):
        own = module
    edit = edit_of(Sources({}), built.place.file, call, f"{own}.{rest}") if own and kind.isidentifier() else None
    return () if edit is None else (edit,)


def _without(file: str, call: ast.Call) -> Sequence[Edit]:
    """A layer itself in the place of what a method of it hands on; nothing in the place of a statement that only calls
    it."""
    if not isinstance(call.func, ast.Attribute):
        return ()
    plain = Sources({})
    text, (start, end) = plain.text(file), plain.span(file, call)
    line = text.rfind("\n", 0, start) + 1, text.find("\n", end) + 1
    alone = not text[line[0] : start].strip() and not text[end : line[1]].strip()
    if alone and not (isinstance(call.func.value, ast.Call) or _is_last(file, call)):
        return (Edit(file, *line, ""),)
    return (Edit(file, plain.span(file, call.func.value)[1], end, ""),)


def _is_last(file: str, call: ast.Call) -> bool:
    """Whether there is nothing else in the block that a statement stands in."""
    blocks = (getattr(node, name, None) for node in walked(parsed(source(file))) for name in BLOCKS)
    own = (
        block for block in blocks if isinstance(block, list) and any(getattr(s, "value", None) is call for s in block)
    )
    return any(len(block) == 1 for block in own)


def _reads(call: ast.Call) -> bool:
    """Whether it is given what an object has: `config.eps`, `config["eps"]`."""
    given = (*call.args, *(one.value for one in call.keywords))
    return any(isinstance(node, (ast.Attribute, ast.Subscript)) for one in given for node in walked(one))


def _from(layer: Any) -> Optional[sites.Place]:
    """Where the function was called that built it."""
    built = sites.built(layer)
    return None if built is None or built.caller is None else built.caller.place


def _given(call: ast.Call, kind: type) -> Mapping[str, ast.expr]:
    """What a call gives, by the names of what it calls."""
    with suppress(TypeError, ValueError):
        names = [*inspect.signature(kind).parameters]
        return {**dict(zip(names, call.args)), **{str(one.arg): one.value for one in call.keywords}}
    return {}


def _edits(file: str, call: ast.Call, kind: type, said: Mapping[str, str]) -> Sequence[Edit]:
    """The call with these keywords, each in the place of what it says of it; none where it cannot be said so."""
    with suppress(TypeError, ValueError):
        if "pad_mode" in said and "padding" not in said and "padding" in _given(call, kind):
            said = {**said, "padding": "0"}  # only the mode that pads takes one
        parameters = inspect.signature(kind).parameters
        named = [name for name, one in parameters.items() if one.kind not in STARRED]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        return _written(file, call, named, said, takes_any)
    return ()


def _written(
    file: str, call: ast.Call, names: Sequence[str], said: Mapping[str, str], takes_any: bool = False
) -> Sequence[Edit]:
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return ()
    plain, found, more = Sources({}), list[Edit](), list[str]()
    given = {**dict(zip(names, call.args)), **{str(one.arg): one.value for one in call.keywords}}
    for name, text in said.items():
        if name not in names and not takes_any:
            return ()
        node = given.get(name)
        if says(node, name, text):
            continue
        if node is not None:
            edit = edit_of(plain, file, node, text)
            found += [edit] if edit is not None else []
        else:
            more.append(f"{name}={text}")
    if more:
        start, end = plain.span(file, call.func)[1], plain.span(file, call)[1] - 1
        last = plain.text(file)[start:end].rstrip()
        comma = "" if last.endswith(("(", ",")) else ","
        found.append(Edit(file, *(start + len(last),) * 2, f"{comma}{' ' * (not last.endswith('('))}{', '.join(more)}"))
    return found

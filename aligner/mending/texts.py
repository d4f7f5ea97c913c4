"""A value of the reference in the port's words, at a place of the port's code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Optional

from aligner import values
from aligner.adapter import Adapter
from aligner.fingerprint import distances
from aligner.mending import words
from aligner.mending.anchor import Anchor, Parts
from aligner.mending.events import LAYER, Event
from aligner.mending.heard import Heard
from aligner.mending.kinds import as_condition, as_index
from aligner.mending.matching import Matching
from aligner.mending.measuring import count
from aligner.mending.modules import modules
from aligner.mending.sources import Sources
from aligner.words.calls import Constant, Operand
from aligner.words.operations import arguments
from aligner.words.spelling import INDEXED, MASKED, bracketed, number_text, spelled, unshaped, widened, written
from aligner.words.templates import MINDSPORE, NUMPY

DEEPEST = 8
"""Operations in one expression that is written."""


class Texts:
    """Writes values of the reference. `layers` gives the port's layer for one of the reference's."""

    def __init__(
        self,
        adapter: Adapter,
        matching: Matching,
        heard: Heard,
        sources: Sources,
        side: str,
        layers: Callable[[str], Optional[object]],
    ) -> None:
        self._adapter, self._matching, self._heard, self._sources = adapter, matching, heard, sources
        self.side, self._layers = side, layers
        self._numbers: dict[tuple[float, Event, str], str] = {}
        self._called: dict[Event, list[tuple[str, int, bool]]] = {}
        self._owned: dict[tuple[int, bool], list[tuple[str, int]]] = {}
        self._reached = 0
        """How deep the expression is that is being written."""
        self.assumed: Mapping[int, int] = {}
        """Values of the port that are taken for these of the reference's: what an edit of an earlier turn makes."""

    def source(self, event: Event, node: ast.AST) -> str:
        """What stands there."""
        return self._sources.words(event.site.file, node) if event.site is not None else ""

    def ways(self, value: int, anchor: Anchor) -> Iterator[str]:
        """Expressions that have this value of the reference, the shortest first; none where there are no words."""
        said = self.unshaped(value, anchor)
        yield from [] if said is None else [said]
        with suppress(LookupError):
            plain = self.text(value, anchor)
            yield plain
            if "expand_dims(" in plain or "unsqueeze(" in plain:
                loose = self.text(value, replace(anchor, loose=True, said={}, unsaid={}))
                yield from [loose] if loose != plain else []
            made = self._matching.makers[0].get(value)
            if made is not None and made.text in self._matching.idle_lines:
                whole = self.text(value, replace(anchor, whole=True, said={}, unsaid={}))
                yield from [whole] if whole != plain else []
        for other in self._matching.once_more.get(value, ()):
            with suppress(LookupError):
                yield self._made(other, value, anchor, 0)

    def text(self, value: Operand, anchor: Anchor, depth: int = 0, line: str = "") -> str:
        """An expression that has this value of the reference.

        Raises:
            LookupError: there is none that could be found.
        """
        if isinstance(value, Constant):
            with suppress(LookupError):
                return self.text(self._matching.made_of(value), anchor, depth + 1)
            return self.number(value.value, anchor.event, line)
        if value is None or depth > min(DEEPEST, anchor.unsaid.get(value, DEEPEST)):
            raise LookupError("too deep")
        if value not in anchor.said:
            around, self._reached = self._reached, depth
            try:
                anchor.said[value] = self._text(value, anchor, depth, line), self._reached - depth
            except LookupError:
                anchor.unsaid[value] = depth - 1
                raise
            finally:
                self._reached = max(around, self._reached)
        said, height = anchor.said[value]
        if depth + height > DEEPEST:
            raise LookupError("too deep")
        self._reached = max(self._reached, depth + height)
        return self._in_vain(said, value, anchor, line) if anchor.whole else said

    def _in_vain(self, text: str, value: int, anchor: Anchor, line: str) -> str:
        """With what the reference's line does to a value without making another one of it."""
        made = self._matching.makers[0].get(value)
        line = line or (made.text if made is not None else "")
        for event in self._matching.idle.get(value, ()):
            if event.text == line:
                numbers = [number_text(one.value) for one in event.operands[1:] if isinstance(one, Constant)]
                text = self._step(event, [text, *numbers], anchor)
        return text

    def _text(self, value: int, anchor: Anchor, depth: int, line: str) -> str:
        known = self._known(value, anchor)
        if known is not None:
            return known
        made = self._matching.makers[0].get(value)
        turned = self._turned(value, made, anchor)
        if turned is not None:
            return turned
        kept = self._parameter(value, anchor)
        if kept is not None:
            return self._shaped(*kept, value, anchor)
        table = self._table(value, anchor)
        if table is not None:
            return self.transposed(anchor.event, table, (1, 0))
        if made is None:
            number = self._matching.ours.number(value)
            if number is None:
                raise LookupError("a value from elsewhere")
            return self.number(number, anchor.event, line)
        if made.word == LAYER:
            return self._layer(made, anchor, depth)
        return self._made(made, value, anchor, depth)

    def _made(self, made: Event, value: int, anchor: Anchor, depth: int) -> str:
        """What a step of the reference's does, on what stands there."""
        mask = MASKED.get(made.word)
        by_name = replace(anchor, named=True, said={}, unsaid={})  # what stands there may be the condition as numbers
        places = [by_name if at == mask else anchor for at in range(len(made.operands))]
        given = [self._plain(one) if made.word == "where" else one for one in made.operands]
        operands = [self.text(one, place, depth + 1, made.text) for one, place in zip(given, places)]
        if mask is not None:
            operands[mask] = as_condition(operands[mask], anchor.event.names, self._adapter)
        if made.word in INDEXED:
            at = INDEXED[made.word]
            operands[at] = as_index(operands[at], anchor.event.names, self._adapter)
        text = self._step(made, operands, anchor, made.results.index(value) if len(made.results) > 1 else None)
        return self._typed(text, made.results[0], anchor) if anchor.is_array and not operands else text

    def _plain(self, value: Operand) -> Operand:
        """The number that a value consists of, if somebody filled it."""
        made = self._matching.makers[0].get(value) if isinstance(value, int) else None
        number = made.arguments.get("value") if made is not None and made.word == "fill" else None
        return Constant(number) if isinstance(number, float) else value

    def _step(self, made: Event, operands: Sequence[str], anchor: Anchor, part: Optional[int] = None) -> str:
        """What the reference does in one step, on these operands; which part of it, where it makes several values."""
        side = NUMPY if anchor.is_array else self.side
        if made.share is not None and side != NUMPY:  # right for each size
            count, part, axis = made.share
            given = {"n": count, "axis": axis}
            return spelled("chunk", operands, given, {}, modules(anchor.event.scope, side), side, part)
        texts = {key: self.argument(anchor.event, made, key, item) for key, item in made.arguments.items()}
        word = self._filling(made, side) if made.word == "fill" else made.word
        word = "floordiv" if made.arguments.get("rounding_mode") == "floor" else word
        texts.update({"value": bracketed(texts["value"])} if word == "floats" else {})
        return spelled(word, operands, made.arguments, texts, modules(anchor.event.scope, side), side, part)

    def _filling(self, made: Event, side: str) -> str:
        """Numbers of a value of its own: MindSpore's `full` makes whole ones of them."""
        if not self._matching.ours.is_float(made.results[0]):
            return "fill"
        plain = [word for word, number in (("zeros", 0), ("ones", 1)) if made.arguments.get("value") == number]
        return plain[0] if plain else "floats" if side == MINDSPORE else "fill"

    def _typed(self, text: str, value: int, anchor: Anchor) -> str:
        """What numpy makes of nothing, in the type that stands there."""
        dtype = anchor.event.arrays[anchor.node]
        if self._matching.ours.is_float(value) and not dtype.startswith("float"):
            dtype = "float32"
        module = modules(anchor.event.scope, NUMPY)["ops"]
        return text if dtype == "float64" else f"{text[:-1]}, dtype={module}.{dtype})"

    def unshaped(self, value: int, anchor: Anchor) -> Optional[str]:
        """The same in the shape that it has there, where that is another one: what stands around may shape it."""
        found = self._found(value, anchor)
        if found is None or self._matching.ours.shapes[value] == self._matching.theirs.shapes[found[1]]:
            return None
        return found[0]

    def _turned(self, value: int, made: Optional[Event], anchor: Anchor) -> Optional[str]:
        """A value that stands there with its axes in another order, turned back: or the one that this is made of."""
        ways: list[tuple[int, Sequence[int]]] = [(value, range(len(self._matching.ours.shapes[value])))]
        if made is not None and made.word == "transpose" and isinstance(made.operands[0], int):
            if self._found(made.operands[0], anchor) is not None:
                return None
            ways.append((made.operands[0], made.arguments["perm"]))
        for text, number in self._there(anchor):
            turn = self._matching.makers[1].get(number)
            if turn is None or turn.word != "transpose" or number in self._matching.held:
                continue
            source, order = turn.operands[0], [*turn.arguments["perm"]]
            for other, perm in ways:
                shapes = self._matching.ours.shapes[other], self._matching.theirs.shapes[number]
                if source in self._matching.twins.get(other, ()) and shapes[1] == tuple(shapes[0][i] for i in order):
                    return self.transposed(anchor.event, bracketed(text), [order.index(axis) for axis in perm])
        return None

    def _there(self, anchor: Anchor) -> Iterator[tuple[str, int]]:
        """What the place has: expressions and names, each with the port's value."""
        for node, number in [(anchor.node, anchor.value), *anchor.inputs]:
            if isinstance(number, int):
                yield self.source(anchor.event, node), number
        for name, number, is_array in self._names(anchor.event):
            if is_array == anchor.is_array:
                yield name, number

    def _known(self, value: int, anchor: Anchor) -> Optional[str]:
        """An expression beside the place, or a name, that has the value already, in the reference's shape."""
        found = self._found(value, anchor)
        return None if found is None else self._shaped(*found, value, anchor)

    def _found(self, value: int, anchor: Anchor) -> Optional[tuple[str, int]]:
        """The expression, and the port's value that it has; of names one of the reference's shape first."""
        twins = self._matching.twins.get(value, ())
        said = None
        for node, number in [(anchor.node, anchor.value), *anchor.inputs]:
            if said is None and isinstance(number, int) and self._stands_for(number, value, number in twins):
                said = bracketed(self.source(anchor.event, node)), number
        if said is not None and not anchor.named:
            return said
        named = [
            (name, number)
            for name, number, is_array in self._names(anchor.event)
            if is_array == anchor.is_array and (said is None or name.isidentifier())
            if self._stands_for(number, value, value in self._matching.values_of(number))
        ]
        form = self._matching.ours.shapes[value]
        said = said if said is not None or named else self._inside(value, anchor)
        return min(named, key=lambda one: self._matching.theirs.shapes[one[1]] != form, default=said)

    def _inside(self, value: int, anchor: Anchor) -> Optional[tuple[str, int]]:
        """A part of the expression that stands there, further in."""
        right = {one for one in self._matching.twins.get(value, ()) if one not in self._matching.held}
        found = next(((node, one) for node, one in self._parts.of(anchor) if one in right), None) if right else None
        return None if found is None else (bracketed(self.source(anchor.event, found[0])), found[1])

    @cached_property
    def _parts(self) -> Parts:
        return Parts(self._matching.heard)

    def _stands_for(self, number: int, value: int, twin: bool) -> bool:
        return number not in self._matching.held and (twin or self.assumed.get(number) == value)

    def _shaped(self, text: str, number: int, value: int, anchor: Anchor) -> str:
        """In the reference's shape."""
        shapes = self._matching.theirs.shapes
        shape, base = self._matching.ours.shapes[value], unshaped(text)
        if anchor.loose and [size for size in shape if size > 1] == [size for size in shapes[number] if size > 1]:
            return text
        named = {name: shapes[its] for name, its, _ in self._names(anchor.event)}
        own, plain = named.get(base, shapes[number]), base if base in named else text
        more = None if anchor.is_array else widened(plain, own, shape, self.side)
        if shape in (own, shapes[number]) or more is not None:
            return more or (plain if shape == own else text)
        made = self._matching.makers[0].get(value)
        sizes = self.shape(anchor.event, made, shape) if made is not None and made.word == "reshape" else ""
        return f"{base}.reshape({sizes or ', '.join(words.sizes(shape, anchor.event.names))})"

    def number(self, value: float, event: Event, line: str) -> str:
        """A number, in the reference's words if they mean the same here, or in the port's."""
        if (value, event, line) not in self._numbers:
            said = words.operand(line, value, event.known) or words.renamed(line, value, event.names, event.known)
            plain = words.kept(value, event.names) or number_text(value)
            self._numbers[value, event, line] = bracketed(said) if said else plain
        return self._numbers[value, event, line]

    def argument(self, event: Event, model: Event, key: str, value: Any) -> str:
        """An argument of the reference's, in its words if they mean the same here."""
        if key == "shape" and model.word == "reshape":
            return self.shape(event, model, value)
        if key == "n":
            return count(value, event.names)
        if key == "index":
            sizes = self._matching.ours.shapes[model.operands[0]] if isinstance(model.operands[0], int) else ()
            return words.index(model.text, value, sizes, event.known, event.names)
        for name, number in self.names(event) if key == "shape" and model.word == "expand" and len(value) > 1 else ():
            if self._matching.theirs.shapes[number] == tuple(value):
                return f"{name}.shape"
        for said in words.argument(model.text, model.name, model.places.get(key)):
            fits = words.means(said, value, event.known) or self._is_axis(said, value, key, event)
            other = said if fits else words.renamed(said, value, event.names, event.known)
            if other is not None:
                return other
        return count(value, event.names) if key == "end" and model.word == "arange" else written(key, value)

    @staticmethod
    def _is_axis(said: str, value: Any, key: str, event: Event) -> bool:
        """An axis counted from the end."""
        if key != "axis" or not isinstance(value, int):
            return False
        return any(words.means(said, value - rank, event.known) for rank in range(1, 9) if value < rank)

    def shape(self, event: Event, model: Event, shape: Sequence[int]) -> str:
        """The sizes of a reshape, in the reference's words where they mean the same."""
        for said in words.arguments(model.text, model.name) if model.name in ("view", "reshape") else ():
            parts = ast.parse(f"({said},)", mode="eval").body
            items = [ast.unparse(one) for one in parts.elts] if isinstance(parts, ast.Tuple) else []
            fits = [one == "-1" or words.means(one, size, event.known) for one, size in zip(items, shape)]
            if len(items) == len(shape) and all(fits):
                return said
            if len(items) == len(shape) and "-1" not in items:
                return ", ".join(words.sizes(shape, event.names, [one if fit else "" for one, fit in zip(items, fits)]))
        return ", ".join(words.sizes(shape, event.names))

    def names(self, event: Event) -> Iterator[tuple[str, int]]:
        """What the code calls its tensors there, and their numbers."""
        return ((name, number) for name, number, is_array in self._names(event) if not is_array)

    def _names(self, event: Event) -> list[tuple[str, int, bool]]:
        if event not in self._called:
            self._called[event] = sorted(self._heard.called(event), key=lambda one: "[" in one[0])  # items: of a turn
        return self._called[event]

    def _parameter(self, value: int, anchor: Anchor) -> Optional[tuple[str, int]]:
        """What the layer itself keeps that has this value, and its number."""
        return next((one for one in self._tables(anchor) if value in self._matching.values_of(one[1])), None)

    def _tables(self, anchor: Anchor) -> Sequence[tuple[str, int]]:
        """All that the layer itself keeps of the kind that stands there."""
        owner = anchor.event.names.get("self")
        if owner is None or not self._adapter.is_model(owner):
            return ()
        key, wanted = (id(owner), anchor.is_array), values.is_array if anchor.is_array else self._adapter.is_tensor
        if key not in self._owned:
            kept = ((name, one) for name, one in self._kept(owner) if wanted(one))
            self._owned[key] = [(name, self._heard.number(tensor)) for name, tensor in kept]
        return self._owned[key]

    def _table(self, value: int, anchor: Anchor) -> Optional[str]:
        """A table that is this one with its rows for its columns."""
        form = self._matching.ours.shapes[value]
        for name, number in self._tables(anchor) if len(form) == 2 else ():
            if self._matching.theirs.shapes[number] == form[::-1]:
                known = self._matching.ours.values[value], self._matching.theirs.values[number]
                if (distances(known[:1], known[1:], turned=True) <= self._matching.limit).all():
                    return name
        return None

    def _kept(self, owner: Any) -> Iterator[tuple[str, object]]:
        for parameter in self._adapter.parameters(owner):
            if not parameter.layer:
                yield f"self.{parameter.name}", parameter.tensor
        for name, value in [*vars(owner).items()]:
            yield f"self.{name}", value

    def _layer(self, made: Event, anchor: Anchor, depth: int) -> str:
        """A call of the port's own layer."""
        if self._matching.makers[0].get(made.results[0]) is made and self._matching.twins.get(made.results[0]):
            raise LookupError(made.layer)  # it was called here: to call it twice is no way to have what it made
        if len(made.results) != 1:
            raise LookupError(made.layer)
        said = self.called(anchor.event, made.layer)
        return f"{said}({', '.join(self.text(one, anchor, depth + 1) for one in made.operands)})"

    def called(self, event: Event, reference: str) -> str:
        """What the code calls its layer for one of the reference's.

        Raises:
            LookupError: it has none.
        """
        owner, layer = event.names.get("self"), self._layers(reference)
        known = self._adapter.layers(owner) if owner is not None and self._adapter.is_model(owner) else ()
        found = [words.dotted(path) for path, other in known if other is layer and path]
        if layer is None or not found:
            raise LookupError(reference)
        return found[0]

    def operation(
        self, event: Event, word: str, text: str, node: ast.AST, given: Optional[Mapping[str, Any]] = None
    ) -> str:
        """An operation of one operand on an expression at a place, with these arguments, or what they usually are.

        Raises:
            LookupError: the code has no words for it.
        """
        side = NUMPY if node in event.arrays else self.side
        return spelled(word, [text], arguments(word) if given is None else given, {}, modules(event.scope, side), side)

    def transposed(self, event: Event, text: str, perm: Sequence[int]) -> str:
        """An expression with its axes in another order.

        Raises:
            LookupError: the code has no words for it.
        """
        return spelled("transpose", [text], {"perm": tuple(perm)}, {}, modules(event.scope, self.side), self.side)

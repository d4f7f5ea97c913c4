"""A wrong place of a comparison as a Case: the records around it, ready to be looked into.

Taken from the dumps alone, during the capture (for trials) and when they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Optional, Union

from aligner.compare.casts import USUAL, computing, shortened
from aligner.compare.checks import in_float32
from aligner.compare.folded import ends
from aligner.compare.formed import Formed
from aligner.compare.looped import loops
from aligner.compare.net import CallId, Net, Visit, is_input, nest
from aligner.compare.pieces import pieces
from aligner.compare.place import Place
from aligner.compare.reformed import Part, made, parts
from aligner.compare.reordered import Orders, reordered
from aligner.compare.trails import Trails
from aligner.compare.training import HELD, as_it_begins
from aligner.errors import DumpError, Reason, because, form_of
from aligner.explain.case import MINDSPORE, TORCH, Case, Value
from aligner.findings import OPERATIONS, REPEAT
from aligner.record import Call, Key, LayerSpec, Phase, display

if TYPE_CHECKING:
    from aligner.compare.casts import Shortened
    from aligner.compare.layers import Pairing
    from aligner.dump.reader import Dump, Entry

WRITTEN_IN_TORCH = ("torch", "mindtorch")
"""Frameworks whose ports are written in torch's words."""

OTHERS = 200
"""Values of other layers that are offered for a glance, the nearest ones."""


class Cases:
    """Builds the cases of one pair of dumps."""

    def __init__(self, reference: Dump, port: Dump, nets: tuple[Net, Net], pairing: Pairing) -> None:
        self.dumps = reference, port
        self._nets = nets
        self._pairing = pairing
        self._ports: dict[str, str] = {}
        for pair in pairing.layers:
            self._ports.setdefault(pair.reference, pair.port)
        self._trails = Trails(reference, port)
        self._steps: dict[tuple[int, int], Mapping[CallId, Visit]] = {}
        self._calls: dict[tuple[int, str, int], tuple[list[Entry], list[Entry]]] = {}

    def case(self, place: Place) -> Case:
        """What is known of this place."""
        port = self.dumps[1]
        other = self._ports.get(place.owner, place.owner)
        wanted = place.against or place.key
        expected = None if wanted is None else self._find(0, wanted)
        actual = self._actual(place)
        long = actual is not None and place.port is not None and actual.key.slot == in_float32(place.port.slot)
        around = place.where == "glue"
        inputs, outputs = ([], []) if around or place.key is None else self._call(place.key)
        return Case(
            where=place.where,
            layer=place.owner,
            port_layer=other,
            slot=(place.key or place.port or Key(0, Phase.FORWARD, "", 0, "")).slot,
            between=place.between,
            reference=_spec(self._nets[0], place.owner),
            port=_spec(self._nets[1], other),
            training=_training(port, other),
            expected=None if expected is None else _value(expected),
            actual=None if actual is None else _in_order(_value(actual), expected, place.axes),
            rounding=place.rounding,
            inputs=tuple(map(_value, inputs)),
            outputs=tuple(map(_value, outputs)),
            parameters=self._parameters(0, place.owner, place),
            port_parameters=self._parameters(1, other, place),
            known=self._known(place.owner, expected) if around and expected is not None else self._alike(place),
            repeated=self._repeated(place) if place.where == "layer" else None,
            operations=self._operations(place) if around else None,
            fork=cache(
                partial(
                    self._trails.fork,
                    (place.owner, other),
                    partial(self._numbers, place, other),
                    expected,
                    actual,
                    place.rounding,
                )
            ),
            computed=self._computed(place.owner, other) if place.where == "layer" else None,
            shortened=self._shortened(place.owner, other) if place.where in ("glue", "layer") and not long else None,
            order=self._order(place) if around else None,
            alone=(self._alone(0, place), self._alone(1, place)) if around else ((), ()),
            types=(_type(self.dumps[0], place.owner), _type(port, other)),
            batch=self._batch,
            words=words_of(port),
        )

    @cached_property
    def _batch(self) -> Optional[int]:
        """The first axis of all that the net is given; None where layers may have another one in front."""
        given = [
            e.shape for e in self.dumps[0].of_layer("")[0] if is_input(e.key.slot) and e.key.phase is Phase.FORWARD
        ]
        sizes = {shape[0] for shape in given if shape}
        turned = any(layer.spec.attributes.get("batch_first") is False for layer in self._nets[0].layers.values())
        return sizes.pop() if len(sizes) == 1 and not turned else None

    def _computed(self, layer: str, other: str) -> Optional[tuple[str, str]]:
        """What both compute in; a dump without such findings is of a net that casts nowhere."""
        ours, theirs = self._computing
        wanted, made = (ours.get(layer) if ours else USUAL), theirs.get(other)
        return None if wanted is None or made is None else (wanted, made)

    def _order(self, place: Place) -> Optional[tuple[tuple[str, ...], tuple[str, ...]]]:
        """How the parent's code calls its layers, where it calls this one at another time."""
        orders = self._reordered.get(place.owner)
        return orders.names if orders is not None and place.moved else None

    @cached_property
    def _reordered(self) -> Mapping[str, Orders]:
        return reordered(self._nets, self._pairing)

    @cached_property
    def _shortened(self) -> Callable[[str, str], Shortened]:
        return shortened(*self.dumps)

    @cached_property
    def _computing(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        reference, port = self.dumps
        return computing(reference), computing(port)

    def _repeated(self, place: Place) -> Optional[float]:
        for kind, facts in self.dumps[1].findings:
            apart = facts.get("apart")
            if kind == REPEAT and facts.get("layer") == place.owner and isinstance(apart, (int, float)):
                return float(apart)
        return None

    def _operations(self, place: Place) -> Optional[tuple[tuple[str, ...], tuple[str, ...]]]:
        """What the parent's code ran between the two layers, on both sides; None where one side does not tell."""
        if place.between is None:
            return None
        before, after = place.between
        ours = ran(self.dumps[0], place.owner, before, after)
        names = [self._ports.get(name, name) if name else "" for name in (before, after)]
        theirs = ran(self.dumps[1], self._ports.get(place.owner, place.owner), *names)
        return (ours, theirs) if ours is not None and theirs is not None else None

    def _alone(self, side: int, place: Place) -> tuple[tuple[str, LayerSpec, int], ...]:
        """What this side's code calls between the last layer before and this value, and the other side has not."""
        key = (place.key, place.port)[side]
        wrong = None if key is None else self._find(side, key)
        if wrong is None or place.between is None or not all(net.weighed for net in self._nets):
            return ()
        owner, before = (self._ports.get(name, name) if side else name for name in (place.owner, place.between[0]))
        around = self._around(self._visits(wrong.key.step, side), owner, wrong)
        ran = [v for v in ([] if around is None else around.children) if v.call.last and v.call.last <= wrong.order]
        start = max((n + 1 for n, visit in enumerate(ran) if visit.call.layer == before), default=0)
        net = self._nets[side]
        return tuple(
            (layer, _spec(net, layer), len(visit.shapes[0][0]) if visit.shapes[0] else 0)
            for visit in ran[start:]
            if (layer := visit.call.layer) not in self._named[side] and net.weights(layer)
        )

    @cached_property
    def _named(self) -> tuple[Set[str], Set[str]]:
        """The layers of each side that have a counterpart, or whose parameters have one."""
        ours, theirs = ({key.layer for part in self._parts for key in part.keys(side)} for side in (0, 1))
        return (
            ours | {pair.reference for pair in self._pairing.layers},
            theirs | {pair.port for pair in self._pairing.layers},
        )

    def _actual(self, place: Place) -> Optional[Entry]:
        if place.port is None:
            return None
        forced = place.port._replace(phase=Phase.FORCED)
        long = self.dumps[1].find(forced._replace(slot=in_float32(forced.slot))) if place.kept else None
        kept = self.dumps[1].find(forced) if place.kept else None
        return long or kept or self._find(1, place.port)

    def _call(self, key: Key) -> tuple[list[Entry], list[Entry]]:
        """The records of the reference's call, what went in and what came out."""
        if key.phase is not Phase.FORWARD:
            return [], []
        if "[#" in key.slot:
            same = [part.reference for part in self._loops if part.reference.key[:4] == key[:4]]
            turns = [part for part in same if "[#" in part.key.slot]
            inputs, outputs = ([part for part in turns if is_input(part.key.slot) is given] for given in (True, False))
            if turns:
                return inputs, outputs  # type: ignore[return-value]  # they read like records
        entries, _ = self.dumps[0].of_layer(key.layer)
        mine = [e for e in entries if e.key.step == key.step and e.key.call == key.call and e.key.phase is key.phase]
        return [e for e in mine if is_input(e.key.slot)], [e for e in mine if not is_input(e.key.slot)]

    def _records(self, call: Call) -> tuple[list[Entry], list[Entry]]:
        """The same of all calls, each looked up once: whatever is wrong asks for all of them."""
        key = (call.step, call.layer, call.number)
        if key not in self._calls:
            self._calls[key] = self._call(Key(call.step, Phase.FORWARD, call.layer, call.number, ""))
        return self._calls[key]

    def _parameters(self, side: int, layer: str, place: Place) -> Mapping[str, Value]:
        """As the step begins: a port that is held to the reference's steps begins with what that has."""
        if not (self._nets[0].weighed and self._nets[1].weighed):
            return {}  # those of one side would look as if the other lacked them
        owner, step = place.owner, 0 if place.key is None else place.key.step
        known = self._nets[side].parameters.get(layer, {}).items()
        begun = {role: as_it_begins(self.dumps[side], entry.key._replace(step=step)) or entry for role, entry in known}
        own = {role: _value(entry) for role, entry in begun.items()}
        for part in self._parts:
            seen = part.port if side else part.reference
            if layer in (part.whole[side].layer, part.reference.key.layer) or part.whole[0].layer == owner:
                for key in part.keys(side):
                    own.pop(key.slot if layer == key.layer else "", None)
                own[part.reference.key.slot] = _value(seen)
        held = step and side and self.dumps[1].header.get(HELD) is True
        return {**own, **self._parameters(0, owner, place)} if held else own

    @cached_property
    def _parts(self) -> Sequence[Part]:
        """Parameters that stand in another form in the port."""
        return parts(*self.dumps)

    @cached_property
    def _made(self) -> Sequence[Part]:
        """What layers make that hold such parameters."""
        return made(*self.dumps)

    @cached_property
    def _loops(self) -> Sequence[Part]:
        """What layers are given and make in all turns of a loop that the other side does not have."""
        return [part for loop in loops(*self.dumps, self._pairing) for part in loop.parts]

    @cached_property
    def _pieces(self) -> Sequence[Part]:
        """What one side hands over in pieces."""
        return [part for parts, _ in pieces(*self.dumps, self._pairing) for part in parts]

    @cached_property
    def _ends(self) -> Mapping[Key, Formed]:
        """The reference's values that stand in another layer's place, and those that are worked out."""
        return {
            part.reference.key: part.reference for part in ends(*self.dumps).parts if isinstance(part.reference, Formed)
        }

    def _find(self, side: int, key: Key) -> Optional[Entry]:
        """A record, or the part of one."""
        if side == 0 and key in self._ends:
            return self._ends[key]  # type: ignore[return-value]  # reads like a record
        found = self.dumps[side].find(key)
        if (found is None and ("[" in key.slot or key.phase is Phase.PARAMETER)) or ".T" in key.slot:
            every = (*self._parts, *self._made, *self._loops, *self._pieces)
            parts = (part.port if side else part.reference for part in every)
            found = next((part for part in parts if part.key == key), None)  # type: ignore[assignment]  # reads like a record
        return found

    def is_table(self, place: Place) -> bool:
        """Whether this is what a layer of the port's has worked out when it was built."""
        return place.port is not None and (place.port.layer, place.port.slot) in self._nets[1].constants

    def _alike(self, place: Place) -> tuple[Value, ...]:
        """For a parameter: the reference's other parameters of this shape, one of which it may have been."""
        key = place.key or place.port
        own = self._find(0 if place.key is not None else 1, key) if key is not None else None
        if place.where != "parameters" or own is None:
            return ()
        return tuple(
            _value(entry)
            for layer, roles in self._nets[0].parameters.items()
            for entry in roles.values()
            if entry.shape == own.shape and layer != place.owner
        )

    def _known(self, parent: str, wrong: Entry) -> tuple[Value, ...]:
        """What the parent had in hand before it made this value, the nearest last; then others' values.

        What is further inside, in its children's own hands, comes before: it is less likely, but nearer than others'.
        """
        visits = self._visits(wrong.key.step)
        around = self._around(visits, parent, wrong)
        inside = {id(around)} if around is not None else set()
        near: list[Entry] = []
        far: list[Entry] = []
        for visit in visits.values():
            inputs, outputs = self._records(visit.call)
            mine = visit is around or (visit.parent is not None and id(visit.parent) in inside)
            records = inputs if visit is around else [*inputs, *outputs]
            (near if mine else far).extend(e for e in records if e.order < wrong.order)
        near.sort(key=lambda entry: entry.order)
        far.sort(key=lambda entry: -entry.order)
        own = [_value(e) for e in self._nets[0].parameters.get(parent, {}).values()]
        others = _once(far[: 2 * OTHERS], near)[:OTHERS]
        deep = [value for value in others if _within(value.layer, parent)]
        return (*own, *reversed(deep), *_once(near), *(value for value in others if not _within(value.layer, parent)))

    def _visits(self, step: int, side: int = 0) -> Mapping[CallId, Visit]:
        if (step, side) not in self._steps:
            calls = (c for c in self.dumps[side].calls if c.phase is Phase.FORWARD and c.step == step)
            self._steps[step, side] = {visit.id: visit for visit in nest(calls)}
        return self._steps[step, side]

    def _numbers(self, place: Place, other: str) -> tuple[int, int]:
        """Which calls of the layers whose code it is made the value, on both sides."""
        found = [0, 0]
        for side, (key, owner) in enumerate(((place.key, place.owner), (place.port, other))):
            wrong = None if key is None else self._find(side, key)
            call = None if wrong is None else self._around(self._visits(wrong.key.step, side), owner, wrong)
            found[side] = 0 if call is None else call.id.number
        return found[0], found[1]

    def _around(self, visits: Mapping[CallId, Visit], parent: str, wrong: Entry) -> Optional[Visit]:
        """The parent's call in which the value was made."""
        for visit in reversed(list(visits.values())):
            call = visit.call
            if call.layer == parent and call.first <= wrong.order and (call.last is None or wrong.order <= call.last):
                return visit
        return None


def ran(dump: Dump, layer: str, before: str, after: str) -> Optional[tuple[str, ...]]:
    """Names of the operations that ran in this gap, in the layer's first call; None if none is told of this layer.

    Layers that only one side has may stand in the gap: what ran around them belongs to it.
    """
    told = next((facts for kind, facts in dump.findings if kind == OPERATIONS and facts.get("layer") == layer), None)
    if told is None:
        return None
    try:
        rows = [(str(one), str(other), tuple(map(str, names))) for one, other, names in told["rows"]]
    except (LookupError, TypeError, ValueError) as error:
        reason = Reason("why-bad-operations", display(layer)[:80], form_of(error))
        raise DumpError("dump-bad", path=dump.path, reason=because(reason)) from error
    starts = [place for place, (one, _, _) in enumerate(rows) if one == before]
    ends = [place for place, (_, other, _) in enumerate(rows) if other == after]
    if not starts or not ends or ends[-1] < starts[0]:
        return () if starts or ends else None
    return tuple(name for _, _, names in rows[starts[0] : ends[-1] + 1] for name in names)


def _spec(net: Net, layer: str) -> LayerSpec:
    known = net.layers.get(layer)
    return known.spec if known is not None else LayerSpec("")


def _type(dump: Dump, layer: str) -> str:
    known = dump.layers.get(layer)
    return known.type if known is not None else ""


def _training(dump: Dump, layer: str) -> bool:
    known = dump.layers.get(layer)
    return known.training if known is not None else bool(dump.header.get("training"))


def _value(entry: Union[Entry, Formed]) -> Value:
    key = entry.key
    return Value(key.layer, key.slot, key.call, entry.dtype, tuple(entry.shape), entry.load)


def _in_order(value: Value, wanted: Optional[Entry], axes: Optional[tuple[int, ...]]) -> Value:
    """A value of the port's with its axes in the reference's order, if it has them in another one."""
    if axes is None or wanted is None or sorted(axes) != list(range(len(wanted.shape))):
        return value
    shape = tuple(wanted.shape[axis] for axis in axes)
    if math.prod(shape) != math.prod(value.shape):
        return value
    back, load = tuple(map(axes.index, range(len(axes)))), value.load
    return replace(value, shape=tuple(wanted.shape), load=lambda: load().reshape(shape).transpose(back))


def _within(layer: str, parent: str) -> bool:
    return not parent or layer == parent or layer.startswith(parent + ".")


def _once(entries: Iterable[Entry], before: Iterable[Entry] = ()) -> list[Value]:
    """The same tensor seen in several places once."""
    seen = {entry.content for entry in before}
    found = []
    for entry in entries:
        if entry.content not in seen:
            seen.add(entry.content)
            found.append(_value(entry))
    return found


def words_of(port: Dump) -> str:
    """Whose words a port is written in."""
    return TORCH if port.header.get("framework") in WRITTEN_IN_TORCH else MINDSPORE

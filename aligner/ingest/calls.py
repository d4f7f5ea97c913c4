"""Which layers ran, how often, and what each call got and handed on, as far as its operators tell.

What a call got is the content its operators took that none of them had made; what it handed on is the content that
others took. Where several contents go in or out of a layer that is no known one, which is which cannot be told, and
none is recorded: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple, Optional

from aligner.ingest.homes import bring_home, give_places, lose_strangers
from aligner.ingest.kinds import UNCALLED, is_atom, is_library, mains
from aligner.ingest.operations import INTERPRETER, KEEPING, MOVING, Operation, Value

JOINING = frozenset(f"{name}{ending}" for name in ("Add", "Sub", "Mul", "Div") for ending in ("", "Ext", "s"))
"""Operators of the code between layers that join two values."""


@dataclass(eq=False)
class LayerCall:
    """One run of a layer. `inputs` and `outputs` are by slot; empty where they cannot be told."""

    layer: str
    number: int
    operations: list[Operation]
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    inside: list[LayerCall] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Where its last operator stands."""
        return self.operations[-1].place


@dataclass
class Told:
    """The calls of a step: the outermost ones in order, each with those inside; and what could not be told."""

    calls: list[LayerCall] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    """The class of each layer."""
    uncounted: list[str] = field(default_factory=list)
    """Layers whose calls cannot be told apart."""
    unvalued: list[str] = field(default_factory=list)
    """Layers with several contents going in or out."""
    backward: int = 0
    placeless: int = 0
    """Operators of the backward pass, and those whose layer MindSpore has forgotten."""


def told(operations: Sequence[Operation], owners: Mapping[bytes, Set[str]], given: Set[bytes]) -> Told:
    """The calls of one step.

    Args:
        operations: in the order they ran.
        owners: the layers that have a parameter with this content.
        given: the contents of the net's inputs.
    """
    found = Told()
    forward = [one for one in operations if not one.scope.backward]
    found.backward = len(operations) - len(forward)
    found.placeless = sum(not one.scope.known for one in forward)
    give_places(forward)
    classes = _classes(forward)
    for own in _leaves(forward).values():
        lose_strangers(own)
    give_places(forward)
    for own in _leaves(forward).values():
        groups = _groups(own[0].scope.classes[-1], own)
        if len(groups) > 1:
            bring_home(groups, classes, owners)
    found.classes = {".".join(path): kind for path, kind in _classes(forward).items()}
    calls: list[LayerCall] = []
    for layer, own in _leaves(forward).items():
        groups = _groups(found.classes[layer], own)
        if not groups:
            found.uncounted.append(layer)
        calls += [LayerCall(layer, number, group) for number, group in enumerate(groups)]
    odd = _odd(calls, found.classes)
    calls.sort(key=lambda call: call.last)
    for call in calls:
        if id(call) in odd:
            found.unvalued.append(call.layer)
        else:
            _fill(call, is_library(found.classes[call.layer]), owners.keys(), given, found)
    for path, inside in sorted(_parents(forward).items(), key=lambda item: -len(item[0])):
        calls = _wrapped(".".join(path), inside, calls, owners.keys(), given, found)
    found.calls = calls
    return found


def _classes(operations: Iterable[Operation]) -> dict[tuple[str, ...], str]:
    """The class of each layer that operators name."""
    found: dict[tuple[str, ...], str] = {}
    for operation in operations:
        path = operation.scope.path
        for depth, kind in enumerate(operation.scope.classes, 1):
            found.setdefault(path[:depth], kind)
    return found


def _leaves(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The operators of each layer inside which no other layer has any."""
    own: dict[str, list[Operation]] = {}
    parents: set[tuple[str, ...]] = set()
    for operation in operations:
        path = operation.scope.path
        parents.update(path[:depth] for depth in range(1, len(path)))
        if path:
            own.setdefault(operation.scope.layer, []).append(operation)
    return {layer: ones for layer, ones in own.items() if ones[0].scope.path not in parents}


def _parents(operations: Sequence[Operation]) -> dict[tuple[str, ...], list[Operation]]:
    """The operators inside each layer that holds others, its own too; containers that nobody calls are left out."""
    holders = {one.scope.path[:depth] for one in operations for depth in range(1, len(one.scope.path))}
    classes = _classes(operations)
    found: dict[tuple[str, ...], list[Operation]] = {}
    for operation in operations:
        for depth in range(1, len(operation.scope.path) + 1):
            path = operation.scope.path[:depth]
            if path in holders and classes[path] not in UNCALLED:
                found.setdefault(path, []).append(operation)
    return found


def _groups(kind: str, operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operators of each call of a layer; [] where nobody knows how many there were."""
    main = mains(kind, Counter(one.type for one in operations))
    operations = _together(operations)
    if main is not None:
        return _by_occurrence(operations, main)
    return [list(operations)] if is_atom(kind) else _by_period(operations)


def _odd(calls: Sequence[LayerCall], classes: Mapping[str, str]) -> set[int]:
    """Calls that have fewer operators than others of their class: code that is shared stands under another's name."""
    made_of = {id(call): _signature(call.operations) for call in calls}
    whole: dict[str, Counter[str]] = {}
    for call in calls:
        mine = made_of[id(call)]
        best = whole.setdefault(classes[call.layer], mine)
        if sum(mine.values()) > sum(best.values()):
            whole[classes[call.layer]] = mine
    return {id(call) for call in calls if _lacks(made_of[id(call)], whole[classes[call.layer]])}


def _lacks(mine: Counter[str], whole: Counter[str]) -> bool:
    """Whether it is a part of the whole; other kernels for the same (a pooling) are none."""
    return mine != whole and all(count <= whole[kind] for kind, count in mine.items())


def _signature(operations: Iterable[Operation]) -> Counter[str]:
    """Its operators that change values or their order; a bias and a padding are settings."""
    kinds = (one.type for one in operations)
    return Counter(kind for kind in kinds if kind not in (*KEEPING, "BiasAdd") and not kind.startswith("Pad"))


def _together(operations: Sequence[Operation]) -> list[Operation]:
    """Without those that move values for other layers only: equal code is compiled once, under the first one's name."""
    mine = {id(one) for one in operations}
    kept = []
    for operation in operations:
        near = [one for one in operation.sources.values() if one is not None]
        near += [one for users in operation.users.values() for one in users]
        if operation.type not in MOVING or any(id(one) in mine for one in near):
            kept.append(operation)
    return kept or list(operations)


def _by_occurrence(operations: Sequence[Operation], times: int) -> list[list[Operation]]:
    """The n-th of each kind of operator belongs to the n-th call; those that only move values to whom they serve."""
    totals = Counter(one.type for one in operations)
    seen: Counter[str] = Counter()
    number: dict[int, int] = {}
    for operation in operations:
        share = totals[operation.type] // times
        if operation.type not in MOVING and share and not totals[operation.type] % times:
            number[id(operation)] = seen[operation.type] // share
            seen[operation.type] += 1
    mine = {id(one) for one in operations}
    for operation in operations:  # behind those they serve
        if id(operation) not in number:
            sources = [number[id(s)] for s in operation.sources.values() if s is not None and id(s) in number]
            if sources:
                number[id(operation)] = max(sources)
    for operation in reversed(operations):  # before those they serve
        if id(operation) not in number:
            users = [number[id(u)] for us in operation.users.values() for u in us if id(u) in mine and id(u) in number]
            number[id(operation)] = min(users, default=0)
    groups: list[list[Operation]] = [[] for _ in range(times)]
    for operation in operations:
        groups[number[id(operation)]].append(operation)
    return groups if all(groups) else []


def _by_period(operations: Sequence[Operation]) -> list[list[Operation]]:
    """One call, or as many as the row of operators repeats itself with others in between; [] where nobody knows."""
    row = [one for one in operations if one.type not in MOVING] or list(operations)
    names = [(one.scope.path, one.type) for one in row]
    period = _period(names)
    if period == len(names):
        return [list(operations)]
    starts = [row[at].place for at in range(0, len(row), period)]
    ends = [row[at - 1].place for at in range(period, len(row) + 1, period)]
    mine = {one.place for one in operations}
    apart = all(any(place not in mine for place in range(end + 1, start)) for end, start in zip(ends, starts[1:]))
    if not apart:
        return []
    bounds = [*starts[1:], 1 << 62]
    groups: list[list[Operation]] = [[] for _ in bounds]
    for operation in operations:
        groups[next(n for n, bound in enumerate(bounds) if operation.place < bound)].append(operation)
    return groups


def _period(names: Sequence[object]) -> int:
    """The length of the shortest row of which the whole is a repetition."""
    counts = Counter(names)
    most = 0
    for count in counts.values():
        most = gcd(most, count)
    for times in range(most, 1, -1):
        length, rest = divmod(len(names), times)
        if not rest and all(names[at] == names[at % length] for at in range(len(names))):
            return length
    return len(names)


def _wrapped(
    layer: str,
    operations: Sequence[Operation],
    calls: list[LayerCall],
    weights: Set[bytes],
    given: Set[bytes],
    found: Told,
) -> list[LayerCall]:
    """Put the calls inside a layer into calls of that layer, where these stand in one piece."""
    groups = _by_period(operations)
    if not groups:
        found.uncounted.append(layer)
        return calls
    result = calls
    for number, group in enumerate(groups):
        mine = {id(one) for one in group}
        inside = [at for at, call in enumerate(result) if id(call.operations[-1]) in mine]
        whole = inside and inside == list(range(inside[0], inside[-1] + 1))
        if not whole:
            found.uncounted.append(layer)
            return calls
        call = LayerCall(layer, number, list(group), inside=result[inside[0] : inside[-1] + 1])
        result = [*result[: inside[0]], call, *result[inside[-1] + 1 :]]
        _fill(call, False, weights, given, found)
    return result


def _fill(call: LayerCall, atom: bool, weights: Set[bytes], given: Set[bytes], found: Told) -> None:
    """What went in and out, as far as it can be told; an `atom` is a layer of MindSpore's without others inside."""
    single = atom and not is_atom(found.classes[call.layer])
    operations = _own(call.operations, weights) if single else call.operations
    taken = _taken(operations, weights, given)
    handed = _handed(operations)
    if not atom and not call.inside and _goes_on(operations, taken):
        handed = []  # its code may go on under another name
    if atom:
        taken = taken or _constants(operations, weights)
        if single:  # else states are handed on as well
            handed = sorted(handed, key=lambda out: (-out.place, out.slot))[:1]
    # Masks and counts go in and out unseen: compilers share and move them.
    taken = [value for value in taken if value.floating] or taken
    if not atom:
        handed = [out for out in handed if out.value.floating] or handed
    call.inputs = {"input.0": taken[0]} if len(taken) == 1 and taken[0].whole else {}
    call.outputs = {"output.0": handed[0].value} if len(handed) == 1 and handed[0].value.whole else {}
    if len(taken) > 1 or len(handed) > 1:
        found.unvalued.append(call.layer)


def _own(operations: Sequence[Operation], weights: Set[bytes]) -> Sequence[Operation]:
    """Without sums and the like with a second value from elsewhere: only one goes into such a layer."""
    mine = {id(one) for one in operations}
    first: Optional[bytes] = None
    strange: set[int] = set()
    for operation in operations:
        for slot, value in sorted(operation.given.items()):
            source = operation.sources.get(slot)
            if source is None or value.content in weights:
                continue
            if id(source) in mine:
                strange.update({id(operation)} if id(source) in strange else ())
            elif first is None:
                first = value.content
            elif value.content != first and value.floating:
                strange.add(id(operation))
    if any(id(one) in strange and one.type not in JOINING for one in operations):
        return operations
    return [one for one in operations if id(one) not in strange] or operations


def _goes_on(operations: Sequence[Operation], taken: Sequence[Value]) -> bool:
    """Whether somebody outside takes what a layer makes together with what it got, as its own last step may."""
    mine = {id(one) for one in operations}
    got = {value.content for value in taken}
    users = [user for one in operations for ones in one.users.values() for user in ones if id(user) not in mine]
    return any(value.content in got for user in users for value in user.given.values())


def _taken(operations: Sequence[Operation], weights: Set[bytes], given: Set[bytes]) -> list[Value]:
    """Contents from outside, in the order they were taken: made by other operators, or the net's inputs."""
    mine = {id(one) for one in operations}
    contents: dict[bytes, Value] = {}
    for operation in operations:
        for slot in sorted(operation.given):
            value, source = operation.given[slot], operation.sources.get(slot)
            outside = value.content in given if source is None else id(source) not in mine
            if outside and value.content not in weights:
                contents.setdefault(value.content, value)
    return list(contents.values())


def _constants(operations: Sequence[Operation], weights: Set[bytes]) -> list[Value]:
    """A first argument that nobody made: MindSpore worked it out while it compiled."""
    for operation in operations:
        for slot in sorted(operation.given):
            value = operation.given[slot]
            if operation.sources.get(slot) is None and value.content not in weights and value.shape:
                return [value]
    return []


class _Out(NamedTuple):
    """A value that leaves, with the place of the operator that made it."""

    place: int
    slot: int
    value: Value


def _handed(operations: Sequence[Operation]) -> list[_Out]:
    """Contents that others took, each once, or else what nobody took at the end."""
    mine = {id(one) for one in operations}
    out: dict[bytes, _Out] = {}
    loose: dict[bytes, _Out] = {}
    for operation in operations:
        for slot in sorted(operation.made):
            value = operation.made[slot]
            users = operation.users.get(slot, [])
            if any(id(user) not in mine for user in users):
                out[value.content] = _Out(operation.place, slot, value)
            elif not operation.users and slot == min(operation.made):
                loose[value.content] = _Out(operation.place, slot, value)
    return list(out.values()) or list(loose.values())


def results(operations: Iterable[Operation]) -> list[Value]:
    """What nobody took: the net's own output, if it is one."""
    forward = [one for one in operations if not one.scope.backward and one.type not in INTERPRETER]
    return [out.value for out in _handed(forward)]

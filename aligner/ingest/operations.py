"""The operators of one step in the order they ran, and who made the content that each of them took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Optional

from aligner.ingest.files import PARAMETER, ValueFile
from aligner.ingest.npy import FIXED
from aligner.ingest.scopes import Scope, Scopes

INTERPRETER = frozenset({"PyExecute", "MakeTuple", "MakeList", "TupleToTensor", "RealMakeTuple"})
"""Operators that only put the net's results together."""
KEEPING = frozenset({"Cast", "Reshape", "ExpandDims", "Squeeze", "Load", "Contiguous", "View"})
"""Operators that leave the values and their order as they are."""
MOVING = KEEPING | {"Transpose", "TransposeExt", "TransData"}
"""Operators that change a value's form: compilers drop, move and share them."""


@dataclass(frozen=True, eq=False)
class Value:
    """A file with its content's checksum."""

    file: ValueFile
    content: bytes
    shape: tuple[int, ...]
    floating: bool = True
    whole: bool = True
    """Not so where the file could not be read: that something was made there is known, and no more."""


@dataclass(eq=False)
class Operation:
    """One run of an operator. `place` counts them in the order they ran."""

    name: str
    type: str
    scope: Scope
    given: dict[int, Value] = field(default_factory=dict)
    made: dict[int, Value] = field(default_factory=dict)
    place: int = -1
    sources: dict[int, Optional[Operation]] = field(default_factory=dict)
    """Who made each of the given values, None where nobody did."""
    users: dict[int, list[Operation]] = field(default_factory=dict)
    """Who took each of the made ones."""

    @property
    def time(self) -> int:
        """When its first value was written."""
        return min(value.file.time for value in (*self.given.values(), *self.made.values()))


@dataclass
class Step:
    """What ran in one iteration. `parameters` are weights and the net's inputs by the name in the file."""

    operations: list[Operation] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    repeated: int = 0
    """How often all of it stands in the folder: 2 where the same folder was used for two runs."""


def readable(file: ValueFile) -> bool:
    """Whether the bytes are an array as it is, and not the tiles of a device."""
    return file.form in FIXED or "Format" in file.form


def step_of(values: Iterable[Value], scopes: Scopes, ranks: Mapping[str, int]) -> Step:
    """The operators of these files; `ranks` has the places of full names in the graph's execution order."""
    step = Step()
    grouped: dict[tuple[str, str], list[Value]] = {}
    for value in values:
        grouped.setdefault((value.file.type, value.file.name), []).append(value)
    counts: list[int] = []
    for (kind, name), found in grouped.items():
        if kind == PARAMETER:
            step.parameters[name] = max(found, key=lambda value: value.file.time)
            continue
        runs = list(_runs(found))
        counts.append(len(runs))
        step.operations += [_operation(kind, name, run, scopes) for run in runs]
    step.repeated = min(counts, default=1)
    step.operations.sort(key=lambda one: (one.time, ranks.get(one.name, 0), one.name))
    if step.repeated > 1:
        step.operations = list(_last_run(step.operations, step.repeated))
    for place, operation in enumerate(step.operations):
        operation.place = place
    return step


def _runs(values: Sequence[Value]) -> Iterator[list[Value]]:
    """An operator in a loop has each of its values several times; one run ends where a value comes again."""
    seen: set[tuple[bool, int]] = set()
    run: list[Value] = []
    for value in sorted(values, key=lambda v: (v.file.time, not v.file.given, v.file.slot)):
        at = value.file.given, value.file.slot
        if at in seen:
            yield run
            run, seen = [], set()
        run.append(value)
        seen.add(at)
    if run:
        yield run


def _operation(kind: str, name: str, run: Iterable[Value], scopes: Scopes) -> Operation:
    operation = Operation(name, kind, scopes.of(name))
    for value in run:
        (operation.given if value.file.given else operation.made)[value.file.slot] = value
    return operation


def _last_run(operations: Sequence[Operation], times: int) -> Iterator[Operation]:
    """Of operators that all stand there several times, the last run of each."""
    left: dict[str, int] = {}
    for operation in operations:
        left[operation.name] = left.get(operation.name, 0) + 1
    passed: dict[str, int] = {}
    for operation in operations:
        passed[operation.name] = passed.get(operation.name, 0) + 1
        if passed[operation.name] > left[operation.name] - left[operation.name] // times:
            yield operation


def moved(
    operations: Sequence[Operation], owners: dict[bytes, set[str]], shapes: Mapping[tuple[int, ...], Set[str]]
) -> None:
    """A weight in another form (cast, transposed) is still its owner's.

    Where weights are not among the values that operators got, what a cast got is told by its shape: `shapes` has the
    owners of the weights of each.
    """
    for operation in operations:
        if operation.type not in MOVING:
            continue
        first = operation.given[min(operation.given)] if operation.given else None
        for value in operation.made.values():
            if first is not None and first.content in owners:
                owners.setdefault(value.content, set()).update(owners[first.content])
            elif first is None and value.shape in shapes:
                owners.setdefault(value.content, set()).update(shapes[value.shape])


def link(operations: Sequence[Operation], weights: Set[bytes]) -> None:
    """Connect what was taken with the last one who had made it; weights are nobody's."""
    makers: dict[bytes, tuple[Operation, int]] = {}
    for operation in operations:
        for slot, value in operation.given.items():
            if value.content in weights:  # zeros of a bias are those of many a result
                operation.sources[slot] = None
                continue
            maker = makers.get(value.content)
            operation.sources[slot] = None if maker is None else maker[0]
            if maker is not None and not (operation.type in INTERPRETER or operation.scope.backward):
                maker[0].users.setdefault(maker[1], []).append(operation)
        for slot, value in operation.made.items():
            makers[value.content] = operation, slot

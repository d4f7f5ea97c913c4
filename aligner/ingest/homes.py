"""Operators that bear another layer's name: MindSpore compiles equal cells once, under the name of the first.

Whose run it really was is told by the weights that it took, or, for a layer without weights, by its neighbours: what
blocks.0.act is called by names, but gets from blocks.1.norm and hands to blocks.1.conv, was blocks.1.act.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Optional

from aligner.ingest.kinds import is_library, is_main
from aligner.ingest.operations import MOVING, Operation
from aligner.ingest.scopes import Scope

Path = tuple[str, ...]


def bring_home(
    groups: Sequence[Sequence[Operation]], classes: Mapping[Path, str], owners: Mapping[bytes, Set[str]]
) -> None:
    """Give each call of a layer the scope of the layer that it was.

    Args:
        groups: the operators of each call of one layer.
        classes: of all layers that operators name.
        owners: the layers that have a weight with this content.
    """
    scope = groups[0][0].scope
    weighted = [_by_weights(group, owners) for group in groups]
    if any(scope.layer in layers for layers in weighted):
        for group, layers in zip(groups, weighted):
            if len(layers) == 1 and scope.layer not in layers:
                _move(group, tuple(next(iter(layers)).split(".")), classes)
    elif not any(weighted) and len(scope.path) > 1:
        for group in groups:
            home = _by_neighbours(group, scope.path[:-1], classes)
            if home is not None:
                _move(group, (*home, scope.path[-1]), classes)


def give_places(operations: Sequence[Operation]) -> None:
    """Operators whose place is forgotten belong to the code that makes what they take and takes what they make."""
    for operation in operations:
        if not operation.scope.known:
            sources = [one for _, one in sorted(operation.sources.items()) if one is not None and one.scope.known]
            users = [one for _, ones in sorted(operation.users.items()) for one in ones if one.scope.known]
            users = users or _later(operation)
            both = {one.scope for one in sources} & {one.scope for one in users}
            inside = [one for one in users if one.scope in both and one.scope.path]
            if inside and not is_library(inside[0].scope.classes[-1]):
                operation.scope = inside[0].scope
                continue
            near = [*sources[:1], *users[:1]]
            if near:
                operation.scope = _common([one.scope for one in near])


def lose_strangers(operations: Sequence[Operation]) -> None:
    """Forget the place of operators of a leaf that have nothing to do with its others.

    Code that is shared among layers stands under the name of the first one that used it: the sum behind a GELU, a
    transpose somewhere else. The piece with the leaf's main operator is its own, or all that compute something.
    """
    pieces = _pieces(operations)
    name = operations[0].scope.classes[-1]
    computing = [piece for piece in pieces if any(one.type not in MOVING for one in piece)]
    main = [piece for piece in computing if any(is_main(name, one.type) for one in piece)]
    for piece in pieces:
        if computing and piece not in (main or computing):
            for operation in piece:
                operation.scope = Scope((), (), known=False)


def _pieces(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operators in pieces that hand each other values."""
    mine = {id(one): number for number, one in enumerate(operations)}
    group = list(range(len(operations)))

    def root(at: int) -> int:
        while group[at] != at:
            group[at] = at = group[group[at]]
        return at

    for number, operation in enumerate(operations):
        for source in operation.sources.values():
            if source is not None and id(source) in mine:
                group[root(mine[id(source)])] = root(number)
    found: dict[int, list[Operation]] = {}
    for number, operation in enumerate(operations):
        found.setdefault(root(number), []).append(operation)
    return list(found.values())


def _later(operation: Operation) -> list[Operation]:
    """The first one with a place among those behind it."""
    seen = {id(operation)}
    row = [one for _, ones in sorted(operation.users.items()) for one in ones]
    while row:
        following = row.pop(0)
        if following.scope.known:
            return [following]
        if id(following) not in seen:
            seen.add(id(following))
            row += [one for _, ones in sorted(following.users.items()) for one in ones]
    return []


def _common(scopes: Sequence[Scope]) -> Scope:
    """The layer in which all of them lie; a layer of MindSpore's own has no code of others in it."""
    depth = min(_depth(scope, len(scopes) == 1) for scope in scopes)
    while any(scope.path[:depth] != scopes[0].path[:depth] for scope in scopes):
        depth -= 1
    return Scope(scopes[0].path[:depth], scopes[0].classes[:depth])


def _depth(scope: Scope, alone: bool) -> int:
    inside = bool(scope.path) and (alone or is_library(scope.classes[-1]))
    return len(scope.path) - inside


def _by_weights(group: Iterable[Operation], owners: Mapping[bytes, Set[str]]) -> set[str]:
    """The layers that own all weights of this call."""
    found: Optional[set[str]] = None
    for operation in group:
        for value in operation.given.values():
            layers = owners.get(value.content)
            if layers:
                found = set(layers) if found is None else found & layers
    return found or set()


def _by_neighbours(group: Sequence[Operation], around: Path, classes: Mapping[Path, str]) -> Optional[Path]:
    """The layer of the same class as the one around, where all neighbours that lie in one such lie in it."""
    mine = {id(one) for one in group}
    near = [one for operation in group for one in operation.sources.values() if one is not None]
    near += [one for operation in group for users in operation.users.values() for one in users]
    depth, kind = len(around), classes.get(around)
    paths = {one.scope.path[:depth] for one in near if id(one) not in mine}
    alike = {path for path in paths if len(path) == depth and classes.get(path) == kind}
    return alike.pop() if len(alike) == 1 and around not in alike else None


def _move(group: Iterable[Operation], path: Path, classes: Mapping[Path, str]) -> None:
    for operation in group:
        kinds = [classes.get(path[:depth], "") for depth in range(1, len(path))]
        operation.scope = Scope(path, (*kinds, operation.scope.classes[-1]))

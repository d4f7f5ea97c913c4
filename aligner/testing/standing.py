"""What stands in a framework now: every function, class and attribute of its modules and classes, and a net's own.

Two of these tell whether something was left behind, wherever an adapter may have put it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from aligner.adapter import Adapter
from aligner.patches import places

Place = tuple[int, str]


class Standing:
    """What every owner holds; owners and what they hold are kept, so that no other object gets their ids."""

    def __init__(self, adapter: Adapter, nets: Iterable[object], more: object = None) -> None:
        nets = list(nets)
        self.owners: dict[int, Any] = {}
        self.held: dict[int, dict[Any, Any]] = {}
        self.more = (more, [(id(owner), name) for owner, name in places()])
        for module in _modules(nets):
            self._take(module, vars(module))
            for value in list(vars(module).values()):
                kind = type(value)  # an object may warn when it is asked for its class
                if kind is FunctionType:
                    self._take(value, {"__code__": value.__code__})
                elif issubclass(kind, type) and id(value) not in self.owners:
                    self._take(value, vars(value))
        for net in nets:
            for _, layer in adapter.layers(net):
                self._take(layer, vars(layer))
                for value in list(vars(layer).values()):
                    if isinstance(value, dict):  # its tables of hooks among them
                        self._take(value, value)
                    elif hasattr(value, "__dict__"):
                        self._take(value, vars(value))

    def _take(self, owner: Any, held: Any) -> None:
        self.owners[id(owner)] = owner
        self.held[id(owner)] = dict(held)

    def changed(self, later: Standing) -> list[Place]:
        """Places where something else stands later, or something more; counters and caches do not count."""
        return [place for number, held in self.held.items() for place in self._changed(number, held, later)]

    def _changed(self, number: int, held: dict[Any, Any], later: Standing) -> Iterator[Place]:
        now = later.held.get(number, held)  # what is gone is nobody's any more
        if len(now) == len(held) and all(map(is_, held, now)) and all(map(is_, held.values(), now.values())):
            return
        shared = isinstance(self.owners[number], (type, ModuleType))
        for name in held if isinstance(self.owners[number], ModuleType) else held.keys() | now.keys():
            before, after = held.get(name), now.get(name)
            if before is after or (shared and _is_data(before) and _is_data(after)):
                continue
            if before or after:  # else a table that the framework makes when it first needs it, empty
                yield number, name

    def names(self, changed: Iterable[Place]) -> list[str]:
        """For a person to read."""
        return [f"{getattr(self.owners[number], '__name__', self.owners[number])}.{name}" for number, name in changed]


def _is_data(value: Any) -> bool:
    """Whether it is nothing that a class or module could be asked to do."""
    return not callable(value) and not hasattr(type(value), "__get__")


def _modules(nets: Iterable[object]) -> Iterator[ModuleType]:
    """All loaded modules of the packages that the classes of these nets come from."""
    packages = {base.__module__.partition(".")[0] for net in nets for base in type(net).__mro__}
    packages -= {"builtins", "tests", "aligner"}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and isinstance(module, ModuleType):
            yield module

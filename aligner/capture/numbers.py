"""The numbers of calls: of each layer the first one in a step is 0."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.record import Array, Key, Phase
from aligner.words.training import NET

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


NEAR = 1e-4
"""What a call is given is what another one is given if it is off by no more than this part of it."""


class Turns:
    """Of nets that are captured together, as the reference has them: the second call of a net has the number that its
    second call has there, whatever else is called between, or that of the call which is given the same; one that is not
    there has a number behind all."""

    def __init__(self, reference: Dump, pairs: Mapping[str, str]) -> None:
        """`pairs` are the reference's layers by the port's."""
        self._known: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._many: Counter[int] = Counter()
        for call in sorted((one for one in reference.calls if not one.layer), key=lambda one: one.number):
            self._known[call.step, net_of(call.inputs)].append(call.number)
            self._many[call.step] += 1
        self._reference, self._pairs = reference, pairs
        self._calls = Counter((call.step, call.layer) for call in reference.calls)
        self._net, self._turn = "", 0
        """Which net is called, and which of its calls in the step that is."""
        self._inside: Counter[str] = Counter()
        """Calls in this one."""
        self._used: dict[str, set[int]] = defaultdict(set)
        self._made: set[int] = set()
        self._step, self._more = 0, 0
        self._next: Optional[int] = None
        """The number of the call that begins, if that is told already."""

    def next(self, step: int, net: str, given: Sequence[tuple[str, Array]] = ()) -> int:
        """The number of this net's next call: of those that are left the first that is given these arrays, or the
        first."""
        made = self._made if step == self._step else frozenset[int]()
        left = [number for number in self._known.get((step, net), ()) if number not in made]
        alike = (number for number in left if given and all(self._is_near(step, number, *one) for one in given))
        behind = self._many[step] + (self._more if step == self._step else 0)
        self._next = next(alike if len(left) > 1 else iter(left[:1]), left[0] if left else behind)
        return self._next

    def _is_near(self, step: int, number: int, slot: str, array: Array) -> bool:
        entry = self._reference.find(Key(step, Phase.FORWARD, "", number, slot))
        if entry is None or tuple(entry.shape) != array.shape:
            return False
        wanted, own = (np.asarray(one, np.float64) for one in (entry.load(), array))
        return float(np.linalg.norm(own - wanted)) <= NEAR * float(np.linalg.norm(wanted))

    def take(self, step: int, net: str) -> int:
        """It is called."""
        if step != self._step:
            self._made.clear()
            self._used.clear()
            self._step, self._more = step, 0
        number = self.next(step, net) if self._next is None else self._next
        self._next = None
        self._more += number >= self._many[step]
        self._made.add(number)
        known = self._known.get((step, net), [])
        self._net, self._turn = net, known.index(number) if number in known else len(known) + self._more - 1
        self._inside.clear()
        return number

    def inside(self, step: int, path: str, plain: int) -> int:
        """The number of a call of a layer in it: it has those of the same turn of its net; `plain` where that is not
        known."""
        if path.partition(".")[0] != self._net:  # a loss
            return plain
        turns = len(self._known.get((step, self._net), ()))
        calls = self._calls[step, self._pairs.get(path, path)]
        local = self._inside[path]
        self._inside[path] += 1
        each, rest = divmod(calls, turns) if turns else (0, 1)
        number = plain if rest or not each else self._turn * each + local
        if number in self._used[path]:
            number = max(*self._used[path], calls) + 1
        self._used[path].add(number)
        return number


class Numbers:
    """Of one capture."""

    def __init__(self, turns: Optional[Turns] = None) -> None:
        self._counts: dict[str, int] = {}
        self._turns = turns

    def take(self, path: str, step: int, given: Mapping[str, object]) -> int:
        """A layer is called, in this step and with these keyword arguments."""
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        if self._turns is not None and not path:
            return self._turns.take(step, str(given.get(NET, "")))
        return number if self._turns is None else self._turns.inside(step, path, number)

    def clear(self) -> None:
        """Another step begins."""
        self._counts.clear()

    def __len__(self) -> int:
        return len(self._counts)


def net_of(inputs: Any) -> str:
    """Which of several nets a call is one of, as its recorded arguments tell."""
    named: Any = dict(inputs.get("kwargs", ())) if isinstance(inputs, Mapping) else {}
    found = named.get(NET)
    return str(found["value"]) if isinstance(found, Mapping) and "value" in found else ""

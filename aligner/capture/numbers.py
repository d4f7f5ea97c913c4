"""The numbers of calls: of each layer the first one in a step is 0."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from aligner.words.training import NET

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


class Turns:
    """Of nets that are captured together, as the reference has them: the second call of a net has the number that its
    second call has there, whatever else is called between; one that is not there has a number behind all."""

    def __init__(self, reference: Dump) -> None:
        self._known: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._many: Counter[int] = Counter()
        for call in sorted((one for one in reference.calls if not one.layer), key=lambda one: one.number):
            self._known[call.step, net_of(call.inputs)].append(call.number)
            self._many[call.step] += 1
        self._made: Counter[str] = Counter()
        self._step, self._more = 0, 0

    def next(self, step: int, net: str) -> int:
        """The number of this net's next call."""
        known = self._known.get((step, net), ())
        made = self._made[net] if step == self._step else 0
        return known[made] if made < len(known) else self._many[step] + (self._more if step == self._step else 0)

    def take(self, step: int, net: str) -> int:
        """It is called."""
        if step != self._step:
            self._made.clear()
            self._step, self._more = step, 0
        number = self.next(step, net)
        self._more += number >= self._many[step]
        self._made[net] += 1
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
        return number

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

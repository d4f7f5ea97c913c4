"""A sink that only counts: what a dump would hold, without writing it (`aligner capture --estimate`).

Of a training the first steps are enough: the first has what is made once, and those behind it are alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aligner.dump.checksum import checksum
from aligner.dump.data import flat_bytes
from aligner.record import Call, Layer, Note, Phase, Record


@dataclass(frozen=True)
class Estimate:
    """What so many steps of a training come to, by those that were measured: bytes, records, seconds."""

    steps: int
    measured: int
    records: int
    weights: int
    once: int
    """Bytes that the first step has more than a later one; none where it is the only one that was measured."""
    forward: int
    """Of a step, as `backward` (gradients) and `update` (parameters and what the optimizer keeps)."""
    backward: int
    update: int
    seconds: float

    @property
    def step(self) -> int:
        """Bytes of a step."""
        return self.forward + self.backward + self.update

    @property
    def bytes(self) -> int:
        """In all."""
        return self.weights + self.once + self.step * self.steps


class Tally:
    """Stands in the DumpWriter's place."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes_written = 0
        self.bytes_seen = 0
        self._contents: set[tuple[str, tuple[int, ...], int]] = set()
        self._sizes: Counter[tuple[int, Phase]] = Counter()
        self._counts: Counter[int] = Counter()
        self._begun: dict[int, float] = {}
        self._last = 0.0

    def layer(self, layer: Layer) -> None:
        """Nothing to count."""

    def write(self, record: Record) -> None:
        """Count the value; the same one seen again takes no more room, as in a dump."""
        self.records += 1
        size = int(record.array.nbytes)
        self.bytes_seen += size
        step, phase = record.key.step, record.key.phase
        content = (record.dtype, record.array.shape, checksum(flat_bytes(record.array, record.dtype)))
        if content not in self._contents:
            self._contents.add(content)
            self.bytes_written += size
            self._sizes[step, phase] += size
        self._last = time.monotonic()
        if phase is not Phase.PARAMETER:
            self._counts[step] += 1
            self._begun.setdefault(step, self._last)

    def estimate(self, steps: int) -> Estimate:
        """What so many steps would come to, if those behind the measured ones are like the last of these."""
        measured = max(len(self._begun), 1)
        last = max(self._begun, default=0)
        by_phase = {phase: self._sizes[last, phase] for phase in Phase}
        parts = (
            by_phase[Phase.FORWARD],
            by_phase[Phase.BACKWARD] + by_phase[Phase.GRADIENT],
            by_phase[Phase.UPDATE],
        )
        weights = sum(size for (_, phase), size in self._sizes.items() if phase is Phase.PARAMETER)
        before = self.bytes_written - weights - sum(parts)
        records = self.records + self._counts[last] * (steps - measured)
        took = self._last - min(self._begun.values(), default=self._last)
        each = self._last - self._begun.get(last, self._last)
        once = before - sum(parts) * (measured - 1)
        return Estimate(steps, measured, records, weights, once, *parts, took + each * (steps - measured))

    def call(self, call: Call) -> None:
        """Nothing to count."""

    def note(self, note: Note) -> None:
        """Nothing to count."""

    def finding(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Nothing to count."""

    def update_header(self, **values: Any) -> None:
        """Nothing to count."""

    def ending(self) -> None:
        """Nothing is kept ready."""

    def close(self, complete: bool = True) -> None:
        """Nothing to close."""

    def discard(self) -> None:
        """Nothing to take away."""

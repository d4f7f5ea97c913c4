"""What came of setting two checkpoints against each other: plain data that reports read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from aligner.compare.deviation import Deviation
from aligner.explain.phrase import Fact
from aligner.weights.pairing import Pair
from aligner.weights.stored import Left

EQUAL, ROUNDING, CLOSE, DIFFERENT = "equal", "rounding", "close", "different"


@dataclass(frozen=True)
class Row:
    """A pair. `outcome` is one of the four above; `word` the type whose rounding explains it."""

    pair: Pair
    outcome: str
    deviation: Optional[Deviation] = None
    """None where the shapes differ."""
    word: str = ""
    cause: str = ""
    """What it looks like, by the id of a cause of aligner.explain.catalogue; "" if nobody asked."""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints."""

    path: str
    form: str
    inside: str
    tensors: int
    nbytes: int
    left: tuple[Left, ...]


@dataclass(frozen=True)
class Alone:
    """A tensor without a counterpart. `required`: it must have one; `allowed`: the user said that it need not."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    required: bool
    allowed: bool

    @property
    def fails(self) -> bool:
        """Whether the answer is worse for it."""
        return self.required and not self.allowed


@dataclass(frozen=True)
class WeightComparison:
    """The whole answer."""

    reference: Side
    port: Side
    rows: tuple[Row, ...]
    alone: tuple[tuple[Alone, ...], tuple[Alone, ...]]
    counters: tuple[str, ...]
    prefixes: tuple[str, str]
    tolerance: float
    rule: str

    @property
    def counts(self) -> Mapping[str, int]:
        """Pairs by outcome."""
        return Counter(row.outcome for row in self.rows)

    @property
    def by(self) -> Mapping[str, int]:
        """Pairs by the rule that found them."""
        return Counter(row.pair.by for row in self.rows)

    @property
    def different(self) -> tuple[Row, ...]:
        """The pairs that differ."""
        return tuple(row for row in self.rows if row.outcome == DIFFERENT)

    @property
    def failing(self) -> tuple[Alone, ...]:
        """What lacks a counterpart and must not, on either side."""
        return tuple(one for side in self.alone for one in side if one.fails)

    @property
    def outcome(self) -> str:
        """ "equal", "different", "unmatched" (all pairs agree, but tensors are left over) or "incomparable"."""
        if not self.rows:
            return "incomparable"
        return "different" if self.different else "unmatched" if self.failing else "equal"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return {"equal": 0, "incomparable": 3}.get(self.outcome, 1)

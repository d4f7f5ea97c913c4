"""What can be told from the right value and the wrong one alone, whatever made them.

`relations(pair)` is the door for layers and for the code between them. Each topic is a module with the same
`suspects(pair)`; rules that would only repeat what a simpler one has proved are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aligner.explain.inquiry import spend
from aligner.explain.patterns import composed, limits, rearranged, scales, slices
from aligner.explain.patterns.pair import Pair
from aligner.explain.suspect import Suspect

Rule = Callable[[Pair], Iterable[Suspect]]

RULES: tuple[Rule, ...] = (
    scales.suspects,
    slices.suspects,
    composed.suspects,
    slices.shifted,
    rearranged.suspects,
    limits.suspects,
)
"""The simplest first."""

WEAK = {"channel-ratio", "channel-shift", "ratio-and-shift"}
"""Relations that hold but say little."""

TOUCHED = 10
"""Elements that a rule touches for each of the value's, about."""


def relations(pair: Pair) -> Iterator[Suspect]:
    """How the port's value follows from the reference's. The first proof ends the search; nothing fits, nothing comes.

    Suspects with an `error` are proved: with the mistake undone, that much is left. The others are evidence.
    """
    yield from limits.broken(pair)
    if pair.alike and pair.before <= pair.limit / 20.0:
        return
    for rule in RULES:
        spend(TOUCHED * pair.expected.size)
        proved = False
        for suspect in rule(pair):
            proved = proved or suspect.error is not None
            yield suspect
        if proved:
            return

"""What one run of a port showed whose layers look for their counterparts (see joints)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from aligner.replay.answering import Due
from aligner.replay.items import Match
from aligner.replay.sample import FARTHEST, NEAR

OFTEN = 5.0
"""Where layers before the first choice are given values that are off a little, behind it these may be so many times as
far off, never farther than FARTHEST, without the choice being doubted for it: another mistake explains them."""

Fill = Callable[[Iterable[Match]], None]

Group = tuple[str, ...]


@dataclass
class Run:
    """What one run showed: the port's layers in the order in which they ran."""

    fill: Fill
    """Loads what it is given."""
    orders: Mapping[Group, Group]
    """In which it was to meet what was given the same."""
    taken: dict[str, str] = field(default_factory=dict)
    """The reference's layer by the port's."""
    known: dict[str, bool] = field(default_factory=dict)
    """Whether the layer was given what the reference's was given."""
    off: dict[str, float] = field(default_factory=dict)
    """How far off what a layer was given is, as a part of it; 1 where it is something else."""
    fitted: set[str] = field(default_factory=set)
    """Layers that were given something else, and whose counterpart shows in what they make."""
    beside: set[str] = field(default_factory=set)
    """Layers that were given a value of the reference that none like them was given."""
    groups: dict[str, Group] = field(default_factory=dict)
    """The reference's layers that were given the same, where there are several."""
    met: dict[Group, int] = field(default_factory=dict)
    """How many of the port's layers have met such a group."""
    due: Due = field(default_factory=dict)
    """What layers are to hand on that were given what their counterparts were."""

    def order(self, group: Group) -> Group:
        """The order in which it met a group."""
        return tuple(self.taken[path] for path, met in self.groups.items() if met == group and path in self.taken)

    def lost(self) -> dict[Group, int]:
        """For each group how many layers, until the next group has run, were given other values than they should be.

        What comes before the first group counts for no order.
        """
        found: dict[Group, int] = {}
        latest: Optional[Group] = None
        allowed = NEAR
        for layer in self.known:
            group, off = self.groups.get(layer), self.off.get(layer, 1.0)
            if latest is None and group is None:
                allowed = min(max(allowed, OFTEN * off), FARTHEST) if off < FARTHEST else allowed
            if latest is not None and group != latest:
                found[latest] = found.get(latest, 0) + (off > allowed)
            if group is not None:
                latest = group
                found.setdefault(group, 0)
        return found

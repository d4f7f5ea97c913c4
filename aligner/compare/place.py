"""Where something is wrong, as addresses: what a Case is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from aligner.record import Key


@dataclass(frozen=True)
class Place:
    """`key` is the reference's record, `port` the port's (None: that side has none), `owner` the reference's layer."""

    where: str
    """"layer", "glue", "parameters" or "inputs"."""
    owner: str
    key: Optional[Key]
    port: Optional[Key]
    between: Optional[tuple[str, str]]
    rounding: float
    """Relative L2 that rounding explains here."""
    kept: bool
    """The port's value of a forced pass is in its dump, in the phase FORCED."""
    against: Optional[Key] = None
    """The reference's record that the value is set against, where that is not `key`."""
    moved: bool = False
    """The parent calls its layers in another order, and this is one of several values that it gets wrong by that."""
    axes: Optional[tuple[int, ...]] = None
    """The order of the reference's axes in which the port has the value, where that is another one."""

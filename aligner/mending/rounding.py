"""What a port's code makes of the rounding of its own operations, where its values are a little off."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.mending.ground import Ground
from aligner.mending.grouping import ending, grouped
from aligner.mending.running import Running
from aligner.mending.sources import Sources
from aligner.record import Key

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

SEEDS = 2
"""How often each is run."""


def explained(
    adapter: Adapter,
    model: Any,
    ground: Ground,
    port: Dump,
    checks: Iterable[Check],
    asked: Collection[Key],
    own: Callable[[str], bool],
    most: int,
    seconds: float,
) -> Mapping[Key, float]:
    """How far off rounding makes each value that is asked for; those of code that cannot be run again are left out.
    `most` of them are run, and more as long as it takes no longer.
    """
    checks, found, until = [*checks], dict[Key, float](), time.monotonic() + seconds
    running = Running(adapter, model, ground, ending(checks, own))
    with running.installed():
        for group in grouped(checks, port, ground, own):
            parent = running.parent(group.call, group.checks)
            for key in [check.port for check in group.checks if check.port in asked]:
                if len(found) >= most and time.monotonic() > until:
                    return found
                with suppress(Exception):  # whatever the code raises
                    found[key] = parent.stirred(Sources({}), key, range(SEEDS))
    return found

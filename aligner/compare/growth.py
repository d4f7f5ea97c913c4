"""Whether rounding explains what the net hands on, where no place was found to be wrong by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from aligner.compare.reading import Reading
from aligner.errors import DumpError, Reason, because, form_of
from aligner.findings import GROWN
from aligner.record import Key, Phase, Scalar

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

LIMIT = 10.0
"""What is off by more than so many times what noise moves it by, noise does not explain."""


def doubt(readings: Sequence[Reading], port: Dump) -> None:
    """Mark all that is over the tolerance in steps in which the net hands on what noise does not explain.

    Raises:
        DumpError: a finding is damaged.
    """
    moved, explained = _moved(port), dict[int, float]()
    for reading in readings if moved else ():
        if reading.check is not None:  # what the code's own operations round, noise on layers does not do
            step = reading.pair.key.step
            explained[step] = max(explained.get(step, 0.0), reading.check.expected)
    ends = [one for one in readings if one.over and one.pair.port is not None and one.pair.port.key in moved]
    steps = set[int]()
    for reading in ends:
        deviation, port_entry = reading.deviation, reading.pair.port
        if deviation is None or deviation.nonfinite or port_entry is None:
            continue
        error, whole = moved[port_entry.key]
        whole = max(whole, explained.get(port_entry.key.step, 0.0))
        if deviation.scaled > LIMIT * error and deviation.rel_l2 > LIMIT * whole:
            reading.noise = error
            steps.add(reading.pair.key.step)
    for reading in readings:
        key = reading.pair.key
        reading.unexplained = reading.over and key.phase is Phase.FORWARD and key.step in steps


def unexplained(readings: Sequence[Reading]) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
    """A word for the first such value."""
    found = next((one for one in readings if one.noise is not None and one.unexplained), None)
    if found is not None and found.deviation is not None and found.noise is not None:
        facts = {"slot": found.pair.key.slot, "error": f"{found.deviation.scaled:.1e}", "noise": f"{found.noise:.1e}"}
        yield "growth-unexplained", facts


def _moved(port: Dump) -> Mapping[Key, tuple[float, float]]:
    found: dict[Key, tuple[float, float]] = {}
    for kind, facts in port.findings:
        if kind == GROWN:
            try:
                step, layer, call, slot = facts["at"]
                key = Key(int(step), Phase.FORWARD, str(layer), int(call), str(slot))
                found[key] = float(facts["error"]), float(facts["whole"])
            except (LookupError, TypeError, ValueError) as error:
                raise DumpError(
                    "dump-bad", path=port.path, reason=because(Reason("why-bad-growth", form_of(error)))
                ) from error
    return found

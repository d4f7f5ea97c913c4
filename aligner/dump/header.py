"""The header of a dump as it is read: what others build on has the form they count on, all of it may be shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aligner.dump.sections import demand, spelled

_PLAIN = (
    *("framework", "framework_version", "aligner", "created", "python", "numpy", "platform", "device", "mode", "model"),
    *("amp", "precision", "precision_mode", "float32_matmul", "float32_conv", "seed", "rank", "steps", "training"),
    *("forced", "weights", "complete", "recovered", "reference", "reference_token", "imported", "held"),
)


def header_from(value: Any) -> dict[str, Any]:
    """The header.

    Raises:
        Reason: a field that is known here has another form. Others are left as they are.
    """
    demand(isinstance(value, dict), "why-bad-header")
    for name in _PLAIN:
        demand(_is_plain(value.get(name)), "why-header-plain", name)
    for name, fits in _LISTS.items():
        listed = value.get(name)
        demand(listed is None or (isinstance(listed, list) and all(map(fits, listed))), "why-header-field", name)
    stopped = value.get("stopped")
    plain = isinstance(stopped, dict) and all(map(_is_plain, stopped.values())) and _fits_stop(stopped)
    demand(stopped is None or plain, "why-header-field", "stopped")
    header: dict[str, Any] = spelled(value)
    return header


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _fits_stop(facts: dict[str, Any]) -> bool:
    """Whether its numbers are numbers."""
    return all(type(facts.get(name, 0)) is int for name in ("step", "call", "line"))


def _row(least: int) -> Callable[[object], bool]:
    """A list that begins with so many texts and holds plain values."""

    def fits(row: object) -> bool:
        return (
            isinstance(row, list)
            and len(row) >= least
            and all(isinstance(word, str) for word in row[:least])
            and all(map(_is_plain, row))
        )

    return fits


_LISTS: dict[str, Callable[[object], bool]] = {
    "command": _is_plain,
    "selected": _is_plain,
    "left": _is_plain,
    "mapping": _row(2),
    "map": _row(2),
    "parted": _row(2),
    "parameters": _row(3),
}
"""Fields that are lists, and what stands in them."""

"""Where the port's code leaves the reference's, as far as it is known without an edit."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Optional

from aligner.compare.net import ancestors
from aligner.explain.line import Spot
from aligner.mending.blaming import Blaming
from aligner.mending.events import Event, values_of
from aligner.mending.matching import Matching


class Leaving(NamedTuple):
    """The likeliest line of the port's, and the reference's first that makes, of what both have, what the port lacks.

    `home` is the reference's layer inside whose code it is, if the port has that code and no such layer.
    """

    port: Optional[Spot] = None
    reference: Optional[Spot] = None
    home: str = ""


def leaving(matching: Matching, end: Optional[Event], held: str, layers: Collection[str]) -> Leaving:
    """`held` is the reference's layer whose code it is, `layers` are those that the port has as well; `end` uses it."""
    missing = [event for _, event in matching.missing if event is not None]
    first = next((event for event in missing if values_of(event) and matching.has(event)), None)
    port = Blaming(matching, end).spot()
    home = _home(first or next(iter(missing), None), matching, [layer for layer in layers if layer != held])
    return Leaving(port, None if first is None else first.spot, home)


def _home(first: Optional[Event], matching: Matching, layers: Collection[str]) -> str:
    """That of a router, which stands in the port in the code of what it is for."""
    if first is None or not first.home:
        return ""
    made = (value for event in matching.ours.events if event.home == first.home for value in event.results)
    inside = any(f"{layer}.".startswith(f"{first.home}.") for layer in layers)
    beyond = any(layer in ancestors(first.home) for layer in layers if layer)  # of one that the port ends before
    return first.home if inside or beyond or any(matching.twins.get(value) for value in made) else ""

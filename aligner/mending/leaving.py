"""Where the port's code leaves the reference's, as far as it is known without an edit."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterator
from typing import NamedTuple, Optional

from aligner.compare.net import ancestors
from aligner.explain.line import Spot
from aligner.mending.events import HELPER, LAYER, Event, values_of
from aligner.mending.matching import Matching

WIDE = 200
"""Characters of a line that are told."""


class Leaving(NamedTuple):
    """The first line on either side that makes, of what both have, what the other has nowhere.

    `home` is the reference's layer inside whose code it is, if the port has that code and no such layer.
    """

    port: Optional[Spot] = None
    reference: Optional[Spot] = None
    home: str = ""


def leaving(matching: Matching, held: str, layers: Collection[str]) -> Leaving:
    """`held` is the reference's layer whose code it is, `layers` are those that the port has as well."""
    missing = [event for _, event in matching.missing if event is not None]
    first = next((event for event in missing if values_of(event) and matching.has(event)), None)
    port = next((spot for spot in map(_spot, _frontier(matching)) if spot is not None), None)
    home = _home(first or next(iter(missing), None), matching, [layer for layer in layers if layer != held])
    return Leaving(port, None if first is None else first.spot, home)


def _frontier(matching: Matching) -> Iterator[Event]:
    """The port's steps that make something wrong of what is right. One that makes numbers of nothing is such a step
    only if there is no other, for the reference may begin with other numbers; so is a call of a layer.
    """
    steps = [event for _, event in matching.wrong if event is not None and event.word != HELPER]
    nothing = [event for event in steps if not values_of(event)]
    made = {value for event in nothing for value in event.results}
    some = [event for event in steps if event not in nothing]
    some = [one for one in some if all(value in made or matching.values_of(value) for value in values_of(one))]
    layers = [one for one in some if one.word == LAYER]
    yield from (*(one for one in some if one not in layers), *nothing, *layers)


def _spot(event: Event) -> Optional[Spot]:
    if event.site is None:
        return None
    text = " ".join(linecache.getline(event.site.file, event.site.line).split())[:WIDE]
    return Spot(event.site.file, event.site.line, text, event.name or event.word)


def _home(first: Optional[Event], matching: Matching, layers: Collection[str]) -> str:
    """That of a router, which stands in the port in the code of what it is for."""
    if first is None or not first.home:
        return ""
    made = (value for event in matching.ours.events if event.home == first.home for value in event.results)
    inside = any(f"{layer}.".startswith(f"{first.home}.") for layer in layers)
    beyond = any(layer in ancestors(first.home) for layer in layers if layer)  # of one that the port ends before
    return first.home if inside or beyond or any(matching.twins.get(value) for value in made) else ""

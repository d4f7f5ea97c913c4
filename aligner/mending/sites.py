"""Where the first wrong values are made, and what the code has by name there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from aligner.mending.callers import around
from aligner.mending.events import Event, Site
from aligner.mending.kinds import is_factor, is_same
from aligner.mending.matching import Matching
from aligner.mending.sources import Sources


class Sites:
    """Those of one wrong value; `end` is the event that uses it."""

    def __init__(self, matching: Matching, sources: Sources, end: Optional[Event]) -> None:
        self._matching, self._sources, self._end = matching, sources, end
        self._owners: dict[Site, object] = {}

    def owner(self, site: Site) -> object:
        """The layer whose code stands there."""
        return self._owners.get(site)

    def all(self) -> list[Site]:
        """Where the first wrong values are made, the last one of each other function, and where these are called."""
        found: dict[object, Site] = {}
        events = [event for _, event in self._matching.wrong if event is not None]
        right = {one for twins in self._matching.twins.values() for one in twins}
        telling = [event for event in events if right & {*event.operands}] or events
        for event in (*telling[:1], *events[:1], *([self._end] if self._end is not None else []), *reversed(events)):
            for one in (event, *around(event, self._matching.theirs.events)):
                if one.site is not None:
                    found.setdefault(self._sources.function(one.site.file, one.site.line), one.site)
                    self._owners.setdefault(one.site, one.names.get("self"))
        return [*found.values()]

    def of_both(self, site: Site) -> set[str]:
        """What both the layer and its code there have under one name, each another thing."""
        owner = self.owner(site)
        local = self.local(site)
        own = {name: one for name, one in local.items() if not name.startswith("_") and hasattr(owner, name)}
        return {name for name, one in own.items() if not is_same(one, getattr(owner, name))}

    def local(self, site: Site) -> Mapping[str, Any]:
        """What the code has by name there."""
        return next((event.names for event in self._matching.heard if event.site == site), {})

    def own(self, site: Site) -> Mapping[str, Any]:
        """The numbers of the layer whose code stands there, as the code calls them."""
        own = vars(self.owner(site)) if hasattr(self.owner(site), "__dict__") else {}
        plain = ((name, one) for name, one in own.items() if type(one) in (int, float) and not name.startswith("_"))
        return {f"self.{name}": one for name, one in plain}

    def whole(self, site: Site) -> list[str]:
        """What the code calls its whole numbers there, those of the layer first."""
        found = {**self.own(site), **self.local(site)}
        return [name for name, one in found.items() if is_factor(one)]

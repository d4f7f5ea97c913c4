"""What a trial has proved of a layer's settings, as the change of the line that builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.checks import Check
from aligner.explain import port_words
from aligner.explain.suspect import Suspect
from aligner.findings import EDIT
from aligner.mending.settings import Settings

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.alone import Alone


class Rewriting:
    """Of one port; a layer's first proof counts."""

    def __init__(self, settings: Settings, reference: Dump, words: str, alone: Alone) -> None:
        self._settings, self._reference, self._words, self._alone = settings, reference, words, alone
        self.layers: set[str] = set()
        """Of the reference; their lines are known."""

    def edits(self, check: Check, suspect: Suspect, facts: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The edit of a trial that has proved its suspect, if it changes settings and nothing else."""
        layer, text = str(facts["layer"]), suspect.facts.get("written")
        told = facts.get("proved") is True and suspect.change and not suspect.turned and isinstance(text, str)
        if not told or layer in self.layers:
            return
        path = self._alone.port_of(layer)

        def wanted(other: str) -> Optional[str]:
            """As the reference has that layer."""
            known = self._reference.layers.get(self._alone.plan.layers.get(other, ""))
            if known is None or not set(suspect.change) <= set(known.spec.attributes):
                return None
            return port_words.spelled(self._words, known.spec, suspect.change)

        written = self._settings.written(path, str(text), suspect.change, wanted)
        if written is None:
            return
        self.layers.add(layer)
        key = check.key
        found: dict[str, Any] = {
            "layer": layer,
            "at": [key.step, key.layer, key.call, key.slot],
            "before": facts["before"],
            "after": facts["after"],
            "proved": True,
            "edits": [*written.edits],
            "setting": suspect.cause,
        }
        yield EDIT, {**found, "broken": [*written.broken]} if written.broken else found

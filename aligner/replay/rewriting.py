"""What a trial has proved of a layer's settings, as the change of the line that builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.checks import Check
from aligner.explain import port_words
from aligner.explain.suspect import Suspect
from aligner.findings import EDIT
from aligner.mending.settings import Settings
from aligner.record import Attribute, LayerSpec

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.alone import Alone


class Rewriting:
    """Of one port; a layer's first proof counts."""

    def __init__(self, settings: Settings, reference: Dump, words: str, alone: Alone) -> None:
        self._settings, self._reference, self._words, self._alone = settings, reference, words, alone
        self.layers: set[str] = set()
        """Of the reference; their lines are known, ..."""
        self.settled: set[str] = set()
        """... and nothing else is right for others that they build."""

    def edits(self, check: Check, suspect: Suspect, facts: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The edit of a trial that has proved its suspect, if it changes settings and nothing else."""
        layer, text = str(facts["layer"]), suspect.built or suspect.facts.get("written")
        told = facts.get("proved") is True and (suspect.change or suspect.built) and not suspect.turned
        path = self._alone.port_of(layer)
        ours, theirs = self._spec(layer), self._alone.spec(path)
        if not told or layer in self.layers or not isinstance(text, str) or ours is None or theirs is None:
            return

        def wanted(other: str) -> Optional[str]:
            """As the reference has that layer."""
            spec = self._spec(self._alone.plan.layers.get(other, ""))
            if spec == ours:
                return text  # a class of the user's may call it otherwise
            names = suspect.change or (spec.attributes if spec is not None else {})
            known = spec is not None and set(names) <= set(spec.attributes)
            return port_words.spelled(self._words, spec, names) if known and spec is not None else None

        def changes(other: str) -> Optional[Mapping[str, Attribute]]:
            spec = self._spec(self._alone.plan.layers.get(other, ""))
            known = {} if spec is None else spec.attributes
            return {n: known[n] for n in suspect.change} if set(suspect.change) <= set(known) else None

        aim = LayerSpec(theirs.kind, suspect.change) if suspect.change else LayerSpec(ours.kind, {})
        written = self._settings.written(path, text, aim, wanted, changes)
        if written is None:
            return
        self.layers.add(layer)
        self.settled |= set() if written.broken else {layer}
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

    def _spec(self, layer: str) -> Optional[LayerSpec]:
        known = self._reference.layers.get(layer)
        return None if known is None else known.spec

"""What a trial has proved of a layer's settings, as the change of the line that builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.cases import words_of
from aligner.compare.checks import Check
from aligner.compare.net import is_input
from aligner.dtypes import DTYPES
from aligner.explain import port_words
from aligner.explain.suspect import Suspect
from aligner.findings import EDIT
from aligner.mending.settings import Settings, Written
from aligner.record import Attribute, LayerSpec, Phase
from aligner.vocabulary import told_as

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.alone import Alone


class Rewriting:
    """Of one port; a layer's first proof counts."""

    def __init__(self, settings: Settings, reference: Dump, port: Dump, alone: Alone) -> None:
        self._settings, self._reference, self._port, self._alone = settings, reference, port, alone
        self._words = words_of(port)
        self.layers: set[str] = set()
        """Of the reference; their lines are known, ..."""
        self.settled: set[str] = set()
        """... and nothing else is right for others that they build."""

    def edits(self, check: Check, suspect: Suspect, facts: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The edit of a trial that has proved its suspect, if it changes settings and nothing else."""
        layer, text = str(facts["layer"]), suspect.built or suspect.facts.get("written")
        change = suspect.change or suspect.built
        told = facts.get("proved") is True and (change or suspect.dtype) and not suspect.turned
        path = self._alone.port_of(layer)
        ours, theirs = self._spec(layer), self._alone.spec(path)
        if told and not change and layer not in self.layers and not self._takes_short(check):
            yield from self._told(check, suspect, facts, self._settings.uncast(path))
        if (
            not change
            or not told
            or layer in self.layers
            or not isinstance(text, str)
            or ours is None
            or theirs is None
        ):
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
            if spec == ours:
                return suspect.change  # as above
            known = {} if spec is None else spec.attributes
            return {n: known[n] for n in suspect.change} if set(suspect.change) <= set(known) else None

        kind = text.partition("(")[0] if text in self._alone.instead else ours.kind
        aim = LayerSpec(theirs.kind, suspect.change) if suspect.change else LayerSpec(kind, {})
        yield from self._told(check, suspect, facts, self._settings.written(path, text, aim, wanted, changes))

    def of_own_kind(self, check: Check) -> str:
        """What builds a layer of a class of the user's in the place of this one: the one that stands for the
        reference's elsewhere, or that is called as that is; "" if there is none.
        """
        ours = self._spec(check.key.layer)
        path = self._alone.port_of(check.key.layer)
        if ours is None or check.key.layer in self.layers:
            return ""
        like = [port for port, layer in self._alone.plan.layers.items() if self._spec(layer) == ours and port != path]
        found = self._settings.of_own_kind(path, like, ours.kind)
        if found is None:
            return ""
        self._alone.instead[found[0]] = found[1]
        return found[0]

    def _told(
        self, check: Check, suspect: Suspect, facts: Mapping[str, Any], written: Optional[Written]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if written is None:
            return
        layer = str(facts["layer"])
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

    def _takes_short(self, check: Check) -> bool:
        """Whether the code hands the layer a value that is short already, which another layer would not take."""
        entries, _ = self._port.of_layer(check.port.layer)
        given = {one.dtype for one in entries if one.key.phase is Phase.FORWARD and is_input(one.key.slot)}
        return any((DTYPES[word].eps or 0.0) > (DTYPES["float32"].eps or 0.0) for word in given)

    def _spec(self, layer: str) -> Optional[LayerSpec]:
        """As the kind of layer that the port has in its place, where it can be said so."""
        known, theirs = self._reference.layers.get(layer), self._alone.spec(self._alone.port_of(layer))
        if known is None or theirs is None:
            return None if known is None else known.spec
        told = told_as(known.spec.kind, known.spec.attributes, theirs.kind)
        return known.spec if told is None else LayerSpec(theirs.kind, told)

"""The values that the reference's code makes inside of a call, as they were followed."""

from __future__ import annotations

from contextlib import suppress

from aligner.compare.net import CallId
from aligner.dump.reader import Dump
from aligner.explain.trail import Trail
from aligner.findings import CODE
from aligner.fingerprint import LARGEST, Prints, fingerprint
from aligner.record import Array

SAME = 1e-5
"""Fingerprints of one value in both frameworks, which may round otherwise, are as near."""

LEAST = 16
"""Of fewer numbers it is not said that they are the same ones."""


class Within:
    """Knows them by the reference's dump."""

    def __init__(self, reference: Dump) -> None:
        self._trails = [(str(facts.get("layer")), facts) for kind, facts in reference.findings if kind == CODE]
        self._known: dict[str, list[Prints]] = {}

    def makes(self, call: CallId, array: Array) -> bool:
        """Whether a value is made in this layer, or in one inside it; "" is the net, which has all."""
        if not LEAST <= array.size <= LARGEST or array.min() == array.max():
            return False
        value = fingerprint(array)
        return value is not None and any((one.apart(value) <= SAME).any() for one in self._of(call.layer))

    def _of(self, layer: str) -> list[Prints]:
        if layer not in self._known:
            found = self._known[layer] = []
            for name, facts in self._trails:
                with suppress(LookupError, TypeError, ValueError):
                    if not layer or f"{name}.".startswith(f"{layer}."):
                        found.append(Prints(Trail.parsed(facts).values))
        return self._known[layer]

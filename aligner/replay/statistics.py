"""Running statistics that a step has kept otherwise: the layer runs the step again with the reference's setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from aligner.compare.cases import Cases
from aligner.compare.checks import Check
from aligner.compare.place import Place
from aligner.compare.stages import MOVED
from aligner.explain.suspects import suspects
from aligner.findings import TRIAL
from aligner.record import Key, Phase
from aligner.replay.alone import Alone
from aligner.replay.rewriting import Rewriting

KEPT = ("momentum", "running_mean")
"""The setting that nothing but the statistics shows, and the first of these."""

LAYERS = 48
"""Layers that are run again."""


def kept_otherwise(cases: Cases, alone: Alone, written: Rewriting, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Findings, one for each layer that keeps another share."""
    setting, slot = KEPT
    for path, ours in islice(_differing(cases, alone), LAYERS):
        key = Key(step, Phase.UPDATE, ours, 0, slot)
        case = cases.case(Place("layer", ours, key, key._replace(layer=path), None, MOVED, False))
        for suspect in islice((one for one in suspects(case) if setting in one.change), 1):
            facts: dict[str, Any] = {"layer": ours, "suspect": suspect.name}
            try:
                facts["before"] = alone.counted(path, key, None)
                facts["after"] = alone.counted(path, key, suspect)
                facts["proved"] = facts["after"] <= MOVED < facts["before"]
            except Exception as error:  # a trial that cannot be made proves nothing
                facts["reason"] = f"{type(error).__name__}: {error}"[:300]
            yield TRIAL, facts
            check = Check(key, key._replace(layer=path), "layer", ours, None, facts.get("before", 0.0), MOVED)
            yield from written.edits(check, suspect, facts)


def _differing(cases: Cases, alone: Alone) -> Iterator[tuple[str, str]]:
    reference: Mapping[str, Any] = cases.dumps[0].layers
    for path, ours in alone.plan.layers.items():
        one, other = reference.get(ours), alone.spec(path)
        if one is not None and one.spec is not None and other is not None:
            told = (spec.attributes.get(KEPT[0], "") for spec in (one.spec, other))
            if one.spec.kind == other.kind == "BatchNorm" and len({*told}) > 1:
                yield path, ours

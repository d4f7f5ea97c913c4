"""Causes told from the class of a layer: another kind than the reference's.

The trial is the reference's kind of layer in its place, built from the text that the user reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from aligner.explain import port_words, setting_rules
from aligner.explain.attributes import facts
from aligner.explain.case import Case
from aligner.explain.parameters import is_wrong
from aligner.explain.suspect import Suspect
from aligner.vocabulary import KINDS

KIND = "kind-differs"
"""The cause that says no more than that the layers are of other kinds."""

SPECIFIC, BOTH_KNOWN, ONE_KNOWN = 0.9, 0.8, 0.25
"""How far to believe it before a trial."""

CONTAINERS = {"Sequential", "ModuleList", "ModuleDict", "Transformer"}


def suspects(case: Case) -> Iterable[Suspect]:
    """At most one."""
    kinds = (case.reference.kind, case.port.kind)
    known = sum(kind in KINDS for kind in kinds)
    if case.where != "layer" or kinds[0] == kinds[1] or set(kinds) & CONTAINERS or _alike(case):
        return
    name = setting_rules.kind_cause(*kinds)
    if name == "softmax-ce-reduction-none" and case.port.attributes.get("reduction", "none") != "none":
        name = KIND
    if name == KIND and not known:
        return
    settings = [word for word in case.reference.attributes if word not in setting_rules.SIZES]
    told = {**facts(case), "written": port_words.written(case, case.reference, settings, case.rank)}
    unknown = BOTH_KNOWN if known == len(kinds) else ONE_KNOWN
    yield Suspect(name, told, built=_built(case), weight=unknown if name == KIND else SPECIFIC)


def _built(case: Case) -> str:
    """The reference's layer, where nothing but the kind of layer can be wrong: all its weights are there, and right."""
    if case.reference.kind not in KINDS or any(is_wrong(case, role) for role in case.parameters):
        return ""
    return port_words.written(case, case.reference, case.reference.attributes, case.rank)


def _alike(case: Case) -> bool:
    """Two kinds that compute the same."""
    specs = {spec.kind: spec.attributes for spec in (case.reference, case.port)}
    if set(specs) == {"ReLU6", "Hardtanh"}:
        limits = specs["Hardtanh"]
        return setting_rules.same(limits.get("min_val"), 0) and setting_rules.same(limits.get("max_val"), 6)
    return set(specs) == {"Identity", "Dropout"} and not case.training

"""Causes told from settings: what the two layers were built with, as their specs say it.

Each setting that differs is a suspect with the change that undoes it, and all of them together are one more: a port
that forgot both a padding and a bias is right only with both. What a suspect is called is told by the tables of
aligner.explain.setting_rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

from aligner.explain import port_words, precision, setting_rules, spelling
from aligner.explain.case import Case
from aligner.explain.setting_rules import Difference
from aligner.explain.suspect import Suspect
from aligner.record import Attribute, LayerSpec, Scalar, display
from aligner.vocabulary import KINDS

# How far to believe it before a trial.
SPECIFIC, KNOWN, OWN, HARMLESS = 0.9, 0.7, 0.4, 0.05

TOGETHER = (("mode", "align_corners", "value"), ("padding", "output_padding"), ("size", "alpha", "k"))
"""Settings that are changed in one go: how an Upsample or a Pad fills, what a transposed convolution cuts, an LRN."""


def suspects(case: Case) -> Iterable[Suspect]:
    """One for each setting that differs, and one for all of these together."""
    if case.where not in ("layer", "glue"):
        return
    if case.where == "layer":
        yield from _of_loss(case)
        yield from precision.suspects(case, facts(case))
    yield from precision.in_short(case, facts(case))
    found = list(_differences(case))
    groups = _grouped(found)
    yield from (_suspect(case, group) for group in groups)
    yield from (_suspect(case, [each]) for each in _padded_before(case, found))
    together = [each for each in found if not _harmless(each, case) and each.name not in setting_rules.SIZES]
    if len(together) > 1 and together not in groups:
        yield _suspect(case, together)


def facts(case: Case) -> dict[str, Scalar]:
    """What every suspect of the case is told with."""
    return {
        "layer": display(case.layer),
        "port_layer": display(case.port_layer),
        "kind": case.reference.kind,
        "port_kind": case.port.kind,
    }


def _differences(case: Case) -> Iterator[Difference]:
    """Settings that both layers have, with another value."""
    for name, wanted in case.reference.attributes.items():
        own = _own_word(name, case.reference, case.port)
        if own is None:
            continue
        value = _plain(name, wanted, case.rank)
        found = _plain(name, case.port.attributes[own], case.rank)
        if not setting_rules.same(value, found):
            yield Difference(name, own, _to_give(name, wanted, value), case.port.attributes[own])


def _padded_before(case: Case, differences: list[Difference]) -> Iterator[Difference]:
    """The padding that keeps the size, where the reference's convolution has none: a layer before it pads there."""
    for each in differences:
        if each.name == "padding" and each.port == "same" and not setting_rules.pads(each.reference):
            around = setting_rules.around(case.port)
            if around:
                yield each._replace(reference=around)


def _grouped(differences: list[Difference]) -> list[list[Difference]]:
    """One by one, but for settings that mean nothing without each other."""
    groups: dict[str, list[Difference]] = {}
    for each in differences:
        leader = next((words[0] for words in TOGETHER if each.name in words), each.name)
        groups.setdefault(leader, []).append(each)
    return list(groups.values())


def _own_word(name: str, reference: LayerSpec, port: LayerSpec) -> Optional[str]:
    """What the port's layer calls this setting."""
    if name in port.attributes:
        return name
    for words in setting_rules.SYNONYMS:
        if name in words:
            mine, theirs = words & set(reference.attributes), words & set(port.attributes)
            return next(iter(theirs)) if len(mine) == len(theirs) == 1 else None
    return None


def _plain(name: str, value: Attribute, axes: Optional[int]) -> Attribute:
    """A form in which two ways to say one thing are equal: axes counted from the front, a shape as a tuple."""
    if name == "normalized_shape" and isinstance(value, int):
        return (value,)
    if name in ("dim", "start_dim", "end_dim") and axes:
        if name == "dim" and value is None:
            return 0 if axes in (0, 1, 3) else 1  # what torch takes then
        if isinstance(value, int):
            return value % axes
    return value


def _to_give(name: str, value: Attribute, plain: Attribute) -> Attribute:
    """What a copy of the port's layer is given: as the reference says it, where it says anything."""
    return plain if name == "dim" and value is None else value


def _suspect(case: Case, differences: list[Difference]) -> Suspect:
    name = _cause(case, differences)
    roles = tuple(role for each in differences for role in _missing_roles(each, case))
    told = {
        **facts(case),
        "setting": ", ".join(each.name for each in differences),
        "reference_value": ", ".join(spelling.literal(each.reference) for each in differences),
        "port_value": ", ".join(spelling.literal(each.port) for each in differences),
        "differences": "; ".join(
            f"{each.name} {spelling.literal(each.reference)} -> {spelling.literal(each.port)}" for each in differences
        ),
        "written": _written(case, differences),
        **_told_of_missing(case, roles),
    }
    return Suspect(
        name,
        told,
        change={each.own: each.reference for each in differences},
        parameters=roles,
        weight=max(_weight(name, each, case) for each in differences),
    )


def _cause(case: Case, differences: list[Difference]) -> str:
    """What they have in common; settings that only follow from another have no say."""
    telling = [each for each in differences if not _harmless(each, case)] or differences
    causes = {setting_rules.cause(each, case.reference, case.port) for each in telling}
    return causes.pop() if len(causes) == 1 else "settings-differ"


def _written(case: Case, differences: list[Difference]) -> str:
    """The call with the reference's values; a class that people wrote themselves has the port's name and words."""
    if case.reference.kind not in KINDS:
        own = LayerSpec(case.port.kind, {each.own: each.reference for each in differences})
        return port_words.written(case, own, own.attributes, case.rank)
    wanted = {each.name: each.reference for each in differences}
    spec = LayerSpec(case.reference.kind, {**case.reference.attributes, **wanted})
    return port_words.written(case, spec, wanted, case.rank)


def _weight(name: str, difference: Difference, case: Case) -> float:
    if _harmless(difference, case):
        return HARMLESS
    if name not in ("setting-differs", "settings-differ"):
        return SPECIFIC
    return KNOWN if case.reference.kind in KINDS else OWN


def _harmless(difference: Difference, case: Case) -> bool:
    """Whether this setting cannot touch what a forward pass makes, in the mode the layer is in."""
    name = difference.name
    if name in ("momentum", "padding_idx"):
        return not case.slot.startswith("running_")
    if name == "dropout" or (name == "p" and case.reference.kind == "Dropout"):
        return not case.training
    if name == "count_include_pad":
        return not any(_padded(spec) for spec in (case.reference, case.port))
    if name == "affine" and difference.port and not difference.reference:
        return not _acts(case)
    if name == "align_corners":
        return None in (difference.port, difference.reference)  # only another mode makes it so
    return name == "value" and case.port.attributes.get("mode") != "constant"


def _padded(spec: LayerSpec) -> bool:
    padding = spec.attributes.get("padding")
    return isinstance(padding, str) or any(map(any, padding or ()))  # type: ignore[arg-type]  # pairs of a pool


def _acts(case: Case) -> bool:
    """Whether the gamma and beta that only the port has are other than ones and zeros."""
    weight, bias = (case.port_parameters.get(role) for role in ("weight", "bias"))
    return bool((weight and (weight.load() != 1).any()) or (bias and bias.load().any()))


def _missing_roles(difference: Difference, case: Case) -> tuple[str, ...]:
    """Parameters that the copy has only with the change, and whose values are the reference's."""
    name = difference.name
    if name not in setting_rules.GIVES or difference.reference is not True or difference.port is not False:
        return ()
    roles = [role for role in case.parameters if setting_rules.gives(name, role)]
    return tuple(role for role in roles if role not in case.port_parameters) or setting_rules.GIVES[name]


def _told_of_missing(case: Case, roles: tuple[str, ...]) -> dict[str, Scalar]:
    if not roles:
        return {}
    shapes = [str(case.parameters[role].shape) for role in roles if role in case.parameters]
    return {"role": ", ".join(roles), "shape": ", ".join(shapes) or "?"}


def _of_loss(case: Case) -> Iterator[Suspect]:
    """What only the reference's loss has."""
    kind, wanted = case.reference.kind, case.reference.attributes
    if kind == case.port.kind == "KLDivLoss" and wanted.get("log_target") and "log_target" not in case.port.attributes:
        yield Suspect("kldiv-log-target", facts(case), weight=SPECIFIC)
    if kind == "BCEWithLogitsLoss" and "pos_weight" in set(case.parameters) - set(case.port_parameters):
        yield Suspect("bce-logits-pos-weight", facts(case), weight=OWN)

"""Causes in code of the user's own: the order of its layers, and the line that differs."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.explain import lines, port_words
from aligner.explain.case import Case
from aligner.explain.patterns.pair import usual
from aligner.explain.spelling import literal
from aligner.explain.suspect import Suspect
from aligner.record import LayerSpec, Scalar, display
from aligner.vocabulary import KINDS

NORM_FIRST = "norm_first"
"""The setting by which a layer of the framework's own chooses one of two orders."""

ORDER, LEFT_OUT = 0.97, 0.95

ALONE = ("layer-left-out", "layer-added")


def suspects(case: Case) -> Iterator[Suspect]:
    """For the code between layers, and for a layer of a class of the user's own, which is nothing but code."""
    if not is_code(case):
        return
    if case.order is not None:  # whatever else is seen comes of it
        yield _order(case, *case.order)
        return
    yield from _alone(case)
    yield from lines.suspects(case)


def is_code(case: Case) -> bool:
    """Whether code of the user's own made the value."""
    own = case.where == "layer" and case.reference.kind not in KINDS and case.port.kind not in KINDS
    return own or case.where == "glue"


def _order(case: Case, ours: tuple[str, ...], theirs: tuple[str, ...]) -> Suspect:
    """A parent that calls its layers in another order: norms before or after what they belong to, a step moved."""
    facts: dict[str, Scalar] = {
        **usual(case),
        "reference_order": _names(case.layer, ours),
        "port_order": _names(case.layer, theirs),
    }
    wanted, found = (spec.attributes.get(NORM_FIRST) for spec in (case.reference, case.port))
    if wanted is None or wanted == found:
        return Suspect("layers-in-another-order", facts, weight=ORDER)
    facts.update(setting=NORM_FIRST, reference_value=literal(wanted), port_value=literal(found))
    facts.update(written=port_words.written(case, case.reference, [NORM_FIRST]))
    return Suspect("encoder-layer-norm-first", facts, {NORM_FIRST: wanted}, weight=ORDER)


def _alone(case: Case) -> Iterator[Suspect]:
    """Layers with weights that one side alone has, and calls here."""
    for cause, layer, called in zip(ALONE, (case.layer, case.port_layer), case.alone):
        if called:
            words = (port_words.written(case, spec, _set(spec), rank or None) for _, spec, rank in called)
            names = _names(layer, tuple(path for path, _, _ in called))
            yield Suspect(cause, {**usual(case), "called": names, "written": ", ".join(words)}, weight=LEFT_OUT)


def _set(spec: LayerSpec) -> list[str]:
    return [name for name, value in spec.attributes.items() if value is not None]


def _names(layer: str, order: tuple[str, ...]) -> str:
    inside = f"{layer}." if layer else ""
    return ", ".join(display(path[len(inside) :] if path.startswith(inside) else path) for path in order)

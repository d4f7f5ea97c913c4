"""What is told beside the answer: places below the tolerance, settings that rounding hides, values right when held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from aligner.compare.birth import Birth
from aligner.compare.cases import Cases
from aligner.compare.casts import Cast, is_short
from aligner.compare.origin import Trace
from aligner.compare.place import Place
from aligner.compare.training import Training
from aligner.compare.verdict import Origin
from aligner.explain import attributes
from aligner.record import Scalar, display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

OTHER_NETS = "other-nets"
"""The warning that a loss is off and was not judged."""

UNSEEN = 3
"""Layers that are named where rounding hides what comes of their settings."""


def untrained(training: Training, dumps: Sequence[Dump]) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    """The side that was captured without its training, nets that were not captured at all, and an eps elsewhere."""
    if training.one_sided is not None:
        yield "untrained", {"path": str(dumps[training.one_sided].path)}
    if training.hidden:
        yield OTHER_NETS, {"names": ", ".join(dict.fromkeys(training.others))}
    if training.rooted:
        eps, names = max(training.rooted.values()), [f"{display(layer)} {slot}" for layer, slot in training.rooted]
        facts: dict[str, Scalar] = {"eps": f"{eps:g}", "acts": f"{eps**0.5:.0e}", "count": len(names)}
        yield "eps-under-root", {**facts, "first": names[0]}


def told(suspects: Sequence[Origin]) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    for origin in suspects:
        error = f"{origin.own_error:.1e}"
        facts = {"layer": display(origin.layer), "kind": origin.kind, "where": origin.where, "error": error}
        yield ("short-by-cast", {**facts, "type": origin.cast}) if origin.cast else ("below-tolerance", facts)


def unseen(
    casts: Sequence[Cast], cases: Cases, known: Set[str], forced: bool
) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    """Layers with other settings whose effect the reference's own rounding hides: nothing could be seen against it."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for cast in casts if forced else ():
        if cast.part or cast.layer in known or not is_short(cast.reference.dtype):
            continue
        case = cases.case(Place("layer", cast.layer, None, None, None, 0.0, False))
        told = [s for s in attributes.suspects(case) if s.change and s.weight >= attributes.KNOWN]
        if told:
            settings = ", ".join(dict.fromkeys(name for suspect in told for name in suspect.change))
            groups.setdefault((cast.kind, cast.reference.dtype, settings), []).append(display(cast.layer))
    for (kind, dtype, settings), layers in groups.items():
        names = ", ".join(layers[:UNSEEN]) + (", ..." if len(layers) > UNSEEN else "")
        facts: dict[str, Scalar] = {"layer": names, "kind": kind, "type": dtype, "settings": settings}
        yield "setting-below-rounding", {**facts, "count": len(layers)}


def eager(trace: Trace, eager: Iterable[int]) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    for layer in list(dict.fromkeys(trace.births[n].layer for n in sorted(eager)))[:3]:
        yield "wrong-when-eager", {"layer": display(layer)}


def passing(
    trace: Trace, needed: Iterable[int], compiled: bool, casts: Sequence[Cast]
) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    """Places that went wrong in the free run and are right when they run again on the reference's values."""
    short = {c.layer: c.port.dtype for c in casts if is_short(c.port.dtype) and not is_short(c.reference.dtype)}
    places: dict[str, Birth] = {}
    for number in sorted(needed):
        birth = trace.births[number]
        check = birth.reading.check
        if birth.check is None and check is not None and check.isolated and not (check.fails or check.follows):
            places.setdefault(birth.layer, birth)
    for layer in list(places)[:3]:
        if layer in short and not compiled:
            yield "right-when-long", {"layer": display(layer), "type": short[layer]}
        else:
            yield ("right-when-eager" if compiled else "right-when-held"), {"layer": display(layer)}


def stumbled(failures: Sequence[str]) -> Iterable[tuple[str, Mapping[str, Scalar]]]:
    for failure in failures[:3]:
        yield "causes-failed", {"failure": failure}

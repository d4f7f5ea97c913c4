"""A layer of the framework's own with the reference's settings, weights and inputs that makes another value.

No change of the user's can be seen to be missing: it is the framework that differs, as far as dumps tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

from aligner.compare.edits import framework
from aligner.dtypes import DTYPES
from aligner.explain.case import Case, Value, distance
from aligner.explain.catalogue import relations
from aligner.explain.patterns.pair import usual
from aligner.explain.suspect import Cause, Suspect
from aligner.findings import LAYER
from aligner.record import Key, Phase
from aligner.vocabulary import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aligner.compare.place import Place
    from aligner.dump.reader import Dump

LAYER_DIFFERS = "framework-layer-differs"

MERE = {entry.id for entry in relations.ENTRIES}
"""Causes that say how the two values are related, and not what makes it so."""


def told(place: Place, case: Case, causes: Sequence[Cause], dumps: tuple[Dump, Dump]) -> tuple[Cause, ...]:
    """The causes with this one before mere relations; as they are where one says more than that, or it is none."""
    if any(cause.id not in MERE for cause in causes) or not _is_same(place, case, dumps):
        return tuple(causes)
    suspect = Suspect(LAYER_DIFFERS, {**usual(case), "framework": framework(dumps[1])})
    return (Cause(suspect.cause, False, suspect.facts, None, None), *causes)


def _is_same(place: Place, case: Case, dumps: tuple[Dump, Dump]) -> bool:
    reference, port = dumps
    layers = reference.layers.get(case.layer), port.layers.get(case.port_layer)
    if place.where != "layer" or case.reference != case.port or case.reference.kind not in KINDS:
        return False
    if layers[0] is None or layers[1] is None or layers[0].training or layers[1].training or case.repeated is not None:
        return False
    if place.axes is not None or case.computed is not None or not _is_full(case.expected) or not _is_full(case.actual):
        return False
    return (
        any(f.get("layer") == case.port_layer and f.get("python") is not None for k, f in port.findings if k == LAYER)
        and _structure(reference, place.key) == _structure(port, place.port) is not None
        and _are_equal(case.parameters, case.port_parameters)
    )


def _is_full(value: Optional[Value]) -> bool:
    """Whether a value is of a long float type."""
    return value is not None and (DTYPES[value.dtype].eps or 1.0) <= (DTYPES["float32"].eps or 0.0)


def _structure(dump: Dump, key: Optional[Key]) -> Optional[object]:
    """How the arguments of the call were nested, with the plain ones among them."""
    calls = (
        c for c in dump.calls if key is not None and (c.step, c.layer, c.number) == (key.step, key.layer, key.call)
    )
    return next((call.inputs for call in calls if call.phase is Phase.FORWARD), None)


def _are_equal(ours: Mapping[str, Value], theirs: Mapping[str, Value]) -> bool:
    return ours.keys() == theirs.keys() and all(
        distance(theirs[role].load(), ours[role].load()) == 0.0 for role in ours
    )

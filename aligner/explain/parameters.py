"""Causes told from parameters and buffers: missing, of its own where the reference shares, not loaded, loaded wrong.

How a wrong one follows from the right one is aligner.explain.layouts' to say; here is what no arithmetic shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

import numpy as np

from aligner.explain import layouts, port_words, spelling
from aligner.explain.case import Case, Value, distance
from aligner.explain.layouts import EPS, EXACT, Place, named
from aligner.explain.patterns.pair import Floats, figure, numbers
from aligner.explain.setting_rules import CONVOLUTIONS, GIVES, SIZES, TRANSPOSED, Difference, gives
from aligner.explain.suspect import Suspect
from aligner.record import Attribute, Scalar

CERTAIN, LIKELY, POSSIBLE = 0.95, 0.7, 0.5

UNRELATED = 0.1
"""Two tensors whose cosine is below this have nothing to do with each other, given enough values."""
ENOUGH = 1024

COUNTERS = ("num_batches_tracked",)
"""Buffers that no output depends on."""

NOT_MAPPED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "BatchNorm": (("weight", "bias"), "bn-gamma-beta-not-mapped"),
    "LayerNorm": (("weight", "bias"), "ln-gamma-beta-not-mapped"),
    "GroupNorm": (("weight", "bias"), "ln-gamma-beta-not-mapped"),
    "RMSNorm": (("weight",), "ln-gamma-beta-not-mapped"),
}
"""Kind -> roles that have another name in MindSpore, and what is wrong where such a one kept its initial values."""


def suspects(case: Case) -> Iterable[Suspect]:
    """For one wrong parameter, or for all parameters of a layer that makes wrong values of right inputs."""
    if case.where == "parameters":
        yield from _of_role(case, case.slot, case.expected, case.actual)
    elif case.where == "layer":
        wrong = [role for role in {**case.parameters, **case.port_parameters} if is_wrong(case, role)]
        for role in wrong:
            yield from _of_role(case, role, case.parameters.get(role), case.port_parameters.get(role))
        whole = tuple(
            role for role in wrong if role in case.parameters and (role in case.port_parameters or _absent(case, role))
        )
        if len(wrong) > 1 and whole:
            told = {**named(case, wrong[0], None, None), "roles": ", ".join(whole)}
            yield Suspect("parameters-differ", told, parameters=whole, weight=LIKELY)


def is_wrong(case: Case, role: str) -> bool:
    """Whether the layer's parameter is another than the reference's; settings tell of a bias that is not there."""
    expected, actual = case.parameters.get(role), case.port_parameters.get(role)
    if role in COUNTERS or (actual is None and _absent(case, role)):
        return False
    if expected is None or actual is None:
        return True
    if tuple(expected.shape) != tuple(actual.shape):
        return True
    short = EPS.get(actual.dtype, 0.0)
    return distance(actual.load(), expected.load()) > max(EXACT, short if case.rounding >= short / 8 else 0.0)


def _absent(case: Case, role: str) -> dict[str, Attribute]:
    """The setting with which the port's layer would have this parameter, where it says that it does not."""
    for word in GIVES:
        said = [spec.attributes.get(word) for spec in (case.reference, case.port)]
        if said == [True, False] and gives(word, role):
            return {word: True}
    return {}


def _other_size(case: Case, role: str) -> Optional[Difference]:
    """The number of a PReLU's slopes, where it differs."""
    counts = [spec.attributes.get("num_parameters") for spec in (case.reference, case.port)]
    if case.reference.kind != case.port.kind or role != "weight" or counts[0] == counts[1]:
        return None
    return Difference("num_parameters", "num_parameters", *counts)


def _of_role(case: Case, role: str, expected: Optional[Value], actual: Optional[Value]) -> Iterator[Suspect]:
    if expected is not None and actual is not None:
        yield from _wrong(Place(case, role, expected, actual))
    elif expected is not None and role not in case.port_parameters:
        yield from _missing(case, role, expected)
    elif actual is not None and role not in case.parameters:
        yield _untied(case, role, actual)


def _missing(case: Case, role: str, expected: Value) -> Iterator[Suspect]:
    """The port's layer has no such parameter; code of its own may make a table of constants where it needs one."""
    size, change = _other_size(case, role), _absent(case, role)
    if size is not None:
        yield _of_size(case, role, size, named(case, role, expected, None))
        return
    if not change and case.where != "parameters":
        return
    kind, cause = case.reference.kind, "parameter-missing"
    if role == "bias" and kind in CONVOLUTIONS:
        cause = "conv2d-has-bias-default"
    elif role == "bias" and kind in TRANSPOSED:
        cause = "convtranspose-bias-default"
    elif "track_running_stats" in change:
        cause = "bn-use-batch-statistics"
    told = {**named(case, role, expected, None), **_range(expected), "written": _written(case, change)}
    for word in change:
        told.update(setting=word, reference_value="True", port_value="False")
    roles = [each for each in case.parameters if each not in case.port_parameters and _absent(case, each) == change]
    # That it is not there is no guess; what is missing from a layer's output, a trial says.
    error = 0.0 if case.where == "parameters" else None
    together = tuple(roles) if change and role in roles else (role,)
    yield Suspect(cause, told, change=change, parameters=together, error=error, weight=CERTAIN)


def _of_size(case: Case, role: str, size: Difference, told: Mapping[str, Scalar]) -> Suspect:
    """A parameter of another size than the reference's, which does not fit."""
    values = {"reference_value": spelling.literal(size.reference), "port_value": spelling.literal(size.port)}
    text = _written(case, [size.name])
    told = {**told, **values, "setting": size.name, "written": text}
    error, built = (0.0, "") if case.where == "parameters" else (None, text)
    return Suspect("prelu-channel-default", told, parameters=(role,), built=built, error=error, weight=CERTAIN)


def _untied(case: Case, role: str, actual: Value) -> Suspect:
    """Only the port has it: of its own where the reference shares another's, or one too many."""
    told = named(case, role, None, actual)
    size = _other_size(case, role)
    if size is not None:
        return _of_size(case, role, size, told)
    shared = [value for value in reversed(case.known) if _could_share(value, actual)]
    if len(actual.shape) > 1 and shared:
        other = f"{shared[0].layer}.{shared[0].slot}"
        return Suspect("tied-weights-lost", {**told, "other": other}, weight=CERTAIN)
    change: dict[str, Attribute] = {}
    if role == "bias" and case.port.attributes.get("bias") and case.reference.attributes.get("bias") is False:
        change = {"bias": False}
    cause = "parameter-untied" if len(actual.shape) > 1 else "parameter-extra"
    return Suspect(cause, told, change=change, weight=LIKELY)


def _could_share(value: Value, actual: Value) -> bool:
    """Whether this is a parameter of the reference that would fit."""
    return not value.slot.startswith(("input", "output")) and tuple(value.shape) == tuple(actual.shape)


def _wrong(place: Place) -> Iterator[Suspect]:
    """What became of a parameter that both sides have."""
    wanted, found = numbers(place.expected), numbers(place.actual)
    if wanted is None or found is None or not wanted.size or not found.size:
        yield _differs(place, None)
        return
    for rule in (_merged, _of_other_size, _initial, _laid_out, _of_other_shape):
        proved = list(rule(place, wanted, found))
        yield from proved
        if proved:
            return
    yield from _unrelated(place, wanted, found)
    yield _differs(place, (wanted, found))


def _laid_out(place: Place, _wanted: Floats, _found: Floats) -> Iterator[Suspect]:
    return layouts.suspects(place)


def _of_other_size(place: Place, _wanted: Floats, _found: Floats) -> Iterator[Suspect]:
    size = _other_size(place.case, place.role)
    if size is not None:
        yield _of_size(place.case, place.role, size, place.facts)


def _of_other_shape(place: Place, wanted: Floats, found: Floats) -> Iterator[Suspect]:
    if wanted.shape != found.shape:
        settings = [name for name in place.case.reference.attributes if name in SIZES or name == "kernel_size"]
        told = {**place.facts, "written": _written(place.case, settings)}
        yield Suspect("parameter-other-shape", told, parameters=(place.role,), weight=CERTAIN)


def _initial(place: Place, wanted: Floats, found: Floats) -> Iterator[Suspect]:
    """All ones or zeros where the reference has learned something: never loaded."""
    first = float(found.reshape(-1)[0])
    constant = first in (0.0, 1.0) and not (found != first).any()
    if constant and wanted.size > 1 and (wanted != first).any():  # one number is 0 or 1 for many reasons
        told = {**place.facts, "initial": figure(first), **_range(place.expected)}
        yield Suspect(_not_loaded(place), told, parameters=(place.role,), error=0.0, weight=CERTAIN)


def _not_loaded(place: Place) -> str:
    kind, role = place.case.reference.kind, place.role
    if role in ("running_mean", "running_var"):
        return "bn-buffers-not-loaded"
    if role.endswith("_reverse"):
        return "lstm-reverse-not-loaded"
    if kind.startswith("LSTM") and role.startswith("bias"):
        return "lstm-second-bias-lost"
    roles, cause = NOT_MAPPED.get(kind, ((), ""))
    return cause if role in roles else "parameter-not-loaded"


def _merged(place: Place, wanted: Floats, found: Floats) -> Iterator[Suspect]:
    """Both biases of a GRU summed into one of them, and none in the other."""
    one, other = ("_ih", "_hh") if "_ih" in place.role else ("_hh", "_ih")
    mate = place.role.replace(one, other)
    if not place.case.reference.kind.startswith("GRU") or not place.role.startswith("bias_"):
        return
    addend, beside = (
        None if value is None else numbers(value)
        for value in (place.case.parameters.get(mate), place.case.port_parameters.get(mate))
    )
    if addend is None or beside is None or not addend.shape == beside.shape == wanted.shape == found.shape:
        return
    for full, empty in ((found, beside), (beside, found)):
        left = distance(full, wanted + addend)
        if left <= EXACT and not empty.any():
            yield place.suspect("gru-merged-bias", left)
            return


def _unrelated(place: Place, wanted: Floats, found: Floats) -> Iterator[Suspect]:
    """Values that were drawn, not loaded."""
    one, other = (np.asarray(side, np.float64).reshape(-1) for side in (wanted, found))
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if one.size < ENOUGH or not np.isfinite(norms) or norms == 0.0:
        return
    cosine = float(np.dot(one, other)) / norms
    if abs(cosine) >= UNRELATED:
        return
    told: dict[str, Scalar] = {
        **place.facts,
        "cosine": f"{cosine:.2f}",
        "total": one.size,
        "spread": figure(float(one.std())),
        "port_spread": figure(float(other.std())),
    }
    cause = "lstm-reverse-not-loaded" if place.role.endswith("_reverse") else "load-param-silent-miss"
    yield Suspect(cause, told, parameters=(place.role,), weight=LIKELY)


def _differs(place: Place, both: Optional[tuple[Floats, Floats]]) -> Suspect:
    """Nothing better is known: how much, and where it begins."""
    told: dict[str, Scalar] = {**place.facts, "differing": "?", "total": "?", "first": "?", "distance": "?"}
    if both is not None:
        wanted, found = both
        off = ~np.isclose(found, wanted, rtol=EXACT, atol=EXACT * 1e-3, equal_nan=True)
        first = np.unravel_index(int(off.argmax()), off.shape) if off.any() else ()
        told.update(differing=int(np.count_nonzero(off)), total=int(off.size))
        told.update(first=str(tuple(int(i) for i in first)))
        told.update(distance=f"{distance(found, wanted):.2e}")
    return Suspect("parameter-differs", told, parameters=(place.role,), weight=POSSIBLE)


def _range(value: Value) -> dict[str, Scalar]:
    found = numbers(value)
    if found is None or not found.size:
        return {}
    return {"lowest": figure(float(found.min())), "highest": figure(float(found.max()))}


def _written(case: Case, settings: Iterable[str]) -> str:
    """The call with these settings of the reference."""
    return port_words.written(case, case.reference, settings, case.rank)

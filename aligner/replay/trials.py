"""Trials: a suspected cause is put right in a copy of the port's layer, and the layer is run again.

Only what brings the error down to rounding is proved. Results go into the port's dump, where compare finds them again
by the layer and the suspect's name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.compare.cases import Cases
from aligner.compare.checks import ARGUMENT, LIMIT, Check
from aligner.compare.kin import Kin, Told, class_of
from aligner.compare.place import Place
from aligner.errors import because
from aligner.explain.case import Case
from aligner.explain.inquiry import Allowance, Inquiry
from aligner.explain.kinds import KIND
from aligner.explain.suspect import Suspect
from aligner.explain.suspects import IN_SHORT, OTHER_FUNCTION, suspects, tried_as
from aligner.findings import LAYER, REPEAT, TRIAL
from aligner.replay.alone import Alone
from aligner.replay.repeats import repeated
from aligner.replay.rewriting import Rewriting

MOST = 12
"""Suspects of one layer that are tried."""

LAYERS = 48
"""Layers that are tried; a net with more of them wrong has one mistake many times."""

ARGUMENTS = 2
"""Arguments of one layer that are tried: with more of them forgotten, one alone brings nothing right."""

SETTINGS = 4
"""Settings that are tried of a layer whose code calls others."""

LARGE = 1 << 22
"""Elements of the parameters of a layer of the user's that is copied for that."""

SMALL = 1.2
"""Layers whose error is at least this many times what rounding explains may be wrong all the same, ..."""

WHOLE = 1e-4
"""What rounding of float32 makes of a whole net, at most; short types make more."""

RIGHT = 1e-3
"""What may be left where NaN or Inf were: a cast in the code still rounds its numbers, and they fit."""

FALL = 5.0
"""... if their settings differ and a trial makes the error this many times smaller: rounding would stay."""


def small(checks: list[Check], cases: Cases, alone: Alone, written: Rewriting) -> Iterable[tuple[str, dict[str, Any]]]:
    """Trials of layers that are off by little and have other settings; `checks` are told what is proved."""
    for number, check in enumerate(checks):
        if check.where != "layer" or check.suspicious or not check.isolated or not check.ratio >= SMALL:
            continue
        case = cases.case(_place(check, False))
        if case.reference == case.port:
            continue
        for suspect in _worth_it(suspects(case, thorough=False)):
            kind, facts = TRIAL, _trial(check, suspect, alone)
            if facts.get("after", check.error) * FALL <= check.error:
                checks[number] = replace(check, proved=True)
                yield kind, {**facts, "proved": True}
                yield from written.edits(check, suspect, {**facts, "proved": True})
                break


def tried(
    checks: Sequence[Check], cases: Cases, alone: Alone, written: Rewriting
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Findings, one for each trial. One call stands for a layer: all its calls share the settings."""
    done: set[str] = set()
    asking = _Asking()
    code, lacking = 0, Counter[str]()
    for check in checks:
        if check.reason == ARGUMENT and check.fails and lacking[check.owner] < ARGUMENTS and len(lacking) < LAYERS:
            lacking[check.owner] += 1
            yield from _argument(check, cases, alone, asking)
        if check.where == "glue" and check.fails and code < MOST:
            code += 1
            yield from _in_float32(check, cases, alone)
            if check.owner not in done:
                done.add(check.owner)
                beside = [one for one in checks if (one.where, one.owner) == ("glue", check.owner)]
                yield from _set_otherwise(check, beside, cases, alone, asking, written)
        if check.where != "layer" or not check.fails or check.key.layer in done or len(done) >= LAYERS:
            continue
        done.add(check.key.layer)
        place = _place(check, check.kept or check.hidden)
        apart = repeated(check, alone)
        if apart:
            yield REPEAT, {"layer": check.key.layer, "apart": apart}
        for suspect in asking.worth_it(cases.case(place)):
            facts = _trial(check, suspect, alone)
            if suspect.cause != IN_SHORT or math.isfinite(facts.get("after", 0.0)):  # else a constant is short itself
                yield TRIAL, facts
                yield from written.edits(check, suspect, facts)
        text = written.of_own_kind(check)
        found = (
            one for one in (asking.all_of(cases.case(place)) if text else ()) if one.cause in {*OTHER_FUNCTION, KIND}
        )
        for suspect in islice(found, 1):
            facts = _trial(check, replace(suspect, built=text), alone)
            yield TRIAL, {**facts, "suspect": suspect.name}  # as who reads the dumps knows it
            yield from written.edits(check, replace(suspect, built=text), facts)


def _place(check: Check, kept: bool) -> Place:
    """Where its values are; the port's is one that was `kept`, or the free run's."""
    place = check.where, check.owner, check.key, check.port, check.between, check.rounding
    return Place(*place, kept, check.against, axes=check.axes)


class _Asking:
    """Suspects of the layers that are tried: of one class with the same settings wrong, the first is looked into in
    full, and of the others it is asked what told something of it."""

    def __init__(self) -> None:
        self._allowance = Allowance()
        self._kin: dict[object, Kin] = {}

    def worth_it(self, case: Case) -> Iterable[Suspect]:
        """Those that change a layer."""
        kin = self._kin.setdefault(class_of(case), Kin())
        for example in kin.usable:
            found = self._found(case, example.rules)[0]
            if _told(found) == example.told:
                return found
        found, inquiry = self._found(case)
        kin.add(case.layer, _told(found), inquiry)
        return found

    def all_of(self, case: Case) -> Sequence[Suspect]:
        """All of them."""
        with self._allowance.inquiry() as inquiry:
            return suspects(case, inquiry=inquiry)

    def _found(self, case: Case, rules: Optional[Sequence[str]] = None) -> tuple[Sequence[Suspect], Inquiry]:
        with self._allowance.inquiry(rules) as inquiry:
            return _worth_it(suspects(case, inquiry=inquiry)), inquiry


def _told(found: Iterable[Suspect]) -> Told:
    """A trial decides which of them is right: with several to try, or one, there is nothing more to look for."""
    return tuple((suspect.cause, True) for suspect in found)


def _argument(check: Check, cases: Cases, alone: Alone, asking: _Asking) -> Iterable[tuple[str, dict[str, Any]]]:
    """The layer with the argument that the code around it forgot."""
    for suspect in asking.all_of(cases.case(_place(check, False)))[:1]:
        facts: dict[str, Any] = {"layer": check.owner, "suspect": suspect.name}
        try:
            facts["before"] = alone.error(check)
            facts["after"] = alone.error(check, added=check.key)
            facts["proved"] = facts["after"] <= proof(check) < facts["before"]
        except Exception as error:  # the port's layer may call the argument otherwise
            facts["reason"] = f"{type(error).__name__}: {error}"[:300]
        yield TRIAL, facts


def _in_float32(check: Check, cases: Cases, alone: Alone) -> Iterable[tuple[str, dict[str, Any]]]:
    """The whole of a parent in float32, whose code does in a short type what that is bad at: where it is right then,
    it was written right, and where it is as wrong, the short type is not to blame. A cast in the code stays as it is,
    and says nothing.
    """
    case = cases.case(_place(check, check.kept))
    for suspect in suspects(case, thorough=False):
        if suspect.cause == IN_SHORT:
            try:
                error, made = alone.inside(check, "float32", None)
            except Exception:  # a parent that cannot be copied is not tried
                return
            limit = WHOLE if math.isfinite(check.error) else RIGHT
            proved = error <= max(limit, alone.rough) and error * FALL <= check.error
            if proved or (math.isfinite(error) and not made.short):
                facts = {"layer": check.owner, "suspect": tried_as(suspect, case)}
                yield TRIAL, {**facts, "before": check.error, "after": error, "proved": proved}


def _set_otherwise(
    check: Check, beside: Sequence[Check], cases: Cases, alone: Alone, asking: _Asking, written: Rewriting
) -> Iterable[tuple[str, dict[str, Any]]]:
    """A layer that calls others, with other settings: of the framework's, whose code nobody edits, or of the user's.

    All that its code makes is to be right then, in this call.
    """
    around = alone.parent(check)
    if alone.is_own(around.layer) and alone.size(around.layer) > LARGE:  # it is copied with all that it calls
        return
    case = cases.case(_place(check, check.kept))
    for suspect in [one for one in asking.all_of(case) if one.change][:SETTINGS]:
        facts: dict[str, Any] = {"layer": check.owner, "suspect": tried_as(suspect, case), "before": check.error}
        try:
            facts["after"] = alone.inside(check, None, None, suspect)[0]
            others = (one for one in beside if one is not check and alone.parent(one) == around)
            right = facts["after"] <= proof(check) < facts["before"]
            facts["proved"] = right and all(alone.inside(one, None, None, suspect)[0] <= proof(one) for one in others)
        except Exception as error:  # as of a layer
            facts["reason"] = f"{type(error).__name__}: {error}"[:300]
        yield TRIAL, facts
        yield from written.edits(check, suspect, facts)


def described(checks: Sequence[Check], adapter: Adapter, alone: Alone) -> Iterable[tuple[str, dict[str, Any]]]:
    """Findings with the Python that builds each wrong layer, where it can be spelled."""
    done: set[str] = set()
    for check in checks:
        layer = alone.layer(check.port.layer)
        if check.where != "layer" or not check.fails or check.port.layer in done or layer is None:
            continue
        done.add(check.port.layer)
        try:
            yield LAYER, {"layer": check.port.layer, "python": adapter.expression(layer), "imports": adapter.preamble()}
        except ValueError as error:
            yield LAYER, {"layer": check.port.layer, "reason": because(error)}


def _worth_it(found: Sequence[Suspect]) -> Sequence[Suspect]:
    """Those that change a layer: the likeliest ones."""
    return [suspect for suspect in found if suspect.to_try][:MOST]


def proof(check: Check) -> float:
    """The error that is left where the cause was found: rounding."""
    return LIMIT * check.rounding


def _dtype(check: Check) -> Optional[str]:
    """A layer that computes in a short type is tried in float32, where small mistakes show."""
    return "float32" if check.hidden else None


def _trial(check: Check, suspect: Suspect, alone: Alone) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "layer": check.key.layer,
        "suspect": suspect.name,
        "before": check.alone if check.hidden else check.error,
    }
    try:
        facts["after"] = alone.error(check, suspect, suspect.dtype or _dtype(check))
        limit = RIGHT if suspect.cause == IN_SHORT else 0.0
        facts["proved"] = facts["after"] <= max(limit, proof(check))
    except Exception as error:  # a trial that cannot be made proves nothing, and costs nothing but itself
        facts["reason"] = f"{type(error).__name__}: {error}"[:300]
    return facts

"""Why each origin is wrong: what fits its numbers and settings, with what came of the trials during the capture."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare import blameless
from aligner.compare.birth import TOGETHER
from aligner.compare.cases import Cases
from aligner.compare.checks import LIMIT
from aligner.compare.edits import firsts, frameworks, proved
from aligner.compare.kin import Kin, Told, line_of
from aligner.compare.place import Place
from aligner.compare.updating import Updating
from aligner.compare.verdict import Origin
from aligner.errors import DumpError
from aligner.explain.case import HUGE, MINDSPORE, Case, distance
from aligner.explain.edit import Edit, is_among
from aligner.explain.inquiry import NUMBERS, QUICK, Allowance, Inquiry
from aligner.explain.line import Fork
from aligner.explain.lines import EDITED
from aligner.explain.patterns.relations import WEAK
from aligner.explain.suspect import Cause, Suspect
from aligner.explain.suspects import IN_SHORT, OVERFLOW, ROUNDED, suspects, tried_as
from aligner.findings import TRIAL
from aligner.record import Key, Phase, display

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

MOST = 5
"""Causes of one origin that are told."""

THOROUGH = 24
"""Origins whose numbers are looked into in full; those of one line count once. Others are told by their settings."""

NUMBERED = ("layer", "glue", "inputs", "loss")
"""Places that are looked into by numbers; parameters are told by their values and settings."""

LATER = (Phase.BACKWARD.value, Phase.GRADIENT.value, Phase.UPDATE.value)
"""Phases whose values are not told by what layers make of their inputs."""

CODE = ("layer", "glue")
"""Places that code of the port's own may be wrong in."""

_TYPES = re.compile(r"astype|type_as|\bto\b|\bcast\b|dtype|b?float\d*\b|\bhalf\b|\bdouble\b")
"""Words that say a type."""

Trials = Mapping[tuple[str, str], Mapping[str, Any]]


class Explaining:
    """The origins of one comparison, explained one after the other within one allowance."""

    def __init__(self, cases: Cases, port: Dump, updating: Updating) -> None:
        self._cases, self._updating = cases, updating
        self._trials = _trials(port)
        self._edits, self._frameworks, self._firsts = proved(port), frameworks(port), firsts(port)
        self._kin: dict[object, Kin] = {}
        self._allowance = Allowance(QUICK)
        self._full = 0

    def explained(self, origins: Sequence[Origin], failures: list[str]) -> tuple[Origin, ...]:
        """The origins with their causes, the likeliest first; what went wrong on the way is added to `failures`.

        Then an origin stands without causes: a rule that stumbles must not cost the answer.
        """
        result = []
        for origin in origins:
            told = origin
            try:
                told = _as_written(self._blameless(self._explained(origin)))
            except DumpError:
                raise
            except Exception as error:
                failures.append(f"{display(origin.layer)}: {type(error).__name__}: {error}"[:300])
            result.append(told)
        return tuple(result)

    def _line(self, origin: Origin, held: _Held, places: Sequence[Place]) -> Optional[Fork]:
        """Of the values that the code gets wrong, the first that tells the very line; else between which it lies."""
        if not places:
            return None
        line = _fork(places, held) if not origin.cast else None
        if (line is not None and line.sure) or origin.where not in CODE:
            return line
        slots = ((origin.layer, one.key.layer, one.key.slot) for one in places if one.key is not None)
        return next((self._firsts[slot] for slot in slots if slot in self._firsts), line)

    def _blameless(self, origin: Origin) -> Origin:
        if origin.place is None or origin.phase in LATER or origin.cast or origin.edit is not None or origin.like:
            return origin
        case, dumps = _Held(self._cases)[origin.place], self._cases.dumps
        return replace(origin, causes=blameless.told(origin.place, case, origin.causes, dumps)[:MOST])

    def _explained(self, origin: Origin) -> Origin:
        place = origin.place
        if origin.where in (*TOGETHER, "loss") or origin.phase == Phase.BACKWARD.value:
            found = self._updating.explained(origin)
            if origin.where in TOGETHER or found.causes:
                return found
        if place is not None and origin.phase == Phase.UPDATE.value:  # running statistics: a layer's setting makes them
            told = (*self._updating.explained(origin).causes, *_causes(origin, _Held(self._cases), self._trials, None))
            return replace(origin, causes=told[:MOST])
        if place is None or origin.phase in LATER:
            return origin
        held = _Held(self._cases)
        in_code = origin.where in CODE or self._cases.is_table(place)
        places = (place, *origin.others) if origin.where in CODE else (place,)
        edits = [edit for edit in self._edits.get(origin.layer, ()) if in_code or edit.setting]
        mending = ((each, edit) for each in places for edit in edits if edit.mends(each.key))
        edit = next((edit for _, edit in mending), None)
        left = [key for key in (edit.left if edit else ()) if not any(other.mends(key) for other in edits)]
        origin = replace(origin, edit=edit, left=tuple(sorted(left, key=str)))
        places = places if origin.where in CODE else ()
        keys = [each.key for each in places if each is not None and each.key is not None]
        values = [(origin.layer, key.step, key.layer, key.call, key.slot) for key in keys]
        if self._full < THOROUGH:
            line, left_line = (self._line(origin, held, places) for places in _by(origin.left, (place, *origin.others)))
            origin = replace(origin, line=line, left_line=left_line)
        if origin.edit is not None:  # what was run says more than numbers
            told = _causes(origin, held, self._trials, None)
            if not origin.edit.setting:
                return replace(origin, causes=(_edited(origin.edit), *told)[:MOST])
            if any(_set(cause, origin) for cause in told):
                return replace(origin, causes=tuple(sorted(told, key=lambda cause: not _set(cause, origin))))
        by_framework = next((self._frameworks[value] for value in values if value in self._frameworks), None)
        if by_framework is not None:
            told = _causes(origin, held, self._trials, None)
            return replace(origin, causes=(by_framework, *told)[:MOST])
        if origin.where not in NUMBERED:
            return replace(origin, causes=_causes(origin, held, self._trials, None))
        kin = self._kin.setdefault(line_of(origin, held[place]), Kin())
        causes: tuple[Cause, ...] = ()
        for example in kin.usable:
            with self._allowance.inquiry(example.rules) as inquiry:
                causes = _causes(origin, held, self._trials, inquiry)
            if example.told == _told(causes):
                return replace(origin, causes=causes, like="" if example.proved else example.layer)
        if kin.many:  # what the examples were told by has been asked of it
            return replace(origin, causes=causes, untried=(NUMBERS,))
        if self._full >= THOROUGH:
            return replace(origin, causes=_causes(origin, held, self._trials, None), untried=(NUMBERS,))
        self._full += 1
        with self._allowance.inquiry() as inquiry:
            causes = _causes(origin, held, self._trials, inquiry)
        kin.add(origin.layer, _told(causes), inquiry)
        return replace(origin, causes=causes, untried=tuple(inquiry.untried))


def _as_written(origin: Origin) -> Origin:
    """Without a line to change where the code as it is written was right in float32, but one that says the type."""
    if not any(_is_short(cause) for cause in origin.causes) or (origin.edit is not None and _casts(origin.edit)):
        return origin
    causes = tuple(cause for cause in origin.causes if cause.id != EDITED)
    return replace(origin, causes=causes, edit=None, left=(), line=None, left_line=None)


class _Held:
    """The cases of one origin, made when they are asked for."""

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._made: dict[int, Case] = {}

    def __getitem__(self, place: Place) -> Case:
        if id(place) not in self._made:
            self._made[id(place)] = self._cases.case(place)
        return self._made[id(place)]


def _by(left: Collection[Key], places: Sequence[Place]) -> tuple[list[Place], list[Place]]:
    """The places that are wrong by what is told first, and those that are left wrong with its edit."""
    sides: tuple[list[Place], list[Place]] = [], []
    for place in places:
        sides[place.key is not None and is_among(place.key, left)].append(place)
    return sides


def _fork(places: Sequence[Place], held: _Held) -> Optional[Fork]:
    found: Optional[Fork] = None
    for place in places:
        fork = held[place].fork()
        if fork is not None and fork.sure:
            return fork
        found = found or fork
    return found


def _set(cause: Cause, origin: Origin) -> bool:
    """Whether its trial is the one whose line is shown."""
    return cause.confirmed and origin.edit is not None and cause.id == origin.edit.setting


def _edited(edit: Edit) -> Cause:
    first = edit.hunks[0]
    suspect = Suspect(EDITED, {"place": f"{os.path.basename(first.file)}:{first.line}"})
    return suspect.confirmed(edit.before, edit.after)


def _casts(edit: Edit) -> bool:
    """Whether it changes in which type something is computed."""
    texts = ([hunk.before for hunk in edit.hunks], [hunk.after for hunk in edit.hunks])
    before, after = (sorted(word for text in side for word in _TYPES.findall(text)) for side in texts)
    return before != after


def _told(causes: Sequence[Cause]) -> Told:
    return tuple((cause.id, cause.confirmed) for cause in causes)


def _trials(port: Dump) -> Trials:
    """Results by the reference's layer and the suspect's name."""
    return {
        (str(facts.get("layer")), str(facts.get("suspect"))): facts for kind, facts in port.findings if kind == TRIAL
    }


def _causes(origin: Origin, held: _Held, trials: Trials, inquiry: Optional[Inquiry]) -> tuple[Cause, ...]:
    """Of the origin's value; of another one that the same code makes wrong, where that proves something."""
    assert origin.place is not None
    case = held[origin.place]
    causes = _of_case(origin, case, _before(origin, case), trials, inquiry)
    for place in origin.others if inquiry is not None else ():
        if any(cause.confirmed for cause in causes):
            break
        case = held[place]
        told = _of_case(origin, case, _apart(case), trials, inquiry)
        if any(cause.confirmed for cause in told):
            return told
    return causes


def _of_case(
    origin: Origin, case: Case, before: Optional[float], trials: Trials, inquiry: Optional[Inquiry]
) -> tuple[Cause, ...]:
    found: list[tuple[bool, bool, int, Cause]] = []
    for suspect in suspects(case, inquiry is not None, inquiry):
        trial = trials.get((origin.layer, tried_as(suspect, case)), {})
        cause = _cause(suspect, trial, before, case)
        found.append((not cause.confirmed, cause.refuted, len(found), cause))
    causes = [cause for *_, cause in sorted(found, key=lambda item: item[:3])]
    if origin.cast:  # a pattern of rounding is no cause beside what rounds
        causes.sort(key=lambda cause: cause.id in WEAK)
    for proof in [cause for cause in causes if _is_short(cause)]:
        causes = _in_float32(causes, proof)
    return tuple(causes[:MOST])


def _is_short(cause: Cause) -> bool:
    """Whether the code was run in float32, and was right."""
    return cause.id == IN_SHORT and cause.confirmed


def _in_float32(causes: Sequence[Cause], proof: Cause) -> list[Cause]:
    """Code that is right in float32 is written right: what a short type does is left, and an overflow is proved."""
    left = [cause for cause in causes if cause.id in ROUNDED]
    told = [
        replace(cause, confirmed=True, error_before=proof.error_before, error_after=proof.error_after)
        for cause in left
        if cause.id == OVERFLOW
    ]
    return [*told, *(cause for cause in left if cause.id != OVERFLOW)]


def _cause(suspect: Suspect, trial: Mapping[str, Any], apart: Optional[float], case: Case) -> Cause:
    """With the error that its trial left, or, where there was none, the one that is left in numbers.

    Numbers prove what is wrong with a value that was loaded or given; of what made it they tell no more than a guess.
    """
    before = _number(trial.get("before"))
    if before is None:
        before = apart
    limit = LIMIT * case.rounding
    # What is wrong with a layer's parameter is known of the parameter; what it does to the layer, a trial tells.
    told = None if case.where == "layer" and suspect.parameters else suspect.error
    seen = told is not None and told <= limit and case.where in ("parameters", "inputs")
    proved = trial.get("proved") is True
    untold = seen and not proved  # the trial of a layer that makes another shape says nothing of its parameter
    after = None if untold else _number(trial.get("after"))
    proved = proved or seen
    facts = suspect.facts if case.words == MINDSPORE else {**suspect.facts, "words": case.words}
    return Cause(
        suspect.cause, proved, facts, before, told if after is None else after, suspect.change, after is not None
    )


def _before(origin: Origin, case: Case) -> Optional[float]:
    """Relative L2 of what is wrong, as suspects measure what they leave: the huge values of a mask hide nothing.

    None where NaN or Inf stand on one side: what the other values are off by says nothing of that.
    """
    if origin.deviation is None or origin.deviation.nonfinite:
        return None
    if origin.deviation.rms < HUGE:
        return origin.deviation.rel_l2
    apart = _apart(case)
    return origin.deviation.rel_l2 if apart is None else apart


def _apart(case: Case) -> Optional[float]:
    """Relative L2 of the case's two values, where they have one."""
    if case.expected is None or case.actual is None:
        return None
    apart = distance(case.actual.load(), case.expected.load())
    return apart if math.isfinite(apart) else None


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

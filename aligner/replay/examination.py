"""What follows the free run of a port: the forced pass, what rounding explains of it, and trials of suspected causes.

    free run's dump -> Plan -> ForcedPass -> [Check]      every place judged by itself
    suspicious ones -> the same run, disturbed            what rounding explains there, measured: by noise, by the code
                                                          in float64, by each of its operations
    layers that fail -> Alone                             trials of what may be wrong with them

The port is left as it was found: its buffers, its random numbers, its mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter
from aligner.compare.cases import Cases, ran
from aligner.compare.casts import lowered_alone
from aligner.compare.checks import LIMIT, OTHER_FORM, Check, in_float32, to_facts
from aligner.compare.hot import Chosen, Hot
from aligner.compare.layers import Pairing, pair_layers
from aligner.compare.net import is_input, survey
from aligner.compare.reading import LOW_PRECISION
from aligner.compare.reduced import Reduced, Scaled
from aligner.compare.strangers import guessed
from aligner.compare.worded import Axed
from aligner.dtypes import DTYPES
from aligner.dump.reader import Dump, open_dump
from aligner.errors import AlignerError, DumpError
from aligner.findings import CHECK, CLEARED, EDIT, GROWN
from aligner.mending.mend import Mending
from aligner.mending.rounding import explained
from aligner.mending.settings import Settings
from aligner.record import Array, Key, Note, Phase
from aligner.replay import coordinates
from aligner.replay.alone import Alone
from aligner.replay.ends import passed_on
from aligner.replay.forced import ForcedPass
from aligner.replay.frames import Plan
from aligner.replay.freely import as_it_was
from aligner.replay.growth import grown
from aligner.replay.hearing import followed, heard
from aligner.replay.masked import read_otherwise
from aligner.replay.planning import planned
from aligner.replay.precision import CASTS, grid
from aligner.replay.rewriting import Rewriting
from aligner.replay.rounding import DOUBTFUL, MOST, SECONDS, ByItself, disturbed
from aligner.replay.siblings import wrongly_given
from aligner.replay.statistics import kept_otherwise
from aligner.replay.trials import described, small, tried
from aligner.replay.unread import unread
from aligner.replay.widened import Widened, is_hiding, judged, rounded

if TYPE_CHECKING:
    from aligner.capture.progress import Progress
    from aligner.capture.sink import Sink


@dataclass(frozen=True)
class Subject:
    """The port that is examined, and how it is run."""

    adapter: Adapter
    model: Any
    reference: Dump
    run: Callable[[int], object]
    """Runs the port on the reference's inputs of a step."""
    steps: Sequence[int]
    silence_dropout: bool
    seed: Optional[int]
    mapping: Sequence[Any] = ()
    """The layers that got each other's weights: reference, port, confidence."""
    buffers: Callable[[], object] = lambda: None
    """Gives the port the reference's buffers again: the ones it had before the free run."""
    stopped: Optional[int] = None
    """The step in which the free run raised: the forced pass may come no further, and counts as far as it came."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The user's map."""
    progress: Optional[Progress] = None
    search: float = 60.0
    """Seconds that edits of its code are looked for."""


@dataclass(frozen=True)
class Summary:
    """What the examination found, for a line on the terminal."""

    checked: int
    wrong: int
    trials: int
    confirmed: int
    seconds: float
    """Of the forced pass."""
    trying: float
    """Seconds of the trials."""


def examine(subject: Subject, path: str, sink: Sink, order: int, free: float) -> Summary:
    """Run the forced pass and the trials behind a free run whose dump, at `path`, is still being written."""
    started = time.monotonic()
    with open_dump(path) as port:
        nets = survey(subject.reference), survey(port)
        pairing = pair_layers(*nets, subject.given, list(subject.mapping))
        plan = planned(subject.reference, port, pairing, nets[1].inner)
        plan = replace(plan, guessed=frozenset(other for _, other in guessed(pairing.layers, *nets)))
        first = plan.layers
        with as_it_was(subject.adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers):
            forced = ForcedPass(subject.adapter, subject.model, plan, sink, order, subject.stopped)
            listened = heard(subject.adapter, subject.model, port, sink.finding)
            following = followed(subject.adapter, subject.model, subject.reference, sink.finding)
            with listened, following as code:
                forced.values.settle, forced.values.unheard = code.settle, code.unheard
                for step in subject.steps:
                    forced.run(step, lambda step=step: subject.run(step))  # type: ignore[misc]  # bound now
            known = [check.port for check in forced.checks if check.fails]
            plan = replace(forced.plan, objects=forced.objects.trusted(port.calls, known))
            checks = _explained(subject, path, plan, forced)
            forced.values.lent.returned()
        checks = _cast(checks, subject, path, plan)
        checks = _rounded(checks, path, plan, _lonely(subject, port, plan), subject.reference)
        checks = _stirred(checks, subject, path, plan)
        checks = _given(checks, subject, path, plan)
        checks, plan = _read(checks, subject, path, plan, forced)
        if plan.short is not None or plan.cast or any(check.cast for check in checks):
            alone = _lonely(subject, port, plan)
            checks = _alone(checks, subject, alone, forced, plan)
        for facts in _grown(subject, port, plan, checks):
            sink.finding(GROWN, facts)
    plan = _own_forms(plan, checks)
    middle = time.monotonic()
    trials = _try(subject, path, pairing, plan, checks, sink)
    for check in checks:
        entry: Any = plan.entries.get(check.port)
        formed = isinstance(entry, (Axed, Chosen, Hot, Reduced, Scaled))
        reason = OTHER_FORM if formed and not check.suspicious else check.reason
        axes = entry.axes if isinstance(entry, Axed) else check.axes
        sink.finding(CHECK, to_facts(replace(check, axes=axes, reason=reason)))
    tried, computed = time.monotonic(), time.process_time()
    left_over = [check for check in checks if check.owner not in trials[2]]
    edits = _mend(subject, path, plan, left_over, sink, forced.values.order)
    ended = time.monotonic()
    timing = {"free_s": round(free, 3), "forced_s": round(middle - started, 3)}
    timing = {**timing, "trials_s": round(tried - middle, 3), "edits_s": round(ended - tried, 3)}
    timing["edits_cpu_s"] = round(time.process_time() - computed, 3)
    left = forced.left
    told = {
        "forced": True,
        "held": len(plan.calls) - len(left),
        "left": list(dict.fromkeys(layer for layer, _ in left)),
        "parted": [[other, path] for path, other in first.items() if path not in plan.layers],
    }
    sink.update_header(**told, reference_token=subject.reference.token, precision=plan.short, timing=timing)
    wrong = {(check.owner, check.where, check.between) for check in checks if check.fails}
    tried_all, confirmed = trials[0] + edits[0], trials[1] + edits[1]
    return Summary(len(checks), len(wrong), tried_all, confirmed, middle - started, ended - middle)


def _own_forms(plan: Plan, checks: Sequence[Check]) -> Plan:
    """The plan without counterparts for arguments in another form: the layers take their own, as they did."""
    kept = {check.port for check in checks if check.reason == OTHER_FORM and is_input(check.port.slot)} - {*plan.orders}
    return plan.learned(dict.fromkeys(kept), plan.orders)


def _lonely(subject: Subject, port: Dump, plan: Plan) -> Alone:
    return Alone(subject.adapter, subject.model, subject.reference, port, plan, subject.silence_dropout)


def _explained(subject: Subject, path: str, plan: Plan, forced: ForcedPass) -> list[Check]:
    """The checks with what a little noise explains of those that are suspicious."""
    with open_dump(path) as port:

        def kept(check: Check) -> Optional[Array]:
            entry = port.find(check.port._replace(phase=Phase.FORCED))
            return None if entry is None else entry.load()

        return disturbed(forced, subject.run, kept, DTYPES[plan.short or "float32"].eps or 0.0)


def _cast(checks: Sequence[Check], subject: Subject, path: str, plan: Plan) -> list[Check]:
    """The checks with what a short type explains that a place computes in, though the reference does not and the port
    as a whole does not: by `to_float`, in the code, or, under AMP by lists of the user's, on purpose for sure.
    """
    ports = {one: other for other, one in reversed([*plan.layers.items()])}
    result = []
    with open_dump(path) as port:
        lowered, amp = lowered_alone(subject.reference, port), port.header.get("amp")
        listed = amp == "custom" or amp not in CASTS
        for check in checks:
            other = check.port.layer if check.where == "layer" else ports.get(check.owner, check.owner)
            asked = check.suspicious and check.where != "inputs"
            word = (lowered(check.owner, other) or _grid(check, port)) if asked else None
            expected = LOW_PRECISION * (DTYPES[word].eps or 0.0) if word is not None else 0.0
            if word is not None and check.error <= LIMIT * expected:
                check = replace(check, expected=expected) if listed else replace(check, cast=word)
            result.append(check)
    return result


def _rounded(checks: Sequence[Check], path: str, plan: Plan, alone: Alone, reference: Dump) -> list[Check]:
    """The checks of the user's code with what its own rounding explains, where noise did not: how far the same code
    comes out in float64.
    """
    result, by_itself = [], ByItself(alone, None)
    with open_dump(path) as port:
        for check in checks:
            doubted = check.suspicious and check.kept and not check.cast and check.ratio < DOUBTFUL
            kept = port.find(check.port._replace(phase=Phase.FORCED)) if doubted else None
            if kept is not None and plan.coarsest(check.owner) is None:
                made = kept.load()
                explained = max(check.expected, _of_coordinates(check, made, plan, reference))
                check = replace(check, expected=explained)
                of_code = check.where == "glue" or alone.is_own(check.port.layer)
                if check.suspicious and of_code and check.ratio < DOUBTFUL:
                    check = replace(check, expected=max(explained, by_itself.rounds(check, made)))
            result.append(check)
    return result


def _stirred(checks: Sequence[Check], subject: Subject, path: str, plan: Plan) -> list[Check]:
    """The same with what the code makes of the rounding of its own operations: not all of it runs in float64, and a
    difference of two values that are much alike is as far off in the reference's code."""
    with open_dump(path) as port:
        alone = _lonely(subject, port, plan)
        doubted = [check for check in checks if check.suspicious and not check.cast and check.ratio < DOUBTFUL]
        doubted = [check for check in doubted if plan.coarsest(check.owner) is None]
        asked = {check.port for check in doubted if check.where == "glue" or alone.is_own(check.port.layer)}
        if not asked or not hasattr(subject.adapter, "computing"):
            return [*checks]
        with as_it_was(subject.adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers):
            own = alone.is_own
            moved = explained(subject.adapter, subject.model, alone, port, checks, asked, own, MOST, SECONDS)
    most: dict[tuple[str, str], float] = {}  # of all turns of a loop: few numbers may round alike by chance
    for key, much in moved.items():
        most[key.layer, key.slot] = max(most.get((key.layer, key.slot), 0.0), much)
    known = {key: most.get((key.layer, key.slot), 0.0) for key in asked}
    return [replace(check, expected=max(check.expected, known.get(check.port, 0.0))) for check in checks]


def _given(checks: Sequence[Check], subject: Subject, path: str, plan: Plan) -> list[Check]:
    kinds = {name: type(layer) for name, layer in subject.adapter.layers(subject.model)}
    with open_dump(path) as port:
        return wrongly_given(checks, kinds, port, plan)


def _read(
    checks: Sequence[Check], subject: Subject, path: str, plan: Plan, forced: ForcedPass
) -> tuple[list[Check], Plan]:
    """Without what nothing is made of that the net hands on."""
    if subject.stopped is not None or plan.short is not None:
        return [*checks], plan

    def errors(step: int, plan: Plan) -> Mapping[Key, float]:
        return forced.errors(step, lambda: subject.run(step), plan)

    before = as_it_was(subject.adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers)
    with open_dump(path) as port, before:
        return unread(checks, subject.adapter, subject.model, subject.run, subject.steps, port, plan, errors)


def _of_coordinates(check: Check, made: Array, plan: Plan, reference: Dump) -> float:
    names = ran(reference, check.owner, *check.between) if check.between else None
    return max(coordinates.of_angles(check, made, plan.entries), coordinates.of_pixels(made, names))


def _grid(check: Check, port: Dump) -> Optional[str]:
    """The short type on whose grid a kept value lies: it went through that type, though nothing was computed in it."""
    kept = port.find(check.port._replace(phase=Phase.FORCED)) if check.kept else None
    return None if kept is None or DTYPES[kept.dtype].exact else grid(kept.load())


def _grown(subject: Subject, port: Dump, plan: Plan, checks: Sequence[Check]) -> Iterator[Mapping[str, Any]]:
    """How far noise moves what the net hands on, where nothing was found to be wrong and yet it is off."""
    computing = plan.short is not None or plan.lowered or plan.cast
    if computing or subject.stopped is not None or any(check.fails or check.cast for check in checks):
        return
    again = partial(as_it_was, subject.adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers)
    yield from grown(subject.adapter, subject.model, subject.run, subject.steps, subject.reference, port, again)


def _alone(checks: list[Check], subject: Subject, alone: Alone, forced: ForcedPass, plan: Plan) -> list[Check]:
    """Each layer and the code between them once more in float32, where a short type may hide what is wrong."""
    found = [(check, not is_hiding(check, plan)) for check in checks]
    if all(done for _, done in found):
        return checks
    with as_it_was(subject.adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers):
        try:
            widened = Widened(subject.adapter, alone, plan)
            widened.run(subject.steps)
            found = list(judged(checks, widened, forced, plan))
        except DumpError:
            raise
        except Exception:  # a port that cannot be copied, or not run in float32: its layers may be, one by one
            pass
    return _one_by_one(found, alone, forced, plan)


def _one_by_one(found: Sequence[tuple[Check, bool]], alone: Alone, forced: ForcedPass, plan: Plan) -> list[Check]:
    """Layers of which nothing is known in float32: copies of them are run so, each by itself."""
    known: dict[tuple[int, str, int], Optional[float]] = {}
    bounds: dict[tuple[int, str, int], float] = {}
    for check, _ in found:
        place = check.port.step, check.port.layer, check.port.call
        if check.where == "layer":
            bounds[place] = max(bounds.get(place, 0.0), check.error + LIMIT * check.expected)
    result = []
    for check, done in found:
        place = check.port.step, check.port.layer, check.port.call
        if check.where == "layer" and not done and is_hiding(check, plan):
            if place not in known:
                known[place] = _in_float32(check, bounds[place], alone, forced)
            error = known[place]
            check = check if error is None else rounded(check, error)
        result.append(check)
    return result


def _in_float32(check: Check, bound: float, alone: Alone, forced: ForcedPass) -> Optional[float]:
    """The layer's error in float32; what it made is kept if that is wrong. None if it cannot be run so.

    `bound` is as wrong as it can be there: a copy that is further off than the layer itself and its rounding was not
    run as the layer was.
    """
    made: list[tuple[Key, str, Array]] = []
    try:
        error = alone.error(check, None, "float32", lambda *output: made.append(output))
    except Exception:  # a layer that cannot be copied is judged by its own precision
        return None
    if not error <= bound:
        return None
    if replace(check, alone=error).hidden:
        for key, dtype, array in made:
            forced.values.keep(key._replace(slot=in_float32(key.slot)), dtype, array)
    return error


def _try(
    subject: Subject, path: str, pairing: Pairing, plan: Plan, checks: list[Check], sink: Sink
) -> tuple[int, int, Set[str]]:
    """Trials of what may be wrong with the layers that fail.

    How many were made, how many proved something, and layers that are right with a line that is known.
    """
    made = proved = 0
    with open_dump(path) as port:
        alone = _lonely(subject, port, plan)
        cases = Cases(subject.reference, port, (survey(subject.reference), survey(port)), pairing)
        settings = Settings(subject.adapter, dict(subject.adapter.layers(subject.model)))
        written = Rewriting(settings, subject.reference, port, alone)
        found = [*small(checks, cases, alone, written)]  # may find that a check fails after all
        found += [*kept_otherwise(cases, alone, written, subject.steps[0])] if subject.steps else []
        for kind, facts in (*found, *tried(checks, cases, alone, written), *described(checks, subject.adapter, alone)):
            sink.finding(kind, facts)
            made += "after" in facts
            proved += facts.get("proved") is True
    return made, proved, written.settled


def _mend(subject: Subject, path: str, plan: Plan, checks: Sequence[Check], sink: Sink, order: int) -> tuple[int, int]:
    """Edits of the port's own code, where that is wrong; how many were run, and how much code they put right."""
    adapter, made, proved = subject.adapter, 0, 0
    if not any(check.fails for check in checks) or not hasattr(adapter, "computing") or not subject.search:
        return made, proved
    with open_dump(path) as port:
        try:
            alone = _lonely(subject, port, plan)
            with as_it_was(adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers):
                checks = passed_on(read_otherwise(checks, adapter, port, alone), port, plan)
            sides = subject.reference, port
            mending = Mending(
                adapter, subject.model, alone, *sides, checks, alone.is_own, subject.search, subject.progress
            )
            with as_it_was(adapter, subject.model, subject.seed, subject.silence_dropout, subject.buffers):
                for found in mending.mended():
                    sink.finding(EDIT, found.facts)
                    for record in found.records(order):
                        sink.write(record)
                        order = record.order
                    made += found.trials
                    proved += found.proved
            for key in mending.cleared:
                sink.finding(CLEARED, {"at": [key.step, key.layer, key.call, key.slot]})
            failed = mending.failed
            if mending.spent:
                sink.note(Note("", "edits-spent", {"seconds": round(subject.search)}))
        except AlignerError:
            raise
        except Exception as error:  # what was found before stands
            failed = error
        if failed is not None:
            sink.note(Note("", "edits-failed", {"error": f"{type(failed).__name__}: {failed}"[:300]}))
    return made, proved

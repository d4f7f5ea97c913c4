"""From readings to the answer: origins, one verdict for every record, warnings, counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare import asides, reordered, sides, turns
from aligner.compare.birth import Birth
from aligner.compare.cases import Cases
from aligner.compare.casts import cast_map
from aligner.compare.caution import cautions
from aligner.compare.checks import LIMIT
from aligner.compare.cover import LEFT_OUT, ONE_SIDED
from aligner.compare.edits import homes
from aligner.compare.expected import Expectations
from aligner.compare.explanation import Explaining
from aligner.compare.force import held
from aligner.compare.later import Stage
from aligner.compare.layers import Pairing
from aligner.compare.mixup import Mixup
from aligner.compare.moved import APART, MIXED, UNJUDGED, Unjudged
from aligner.compare.narrowed import narrowed
from aligner.compare.net import CallId, Net, by_step, nest
from aligner.compare.origin import Trace
from aligner.compare.place import Place
from aligner.compare.reading import Reading
from aligner.compare.step_rows import step_rows
from aligner.compare.stop import NOT_RUN
from aligner.compare.tolerance import Tolerance
from aligner.compare.training import Training
from aligner.compare.unread import unread
from aligner.compare.updating import Updating
from aligner.compare.verdict import Comparison, Origin, Outcome, Verdict
from aligner.compare.verdicts import verdict_of
from aligner.record import LayerSpec, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

AMP_EPS = 4e-4
"""What a layer may add by itself when AMP computes in float16 behind float32 tensors (0.4 of its eps)."""

CLEAR = 0.01
"""What is off by less than this part of a mistake lacks it, however much rounding has grown in it."""

GONE = 0.5
"""What is off by less than this part of a mistake lacks it; one that a trial proves may be as small as rounding."""


def conclude(
    reference: Dump,
    port: Dump,
    nets: tuple[Net, Net],
    pairing: Pairing,
    readings: Sequence[Reading],
    tolerance: Tolerance,
    allowed: Sequence[str],
    expectations: Expectations,
    training: Training,
    mixup: Optional[Mixup] = None,
) -> Comparison:
    """The whole answer."""
    checks = {r.pair.key: r.check for r in readings if r.check is not None}
    void = mixup is not None and mixup.void
    unjudged = Unjudged(reference, port, readings)
    judged = [] if void else [reading for reading in readings if not unjudged.reason(reading)]
    trace = Trace(AMP_EPS if reference.header.get("amp") or port.header.get("amp") else 0.0, checks, tolerance)
    trace.held = training.held
    _follow(trace, reference, pairing, judged, training)
    needed = {b for r in readings if r.matched and r.over for b in trace.reached.get(id(r), ())[:1]}
    needed |= {n for n, birth in enumerate(trace.births) if birth.check is not None and _over(birth, tolerance)}
    needed |= {
        n for n, birth in enumerate(trace.births) if birth.key.phase is Phase.UPDATE and not birth.reading.matched
    }
    compiled = str(port.header.get("mode")) == "graph"
    right = {n for n, birth in enumerate(trace.births) if _right_when_free(birth)}
    needed -= right
    eager = right if compiled else set()  # else the port was held to what it has no need of: its own value is right
    ends = sides.ends(readings, *nets, pairing)
    origins, index = _origins(trace, needed, nets, pairing, tolerance)

    def concluded(origins: Sequence[Origin], index: Mapping[int, int]) -> tuple[Verdict, ...]:
        reasons = (MIXED if void else unjudged.reason(reading) for reading in readings)
        told = (verdict_of(r, trace, origins, index, nets, allowed, why) for r, why in zip(readings, reasons))
        return tuple(replace(v, ratio=expectations.ratio(r)) for v, r in zip(told, readings))

    verdicts = concluded(origins, index)
    outcome = _outcome(void, verdicts, origins, ends)
    if not any(verdict.fails for verdict in verdicts) and not any(origin.where == "inputs" for origin in origins):
        needed = set()  # nothing that was compared is off: what they do wrong is a suspicion, and no origin
        origins, verdicts = (), concluded((), {})
    places = {trace.births[birth].place for birth in needed | right}
    quiet = {n for n, birth in enumerate(trace.births) if birth.place not in places and _may_be_quiet(birth)}
    suspects, _ = _origins(trace, quiet, nets, pairing, tolerance)
    cases = Cases(reference, port, nets, pairing)
    casts = cast_map(reference, port, nets, pairing)
    failures: list[str] = []
    explaining = Explaining(cases, port, Updating(reference, port, training))
    ports = {pair.reference: pair.port for pair in reversed(pairing.layers)}
    found = homes(port)
    origins, suspects = (
        narrowed(explaining.explained(places, failures), nets[0], ports, found) for places in (origins, suspects)
    )
    failing = [verdict for verdict in verdicts if verdict.fails]
    measured = [verdict for verdict in failing if verdict.outcome is not Outcome.UNMATCHED]
    measured.sort(key=lambda verdict: verdict.reason in UNJUDGED)
    counts = Counter(verdict.outcome.value for verdict in verdicts)
    held_calls, left = held(port)
    return Comparison(
        reference=_header(reference),
        port=_header(port),
        tolerance=tolerance.value,
        rule=tolerance.rule,
        outcome=outcome,
        verdicts=verdicts,
        origins=origins,
        layers=tuple(pairing.layers),
        first=None if void else next(iter(measured or failing), None),
        warnings=(
            *(() if mixup is None else ((mixup.message, mixup.facts),)),
            *(() if void else unjudged.cautions()),
            *(() if void else (*ends.cautions(), *sides.one_sided(sides.not_compared(verdicts), ends.lacking))),
            *(() if void else cautions(reference, port, nets, pairing, readings, bool(checks), casts)),
            *unread(readings),
            *asides.untrained(training, (reference, port)),
            *asides.told(suspects),
            *asides.unseen(casts, cases, {place.layer for place in (*origins, *suspects)}, bool(checks) and not void),
            *(() if training.held else asides.passing(trace, needed, compiled, casts)),
            *asides.eager(trace, eager),
            *asides.stumbled(failures),
        ),
        counts={outcome.value: counts.get(outcome.value, 0) for outcome in Outcome},
        specs=_specs((*origins, *suspects), nets),
        unpaired=_unpaired(nets, pairing),
        suspects=suspects,
        checked=0 if void else len(checks),
        held=held_calls if checks and not void else 0,
        left=left if checks and not void else (),
        mixup=mixup,
        casts=casts,
        steps=step_rows((reference, port), training, verdicts, nets[0].roots, origins),
    )


def _outcome(void: bool, verdicts: Sequence[Verdict], origins: Sequence[Origin], ends: sides.Ends) -> str:
    """Incomparable: dumps that were mixed up, other inputs, other weights on one side alone, no output in common."""
    if void or any(origin.where == "inputs" for origin in origins):
        return "incomparable"
    failing = [verdict for verdict in verdicts if verdict.fails]
    if failing:
        return "incomparable" if all(verdict.reason in APART for verdict in failing) else "diverged"
    return "incomparable" if ends.void else "aligned"


def _may_be_quiet(birth: Birth) -> bool:
    """Whether it may be told as wrong below the tolerance: not of a value that is right, and stands elsewhere."""
    return birth.reading.matched and not birth.reading.covered


def _right_when_free(birth: Birth) -> bool:
    """Whether the value is wrong in the forced pass, which runs eagerly, and right in the free run.

    Where axes of one stand elsewhere, or one side says by true what the other says by a number, the free run's numbers
    may be equal all the same, and nothing is cleared by them.
    """
    check, reading = birth.check, birth.reading
    if len({entry is not None and entry.dtype == "bool" for entry in (reading.pair.reference, reading.pair.port)}) > 1:
        return False
    if check is None or check.deviation is None or reading.covered or reading.over or not reading.matched:
        return False
    return reading.severity <= max(min(LIMIT * check.expected, GONE * check.error), CLEAR * check.error)


def _header(dump: Dump) -> Mapping[str, Any]:
    return {**dump.header, "path": str(dump.path)}


def _over(birth: Birth, tolerance: Tolerance) -> bool:
    """Whether what was born wrong is over tolerance by itself, or stands where the net is."""
    check = birth.check
    if check is not None and check.by_cast:
        return False
    if check is None or check.deviation is None or tolerance.over(check.deviation):
        return True
    return birth.reading.over and not check.hidden


def _follow(trace: Trace, reference: Dump, pairing: Pairing, readings: Sequence[Reading], training: Training) -> None:
    """Follow the readings through the calls of the reference, step by step."""
    back = {other: one for one, other in pairing.calls.items()}
    ours = {pair.port: pair.reference for pair in pairing.layers}
    parameters = trace.parameters(
        (r for r in readings if r.pair.key.phase is Phase.PARAMETER and r.reason != LEFT_OUT), ours
    )
    steps: dict[int, list[Reading]] = {}
    for reading in readings:
        steps.setdefault(reading.pair.key.step, []).append(reading)
    ran = by_step(reference.calls)
    for step, here in sorted(steps.items()):
        grouped: dict[CallId, list[Reading]] = {}
        for reading in here:
            call = _call(reading, back)
            told = call is not None and reading.reason not in (LEFT_OUT, NOT_RUN, ONE_SIDED)
            if reading.pair.key.phase is Phase.FORWARD and call is not None and told:
                grouped.setdefault(call, []).append(reading)
        calls = {call: records for call, records in grouped.items() if any(r.matched for r in records)}
        trace.step(nest(ran.get(step, ())), calls, parameters)
        left = trace.later((r for r in here if r.pair.key.phase not in (Phase.FORWARD, Phase.PARAMETER)), training)
        parameters = left if training else parameters


def _call(reading: Reading, back: Mapping[CallId, CallId]) -> Optional[CallId]:
    """The reference's call that a record belongs to, also one that only the port has."""
    key = reading.pair.key
    call = CallId(key.layer, key.call)
    return call if reading.pair.reference is not None else back.get(call)


OTHERS = 3
"""Values of one origin that are looked into besides the worst."""


def _origins(
    trace: Trace, chosen: Iterable[int], nets: tuple[Net, Net], pairing: Pairing, tolerance: Tolerance
) -> tuple[tuple[Origin, ...], Mapping[int, int]]:
    """One Origin per place where births happened, in order; and the origin of each birth."""
    groups: dict[object, list[int]] = {}
    for number in sorted(chosen, key=lambda n: (trace.births[n].key.step, trace.births[n].order)):
        groups.setdefault(trace.births[number].place, []).append(number)
    born = {place: [trace.births[n] for n in numbers] for place, numbers in groups.items()}
    for place, earlier in turns.joined(born, turns.loops(nets[0].visits)).items():
        if place != earlier:
            groups[earlier] += groups.pop(place)
    left = {place: births for place, births in born.items() if place in groups}
    for place, earlier in reordered.joined(left, reordered.reordered(nets, pairing)).items():
        if place != earlier:
            groups[earlier] += groups.pop(place)
    ports: dict[str, str] = {}
    for pair in pairing.layers:
        ports.setdefault(pair.reference, pair.port)
    origins = []
    index: dict[int, int] = {}
    for place, numbers in enumerate(groups.values()):
        origins.append(_origin([trace.births[n] for n in numbers], nets[0], ports, tolerance))
        index.update((number, place) for number in numbers)
    return tuple(origins), index


def _origin(births: Sequence[Birth], net: Net, ports: Mapping[str, str], tolerance: Tolerance) -> Origin:
    """One place that is wrong; its first call tells where, its worst record how much: of those that the forced pass
    found wrong, if it did any, and not of what the port has in a form of its own."""
    births = [one for one in births if one.check is not None and one.check.fails] or births
    first = births[0]
    worst = max(births, key=lambda birth: _own_error(birth, tolerance))
    ratios = [birth.check.ratio for birth in births if birth.check is not None]
    moved = len({birth.between[1] for birth in births if birth.between is not None}) > 1
    return Origin(
        layer=first.layer,
        port_layer=ports.get(first.layer, first.layer),
        kind=net.kind(first.layer),
        where=first.where,
        step=first.key.step,
        phase=first.key.phase.value,
        call=first.key.call,
        slot=first.key.slot,
        order=first.reading.pair.entry.order,
        seen=first.key.layer,
        own_error=_own_error(worst, tolerance),
        input_error=first.input_error,
        deviation=worst.reading.deviation if worst.check is None else worst.check.deviation,
        between=first.between,
        calls=len({(b.key.step, b.key.call) for b in births if b.key.layer == first.key.layer}),
        ratio=worst.check.ratio if worst.check is not None else max(ratios, default=None),
        cast=worst.check.cast if worst.check is not None and worst.check.by_cast else "",
        number=None if first.check is None else first.check.number,
        owners=tuple(dict.fromkeys(birth.owner for birth in births if birth.owner is not None)),
        steps=tuple(sorted({birth.key.step for birth in births})),
        place=replace(_place(worst), moved=moved),
        others=tuple(replace(place, moved=moved) for place in _others(births, worst, tolerance)),
    )


def _others(births: Sequence[Birth], worst: Birth, tolerance: Tolerance) -> tuple[Place, ...]:
    """Values that the code between layers got wrong besides: one may tell what the worst does not.

    They are of the same call, or of another layer where one mistake shows at several.
    """
    if worst.where != "glue":
        return ()
    call = worst.key.step, worst.key.layer, worst.key.call
    taker = (worst.between or ("", ""))[1]
    same = [
        b
        for b in births
        if b is not worst and ((b.key.step, b.key.layer, b.key.call) == call or (b.between or ("", ""))[1] != taker)
    ]
    same.sort(key=lambda birth: -_own_error(birth, tolerance))
    return tuple(_place(birth) for birth in same[:OTHERS])


def _place(birth: Birth) -> Place:
    """Where its records are, for those who look into it."""
    pair, check = birth.reading.pair, birth.check
    port = None if pair.port is None else pair.port.key
    if port is None and check is not None and check.deviation is not None:  # the forced pass knows which it is
        port = check.port
    return Place(
        "layer" if birth.where == Stage.LOSS.value else birth.where,
        birth.layer,
        None if pair.reference is None else pair.reference.key,
        port,
        birth.between,
        birth.reading.own if check is None else check.rounding,
        check is not None and (check.kept or check.hidden),
        None if check is None else check.against,
        axes=None if check is None else check.axes,
    )


def _own_error(birth: Birth, tolerance: Tolerance) -> float:
    """The rule's figure of what this place does wrong by itself."""
    if birth.check is None:
        return birth.reading.error
    deviation = birth.check.deviation
    return math.inf if deviation is None else tolerance.error(deviation)


def _specs(origins: Iterable[Origin], nets: tuple[Net, Net]) -> Mapping[str, tuple[LayerSpec, LayerSpec]]:
    found = {}
    for origin in origins:
        one, other = nets[0].layers.get(origin.layer), nets[1].layers.get(origin.port_layer)
        unread = nets[1].partial and other is not None and not other.spec.attributes
        if one is not None and other is not None and not unread:
            found[origin.layer] = (one.spec, other.spec)
    return found


def _unpaired(nets: tuple[Net, Net], pairing: Pairing) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paired = {p.reference for p in pairing.layers}, {p.port for p in pairing.layers}
    ours, theirs = (
        tuple(dict.fromkeys(v.call.layer for v in net.visits if v.call.layer not in known))
        for net, known in zip(nets, paired)
    )
    return ours, theirs

"""Where an error comes from: "what goes in agrees, what goes out does not", followed through the calls in time.

Every value that a paired call took in or handed on has sources: a leaf's output has its inputs and parameters; what
a parent hands to a child or hands on has the tensor itself, if the reference shows that it came unchanged from
somewhere, and else everything the parent had in hand until then (its inputs, its parameters, its children's outputs).

A value is *born wrong* when it is ten times worse than the worst of its sources and than round-off (a hundred times
if a source goes back to another birth), and no source is over tolerance; otherwise it inherits its sources' origins.
Births below the tolerance are kept in mind, since what crosses the tolerance further on belongs to them, and dropped
if nothing ever does. NaN is always born where no source has it. Where errors merely grow until they cross the
tolerance, the first crossing counts as the origin.

From a free run alone a second bug behind a first one shows only if it lies on a clean path. Where a forced pass was
made (aligner.compare.checks), it has judged every place by itself: what fails there is born wrong, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from aligner.compare.birth import Birth, Sources, State
from aligner.compare.checks import LIMIT, Check
from aligner.compare.later import Stage, Step, in_time, is_end
from aligner.compare.net import CallId, Visit, ancestors, is_input
from aligner.compare.reading import LOW_PRECISION, Reading
from aligner.compare.tolerance import Tolerance
from aligner.compare.training import Training
from aligner.dtypes import DTYPES
from aligner.record import Key, Phase
from aligner.words.training import LOSS

JUMP = 10.0
"""How much worse than its sources a value is when it was born wrong."""

LEAP = 100.0
"""The same where the sources already go back to a birth: a layer may blow up what a bug before it did, tenfold even."""

SHARE = 0.1
"""A source explains a value if it is at least this bad itself, relative to the value."""

GROWTH = 1e4
"""A value that is so many times worse than its sources was not made so by rounding, though a forced pass found nothing
wrong: what a layer does to the reference's exact values may miss what it does to those a little beside them."""

GROWN = 0.02
"""The same is asked only of values that are off by more than this."""

SHORT, LOST = 1e-5, 0.35
"""Where more than SHORT is rounded, GROWTH times that is never reached: what is off by LOST then has overflowed."""


@dataclass
class _Scene:
    """A call that is under way: what it has in hand."""

    visit: Visit
    inputs: Sources = field(default_factory=Sources)
    parameters: Sources = field(default_factory=Sources)
    made: Sources = field(default_factory=Sources)
    """Outputs of the calls inside so far."""
    fed: bool = False
    inside: list[tuple[str, bool]] = field(default_factory=list)
    """Paths of the calls inside that have ended, and whether they agree."""

    def in_hand(self) -> Sources:
        """Everything a value made now could be made from."""
        whole = Sources()
        for part in (self.inputs, self.parameters, self.made):
            whole.join(part)
        return whole


class Trace:
    """The flow of one comparison; `births` and `reached` are its result."""

    def __init__(
        self,
        coarse: float = 0.0,
        checks: Optional[Mapping[Key, Check]] = None,
        tolerance: Optional[Tolerance] = None,
    ) -> None:
        self.births: list[Birth] = []
        self.reached: dict[int, tuple[int, ...]] = {}
        """By id of a Reading: indices of the births it goes back to."""
        self._coarse = coarse
        self._checks = checks or {}
        failing = [check.owner for check in self._checks.values() if check.fails]
        self._wrong = {layer for owner in failing for layer in (owner, *ancestors(owner))}
        """Layers in which a forced pass has found something wrong: it gave them what the port alone gives."""
        self._tolerance = tolerance or Tolerance()
        self.held = False
        """Stages of training steps were held to the reference's: what the net is given besides is told by itself."""
        self._begun = 0
        """Births before the step that is followed."""
        self._of_weights: set[int] = set()
        """Losses of a free run that come of weights which are others by now: what they are given is not always told."""
        self._of_later = False
        """Something is wrong by what is seen to be wrong later: an object that calls are given holds it."""

    def parameters(self, readings: Iterable[Reading], ours: Mapping[str, str]) -> Mapping[str, Sources]:
        """Wrong parameters, by layer: each is born wrong, and explains any error of its layer's output.

        Args:
            readings: those of parameters; one that only the port has may be a tied weight that was untied.
            ours: the reference's layer of each of the port's.
        """
        found: dict[str, Sources] = {}
        for reading in readings:
            own = max(reading.own, self._coarse)
            if reading.covered or not (reading.over or reading.severity > JUMP * own):
                continue
            key = reading.pair.key
            layer = key.layer if reading.pair.reference is not None else ours.get(key.layer)
            if layer is None:
                continue
            state = self._born(reading, Birth(layer, "parameters", reading, key, reading.pair.entry.order, None))
            found.setdefault(layer, Sources()).add(replace(state, severity=max(state.severity, float(state.over))))
        return found

    def step(
        self,
        visits: Sequence[Visit],
        readings: Mapping[CallId, Sequence[Reading]],
        parameters: Mapping[str, Sources],
    ) -> None:
        """Follow the values through the calls of one step, in time. `readings` holds those of paired calls."""
        self._begun = len(self.births)
        seen: dict[object, State] = {}
        top = _Scene(visits[0]) if visits else None
        scenes: dict[int, _Scene] = {}
        for _, leaving, visit in _moments(visits):
            records = readings.get(visit.id)
            if records is None or top is None:
                continue
            around = _around(visit, scenes)
            if not leaving:
                scene = scenes[id(visit)] = _Scene(visit)
                scene.parameters.join(parameters.get(visit.call.layer, Sources()))
                self._enter(scene, around, top, records, seen)
            else:
                self._leave(scenes[id(visit)], around or top, records, seen)

    def _enter(
        self,
        scene: _Scene,
        around: Optional[_Scene],
        top: _Scene,
        records: Sequence[Reading],
        seen: dict[object, State],
    ) -> None:
        layer, first = scene.visit.call.layer, scene.visit.call.first
        outer = around or top
        in_hand = outer.in_hand()
        for reading in records:
            if not is_input(reading.pair.key.slot):
                continue
            check = self._checks.get(reading.pair.key)
            if reading.covered and not (check is not None and check.fails and not reading.matched):
                self._know(scene, reading, in_hand, seen)
                continue
            if reading.pair.reference is None and layer in self._wrong:
                continue  # what the port's layer makes of what it alone is given is named there
            source = seen.get(_content(reading))
            sources = in_hand if source is None else _only(source)
            if around is None and (not top.inside or (self.held and not layer)):  # an evaluation may run before a step
                owner, where, between = layer, "data" if self.held else "inputs", None
            else:
                owner, where = (around.visit.call.layer if around is not None else ""), "glue"
                between = (self._before(outer), layer)
                if check is not None and check.where == where and owner in ancestors(check.owner):
                    owner, between = check.owner, check.between  # the port made it inside a layer that is of one piece
            birth = Birth(owner, where, reading, reading.pair.key, first, sources.error, between)
            state = self._judge(reading, sources, birth, first, outer.parameters)
            scene.inputs.add(state)
            scene.fed = True
            if reading.matched:
                seen[_content(reading)] = state
        if not scene.fed and around is not None:
            scene.inputs.join(in_hand)  # a layer whose inputs are not known could have got anything

    def _know(self, scene: _Scene, reading: Reading, in_hand: Sources, seen: Mapping[object, State]) -> None:
        """An input that stands in one dump only, or agrees in another form, but tells what the call had in hand."""
        if reading.matched:
            scene.fed = True
            if self._checks:  # agrees in effect, as far as a forced pass could see
                scene.inputs.reached_by(in_hand)
        elif reading.pair.reference is not None:
            source = seen.get(_content(reading))
            scene.inputs.join(in_hand if source is None else _only(source))
            scene.fed = True

    def _leave(self, scene: _Scene, outer: _Scene, records: Sequence[Reading], seen: dict[object, State]) -> None:
        call = scene.visit.call
        leaf = not scene.inside
        in_hand = scene.in_hand()
        agree = True
        for reading in records:
            if is_input(reading.pair.key.slot) or not reading.matched:
                continue
            if reading.covered:
                if self._checks:  # it ends at another value, and what follows may come of what it had in hand
                    outer.made.reached_by(in_hand)
                continue
            source = seen.get(_content(reading)) if not leaf else None
            sources = in_hand
            if source is not None and source.time >= call.first:
                sources = _only(source)
            where, between = ("layer", None) if leaf else ("glue", (self._before(scene), ""))
            where = Stage.LOSS.value if call.layer == LOSS else where
            owner, check = call.layer, self._checks.get(reading.pair.key)
            if leaf and check is not None and check.owner != owner:  # another layer was called in its place
                owner, where, between = check.owner, check.where, check.between
            elif check is not None and check.where == "layer":  # of one piece in the port
                where, between = "layer", None
            entry = reading.pair.entry
            birth = Birth(owner, where, reading, entry.key, entry.order, sources.error, between)
            state = self._judge(reading, sources, birth, entry.order, scene.parameters)
            outer.made.add(state)
            agree = agree and not state.over
            seen[_content(reading)] = state
        outer.inside.append((call.layer, agree))

    def _judge(self, reading: Reading, sources: Sources, birth: Birth, time: int, owned: Sources) -> State:
        """Born wrong, inherited, or within round-off. `owned` are the parameters of the layer whose doing it is."""
        check = self._checks.get(reading.pair.key)
        if check is not None and (check.isolated or not check.suspicious) and birth.where not in ("inputs", "data"):
            return self._judged(check, reading, sources, birth, time, owned)
        severity, own = reading.severity, max(reading.own, self._coarse)
        jump = LEAP if sources.births else JUMP
        jumped = severity > JUMP * own and severity >= jump * sources.severity and not sources.over
        if jumped or (reading.nonfinite and not sources.nonfinite):
            return replace(self._born(reading, birth), time=time)
        births: tuple[int, ...] = ()
        if severity > JUMP * own or reading.over:
            births = self._nearest(sources, SHARE * severity) or self._nearest(sources, 0.0)
            if not births and reading.over and reading.matched:
                return replace(self._born(reading, birth), time=time)
        if births:
            self._reaches(reading, births)
        return State(
            severity, reading.over, reading.nonfinite, reading.error if reading.matched else None, births, time
        )

    def _judged(
        self, check: Check, reading: Reading, sources: Sources, birth: Birth, time: int, owned: Sources
    ) -> State:
        """The same, known from the forced pass. A wrong parameter explains what its layer does wrong."""
        if check.fails and not owned.births:
            state = replace(self._born(reading, replace(birth, check=check)), time=time)
            little = check.hidden or check.error <= self._coarse
            small = little and check.deviation is not None and not self._tolerance.over(check.deviation)
            if small or check.by_cast:  # what is red from here on is red by rounding
                self.reached.pop(id(reading))
            return replace(state, births=()) if small and not check.by_cast else state
        births: tuple[int, ...] = ()
        if check.fails:
            births = tuple(owned.births)
        elif check.follows:
            same = [n for n, each in enumerate(self.births) if each.place[:2] == (check.owner, "glue")]
            known = tuple(n for n in same[-1:] if id(self.births[n].reading) in self.reached)  # the others are small
            births = known if same else self._nearest(sources, 0.0)
            if not births and reading.over:  # what it was given agrees in another form alone
                births = tuple(range(len(self.births))[-1:])
                self._of_later = self._of_later or not births
        elif reading.nonfinite and not (sources.nonfinite or sources.births):
            return replace(self._born(reading, birth), time=time)
        elif reading.severity > JUMP * max(reading.own, self._coarse) or reading.over:
            births = self._nearest(sources, SHARE * reading.severity) or self._nearest(sources, 0.0)
            births = births or self._steered(reading.pair.key)
        if births:
            self._reaches(reading, births)
        elif self._jumped(reading, sources, check):
            return replace(self._born(reading, birth), time=time)
        error = reading.error if reading.matched else None
        return State(reading.severity, reading.over, reading.nonfinite, error, births, time)

    def _steered(self, key: Key) -> tuple[int, ...]:
        """The birth of a plain number that the layer was given: what it does by that comes of no value, and what it
        calls inside need not be each other's from then on."""
        given = ((n, birth) for n, birth in enumerate(self.births) if birth.check is not None and birth.check.number)
        return tuple(n for n, birth in given if birth.key[:3] == key[:3] and birth.key.call <= key.call)[-1:]

    def _reaches(self, reading: Reading, births: tuple[int, ...]) -> None:
        """It goes back to these; to a place in a short type only if it is more than that rounds, grown."""
        told = [b for b in births if not self._rounds(self.births[b].check, reading)]
        if told:
            self.reached[id(reading)] = tuple(told)

    def _rounds(self, check: Optional[Check], reading: Reading) -> bool:
        if check is None or not check.by_cast:
            return False
        return reading.severity <= JUMP * LIMIT * LOW_PRECISION * (DTYPES[check.cast].eps or 0.0)

    def _jumped(self, reading: Reading, sources: Sources, check: Check) -> bool:
        """Whether no rounding makes so much of its sources. (An argument may be in another form.)"""
        if is_input(reading.pair.key.slot) or not reading.over or sources.nonfinite or self._of_later:
            return False
        own = max(reading.own, self._coarse)
        least = max(GROWN, GROWTH * max(sources.severity, own))
        if own > SHORT:
            least = min(least, max(LOST, LEAP * max(sources.severity, own)))
        return reading.severity > max(least, LIMIT * check.expected)

    def later(self, readings: Iterable[Reading], training: Training) -> Mapping[str, Sources]:
        """Gradients and updates of one step: each comes of what the stage before has handed on, or is born wrong.

        What the updates have left of each layer's parameters for the next step.
        """
        step, left = Step(training.held), dict[str, Sources]()
        earlier = [n for n in range(self._begun) if n not in self._of_weights]
        first = next((n for n in earlier if self.births[n].reading.over), None)
        free = bool(training) and not training.held
        for number in range(self._begun, len(self.births)):
            if free and first is not None and self.births[number].layer == LOSS:
                self._of_weights.add(number)
                self.reached[id(self.births[number].reading)] = (first,)
        made_here = (n for n in range(self._begun, len(self.births)) if n not in self._of_weights)
        # A loss that was given the reference's values spoils none.
        own = [n for n in made_here if not (training.held and self.births[n].where == Stage.LOSS.value)]
        ordered = in_time(readings)
        ends = (r for r in ordered if r.pair.reference is not None and is_end(r.pair.key))
        at_end = {_content(r): r.pair.key for r in ends}
        for reading in ordered:
            key, births = reading.pair.key, tuple[int, ...]()
            if reading.covered or not (reading.matched or training.is_alone(reading)):
                continue
            stage = training.stage(key)
            if stage is Stage.BACKWARD and _content(reading) in at_end:
                stage = Stage.LOSS
            if reading.over:
                owner = (key.layer, key.slot) if stage is Stage.PROGRAM else training.owner(key)
                same = (n for n in step.births.get(Stage.UPDATE, ()) if self.births[n].owner == owner)
                relayed = stage is Stage.LOSS and training.is_relayed(at_end.get(_content(reading), key))
                births = (*(same if stage is Stage.PROGRAM else ()), *step.sources(stage, own, earlier, relayed))[:1]
                if births and reading.matched:
                    self.reached[id(reading)] = births
                else:
                    layer = LOSS if stage is Stage.LOSS else key.layer
                    made = Birth(layer, stage.where, reading, key, reading.pair.entry.order, None)
                    self._born(reading, replace(made, owner=owner))
                    births = (len(self.births) - 1,)
                    step.add(stage, *births)
            if key.phase is Phase.UPDATE and not training.held:
                state = State(reading.severity, reading.over, reading.nonfinite, reading.error, births, 0)
                left.setdefault(key.layer, Sources()).add(state)
        return left

    def _before(self, scene: _Scene) -> str:
        """The last call inside so far whose outputs agree, "" for none; after a forced pass all of them do."""
        return next((path for path, agree in reversed(scene.inside) if agree or self._checks), "")

    def _nearest(self, sources: Sources, least: float) -> tuple[int, ...]:
        """Births that reach here through a source at least this bad: the worst first, then the latest."""
        near = [birth for birth, carried in sources.births.items() if carried >= least]
        return tuple(sorted(near, key=lambda b: (-sources.births[b], -self.births[b].order)))

    def _born(self, reading: Reading, birth: Birth) -> State:
        index = len(self.births)
        self.births.append(birth)
        self.reached[id(reading)] = (index,)
        error = reading.error if reading.matched else None
        return State(reading.severity, reading.over, reading.nonfinite, error, (index,), birth.order)


def _moments(visits: Sequence[Visit]) -> list[tuple[int, bool, Visit]]:
    """Entries and exits in time; a call that raised has no exit."""
    moments = [(visit.call.first, False, visit) for visit in visits]
    moments += [(visit.call.last, True, visit) for visit in visits if visit.call.last is not None]
    return sorted(moments, key=lambda moment: moment[0])


def _around(visit: Visit, scenes: Mapping[int, _Scene]) -> Optional[_Scene]:
    """The nearest call around this one that has a counterpart."""
    parent = visit.parent
    while parent is not None:
        if id(parent) in scenes:
            return scenes[id(parent)]
        parent = parent.parent
    return None


def _only(state: State) -> Sources:
    sources = Sources()
    sources.add(state)
    return sources


def _content(reading: Reading) -> object:
    """Equal for the same tensor seen in two places of the reference."""
    entry = reading.pair.reference
    return None if entry is None else entry.content

"""What two dumps tell of a training: the updates that end its steps, by which optimizer, with which settings."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from aligner.compare.later import Stage, is_end, is_handed_back, stage_of
from aligner.compare.summed import joined
from aligner.findings import TRAINING
from aligner.record import Attribute, Key, Phase
from aligner.training import losses
from aligner.words.training import BY_PROGRAM, LOSS, NETS

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

Call = tuple[int, str, int]
"""Step, layer and number."""

Owner = tuple[str, str]
"""A parameter by layer and role."""

HELD = "held_stages"
"""In a port's header: what one stage of its steps handed on was put right before the next one took it."""


@dataclass(frozen=True)
class Update:
    """One update by one optimizer."""

    step: int
    optimizer: int
    kind: str
    type: str
    settings: Mapping[Owner, Mapping[str, Attribute]]
    """Of each parameter that it updates."""
    without: frozenset[Owner]
    """Parameters that it has been given no gradient of."""
    count: int = 0
    """Updates that it had made before."""
    norm: Optional[float] = None
    """Of all gradients together."""


class Training:
    """Of both sides."""

    def __init__(self, reference: Dump, port: Dump) -> None:
        self._dumps = reference, port
        self.updates = updates(reference), updates(port)
        self.held = port.header.get(HELD) is True
        owners = (owner for side in self.updates for one in side for owner in one.settings)
        self._optimized = frozenset(owners)
        self._times: list[float] = []
        told = (dump.header.get("others") for dump in self._dumps)
        self.others = [name for one in told if isinstance(one, list) for name in one if isinstance(name, str)]
        """Nets beside the one that was captured: a loss may be made of what they hand on."""
        self.hidden = False
        """Whether a loss is off and was not judged for their sake."""
        self.rooted: dict[Owner, float] = {}
        """Parameters that move otherwise for where the port's optimizer adds its eps alone, and that."""
        self._runs = [Counter(call.step for call in dump.calls if call.layer == LOSS) for dump in self._dumps]
        self._called: list[dict[int, set[int]]] = [defaultdict(set), defaultdict(set)]
        """The numbers of the nets' calls by step."""
        for side, dump in zip(self._called, self._dumps):
            for call in dump.calls:
                if not call.layer:
                    side[call.step].add(call.number)
        self._last = [max(side, default=0) for side in self._called]
        """The steps in which the nets were called last."""
        self._ends = [math.inf if dump.complete else max(dump.steps, default=0) for dump in self._dumps]
        """The step in which a capture ended early: what is not recorded in it may have come to pass all the same."""
        self.joined = joined(reference, port)
        """The steps whose losses the port differentiates as one."""
        self._later: Optional[dict[int, int]] = None
        """The last call of the reference's net, by step, that hands a gradient on to what it was called on."""
        self._paired: Union[tuple[()], tuple[set[Call], set[Call]]] = ()
        """Of several nets the calls of both sides that have a counterpart."""
        self.ports: dict[Owner, Owner] = {}
        """The port's parameters by the reference's."""

    def pair(self, readings: Iterable[Reading]) -> None:
        """Learn which parameter of the port is which of the reference's, and of several nets which calls."""
        self._paired = (set[Call](), set[Call]()) if NETS in self._dumps[0].header else ()
        for reading in readings:
            one, other = reading.pair.reference, reading.pair.port
            if one is None or other is None:
                continue
            if one.key.phase is Phase.PARAMETER:
                self.ports[one.key.layer, one.key.slot] = other.key.layer, other.key.slot
            elif one.key.phase is Phase.FORWARD:
                for side, entry in zip(self._paired, (one, other)):
                    side.add(_call(entry.key))

    def __bool__(self) -> bool:
        return any(self.updates)

    def stage(self, key: Key) -> Stage:
        """By which stage a record was made."""
        return stage_of(key, self._optimized)

    def is_relayed(self, key: Key) -> bool:
        """Whether the gradient at what the net hands on may have come back through a later call of it in this step, as
        a discriminator's comes back to the generator."""
        if self._later is None:
            taken = (e.key for e in self._dumps[0].entries if is_handed_back(e.key))
            self._later = {key.step: key.call for key in sorted(taken)}
        return is_end(key) and key.call < self._later.get(key.step, 0)

    def ends(self, step: int) -> Sequence[Key]:
        """The gradients at what a step's first loss is made of: of several losses that of the net's first call."""
        found = (e.key for e in self._dumps[0].entries if e.key.step == step and is_end(e.key))
        single = self._runs[0][step] == 1 or step in self.joined
        return sorted(key for key in found if (single or not key.call) and not self.is_relayed(key))

    def owner(self, key: Key) -> Optional[Owner]:
        """The parameter that a record of an update, or of what an optimizer is given, belongs to."""
        if key.phase not in (Phase.GRADIENT, Phase.UPDATE):
            return None
        roles = key.slot, key.slot.rpartition(".")[0]
        return next(((key.layer, role) for role in roles if (key.layer, role) in self._optimized), None)

    def loss(self, side: int, step: int) -> Optional[float]:
        """A step's first loss, or all of them that the port differentiates as one."""
        if step in self.joined:
            return losses.whole(self._dumps[side], step)
        return losses.value(self._dumps[side].find(Key(step, Phase.FORWARD, LOSS, 0, "output.0")))

    def scale(self, step: int, side: Optional[int] = None) -> float:
        """What a side's loss is multiplied by before the backward run; or how many times the reference's the port's.
        What the port's loss itself is multiplied by counts as the port's."""
        if side is None:
            return self.scale(step, 1) / self.scale(step, 0)
        return self._seed(step, side) * (self.times(step) if side else 1.0)

    def times(self, step: int) -> float:
        """How many times the reference's the port's loss is by the way it is written."""
        while len(self._times) <= step:
            at, known = len(self._times), self._times[-1] if self._times else 1.0
            ours = losses.value(self._dumps[1].find(Key(at, Phase.FORWARD, LOSS, 0, "output.0")))
            call = None if at in self.joined else 0
            self._times.append(known if ours is None else losses.times(self._dumps[0], at, call, ours, known))
        return self._times[step]

    def _seed(self, step: int, side: int) -> float:
        entry = self._dumps[side].find(Key(step, Phase.BACKWARD, LOSS, 0, "output.0"))
        found = float(entry.load().reshape(-1)[0]) if entry is not None and math.prod(entry.shape) == 1 else 1.0
        return found if found and math.isfinite(found) else 1.0

    def apart(self, given: Iterable[Reading]) -> float:
        """From which step on the port's steps are made of other calls of the net than the reference's: of batches of
        another size, or an evaluation is in another step."""
        shapes = ((r.pair.key.step, r.pair.reference, r.pair.port) for r in given)
        steps = [step for step, one, two in shapes if one is not None and two is not None and one.shape != two.shape]
        ours, theirs = self._called
        if self.held:
            steps += [step for step in range(min(self._last)) if self._is_called_otherwise(ours[step], theirs[step])]
        return min(steps, default=math.inf)

    def _is_called_otherwise(self, ours: Set[int], theirs: Set[int]) -> bool:
        """Of several nets the port may call one once more: its calls have the numbers of the reference's."""
        return not ours <= theirs if NETS in self._dumps[0].header else ours != theirs

    def is_moved(self, key: Key) -> bool:
        """Whether a record, of a step that is made of other calls, comes of these: what is treated or updated behind as
        many backward runs as the reference makes was held, and is judged."""
        runs = {side[key.step] for side in self._runs}
        return key.phase in (Phase.FORWARD, Phase.BACKWARD) or (key.phase is Phase.GRADIENT and len(runs) > 1)

    def is_kept(self, key: Key) -> bool:
        """Whether a record is what an optimizer keeps of a parameter behind an update: one may keep more than the
        other, and what it makes of that shows in the parameter."""
        owner = self.owner(key)
        return key.phase is Phase.UPDATE and owner is not None and owner[1] != key.slot

    @property
    def one_sided(self) -> Optional[int]:
        """The side that was captured without its training, where the other one has one."""
        without = [side for side in (0, 1) if not self.updates[side]]
        return without[0] if len(without) == 1 else None

    def is_alone(self, reading: Reading) -> bool:
        """Whether it is a parameter that one side's optimizer or program updates and the other side's does not."""
        key = reading.pair.key
        if key.phase is not Phase.UPDATE or reading.matched:
            return False
        owner = (key.layer, key.slot) if key.call == BY_PROGRAM else self.owner(key)
        both = all(self.of_step(side, key.step) for side in (0, 1))  # a side that has no such step tells nothing
        both = both or self.skipped(key.step) is not None
        lacking = 0 if reading.pair.reference is None else 1
        both = both and key.step < (self._last if key.call == BY_PROGRAM else self._ends)[lacking]
        return both and owner is not None and owner[1] == key.slot

    def is_behind(self, reading: Reading) -> bool:
        """Whether it is what one side's program makes behind the last step that the other one begins."""
        key = reading.pair.key
        return key.phase is Phase.UPDATE and key.call == BY_PROGRAM and not self.is_alone(reading)

    def is_called_alone(self, reading: Reading) -> bool:
        """Whether it is a gradient in a call of one of several nets that has no counterpart."""
        key = reading.pair.key
        inside = key.slot.startswith(("input.", "output.")) and key.layer != LOSS
        side = 0 if reading.pair.port is None else 1
        return bool(self._paired) and key.phase is Phase.BACKWARD and inside and _call(key) not in self._paired[side]

    def is_unmoved(self, key: Key) -> bool:
        """Whether it is the gradient of a parameter that no optimizer moves in this step, of a net that is trained in
        others: one side's backward run makes it, the other's is not asked for it."""
        if key.phase is not Phase.BACKWARD or key.slot.startswith(("input.", "output.")) or key.layer == LOSS:
            return False
        moved = [self.settings(side, key.step) for side in (0, 1)]
        return all(moved) and not any((key.layer, key.slot) in one for one in moved)

    def skipped(self, step: int) -> Optional[int]:
        """The side that has made no update in a step, where the other one has: of gradients that are not finite."""
        made = [bool(self.of_step(side, step)) for side in (0, 1)]
        if any(step >= end and not there for end, there in zip(self._ends, made)):
            return None
        return made.index(False) if any(made) and not all(made) and all(self._runs[s][step] for s in (0, 1)) else None

    def unused(self, step: int) -> bool:
        """Whether a side has made no update of what its backward runs made."""
        return not all(self.of_step(side, step) for side in (0, 1)) and all(step in self.steps(side) for side in (0, 1))

    def steps(self, side: int) -> Sequence[int]:
        """Those that were ended by an update, or whose update was skipped."""
        last = max((one.step for one in self.updates[side]), default=-1)
        return [step for step in range(last + 1) if self._runs[side][step] or self.of_step(side, step)]

    def norm(self, side: int, step: int) -> Optional[float]:
        """Of all gradients that a step's optimizers are given."""
        norms = [one.norm for one in self.of_step(side, step)]
        known = [norm for norm in norms if norm is not None]
        return math.sqrt(sum(norm * norm for norm in known)) if known and len(known) == len(norms) else None

    def of_step(self, side: int, step: int) -> Sequence[Update]:
        """The updates that end a step."""
        return [one for one in self.updates[side] if one.step == step]

    def settings(self, side: int, step: int) -> Mapping[Owner, tuple[Update, Mapping[str, Attribute]]]:
        """What a side's optimizers are told to do with each parameter in this step, by the reference's parameter."""
        whose = {port: reference for reference, port in self.ports.items()} if side else {}
        return {
            whose.get(owner, owner): (one, settings)
            for one in self.of_step(side, step)
            for owner, settings in one.settings.items()
        }


def _call(key: Key) -> Call:
    return key.step, key.layer, key.call


def as_it_begins(dump: Dump, key: Key, kept: bool = False) -> Optional[Entry]:
    """A parameter, or with `kept` what an optimizer keeps of one, as the key's step begins: what the last update of it
    has left, and the program behind that."""
    for step in range(key.step - 1, -1, -1):
        for call in (BY_PROGRAM, 0):
            entry = dump.find(key._replace(step=step, phase=Phase.UPDATE, call=call))
            if entry is not None:
                return entry
    return dump.find(key._replace(step=0, phase=Phase.GRADIENT if kept else Phase.PARAMETER))


def updates(dump: Dump) -> Sequence[Update]:
    """Those of one dump, which anybody may have written: what cannot be read is left out."""
    found: list[Update] = []
    for kind, facts in dump.findings:
        if kind == TRAINING:
            made = _update(facts, found)
            found += [made] if made is not None else []
    return found


def _update(facts: Mapping[str, Any], earlier: Sequence[Update]) -> Optional[Update]:
    step, optimizer = facts.get("step"), facts.get("optimizer")
    if type(step) is not int or type(optimizer) is not int:
        return None
    like = next((one for one in earlier if (one.step, one.optimizer) == (facts.get("like"), optimizer)), None)
    settings: dict[Owner, Mapping[str, Attribute]] = {}
    for group in _rows(facts.get("groups")):
        named = group.get("settings") if isinstance(group, Mapping) else None
        plain = {str(name): value for name, value in named.items()} if isinstance(named, Mapping) else {}
        settings.update(dict.fromkeys(_owners(group.get("parameters")), plain) if isinstance(group, Mapping) else {})
    without = frozenset(_owners(facts.get("without")))
    if like is not None:
        settings, without = dict(like.settings), like.without
    count = facts.get("count")
    told = str(facts.get("kind")), str(facts.get("type"))
    norm = facts.get("norm")
    counted = count if type(count) is int else 0
    return Update(step, optimizer, *told, settings, without, counted, norm if isinstance(norm, float) else None)


def _rows(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _owners(value: Any) -> list[Owner]:
    rows = [row for row in _rows(value) if isinstance(row, (list, tuple)) and len(row) == 2]
    return [(str(layer), str(role)) for layer, role in rows]

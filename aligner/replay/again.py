"""An update that came out wrong, made again by an optimizer with other settings: what puts it right is proved so.

Everything an update begins with is the reference's: parameters, gradients, what is kept of them. What it makes of that
is set against what the reference's made, as a part of what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional, Protocol, cast

import numpy as np

from aligner.adapter import Adapter, Group, Optimizer, Parameter, Trains
from aligner.compare.training import Update, updates
from aligner.compare.updating import UPDATES
from aligner.dtypes import DTYPES, decode
from aligner.findings import TRIAL
from aligner.record import Array, Attribute, Key, Phase
from aligner.training.rules import Before, nearer, updated
from aligner.training.settings import OPTIMIZED, Difference, differences
from aligner.words.optimizers import EPS_FIRST, KEPT, STEP

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.items import Slot

Owner = tuple[str, str]
Settings = Mapping[Owner, Mapping[str, Attribute]]

RIGHT = 2e-5
"""An update is right that is off by no more than this part of what it changes, or than its type rounds."""

STORED = 10.0
"""The same in what the type rounds of the parameter."""

SIGNATURES = 4
"""Kinds of wrong updates that are made again: each differs from the reference's by other settings."""

TOGETHER = 3
"""Settings that are changed together, at most."""

KIND = "kind"
"""The rule itself, as if it were a setting."""


class Values(Protocol):
    """The reference's records in the port's form."""

    def owner(self, parameter: Parameter) -> Optional[Slot]: ...
    def value(self, parameter: Parameter, key: Key, word: str = "") -> Optional[tuple[Array, str]]: ...
    def begun(self, parameter: Parameter, step: int, word: str = "") -> Optional[tuple[Array, str]]: ...
    def like(self, array: Array, dtype: str, like: object, times: float) -> object: ...


class Again:
    """Of the optimizers of one port."""

    def __init__(
        self,
        reference: Dump,
        adapter: Adapter,
        model: object,
        values: Values,
        tell: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.adapter, self.values, self._tell = adapter, values, tell
        self.trains = cast(Trains, adapter)
        self._all = [one for one in adapter.parameters(model) if not one.buffer]
        self._updates = updates(reference)
        self._seen: set[object] = set()
        self._eps_first = False

    def tried(self, step: int, optimizer: object, view: Optimizer) -> None:
        """Where the update that has just been made is wrong, make it again with settings of the reference's."""
        if len(self._seen) >= SIGNATURES:
            return
        told = {id(tensor): group.settings for group in view.groups for tensor in group.parameters}
        theirs = {_owner(one): told[id(one.tensor)] for one in self._all if id(one.tensor) in told}
        ours, kind, count = self._wanted(step)
        if not theirs or not ours:
            return
        self._eps_first = any(group.settings.get(EPS_FIRST) is True for group in view.groups)
        mine = [one for one in self._all if _owner(one) in theirs or _owner(one) in ours]
        before = self.errors(step, mine)
        wrong = [owner for owner, error in before.items() if error > RIGHT]
        found = [*_members(ours, theirs), *differences(ours, theirs, ours)]
        found = [one for one in found if {*one.owners} & {*wrong}]
        signature = (kind, view.kind, tuple((one.setting, one.reference, one.port) for one in found))
        if not wrong or signature in self._seen or not (found or kind != view.kind):
            return
        self._seen.add(signature)
        self._make_again(found, _Run(self, step, optimizer, view, mine, count), (ours, kind), theirs)

    def _make_again(
        self, found: Sequence[Difference], run: _Run, wanted: tuple[Settings, str], theirs: Settings
    ) -> None:
        """With one setting after the other, then with several of them together, until it comes out right."""
        ours, kind = wanted
        worst = max(self.errors(run.step, run.mine).values())
        changes: list[tuple[Difference, ...]] = [
            some for size in range(1, TOGETHER + 1) for some in combinations(found[: TOGETHER + 1], size)
        ]
        # One setting of several groups, a rate that falls layer by layer, is one mistake.
        alike = [tuple(one for one in found if one.setting == word) for word in {one.setting: 0 for one in found}]
        changes += [some for some in alike if len(some) > 1 and some not in changes]
        if kind != run.kind:
            changes = [tuple(found)]
        for some in changes:
            after = run.error(kind, _changed(theirs, ours, some))
            if after is None:
                return
            proved = after <= RIGHT
            rows = [{one.setting: one.reference} for one in some if proved or len(some) == 1]
            rows += [{KIND: kind}] if proved and kind != run.kind else []
            for change in rows:
                facts = {"change": change, "before": worst, "after": after, "proved": proved}
                self._tell(TRIAL, {"layer": UPDATES, "suspect": "", "step": run.step, **facts})
            if proved:
                return

    def _wanted(self, step: int) -> tuple[Settings, str, int]:
        """What the reference's optimizers are told to do in this step; of the first of them the kind, and how many
        updates it had made before."""
        here: list[Update] = [one for one in self._updates if one.step == step]
        settings: dict[Owner, Mapping[str, Attribute]] = {}
        for parameter in self._all:
            slot = self.values.owner(parameter)
            known = (one.settings[slot] for one in here if slot is not None and tuple(slot) in one.settings)
            found = next(known, None)
            if found is not None:
                settings[_owner(parameter)] = found
        if not here:
            return settings, "", 0
        seen = sum(one.optimizer == here[0].optimizer and one.step < step for one in self._updates)
        return settings, here[0].kind, max(here[0].count, seen)

    def errors(self, step: int, mine: Iterable[Parameter]) -> dict[Owner, float]:
        """How far off each parameter is now from what the reference's update made, as a part of what that changed."""
        found: dict[Owner, float] = {}
        for parameter in mine:
            before = self.values.begun(parameter, step)
            wanted = self.values.value(parameter, Key(step, Phase.UPDATE, "", 0, "")) or before
            if wanted is None or before is None:
                continue
            right, first = (np.asarray(decode(*one), np.float64) for one in (wanted, before))
            own = np.asarray(decode(self.adapter.read(parameter), parameter.dtype), np.float64)
            change = float(np.linalg.norm(right - first))
            ways = (right, *self._by_rule(step, parameter, first))
            off = min(float(np.linalg.norm(own - nearer(own, one, right))) for one in ways)
            stored = STORED * (DTYPES[wanted[1]].eps or 0.0) * float(np.linalg.norm(right))
            found[_owner(parameter)] = 0.0 if off <= stored else off / change if change else 1.0
        return found

    def _by_rule(self, step: int, parameter: Parameter, first: Any) -> list[Any]:
        """What the reference's settings come to in an optimizer that adds its eps first, if the port's does."""
        if not self._eps_first:
            return []
        slot = self.values.owner(parameter)
        owner = ("", "") if slot is None else (slot.layer, slot.role)
        known = [one for one in self._updates if one.step == step and owner in one.settings]
        given = self.values.value(parameter, Key(step, Phase.GRADIENT, "", 0, ""))
        if not known or given is None:
            return []
        state = {}
        for word in KEPT:
            kept = self.values.begun(parameter, step, word)
            state.update({} if kept is None else {word: np.asarray(decode(*kept), np.float64)})
        begun = Before(first, np.asarray(decode(*given), np.float64), state, known[0].count)
        made = updated(known[0].kind, {**known[0].settings[owner], EPS_FIRST: True}, begun)
        return [] if made is None else [made]


class _Run:
    """One wrong update, to be made again."""

    def __init__(
        self, again: Again, step: int, optimizer: object, view: Optimizer, mine: Sequence[Parameter], count: int
    ) -> None:
        self._again, self.step, self._optimizer, self._view, self.mine = again, step, optimizer, view, mine
        self._count = count

    @property
    def kind(self) -> str:
        return self._view.kind

    def error(self, kind: str, settings: Settings) -> Optional[float]:
        """How far off the worst parameter is with these settings; None where it cannot be made so.

        The parameters are then what that update has made of them.
        """
        again, values = self._again, self._again.values
        groups = _groups(settings, [one for one in self.mine if _owner(one) in settings])
        ordered = [parameter for _, those in groups for parameter in those]
        kept, gradients = [], []
        for parameter in self.mine:
            first = values.begun(parameter, self.step)
            if first is None:
                return None
            again.adapter.load(parameter, *first)
        for parameter in ordered:
            given = values.value(parameter, Key(self.step, Phase.GRADIENT, "", 0, ""))
            if given is None:
                return None
            gradients.append(values.like(*given, parameter.tensor, 1.0))
            for word in dict.fromkeys(word for _, word, _ in self._view.state if word != STEP):
                state = values.begun(parameter, self.step, word)
                if state is not None:
                    kept.append((parameter.tensor, word, values.like(*state, parameter.tensor, 1.0)))
        try:
            wanted = [Group(told, [parameter.tensor for parameter in those]) for told, those in groups]
            again.trains.rebuilt(self._optimizer, kind, wanted, kept, self._count)(gradients)
        except Exception:  # a constructor's affair: not every rule can be told so
            return None
        return max(again.errors(self.step, self.mine).values(), default=None)


def _owner(parameter: Parameter) -> Owner:
    return parameter.layer, parameter.role


def _members(ours: Settings, theirs: Settings) -> list[Difference]:
    """Parameters that one side's optimizers alone have."""
    found = (
        (True, [owner for owner in ours if owner not in theirs]),
        (False, [owner for owner in theirs if owner not in ours]),
    )
    return [Difference(OPTIMIZED, wanted, not wanted, tuple(those)) for wanted, those in found if those]


def _changed(settings: Settings, wanted: Settings, some: Sequence[Difference]) -> Settings:
    """The settings with these as the reference has them."""
    made = {owner: dict(told) for owner, told in settings.items()}
    for one in some:
        for owner in one.owners:
            if one.setting == OPTIMIZED and not one.reference:
                del made[owner]
            elif one.setting == OPTIMIZED:
                made[owner] = dict(wanted[owner])
            else:
                made[owner][one.setting] = one.reference
    return made


def _groups(settings: Settings, mine: Sequence[Parameter]) -> list[tuple[Mapping[str, Attribute], list[Parameter]]]:
    """Parameters of equal settings."""
    found: list[tuple[Mapping[str, Attribute], list[Parameter]]] = []
    for parameter in mine:
        told = settings[_owner(parameter)]
        for known, those in found:
            if known == told:
                those.append(parameter)
                break
        else:
            found.append((told, [parameter]))
    return found

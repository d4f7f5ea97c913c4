"""The edits that put the port's own code right, each proved by running the code with it.

Of each call of a layer whose code is wrong, in the order of the run: hear it, look for edits of the first wrong value,
run each; the least that puts it right and makes no other wrong is taken, until all is right. What leaves something
wrong is no proof. Then the other calls that run the same code are run with the edits as well.
"""

from __future__ import annotations

import difflib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import LIMIT, OTHER_BORDER, OTHER_FORM, Check
from aligner.compare.net import CallId
from aligner.fingerprint import distances
from aligner.mending.events import LAYER, Story
from aligner.mending.heard import Heard
from aligner.mending.matching import AGREE, Matching
from aligner.mending.ranking import TRIALS, Ranking
from aligner.mending.running import Ground, Parent, Running
from aligner.mending.search import Candidate, Search
from aligner.mending.sources import Sources
from aligner.mending.texts import Texts
from aligner.mending.theirs import Theirs
from aligner.record import Call, Key, Phase
from aligner.source.functions import source
from aligner.words.spelling import MINDSPORE, TORCH

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

RIGHT = 2e-6
"""What may be left where an edit is proved: clean code stays below 1e-6, and a second normalisation in a row, which is
a mistake, changes no more than 3e-6."""

DEPTH = 4
"""Mistakes in one layer's code that are looked for, one after the other."""

FALL = 5.0
"""The error must be this many times smaller."""

CALLS = 48
"""Other calls that are run with an edit."""

LEAST_SIZE = 4
"""Smaller numbers are axes and counts more often than sizes."""

_WHOLE = re.compile(r"(?<![\w.])\d+(?![\w.])")

FORMS = (OTHER_BORDER, OTHER_FORM)
"""Reasons of checks that say no more than that the value has another form, or is another one."""

SECONDS = 60.0
"""What all of this may take; then what is left is not looked into, and it is said."""


@dataclass
class Mended:
    """What came of one call's code. `like` is the call whose edits put this one right as well."""

    owner: str
    call: Call
    check: Check
    before: float
    after: float
    trials: int = 0
    why: tuple[str, ...] = ()
    proved: bool = False
    edits: Sequence[Mapping[str, Any]] = ()
    broken: Sequence[str] = ()
    """Layers that run the same lines and are right, and would not be with the edits."""
    like: str = ""
    sizes: Sequence[int] = ()
    """Numbers that the edits write, and that are sizes of the values at hand."""

    @property
    def facts(self) -> dict[str, Any]:
        """Plain facts for a dump."""
        key = self.check.key
        facts: dict[str, Any] = {
            "layer": self.owner,
            "at": [key.step, key.layer, key.call, key.slot],
            "before": self.before,
            "after": self.after,
            "proved": self.proved,
            "trials": self.trials,
        }
        for name in ("edits", "why", "broken", "sizes"):
            if getattr(self, name):
                facts[name] = [*getattr(self, name)]
        return {**facts, "like": self.like} if self.like else facts


@dataclass
class _Group:
    """A call of a layer with the values of its code."""

    owner: str
    call: Call
    checks: list[Check] = field(default_factory=list)

    @property
    def fails(self) -> bool:
        return any(check.fails for check in self.checks)


class Mending:
    """Looks for edits of a port that has been through the forced pass."""

    def __init__(
        self,
        adapter: Adapter,
        model: Any,
        ground: Ground,
        reference: Dump,
        port: Dump,
        checks: Iterable[Check],
        own: Callable[[str], bool],
    ) -> None:
        self._adapter, self._ground, self._reference = adapter, ground, reference
        self._plan = ground.plan
        calls = [call for call in port.calls if call.phase is Phase.FORWARD]
        self._running = Running(adapter, model, ground)
        self._theirs = Theirs(reference, {*self._plan.calls.values()}, {*self._plan.layers.values()})
        self._groups = self._grouped(checks, calls, own)
        self._sources = Sources({})
        self._ports = {one: other for other, one in reversed([*self._plan.layers.items()])}
        self._started = time.monotonic()
        self.spent = False
        """The time was over before all was looked into."""

    def _grouped(self, checks: Iterable[Check], calls: Iterable[Call], own: Callable[[str], bool]) -> list[_Group]:
        known = {(call.step, call.layer, call.number): call for call in calls}
        ports = {one: other for other, one in reversed([*self._plan.layers.items()])}
        found: dict[int, _Group] = {}
        for check in checks:
            call = known.get((check.port.step, check.port.layer, check.port.call))
            if call is None or check.where == "inputs" or (check.where == "layer" and not own(check.port.layer)):
                continue
            if check.where == "glue":
                try:
                    call = self._ground.around(call, ports.get(check.owner, check.owner))
                except StopIteration:
                    continue
            found.setdefault(call.first, _Group(check.owner, call)).checks.append(check)
        return [found[first] for first in sorted(found)]

    def mended(self) -> Iterator[Mended]:
        """What came of each wrong call, in the order of the run."""
        in_vain: set[type] = set()
        heads: dict[type, str] = {}
        with self._running.installed():
            for group in self._groups:
                kind = type(self._ground.layer(group.call.layer))
                if not group.fails or kind in in_vain:
                    continue
                if self._is_over():
                    return
                parent = self._running.parent(group.call, group.checks)
                try:
                    found = self._one(group, parent)
                except Exception:  # code that cannot be run again is not mended
                    continue
                if found is not None and found.like:
                    found.like = heads.get(kind) or [*heads.values()][-1]
                elif found is not None and found.proved and not found.broken:
                    heads[kind] = found.owner
                if found is not None:
                    in_vain |= set() if found.proved else {kind}
                    yield found

    def _is_over(self) -> bool:
        self.spent = time.monotonic() - self._started > SECONDS
        return self.spent

    def _one(self, group: _Group, parent: Parent) -> Optional[Mended]:
        wrong = _wrong(group.checks, parent.trial(Sources({})))
        if not wrong:
            return None
        first = wrong[0]
        before = parent.trial(Sources({})).get(first.port, math.inf)
        if self._sources.texts:
            left = parent.trial(self._sources)
            if not _wrong(group.checks, left):
                return Mended(
                    group.owner, group.call, first, before, left.get(first.port, math.inf), proved=True, like="*"
                )
        counterpart = self._plan.calls.get(CallId(group.call.layer, group.call.number))
        ours = self._call(group.call.step, counterpart)
        if ours is None:
            return None
        story = self._theirs.story(ours)
        sources, trials, why = self._sources, 0, list[str]()
        for _ in range(DEPTH):
            result = self._step(group, parent, story, sources)
            trials += result[2]
            if result[0] is None:
                break
            sources = result[1]
            why.append(result[0].why)
            if not _wrong(group.checks, parent.trial(sources)):
                break
        left = parent.trial(sources)
        if not why or _wrong(group.checks, left):
            return Mended(group.owner, group.call, first, before, before, trials)
        broken = [*self._broken(group, sources)]
        edits = [*hunks(self._sources, sources)]
        if not broken:
            self._sources = sources
        return Mended(
            group.owner,
            group.call,
            first,
            before,
            left.get(first.port, math.inf),
            trials,
            tuple(why),
            True,
            edits,
            broken,
            sizes=sizes(edits, story.shapes),
        )

    def _step(
        self, group: _Group, parent: Parent, story: Story, sources: Sources
    ) -> tuple[Optional[Candidate], Sources, int]:
        """The least edit that puts the first wrong value right and makes no other wrong."""
        heard, state = parent.heard(sources)
        last = len(heard.story.events)
        wrong = _wrong(group.checks, state.errors)
        wrong.sort(key=lambda check: state.at[check.port][0] if check.port in state.at else last)
        names = {check.port for check in wrong}
        trials = 0
        for check in wrong[:2]:
            best: Optional[tuple[float, Candidate, Sources]] = None
            for one in self._candidates(check, heard, state, story, sources):
                if self._is_over() or (best is not None and one.cost >= best[0]):
                    continue
                trials += 1
                after = self._tried(parent, one, sources)
                before = state.errors.get(check.port, math.inf)
                if after is None or not _is_right(check, after[0].get(check.port), before):
                    continue
                left = {bad.port for bad in _wrong(group.checks, after[0])}
                if left <= names - {check.port}:
                    price = one.cost + 6.0 * len(left) + 3.0 * (not self._witnessed(parent, story, after[1], one))
                    if best is None or price < best[0]:
                        best = price, one, after[1]
            if best is not None:
                return best[1], best[2], trials
        return None, sources, trials

    def _candidates(self, check: Check, heard: Heard, state: Any, story: Story, sources: Sources) -> list[Candidate]:
        entry = self._reference.find(check.against) if check.against is not None else self._plan.entries.get(check.port)
        entry = entry or self._reference.find(check.key)
        if entry is None:
            return []
        lacks = check.port not in state.at
        user = state.users.get(CallId(check.port.layer, check.port.call))
        if lacks and (user is None or not user.operands):
            return []
        cut, end = (len(heard.story.events), user) if lacks else state.at[check.port]
        wanted = self._theirs.number(story, entry)
        found = user.operands[0] if lacks and user is not None else state.found[check.port]
        events = heard.story.events[:cut]
        matching = Matching(story, heard.story, events, wanted, found, state.errors.get(check.port, math.inf))
        side = TORCH if self._adapter.name in ("torch", "mindtorch") else MINDSPORE
        texts = Texts(self._adapter, matching, heard, sources, side, self._layer)
        search = Search(matching, texts, sources, end)
        if lacks and user is not None:
            return [*search.given(user, check.key.slot, wanted)]
        found_now = Ranking(matching, end).ranked(search.candidates()[:400])
        known = {one.edits for one in found_now}
        return found_now + [one for one in search.blind() if one.edits not in known][: TRIALS // 2]

    def _layer(self, reference: str) -> Optional[object]:
        """The port's layer."""
        return self._ground.layer(self._ports.get(reference, reference))

    @staticmethod
    def _tried(parent: Parent, one: Candidate, sources: Sources) -> Optional[tuple[Mapping[Key, float], Sources]]:
        try:
            trial = sources.edited(one.edits)
            return parent.trial(trial), trial
        except Exception:  # an edit that cannot run proves nothing
            return None

    @staticmethod
    def _witnessed(parent: Parent, story: Story, trial: Sources, one: Candidate) -> bool:
        """What the edited code makes, each time, is a value of the reference's too: no numbers that fit by chance."""
        heard, _ = parent.heard(trial)
        moved = 0
        for edit in sorted(one.edits):
            start = edit.start + moved
            stop = start + len(edit.new)
            moved += len(edit.new) - (edit.end - edit.start)
            around = [
                (last - first, number, event)
                for number, event in enumerate(heard.story.events)
                if event.site is not None and event.node is not None and event.site.file == edit.file and event.results
                for first, last in [trial.span(edit.file, event.node)]
                if first <= start and stop <= last and event.word != LAYER
            ]
            least = min((size for size, *_ in around), default=0)
            made = [heard.story.values[event.results[0]] for size, _, event in around if size == least]
            if made and not (distances(story.values, made, turned=False).min(axis=0) <= AGREE).all():
                return False
        return True

    def _broken(self, group: _Group, sources: Sources) -> Iterator[str]:
        """Layers whose code was right and is not, with these edits."""
        others = [one for one in self._groups if one is not group and not one.fails]
        kind = type(self._ground.layer(group.call.layer))
        others.sort(key=lambda one: type(self._ground.layer(one.call.layer)) is not kind)
        for other in others[:CALLS]:
            try:
                parent = self._running.parent(other.call, other.checks)
                was = {check.port for check in _wrong(other.checks, parent.trial(self._sources))}
                left = {check.port for check in _wrong(other.checks, parent.trial(sources))}
            except Exception:
                yield other.owner
                continue
            if left - was:
                yield other.owner

    def _call(self, step: int, wanted: Optional[CallId]) -> Optional[Call]:
        calls = (call for call in self._reference.calls if call.phase is Phase.FORWARD and call.step == step)
        return next((call for call in calls if wanted == CallId(call.layer, call.number)), None)


def _limit(check: Check) -> float:
    return max(RIGHT, LIMIT * check.expected)


def _wrong(checks: Iterable[Check], errors: Mapping[Key, float]) -> list[Check]:
    """Values that are off, and those that were not made."""
    return [
        check for check in checks if check.reason not in FORMS and not errors.get(check.port, math.inf) <= _limit(check)
    ]


def _is_right(check: Check, error: Optional[float], before: float) -> bool:
    return error is not None and error <= _limit(check) and error * FALL <= before


def sizes(edits: Iterable[Mapping[str, Any]], shapes: Iterable[Sequence[int]]) -> list[int]:
    """Whole numbers that come with these edits and are sizes of values: right for this input, maybe for no other."""
    came, went = Counter[int](), Counter[int]()
    for edit in edits:
        for lines, found in ((edit["after"], came), (edit["before"], went)):
            found.update(int(word) for line in lines for word in _WHOLE.findall(line))
    known = {size for shape in shapes for size in shape if size >= LEAST_SIZE}
    return sorted({*(came - went)} & known)


def hunks(old: Sources, new: Sources) -> Iterator[Mapping[str, Any]]:
    """The lines that were changed, as they stand and as they shall."""
    for file, text in sorted(new.texts.items()):
        known = _changes(source(file), old.text(file))
        for line, before, after in _changes(source(file), text):
            if (line, before, after) not in known:
                column = next((n for n, (x, y) in enumerate(zip(before, after)) if x != y), 0)
                lines = {"before": before.split("\n"), "after": after.split("\n")}
                yield {"file": file, "line": line, "column": column + 1, **lines}


def _changes(old: str, new: str) -> list[tuple[int, str, str]]:
    """Line, what stands there, what shall."""
    lines = old.splitlines(), new.splitlines()
    return [
        (a + 1, "\n".join(lines[0][a:b]), "\n".join(lines[1][c:d]))
        for kind, a, b, c, d in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
        if kind != "equal"
    ]

"""The edits that put the port's own code right, each proved by running the code with it.

Of each call of a layer whose code is wrong, in the order of the run: hear it, look for edits of the first wrong value,
run each; the least that puts it right and makes no other wrong is taken, until all is right. What leaves something
wrong proves what it puts right, up to where the next mistake begins. Then the other calls that run the same code are
run with the edits as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import LIMIT, OTHER_CALL, Check
from aligner.dtypes import DTYPES
from aligner.mending.afterwards import Afterwards
from aligner.mending.attributes import Instances
from aligner.mending.chosen import NO_ROWS, told_of_all
from aligner.mending.events import Story
from aligner.mending.failing import FailedError
from aligner.mending.ground import Ground
from aligner.mending.grouping import Group, ending, grouped
from aligner.mending.hunks import hunks, line_by_line, rebuilt, sizes, within
from aligner.mending.mended import Mended
from aligner.mending.others import BREAKING, Others
from aligner.mending.ran import again, witnessed
from aligner.mending.rerun import ALLOWED, SMALL
from aligner.mending.right import wrong_of
from aligner.mending.running import Parent, Running
from aligner.mending.sources import Sources
from aligner.mending.stepping import Stepping
from aligner.mending.theirs import Theirs
from aligner.record import Key, Phase, display

if TYPE_CHECKING:
    from aligner.capture.progress import Progress
    from aligner.dump.reader import Dump

DEPTH, TELLING, ALIKE, LEFT = 4, 16, 64, 8
"""Edits that are looked for, one after the other, until one more of a call's values is right; so few numbers may be
right by chance; layers of a class of which it is seen whether edits put them right; values told of as still wrong."""

KERNELS = 0.1
"""Share of the time in which it is seen first which small differences the framework's operations make."""

Errors = Mapping[Key, float]
"""How far each value is off, by the port's address."""


@dataclass(frozen=True)
class _Way:
    """Edits one after the other, and what they change. The `whole` way leaves nothing wrong."""

    sources: Sources
    why: tuple[str, ...] = ()
    whole: bool = False


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
        seconds: float,
        progress: Optional[Progress] = None,
    ) -> None:
        self._adapter, self._ground, self._reference = adapter, ground, reference
        self._plan = ground.plan
        calls = [call for call in port.calls if call.phase is Phase.FORWARD]
        checks = [*checks]
        self._running = Running(adapter, model, ground, ending(checks, own))
        self._theirs = Theirs(reference, self._plan, {call.layer for call in calls})
        self._groups = grouped(checks, port, ground, own)
        self._stepping = Stepping(adapter, ground, reference, self._theirs, (self._goes_on, seconds))
        self._progress, self._trials = progress, 0
        self._sources = Sources({})
        self._others, self._instances = Others(self._running, self._groups), Instances(adapter, model)
        self._afterwards = Afterwards(self._running, checks, calls)
        self._proved: list[tuple[Group, Mended]] = []
        self._until, self._kernels = (time.monotonic() + seconds * share for share in (1.0, KERNELS))
        self.failed: Optional[Exception] = None
        self.spent = False
        """The time was over before all was looked into."""
        self.cleared: Sequence[Key] = ()
        """Values that are right with all edits, and that none of these was found for: the reference's addresses."""

    def mended(self) -> Sequence[Mended]:
        """What came of each wrong call, in the order of the run."""
        in_vain: set[type] = set()
        found, made = list[Mended](), list[tuple[Group, Mended]]()
        with self._running.installed():
            for group in self._groups:  # the search for edits of others may take all the time
                with self._trying():
                    found += self._by_kernels(group) if time.monotonic() < self._kernels else ()
            for group in sorted(self._groups, key=lambda one: (one.is_little, self._ground.is_given_objects(one.call))):
                kind = group.kind
                if not group.fails or (kind in in_vain and not self._sources.texts):
                    continue
                if self._is_over() and not self._sources.texts:
                    break
                with self._trying():
                    for one in self._of(group, not (kind in in_vain or self._is_cleared(group, not self._is_over()))):
                        found.append(one)
                        made += [(group, one)] if one.proved and one.edits else []
                        if one.proved and not one.broken:
                            self._proved.append((group, one))
                        if one.right or (not one.proved and (one.trials or one.framework is None)):
                            in_vain.add(kind)
            for group, one in made:
                self._instances.build_otherwise(one, partial(self._alike, group, one))
            for group, one in ((group, one) for group, one in self._proved if one.edits):
                wrong = [check for check in group.checks if check.fails]
                right = {check.port for check in wrong if not one.right or check.key in one.right} | {one.check.port}
                one.broken = [*one.broken, *self._others.left(group, right, self._sources)]
            left = [group for group in self._groups if self._is_cleared(group, anew=True)]
            self.cleared = [check.key for group in left for check in group.checks if check.fails]
        return found

    def _is_cleared(self, group: Group, anew: bool) -> bool:
        """Whether all that is wrong in it is right in the net as a whole with the edits so far, none its own."""
        wrong = {check.port for check in group.checks if check.fails}
        own = any(group is other or group.kind is other.kind for other, _ in self._proved)
        return bool(wrong) and not own and wrong <= self._afterwards.cleared(self._sources, anew)

    @contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except FailedError:  # code that cannot be run again is not mended
            pass
        except Exception as error:  # a mistake of ours; what is found of others stands
            self.failed = self.failed or error

    def _by_kernels(self, group: Group) -> Sequence[Mended]:
        """What the framework's operations make of one call that is a little off, and nothing more."""
        ours = self._theirs.call(group.call.step, self._plan.calls.get(group.told))
        if ours is None or not group.fails or max(check.error for check in group.checks if check.fails) > SMALL:
            return ()
        parent, story = self._running.parent(group.call, group.checks), self._theirs.story(ours)
        return self._of_framework(group, parent, story, parent.trial(Sources({})), Sources({}))

    def _alike(self, group: Group, one: Mended) -> set[str]:
        """Layers of its class that its edits put right."""
        sources, same = rebuilt(one.edits), (each for each in self._groups if each.kind is group.kind and each.fails)
        right = (each for each in islice(same, ALIKE) if sources is not None and self._puts_right(each, sources))
        return {each.call.layer for each in right}

    def _goes_on(self, layer: str) -> bool:
        """Whether there is time for one more trial; says how many there were."""
        self._trials += 1
        if self._progress is not None:
            self._progress.say("edits-progress", layer=display(layer), trials=self._trials)
        return not self._is_over()

    def _is_over(self) -> bool:
        self.spent = time.monotonic() > self._until
        return self.spent

    def _of(self, group: Group, search: bool) -> Iterator[Mended]:
        """What came of one wrong call; without a search, whether the edits so far put it right as well."""
        ours = self._theirs.call(group.call.step, self._plan.calls.get(group.told))
        if ours is None:
            return
        parent, story = self._running.parent(group.call, group.checks), self._theirs.story(ours)
        plain = parent.trial(Sources({}))
        parent.rows = told_of_all(parent, story) if search else NO_ROWS
        if not search:
            yield from self._likewise(group, parent, plain, wrong_of(group.checks, plain))
            return
        given = self._of_framework(group, parent, story, plain, Sources({}))
        yield from given
        with suppress(FailedError):
            edited = self._sources
            errors = parent.trial(edited) if edited.texts and not given else {}
            given = given or self._of_framework(group, parent, story, errors, edited)
        if given:  # what its code may be off by is another by now
            parent, rows = self._running.parent(group.call, group.checks), parent.rows
            plain, parent.rows = parent.trial(Sources({})), rows
        yield from self._one(group, parent, story, plain)

    def _of_framework(
        self, group: Group, parent: Parent, story: Story, errors: Errors, sources: Sources
    ) -> Sequence[Mended]:
        """A small difference that an operation of the framework's makes: all that this code makes may have it."""
        small = [check for check in wrong_of(group.checks, errors) if errors.get(check.port, math.inf) <= SMALL]
        found = self._differing(group, small, parent, story, errors, sources) if small else []
        if found:
            least = ALLOWED * found[0].before / LIMIT
            group.checks = [replace(check, expected=max(check.expected, least)) for check in group.checks]
        return found

    def _differing(
        self, group: Group, checks: Sequence[Check], parent: Parent, story: Story, errors: Errors, sources: Sources
    ) -> Sequence[Mended]:
        """What operations of the framework's make wrong."""
        found = [*self._stepping.differing(checks, parent, story, sources)] if self._is_exact else []
        found[1:] = [one._replace(witness=None) for one in found[1:]]  # a dump has one call's values for each call
        off = [errors.get(one.check.port, math.inf) for one in found]
        return [
            Mended(group.owner, group.call, one.check, error, error, framework=one) for one, error in zip(found, off)
        ]

    @property
    def _is_exact(self) -> bool:
        """Whether both sides compute in full precision."""
        return self._plan.short is None and not self._plan.lowered

    def _one(self, group: Group, parent: Parent, story: Story, plain: Errors) -> Sequence[Mended]:
        wrong = wrong_of(group.checks, plain)
        if not wrong:
            return []
        leaving, before = self._stepping.leaving(wrong[0], parent, story), plain.get(wrong[0].port, math.inf)
        if not parent.is_steady() or any(check.reason == OTHER_CALL for check in wrong):
            return [Mended(group.owner, group.call, wrong[0], before, before, leaving=leaving)]
        likewise = self._likewise(group, parent, plain, wrong)
        if any(not one.right for one in likewise) or self._is_over():  # what was found still holds for others
            return [replace(one, leaving=leaving) for one in likewise]
        result = Mended(group.owner, group.call, wrong[0], before, before, leaving=leaving)
        found: list[tuple[_Way, Sources, Sequence[Mended]]] = []
        own = {check.port for check in wrong}
        for start, heads in self._starts(group):
            way = self._searched(group, parent, story, start, result)
            left = wrong_of(group.checks, parent.trial(way.sources)) if way is not None else []
            if own <= {check.port for check in left}:  # what it puts right is what earlier edits broke
                way = None
            found += [(way, start, heads)] if way is not None and (way.whole or not heads) else []
            if way is not None and way.whole:
                break
        if found:
            way, start, heads = found[-1]
            result.why = way.why
            self._judge(result, wrong_of(group.checks, parent.trial(start)), plain, parent.trial(way.sources))
            if result.before > result.after:  # else what is put right is right as the code stands
                self._take(group, start, heads, way.sources, result)
                result.sizes = sizes(hunks(start, way.sources), story.shapes, story.lines)
                return [result]
            result = replace(result, check=wrong[0], before=before, after=before, why=(), right=(), left=())
        by = self._differing(group, group.checks, parent, story, plain, Sources({})) if not likewise else []
        return likewise or ([replace(by[0], trials=result.trials), *by[1:]] if by else [result])

    def _likewise(self, group: Group, parent: Parent, plain: Errors, wrong: Sequence[Check]) -> Sequence[Mended]:
        """The call with the edits that were found at others, if they put something right in it."""
        if not wrong or not self._sources.texts:
            return []
        with suppress(FailedError):
            errors = parent.trial(self._sources)
            left = {check.port for check in wrong_of(group.checks, errors)}
            if wrong[0].port not in left and left < {check.port for check in wrong}:
                result = Mended(group.owner, group.call, wrong[0], math.inf, math.inf, proved=True)
                result.like = self._head(group)
                self._judge(result, wrong, plain, errors)
                return [result]
        return []

    @staticmethod
    def _judge(result: Mended, wrong: Sequence[Check], before: Errors, after: Errors) -> None:
        """Note what edits put right of what was wrong, and how far off the first of it was and is."""
        left = {check.port for check in wrong_of(wrong, after)}
        right = [check for check in wrong if check.port not in left]
        right.sort(key=lambda check: not before.get(check.port, math.inf) > after.get(check.port, 0.0))
        result.check = right[0]
        result.before, result.after = (errors.get(right[0].port, math.inf) for errors in (before, after))
        result.right = [check.key for check in right] if left else ()
        result.left = [check.key for check in wrong if check.port in left][:LEFT]

    def _starts(self, group: Group) -> Iterator[tuple[Sources, Sequence[Mended]]]:
        """What the search may start from: all edits so far, or those of other classes; and those that are left out."""
        yield self._sources, ()
        heads = [(other.kind is group.kind, one) for other, one in self._proved if one.edits]
        left_out = [one for own, one in heads if own]
        others = rebuilt(edit for own, one in heads if not own for edit in one.edits) if left_out else None
        if others is not None:
            yield others, left_out

    def _searched(self, group: Group, parent: Parent, story: Story, start: Sources, result: Mended) -> Optional[_Way]:
        """Edits that put all of this call right, its mistakes one after the other; or all up to one that none mends."""
        known: list[_Way] = []
        way = self._right(group, parent, story, _Way(start), result, known)
        if way is None:
            return known[-1] if known else None
        made = [*line_by_line(hunks(start, way.sources))]
        parts = [one for one in made if any(one["after"])]  # what only goes is read by nobody any more
        for one in parts if len(made) > 1 and not start.texts else ():  # a part that was taken may be none
            fewer = rebuilt(other for other in made if other != one)
            if fewer is not None and self._puts_right(group, fewer):
                way = replace(way, sources=fewer)
        return way

    def _right(
        self,
        group: Group,
        parent: Parent,
        story: Story,
        way: _Way,
        result: Mended,
        known: Optional[list[_Way]],
        ahead: bool = True,
    ) -> Optional[_Way]:
        """All of them from here on; with each value that comes right, the way so far is added to `known`.

        What goes `ahead` of a right value may be wrong: where it leads to none, it is left. A part of a step may be
        taken, but once, for a search in vain would take many times as long; nothing is known of what follows it.
        """
        since, sound, sure = 0, True, way
        wrong: Sequence[Check] = ()
        while since < DEPTH:
            try:
                wrong = wrong or wrong_of(group.checks, parent.trial(way.sources))
                if known is None and not wrong:
                    return replace(way, whole=True)
                begun = self._stepping.ahead(group.checks, parent, story, way.sources) if ahead else None
                begun = None if begun and self._harm(group, begun[1]) >= BREAKING else begun
                best, edited, trials = begun or self._stepping.step(
                    group.checks, parent, story, way.sources, partial(self._harm, group)
                )
            except FailedError:  # with the edits so far its code does not run
                return None
            result.trials += trials
            if best is None:
                break
            way = _Way(edited, (*way.why, best.why))
            left = wrong_of(group.checks, parent.trial(edited))
            if not left:
                return replace(way, whole=True)
            since = since + 1 if begun or known is None else 0
            sure = sure if begun else way
            if known is not None and not begun:
                right = [check for check in wrong if check not in left]
                sound = sound and any(map(self._tells, right))
                sound = sound and witnessed(parent, story, edited, best, strictly=True)
                sound = sound and not again(parent, edited, best, right, left)
                known += [way] if sound else []
            wrong = left
        if way is not sure:
            return self._right(group, parent, story, sure, result, known, ahead=False)
        if known is not None and since < DEPTH - 1:
            grafts = self._stepping.grafts(group.checks, parent, story, way.sources)
            for part, edited in chain(self._stepping.parts(story), grafts):
                found = self._right(group, parent, story, _Way(edited, (*way.why, part.why)), result, None, ahead)
                if found is not None:
                    return found
        return None

    def _tells(self, check: Check) -> bool:
        """Whether a value is hardly right by chance, as a few numbers of tokens may be."""
        entry = self._plan.entries.get(check.port)
        return entry is not None and math.prod(entry.shape) >= TELLING and not DTYPES[entry.dtype].exact

    def _take(self, group: Group, start: Sources, left_out: Sequence[Mended], sources: Sources, result: Mended) -> None:
        """Note what was found. Edits in the place of earlier ones must put right what those did."""
        result.proved, result.edits = True, [*hunks(start, sources)]
        result.own = within(result.edits, group.kind)
        earlier = [one for other, one in self._proved if left_out and not self._puts_right(other, sources, one.right)]
        lines = {(edit["file"], edit["line"]) for edit in result.edits}
        for other, one in self._proved if not left_out else ():  # a line that is to say two things is right for none
            alike = lines & {(edit["file"], edit["line"]) for edit in one.edits}
            if alike and not self._puts_right(other, sources, one.right):
                earlier.append(one)
                one.broken = [*one.broken, result.owner]
        result.broken = [one.owner for one in earlier] or [*self._others.broken(group, self._sources, sources)]
        result.proved = not any(one.startswith(f"{result.owner} #") for one in result.broken)  # or they are wrong
        if result.broken:
            return
        result.unseen = self._others.unseen(group)
        for head in left_out:
            head.edits, head.like = (), result.owner
        for _, one in self._proved:
            one.like = result.owner if one.like in {head.owner for head in left_out} else one.like
        self._sources = sources

    def _head(self, group: Group) -> str:
        """The layer at which the edits were found that put this one right: one of its class, else the last."""
        heads = [(other, one) for other, one in self._proved if not one.like]
        same = [one for other, one in heads if other.kind is group.kind]
        return (same or [one for _, one in heads])[-1].owner

    def _puts_right(self, group: Group, sources: Sources, only: Collection[Key] = ()) -> bool:
        try:
            left = wrong_of(group.checks, self._running.parent(group.call, group.checks).trial(sources))
            return not any(check.key in only or not only for check in left)
        except FailedError:
            return False

    def _harm(self, group: Group, sources: Sources) -> float:
        return self._others.harm(group, self._sources, sources)

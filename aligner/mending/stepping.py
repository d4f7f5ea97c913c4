"""One step of mending: the least edit that puts a call's first wrong value right and makes no other wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import LIMIT, Check
from aligner.compare.net import CallId
from aligner.mending.blindly import Blindly
from aligner.mending.candidate import ARGUMENT, Candidate
from aligner.mending.events import Event, Story
from aligner.mending.failing import FailedError, InVainError
from aligner.mending.fitting import fitted
from aligner.mending.frameworks import ByFramework, Differing, differing
from aligner.mending.grafting import grafted
from aligner.mending.ground import Ground
from aligner.mending.handing import lacking
from aligner.mending.heard import Heard
from aligner.mending.hunks import hunks, sizes
from aligner.mending.joining import with_others
from aligner.mending.leaving import Leaving, leaving
from aligner.mending.looking import Best, Look
from aligner.mending.matching import Matching
from aligner.mending.others import BREAKING
from aligner.mending.ran import witnessed
from aligner.mending.ranking import LONG, Ranking
from aligner.mending.rerun import ALLOWED, SMALL
from aligner.mending.right import FALL, is_right, wrong_of
from aligner.mending.rounding import SEEDS
from aligner.mending.running import Parent
from aligner.mending.search import Search
from aligner.mending.sources import Edit, Sources
from aligner.mending.texts import Texts
from aligner.mending.theirs import Theirs
from aligner.mending.thresholds import said
from aligner.mending.witness import Caught, Witness
from aligner.record import Key
from aligner.words.templates import MINDSPORE, TORCH

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

MOST = 800
"""Candidates that are ranked."""

BLINDLY = 800
"""Candidates that nothing speaks for but that people make such mistakes."""

PARTS, BEST, DIFFERING, GRAFTS = 60, 2, 8, 6
"""Candidates of which it is looked whether they are part of what is to be done, and how many of these are taken; wrong
values of one call that operations of the framework's may make; places where the reference's own steps are tried."""

EARLY, AHEAD = 4, 8
"""In long code: first wrong steps, and first lacking ones, that may be each other's; and edits tried for each two."""
AT_ONCE = 0.2
"""Share of the time that may go by with these at one place."""

LACKING, SHARE, LESS, FAR = 0.2, 10.0, 0.6, 100.0
"""What each value costs that is still not as the reference has it, and all of them together; how much of an error may
be left that is much less, and what it costs that nothing else speaks for it."""

TURNS, MORE, FEW, PLAIN = 5, 100, 30, 8.0
"""Turns of a loop of which it is looked which has most to tell; edits that are tried when there is one already, and
when that is a plain one that leaves nothing wrong, by what it costs at most."""

ALIKE = 2.0
"""What it costs to change a line that stands in the reference's code as it is."""


class Stepping:
    """Makes steps, as long as it `goes_on`, which is asked with the layer before each trial."""

    def __init__(
        self,
        adapter: Adapter,
        ground: Ground,
        reference: Dump,
        theirs: Theirs,
        time_left: tuple[Callable[[str], bool], float],
    ) -> None:
        """`time_left` tells whether there is some, and of how many seconds."""
        self._goes_on, self._patience = time_left[0], time_left[1] * AT_ONCE
        self._adapter, self._ground, self._reference = adapter, ground, reference
        self._plan, self._theirs = ground.plan, theirs
        self._ports = {one: other for other, one in reversed([*self._plan.layers.items()])}
        self._look: Optional[Look] = None

    def ahead(
        self, checks: list[Check], parent: Parent, story: Story, sources: Sources
    ) -> Optional[tuple[Candidate, Sources, int]]:
        """In long code the edit that puts its first wrong step right, after how many were tried: up to a later step the
        way to the first wrong value is as the reference has it. What is wrong behind it is another mistake.
        """
        look = self._looked(checks, parent, sources)
        check = next((one for one in look.wrong if one.port in look.state.at), None)
        if check is None or len(look.heard.story.events) <= LONG:
            return None
        lacking, until = self._lacking(check, look.heard, look.state, story), time.monotonic() + self._patience
        for trials, (one, wanted) in enumerate(self._first_candidates(check, look, story), 1):
            if not self._goes_on(look.parent.call.layer) or time.monotonic() > until:
                return None
            with suppress(FailedError, SyntaxError):
                edited = sources.edited(one.edits)
                still = self._lacking(check, *parent.heard_again(edited, check.port), story)
                if still < lacking and wanted not in still:
                    return one, edited, trials
        return None

    def _first_candidates(self, check: Check, look: Look, story: Story) -> Iterator[tuple[Candidate, int]]:
        """Edits that give one of the first wrong steps the value of one of the first steps that the port lacks."""
        matching, _ = self._matching(check, look.heard, look.state, story)
        if matching is None:
            return
        error = look.state.errors.get(check.port, math.inf)
        places = {result: at for at, event in enumerate(look.heard.story.events) for result in event.results}
        for found, wanted in matching.early(EARLY):
            heard = look.heard.story.events[: places.get(found, -1) + 1]
            goal = Matching(story, look.heard.story, heard, wanted, found, error)
            candidates = self._search(goal, look.heard, look.sources, None)[0].candidates()
            due = [one for one in candidates if any(value == wanted for _, _, value, _ in one.moves)]
            others = (one for one in candidates if one not in due)
            yield from ((one, wanted) for one in islice(chain(due, others), AHEAD))

    def step(
        self,
        checks: list[Check],
        parent: Parent,
        story: Story,
        sources: Sources,
        harm: Callable[[Sources], float],
    ) -> tuple[Optional[Candidate], Sources, int]:
        """The least edit that puts the first wrong value right and makes no other wrong.

        One that does `harm` to other layers, which run the same lines, is taken where there is no other.
        """
        look, trials = self._looked(checks, parent, sources), 0
        for check in look.wrong[:2]:
            best: Optional[Best] = None
            for one in (*self._telling(check, look, story), check):
                if best is None or check.port in best.left:
                    best, tried = self._best(one, best, look, story, harm)
                    trials += tried
            best = best or self._fitted(check, look, story)
            if best is not None:
                self._explain_left(best, look, story)
                return best.one, best.sources, trials
        return None, sources, trials

    def _fitted(self, check: Check, look: Look, story: Story) -> Optional[Best]:
        """With another number, where it is told by nothing but how far off this and another one leave the value."""
        matching, _ = self._matching(check, look.heard, look.state, story)
        if matching is None:
            return None
        sites, size = (one.site for _, one in matching.wrong if one), math.prod(matching.theirs.shapes[matching.found])
        places = dict.fromkeys((site.file, site.line) for site in sites if site is not None)

        def error(edit: Edit) -> Optional[float]:
            with suppress(FailedError, SyntaxError):
                if self._goes_on(look.parent.call.layer):
                    return look.parent.tried(look.sources.edited((edit,)), lambda *_: False, check.port).get(check.port)
            return None

        before, wrong = look.state.errors.get(check.port, math.inf), {bad.port for bad in look.wrong}
        for edit in fitted(look.sources, places, size, before, error):
            one = Candidate(0.0, (edit,), ARGUMENT, (), 9)
            if (edited := self._right(one, check, look, story)) is not None:
                left = {bad.port for bad in wrong_of(look.checks, look.parent.trial(edited))}
                if left < wrong:
                    return Best(one.cost, one, edited, left)
        return None

    def _explain_left(self, best: Best, look: Look, story: Story) -> None:
        """Of what an edit leaves wrong, and much less so, it may be seen that kernels of the framework's make it."""
        errors = look.parent.trial(best.sources)
        for check in [one for one in look.checks if one.port in best.left]:
            error, before = errors.get(check.port, math.inf), look.state.errors.get(check.port, math.inf)
            if error <= SMALL and error * FALL <= before:
                self._explains(check, error, best.sources, look, story)

    def _best(
        self, check: Check, best: Optional[Best], look: Look, story: Story, harm: Callable[[Sources], float]
    ) -> tuple[Optional[Best], int]:
        """The least edit that puts this value right and no right one wrong, if it is less than the best one; and how
        many were tried.
        """
        others, trials, since = {bad.port for bad in look.wrong} - {check.port}, 0, 0
        for one in self._candidates(check, look, story):
            few = FEW if best is not None and best.price < PLAIN and not best.left else MORE
            late = best is not None and (one.cost >= best.price or since >= few)
            if late or not self._goes_on(look.parent.call.layer):
                continue
            trials, since = trials + 1, since + (best is not None and best.price < BREAKING)  # one that harms is none
            if (edited := self._right(one, check, look, story)) is None:
                continue
            errors = look.parent.trial(edited)  # from memory it was found, and is to be seen
            left = {bad.port for bad in wrong_of(look.checks, errors)}
            if left <= others:
                price = one.cost + 6.0 * len(left) + 3.0 * (not witnessed(look.parent, story, edited, one))
                price += harm(edited) + BREAKING * bool(sizes(hunks(look.sources, edited), story.shapes, story.lines))
                if best is None or price < best.price:
                    best = Best(price, one, edited, left)
        return best, trials

    def _telling(self, check: Check, look: Look, story: Story) -> Iterator[Check]:
        """The turn of a loop that has most of its way to tell, more than this first one, and all of it its own: in a
        first turn much is equal by chance.
        """
        slot, at = (check.port.layer, check.port.slot), look.state.at
        turns = [
            one for one in look.wrong if (one.port.layer, one.port.slot) == slot and {one.port, check.port} <= {*at}
        ]
        ways = [(self._lacking(one, look.heard, look.state, story), one) for one in turns[: TURNS if turns[1:] else 0]]
        own = next((way for way, one in ways if one is check), set[int]())
        told = [(len(way), one) for way, one in ways if len(way) > len(own) > 0 and not own & way]
        yield from [max(told, key=lambda one: one[0])[1]] if told else []

    def _looked(self, checks: list[Check], parent: Parent, sources: Sources) -> Look:
        known = self._look
        if known is None or known.parent is not parent or known.sources is not sources or known.checks is not checks:
            self._look = known = Look(checks, parent, sources)
        return known

    def parts(self, story: Story) -> list[tuple[Candidate, Sources]]:
        """Where the last step found nothing: edits after which more of the way to the first wrong value is as the
        reference has it, and nothing less, the best first; then those with which it is much less wrong. Whether they
        are right is told by what puts the rest right.
        """
        look = self._look
        check = next((one for one in look.wrong if one.port in look.state.at), None) if look is not None else None
        if look is None or check is None:
            return []
        found: list[tuple[float, int, Candidate, Sources]] = []
        candidates = self._candidates(check, look, story)
        lacking = self._lacking(check, look.heard, look.state, story)
        for number, one in enumerate(candidates):
            if not self._goes_on(look.parent.call.layer):
                break
            try:
                trial = look.sources.edited(one.edits)
                if number < PARTS:
                    heard, state = look.parent.heard_again(trial, check.port)
                    still = self._lacking(check, heard, state, story)
                    errors: Mapping[Key, float] = state.errors
                else:
                    errors, still = look.parent.tried(trial, lambda key, error: False, check.port), lacking
            except (FailedError, SyntaxError):
                continue
            known = {bad.port for bad in look.wrong}
            less = errors.get(check.port, math.inf) / look.state.errors.get(check.port, math.inf)
            if not {bad.port for bad in wrong_of(look.checks, errors) if bad.port in errors} <= known:
                continue
            if still < lacking:
                left = LACKING * len(still) + SHARE * len(still) / len(lacking)
                found.append((one.cost + left, number, one, trial))
            elif still == lacking and less < LESS:
                found.append((FAR + less, number, one, trial))
        return [(one, trial) for *_, one, trial in sorted(found)[:BEST]]

    def grafts(
        self, checks: list[Check], parent: Parent, story: Story, sources: Sources
    ) -> Iterator[tuple[Candidate, Sources]]:
        """Where nothing else was found: what the reference does on the way to the first wrong value, step by step."""
        look, until = self._looked(checks, parent, sources), time.monotonic() + self._patience
        check = next((one for one in look.wrong if one.port in look.state.at), None)
        matching, end = (None, None) if check is None else self._matching(check, look.heard, look.state, story)
        if check is None or matching is None:
            return
        search, texts = self._search(matching, look.heard, sources, end)
        found = sorted(grafted(matching, texts, sources, search.anchors(), until), key=lambda one: one.cost)
        for one in Ranking(matching, end).ranked(found)[:GRAFTS]:
            edited = self._right(one, check, look, story) if time.monotonic() < until else None
            left = None if edited is None else {bad.port for bad in wrong_of(checks, parent.trial(edited))}
            if edited is not None and left is not None and left < {bad.port for bad in look.wrong}:
                yield one, edited
                return

    def _lacking(self, check: Check, heard: Heard, state: Any, story: Story) -> set[int]:
        """What the port has not of the reference's way to a value."""
        matching = self._matching(check, heard, state, story)[0] if check.port in state.at else None
        return {value for value, _ in matching.missing} if matching is not None else {*range(len(story.values))}

    def _candidates(self, check: Check, look: Look, story: Story) -> list[Candidate]:
        if check.port not in look.candidates:
            look.candidates[check.port] = self._ranked(check, look.heard, look.state, story, look.sources)
        return look.candidates[check.port]

    def _ranked(self, check: Check, heard: Heard, state: Any, story: Story, sources: Sources) -> list[Candidate]:
        lacks = check.port not in state.at
        matching, end = self._matching(check, heard, state, story)
        if matching is None:
            return []
        search, texts = self._search(matching, heard, sources, end)
        if lacks and end is not None:
            layer = self._layer(end.layer)
            return [*lacking(matching, texts, sources, end, check.key.slot, matching.wanted, layer)]
        lines = story.lines
        candidates, blind = search.candidates(), [*Blindly(search, matching, texts, sources, end).candidates()]
        for one in blind:
            one.old = one.old or (sources.words_at(one.edits[0]) if len(one.edits) == 1 else "")
        blind = with_others(blind, sources)
        for one in (*candidates, *blind):
            one.cost += ALIKE * all(sources.line(edit) in lines for edit in one.edits)
        found_now = Ranking(matching, end).ranked(sorted(candidates, key=lambda one: one.cost)[:MOST])
        known = {one.edits for one in found_now}
        blind = sorted((one for one in blind if one.edits not in known), key=lambda one: one.cost)[:BLINDLY]
        return said(found_now + blind, heard.story.events, story, sources)

    def _search(self, matching: Matching, heard: Heard, sources: Sources, end: Optional[Event]) -> tuple[Search, Texts]:
        side = TORCH if self._adapter.name in ("torch", "mindtorch") else MINDSPORE
        texts = Texts(self._adapter, matching, heard, sources, side, self._layer)
        return Search(matching, texts, sources, end), texts

    def _matching(
        self, check: Check, heard: Heard, state: Any, story: Story
    ) -> tuple[Optional[Matching], Optional[Event]]:
        """Both sides' values up to a wrong one, and the event that uses it."""
        entry = self._reference.find(check.against) if check.against is not None else None
        entry = entry or self._plan.entries.get(check.port) or self._reference.find(check.key)
        lacks = check.port not in state.at
        user = state.users.get(CallId(check.port.layer, check.port.call))
        if entry is None or (lacks and (user is None or not user.operands)):
            return None, None
        cut, end = (len(heard.story.events), user) if lacks else state.at[check.port]
        found = user.operands[0] if lacks and user is not None else state.found[check.port]
        wanted, error = self._theirs.number(story, entry), state.errors.get(check.port, math.inf)
        return Matching(story, heard.story, heard.story.events[:cut], wanted, found, error), end

    def differing(
        self, checks: Sequence[Check], parent: Parent, story: Story, sources: Sources
    ) -> Iterator[ByFramework]:
        """The framework's operations that make these wrong values of right ones, where the first is made so."""
        heard, state = parent.heard_again(sources) if sources.texts else parent.heard(sources)
        made = [check for check in wrong_of(checks, state.errors) if check.port in state.at]
        for check in sorted(made, key=lambda check: state.at[check.port][0])[:DIFFERING]:
            matching, _ = self._matching(check, heard, state, story)
            found = None if matching is None else differing(matching)
            if found is None:
                return
            shown = None if sources.texts else self._witness(found, heard, parent, story)
            yield ByFramework(check, found, shown)

    def _witness(self, found: Differing, heard: Heard, parent: Parent, story: Story) -> Optional[Witness]:
        ours = self._plan.calls[CallId(parent.call.layer, parent.call.number)]
        expected = self._theirs.recorded(story, parent.call.step, ours, found.reference.results[found.result])
        if expected is None:
            return None
        caught = Caught(self._adapter, parent.running.counterpart, heard.story.events.index(found.port))
        parent.told(caught)
        return caught.witness(found.result, expected)

    def leaving(self, check: Check, parent: Parent, story: Story) -> Leaving:
        """Where its code leaves the reference's, as far as it is known without an edit."""
        matching, end = self._matching(check, *parent.heard(Sources({})), story)
        return Leaving() if matching is None else leaving(matching, end, check.owner, self._plan.layers.values())

    def _layer(self, reference: str) -> Optional[object]:
        """The port's layer."""
        return self._ground.layer(self._ports.get(reference, reference))

    def _right(self, one: Candidate, check: Check, look: Look, story: Story) -> Optional[Sources]:
        """The sources with an edit, if the value is right then."""
        before = look.state.errors.get(check.port, math.inf)
        found: list[float] = []

        def vain(key: Key, error: float) -> bool:
            found.extend([error] if key == check.port else [])
            return key == check.port and not is_right(check, error, before)

        try:
            trial = look.sources.edited(one.edits)
            return trial if is_right(check, look.parent.tried(trial, vain).get(check.port), before) else None
        except InVainError:
            small = bool(found) and found[-1] <= SMALL and found[-1] * FALL <= before
            return trial if small and self._explains(check, found[-1], trial, look, story) else None
        except (FailedError, SyntaxError):
            return None

    def _explains(self, check: Check, error: float, trial: Sources, look: Look, story: Story) -> bool:
        """Whether the little that an edit leaves is seen to be made by a kernel of the framework's: all that this code
        makes may be as far off from then on. Or by rounding, as noise moves the value as far.
        """
        with suppress(FailedError):
            if next(self.differing([check], look.parent, story, trial), None) is not None:
                least = ALLOWED * error / LIMIT
                look.checks[:] = [replace(one, expected=max(one.expected, least)) for one in look.checks]
                return True
            moved = look.parent.moved(trial, check.port)
            moved = moved if error <= LIMIT * moved else look.parent.stirred(trial, check.port, range(SEEDS))
            if error <= LIMIT * moved:
                more = replace(check, expected=max(check.expected, moved))
                look.checks[:] = [more if one.port == check.port else one for one in look.checks]
                return True
        return False

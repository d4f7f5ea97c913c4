"""Values of the port that are right, and stand at another border than their counterparts'.

    used   what the port takes such a value for: it is handed on, as it is, to a place where the reference has another
           value (a norm with its activation inside, where the reference's activation is a layer behind the norm)
    later  values that the port makes later than the layer of the same name does in the reference (the activation is
           a line behind the norm, or the residual is added one level higher)
    passed what a layer only passes on (an Identity, dropout that is silent): it stands wherever its author put it
    around what layers that hold others, or take or hand on what their counterparts do not, are given and hand on: they
           begin and end where their author has cut

All but the last are read from the free run's dumps (uses.py). Whether they are right is found out in the forced pass,
where they are made of right ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from aligner.compare.checks import LIMIT, OTHER_BORDER, Check
from aligner.compare.held import held
from aligner.compare.net import CallId, is_input
from aligner.dtypes import decode
from aligner.record import Array, Key
from aligner.replay import prints
from aligner.replay.handed import excused, with_their_results
from aligner.replay.rows import in_other_order
from aligner.replay.uses import Uses

if TYPE_CHECKING:
    from aligner.compare.held import Held
    from aligner.dump.reader import Entry

FIRST = "input.0"
"""The argument that a layer works on, as a rule; others tell it how."""

NEARER = 0.5
"""Of two counterparts a value is set against the other one where it is off from it by so much less."""

LITTLE = 1e-4
"""What is off by so much less than it would be at its own border stands elsewhere: a kernel rounds otherwise there."""


@dataclass(frozen=True)
class Moved:
    """A value that has another counterpart. `entry` is handed on in its place; None: the value itself."""

    check: Check
    entry: Optional[Entry]


Code = Optional[tuple[str, int]]
"""A call of the port whose code works on a value; None outside of all."""


@dataclass
class _Waiting:
    """A value that may stand at another border: what the code that goes on with it makes is to tell."""

    check: Check
    code: Code
    value: prints.Print
    """What it is: the same value may wait at several borders, as it is handed on."""
    content: object
    """What its counterpart is."""
    shuffled: bool = False
    """It has its counterpart's rows in another order."""
    carried: bool = False
    """A layer only passes it on, and it is no value of the reference's: it is made of what was made before."""
    seen: bool = False
    """Something right was made by this code since."""

    @property
    def comparable(self) -> bool:
        """Whether it can be held to its counterpart."""
        return self.check.deviation is not None

    @property
    def given(self) -> bool:
        """Whether the code was given it: the first that it makes tells. Of what it goes on with, all tells."""
        return self.code == (self.check.port.layer, self.check.port.call)


class Borders:
    """Decides in a forced pass, value by value; `elsewhere` holds what was decided, by the port's address."""

    def __init__(self, uses: Uses, makes: Callable[[CallId, Array], bool] = lambda call, array: False) -> None:
        self._makes = makes
        """Whether the reference's code makes a value inside of a call of its own."""
        self.elsewhere: dict[Key, Optional[Entry]] = {}
        self.refuted: set[Key] = set()
        """Values that are at no other border, as it turned out: what is made of them is no better."""
        self._kept: set[Key] = set()
        """Values that are not to be held, as it turned out: something right is made of them, and of no others, or what
        is made of the reference's is no better."""
        self._held: frozenset[Key] = frozenset()
        """Those that are held in this run, ..."""
        self._known: tuple[frozenset[Key], frozenset[Key]] = frozenset(), frozenset()
        """... those that were in an earlier one, and what was right in that."""
        self.doubted: set[Key] = set()
        """Values that may be wrong after all: a later value of the code that was given them is, or they are at another
        border what was wrong at this one."""
        self._uses = uses
        self.chains = True
        """What is made of values of another size waits as well; not where the port stops at such a one."""
        self._given: list[_Waiting] = []
        """Those that a layer was given, that went for right, and that could be held as well."""
        self._due: dict[object, Check] = {}
        """Checks of values whose counterparts the port has still to make, by step and content of these."""
        self._open: list[_Waiting] = []
        """Checks of values that may stand at another border: what is made of them is to tell."""
        self._let_go: list[_Waiting] = []
        """Those that went for right at the end."""
        self._against: dict[Key, Sequence[Check]] = {}
        """Values of another size or order that are held, as what was made of them was wrong: and that."""
        self.accused: dict[Key, set[Key]] = {}
        """Values of another size that are to be held since this run, and wrong values that tell so: what they are made
        of."""
        self._apart: set[tuple[Key, Key]] = set()
        """Such pairs where it is not made of them, as it turned out."""
        self._came: dict[Key, tuple[object, prints.Print]] = {}
        """Wrong values that calls were given: what their counterparts are, and what they are, ..."""
        self.like: dict[Key, Set[object]] = {}
        """... and the reference's values that they may be."""
        self._spoiled: set[Key] = set()
        """Of these the ones that are so for sure."""
        self._unsure: set[Key] = set()
        """What calls with arguments in other forms tell to be held: where nothing else is, in the next run."""

    def begin(self) -> None:
        """A run begins."""
        self._held = frozenset(self.refuted)
        for one in (self._due, self._came, self.like, self.accused, self.elsewhere):
            one.clear()
        for each in (self._open, self._given, self._let_go, self._spoiled, self._unsure, self.doubted):
            each.clear()

    def moved(
        self,
        check: Check,
        entry: Entry,
        found: Held,
        judge: Callable[..., Check],
        code: Code,
        call: Optional[CallId] = None,
    ) -> Optional[Moved]:
        """What is to be made of a value that is not its counterpart.

        `judge` sets it against another one, in the shape given or in its own; `code` goes on with it; `call` is the
        reference's that is given its counterpart.
        """
        used = self._uses.used.get(check.port, ()) if check.port not in self.refuted else ()
        others = [(judge(other), other) for other in used]
        if others:
            nearest, other = min(others, key=lambda pair: pair[0].error)
            if not nearest.suspicious:
                self.elsewhere[check.port] = other
                waiting = _Waiting(check, code, prints.taken(found.raw()), entry.content)
                self._given += [waiting] if waiting.given and waiting.comparable else []
                return Moved(excused(check), other)
            given = call if is_input(check.port.slot) and check.port.layer in self._uses.around else None
            if given is not None and self._makes(given, decode(found.raw(), found.dtype)):
                return Moved(self.let(check, entry, found), None)  # what is made of it inside is to tell
            if nearest.error < NEARER * check.error:
                self.elsewhere[check.port] = other
                self.doubted |= {check.port} if check.deviation is None else set()
                return Moved(replace(nearest, key=check.key, against=other.key), other)
        around = check.port.layer in self._uses.around
        own = bool(check.port.layer) and not is_input(check.port.slot)
        more = own and check.port.layer in self._uses.rewritten
        own = own and not any(_one_call(port, check.port) for port in self._spoiled)
        own = own or (self.chains and any(one.code == code and not one.comparable for one in self._open))
        other_size = found.raw().size != math.prod(entry.shape) and (around or own)
        if other_size and is_input(check.port.slot) and check.port.slot != FIRST and not self._begun(check.port):
            return None  # a mask or a table beside the values: what comes next need not be made of it
        shuffled = bool(check.port.layer) and not other_size
        shuffled = shuffled and in_other_order(held(entry), found, LIMIT * check.expected)
        waits = around or other_size or shuffled or more or check.port in self._uses.passed
        if waits and check.port not in self.refuted:
            near = self._uses.standing.near(found, check.key.step)
            right = {other.content for other in near if not judge(other, found.shape).suspicious}
            elsewhere, carried = right - {entry.content}, check.port in self._uses.passed and not right
            waiting = _Waiting(check, code, prints.taken(found.raw()), entry.content, shuffled, carried)
            if other_size and elsewhere and not is_input(check.port.slot):
                return Moved(self._right([waiting])[0], None)
            made = around and not right and (not is_input(check.port.slot) or self._goes_round(waiting.value))
            parent = CallId(check.key.layer.rpartition(".")[0], 0)
            made = made or (more and self._makes(parent, decode(found.raw(), found.dtype)))
            if other_size or made or carried or shuffled or elsewhere:  # else it is its counterpart in another form
                self._open.append(waiting)
                return Moved(check, None)
        if check.port in self._uses.later and check.port not in self.refuted:
            self._due[check.key.step, entry.content] = check
            return Moved(check, None)
        return None

    def beyond(self, check: Check, entry: Entry, found: Held, inside: Iterable[object]) -> Optional[Check]:
        """The check of what a call hands on in another size, and makes its counterpart's very value `inside`."""
        if found.raw().size == math.prod(entry.shape) or entry.content not in inside:
            return None
        return self.let(check, entry, found)

    def let(self, check: Check, entry: Entry, found: Held) -> Check:
        """The check of a value that goes for right, whatever its counterpart is."""
        return self._right([_Waiting(check, None, prints.taken(found.raw()), entry.content)])[0]

    def waits(self, check: Check) -> bool:
        """Whether it is still to be told of this value."""
        return check.port in {one.check.port for one in self._open}

    def _goes_round(self, value: prints.Print) -> bool:
        """Whether a layer is handed on what waits already."""
        return any(one.value == value for one in self._open)

    def _refuses(self, check: Check) -> bool:
        """Whether a layer makes of rows in another order what is no such value: these are held."""
        given = [one for one in self._open if one.shuffled and _one_call(one.check.port, check.port)]
        given = [one for one in given if one.check.port not in self._kept]
        if not given or is_input(check.port.slot) or self.waits(check):
            return False
        self._open = [one for one in self._open if all(one is not other for other in given)]
        self.refuted.update(one.check.port for one in given)
        return True

    def _ends_wrong(self, check: Check) -> bool:
        """Whether a layer of the framework's makes a wrong value of the right size of one of another size: a pool at
        the end of a net. What was of another size before comes to that, and is held."""
        chain = [one for one in self._open if not one.comparable and one.check.port not in self._kept]
        if check.where != "layer" or not check.error < math.inf or is_input(check.port.slot) or self.waits(check):
            return False
        if not any(_one_call(one.check.port, check.port) for one in chain):
            return False
        self._open = [one for one in self._open if all(one is not other for other in chain)]
        self.refuted.update(one.check.port for one in chain)
        return True

    def _is_later(self, waiting: _Waiting, others: Iterable[Key]) -> bool:
        """Whether it may be right once others are held: what a layer hands on that has others inside may have more of
        its own behind them, and is of another size, or of a layer around theirs."""
        port, inside = waiting.check.port, f"{waiting.check.port.layer}."
        if port.layer not in self._uses.around or is_input(port.slot):
            return False
        return not waiting.comparable or any(one.layer.startswith(inside) for one in others)

    def _begun(self, port: Key) -> bool:
        """Whether this call waits for what is made of its other arguments."""
        return any(_one_call(one.check.port, port) for one in self._open)

    def opened(
        self, check: Check, due: object, code: Code, outer: Code, sure: bool = True
    ) -> tuple[Sequence[Check], Check]:
        """What a value that `code` makes tells of those that wait: their checks, and its own, as they are to be told.
        `due` is what its counterpart is: where that is theirs as well, they are cut to size, or filled up, and right.

        If what the code makes is right until it ends, they are: their layers end elsewhere. If not, it comes of them,
        and they are to be held; not for `sure` where the code's arguments are in other forms. Of what it was given the
        first value tells. Where `code` hands this value on, `outer` goes on with it; else the two are one.
        """
        if check.suspicious and check.where == "glue":
            self.doubted.update(one.check.port for one in self._given if one.code == code)
        if check.suspicious and (self._refuses(check) or self._ends_wrong(check)):
            return (), replace(check, follows=True)
        mine = [one for one in self._open if one.code == code and not _one_call(one.check.port, check.port)]
        if check.suspicious:
            mine = [
                one
                for one in mine
                if one.check.port not in self._kept and (one.check.port, check.port) not in self._apart
            ]
        if not mine or check.where != "glue":
            return (), check
        ends = outer != code
        if check.reason == OTHER_BORDER or self.waits(check):
            for one in mine if ends else ():  # it goes on as it is, and so do they
                one.code = outer
            return (), check
        if check.suspicious and not all(check.error < LITTLE * min(one.check.error, 1.0) for one in mine):
            self._open = [one for one in self._open if all(one is not other for other in mine)]
            others = {one.check.port for one in mine} | (self.refuted - self._held)
            held = [one for one in mine if not self._is_later(one, others)]
            held = [one for one in held if not one.carried] or held  # those may be right once the others are
            (self.refuted if sure else self._unsure).update(one.check.port for one in held)
            for one in (one for one in mine if not one.comparable):
                self.accused.setdefault(one.check.port, set()).add(check.port)
            for at, one in enumerate(mine):
                if one.shuffled or not (one.comparable or is_input(one.check.port.slot)):
                    later = (check, *(other.check for other in mine[at + 1 :]))
                    self._against[one.check.port] = [each for each in later if each.deviation is not None]
            wrong = {one.value for one in mine}
            self.doubted.update(one.check.port for one in self._open if one.value in wrong and one.comparable)
            return [replace(one.check, follows=True) for one in mine[1:]], replace(check, follows=True)
        for one in mine:
            one.seen = True
        right = [one for one in mine if (one.given and not one.shuffled) or (not one.comparable and one.content == due)]
        return self._right(right), check

    def learned(self, checks: Sequence[Check]) -> bool:
        """Whether the run that made `checks` has told that others are to be held than were.

        A value that was found to be wrong by what is made after it need not be what that is made of. Where it is held,
        and what was right without is wrong then, that is made of it, and of the value as it is. What a call is given
        may be a tensor that others are given as well: of that it tells nothing.
        """
        earlier, right = self._known
        first = next((at for at, check in enumerate(checks) if check.suspicious and check.port in right), None)
        asked = {key for key in self._held - earlier if not is_input(key.slot)}
        spoilers = [check.port for check in checks[:first] if check.port in asked] if first is not None else []
        if spoilers:
            self._kept.add(spoilers[-1])
            self.refuted.discard(spoilers[-1])
        else:
            self._known = self._held, frozenset(c.port for c in checks if not (c.suspicious or c.reason))
        self.refuted |= self._unsure if self.refuted == self._held else set()
        return self.refuted != self._held

    def acquit(self, before: Sequence[Check], after: Sequence[Check]) -> bool:
        """Whether there are any among the accused of which nothing comes that tells against them: it is as wrong as
        `before` where their numbers stand in other places (`after`). Not where their own call makes a wrong value of
        the right size of them: that is made right, and hides what comes of it."""
        errors, others = ({check.port: check.error for check in checks} for checks in (before, after))
        known = len(self._apart)
        wrong = {c.port for c in before if c.suspicious and c.error < math.inf and not is_input(c.port.slot)}
        makes = {(port.layer, port.call) for port in wrong}
        for port, telling in self.accused.items():
            if (port.layer, port.call) in makes and is_input(port.slot):
                continue
            same = {one for one in telling if one in others and others[one] == errors.get(one, math.inf) < math.inf}
            self._apart |= {(port, one) for one in same}
            self.refuted -= {port} if same == telling else set()
        return len(self._apart) > known

    def left(self, code: Code, outer: Code) -> Sequence[Check]:
        """`code` has ended, and all that it hands on was looked at: the checks of those that were right all along."""
        mine = [one for one in self._open if one.code == code]
        for one in mine:
            one.code = outer
        return self._right([one for one in mine if one.seen])

    def came(self, check: Check, entry: Entry, found: Held, doubtful: bool) -> None:
        """A call was given a wrong value; a `doubtful` one may only be in another form."""
        self._came[check.port] = entry.content, prints.taken(found.raw())
        self.like[check.port] = {other.content for other in self._uses.standing.near(found, check.key.step)}
        self._spoiled |= set() if doubtful else {check.port}

    def ended(self, checks: Sequence[Check], free: Set[tuple[str, int]] = frozenset()) -> Sequence[Check]:
        """A run has ended, which found `checks`: those of what still waits, where something right was made since.
        Calls that were `free` kept what is their own.

        What a call hands on, and another one is given as it is, both in the place of one value, is wrong where it was
        made if it is wrong where it comes. A size, or an order, is not to blame where what comes of the value is no
        better with the reference's.
        """
        wrong = {check.port: check for check in checks if check.suspicious}
        for port in (one for one in self._held & self._against.keys() if (one.layer, one.call) not in free):
            if any(one.port in wrong and wrong[one.port].error >= NEARER * one.error for one in self._against[port]):
                self._kept.add(port)
        self.refuted.update(one.check.port for one in self._open if one.shuffled and not one.seen)
        self.refuted -= self._kept
        right = self._right([one for one in self._open if one.seen or one.check.port in self._kept])
        let_go = [one for one in reversed(self._let_go) if not is_input(one.check.port.slot)]
        made = {(one.content, one.value): one.check for one in let_go}
        back: list[Check] = []
        for port, came in self._came.items():
            if port in wrong and (due := made.get(came)) is not None:
                self.elsewhere.pop(due.port, None)
                back += [due, replace(wrong[port], follows=True)]
        told = {check.port: check for check in (*right, *back)}
        return [*right, *back, *with_their_results([told.get(check.port, check) for check in checks])]

    def _right(self, waiting: Sequence[_Waiting]) -> Sequence[Check]:
        self._open = [one for one in self._open if all(one is not other for other in waiting)]
        self._let_go += waiting
        self._given += [one for one in waiting if one.given and one.comparable]
        self.elsewhere.update((one.check.port, None) for one in waiting)
        return [excused(one.check) for one in waiting]

    def settled(self, check: Check, entry: Entry) -> Optional[tuple[Check, Check]]:
        """Where this value was due: the check of the place it was due from, and this one, as they are to be told."""
        due = self._due.get((check.key.step, entry.content))
        if due is None or due.port == check.port:
            return None
        del self._due[check.key.step, entry.content]
        if not check.suspicious:
            self.elsewhere[due.port] = None
            return excused(due), check
        if check.error > NEARER * due.error:
            self.refuted.add(due.port)
        elif due.where == "layer":
            told = replace(due, error=check.error, expected=check.expected, deviation=check.deviation)
            return replace(told, reason=check.reason, facts=check.facts), replace(check, follows=True)
        else:
            self.elsewhere[due.port] = None
            return excused(due), check
        return due, replace(check, follows=True)


def _one_call(one: Key, other: Key) -> bool:
    return (one.layer, one.call) == (other.layer, other.call)

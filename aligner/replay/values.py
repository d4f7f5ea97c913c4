"""One value of a forced pass: judged against the reference's, and what is handed on in its place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.arranged import in_order, without_places
from aligner.compare.checks import OTHER_BORDER, OTHER_FORM, OTHER_SHAPE, Check
from aligner.compare.formed import Formed, due
from aligner.compare.held import Held, held
from aligner.compare.masking import mask_like
from aligner.compare.net import CallId, is_input
from aligner.compare.padded import Padded
from aligner.compare.reformed import Slice, several
from aligner.dtypes import DTYPES, decode, encode
from aligner.noise import Change
from aligner.record import Array, Key, Phase, Record
from aligner.replay import prints
from aligner.replay.borders import Borders
from aligner.replay.forms import (
    are_indices,
    in_other_words,
    laid,
    other_form,
    repeated,
    sees_nothing,
    squeezed,
    tells_other_things,
)
from aligner.replay.frames import Frame, Plan
from aligner.replay.judgement import Place, judged, unexcused, without_effect
from aligner.replay.lent import Lent
from aligner.replay.masks import as_added, in_its_words
from aligner.replay.overflow import Overflow
from aligner.replay.own import Own
from aligner.replay.portions import Portions
from aligner.replay.precision import SHORT
from aligner.replay.turned import Turned
from aligner.replay.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.capture.sink import Sink
    from aligner.dump.reader import Entry

    Numbers = npt.NDArray[np.float64]

KEPT, CALLS = 96, 6
"""Values that are kept in the dump, of one place so many; a port with more places wrong is another net."""

NEARLY = 0.5
"""Relative L2 of two values that are meant to be one, with a setting wrong; of other axes it is more than 1."""


class Values:
    """All values of a forced pass, one at a time; `checks` tells what was found of each."""

    def __init__(self, adapter: Adapter, plan: Plan, sink: Optional[Sink], order: int) -> None:
        self.checks: list[Check] = []
        self.plan = plan
        self.settle: Callable[[], None] = lambda: None  # called before a value of the port's code is overwritten
        self.unheard: Callable[[], bool] = lambda: False  # called where code raises that may be heard in its source
        self.taken = False  # the port's code handed on another value of the reference than the one that was due
        self.spared: dict[int, bool] = {}
        """By step: whether such a value is left as it is, for those who are to get it."""
        self.free: set[tuple[str, int]] = set()  # calls that raised on the reference's inputs and keep their own
        self.odd: set[tuple[str, int]] = set()  # calls of this run that made another shape than the reference's
        self.shared: set[int] = set()
        """Tensors that the call under way is given in several places: of these each is put right for itself."""
        self.instead: Mapping[Key, bool] = {}
        """Arguments in another form in the place of which this run, of which nothing is kept, hands on others: the
        reference's, or the same numbers in other places."""
        self.moved: set[Key] = set()
        """Those whose numbers were in other places, and that are no masks."""
        self.disturb: Optional[Change] = None
        self.watched: Optional[Callable[[Check, Array, str], None]] = None
        self.borders = Borders(plan.uses, plan.made)
        self.turned, self.own, self.portions = Turned(), Own(plan.made), Portions()
        self.indices: set[Key] = set()
        """Whole numbers that are others than the reference's, and may count from elsewhere."""
        self.masks = Vocabulary()
        self._adapter, self._sink, self.order = adapter, sink, order
        self._step, self._kept = 0, Counter[tuple[str, str]]()
        self._prints: dict[Key, prints.Print] = {}
        """What was kept in the dump."""
        self._told: set[object] = set()  # masks and indices that layers hand on wrong, by content: they may go far
        self._said: dict[int, Check] = {}
        """By their places, masks that layers hand on in other words, as they are if nobody who gets one takes it so."""
        self._right: set[prints.Print] = set()
        """Values of the reference that the port has got into its hands in this run."""
        self._overflow, self.lent = Overflow(), Lent(adapter)

    def begin(self, step: int, owned: set[int]) -> None:
        """A run begins."""
        self._step = step
        self.lent.begin(step, owned)
        self._right, self.taken, self._overflow, self.odd = set(), False, Overflow(), set()
        self._told, self._said, self.portions = set(), {}, Portions(self.portions.refuted)
        self.borders.begin()
        self.own.begin()

    def checked(
        self, frame: Frame, owner: Optional[Frame], tensor: object, entry: Entry, address: Key, place: Place
    ) -> Optional[object]:
        """Judge a value of a call; what to put in its place, None for what it is."""
        found = self._found(address, tensor)
        if found is None:
            return None
        entry = self.masks.said(address, entry, found)
        wanted = held(entry)
        if without_places(entry):
            found = Held(address, 0, found.dtype, in_order(found.raw()))
        if (rows := due(entry, found.raw())) is not None:
            wanted = Held(entry.key, entry.order, entry.dtype, rows)
        row = several(entry)
        if row and found.shape == wanted.shape:
            self._of_several(owner, row, found, place)
            return self._handed(frame, self.checks[-1], tensor, wanted, found)
        same = found.dtype == entry.dtype and found.shape == wanted.shape and np.array_equal(found.raw(), wanted.raw())
        check = judged(self.plan.coarsest(place[1]), wanted, found, place, same)
        check = replace(check, isolated=not (owner is not None and owner.loose))
        check = self._overflow.judged(check, entry, wanted, (found.dtype, self.plan.short), frame)
        own = self.own.excused(check, found, frame.call) or self.own.inside(check, found, frame, self.checks)
        own = own or self.portions.taken(check, wanted, found, frame, len(self.checks))
        if own is not None:
            self.checks.append(self.borders.let(check, entry, found) if own.reason == OTHER_BORDER else own)
            return None
        if frame.around is not None and not check.suspicious and (put := repeated(wanted, found)) is not None:
            self.checks.append(replace(check, error=0.0, reason=OTHER_FORM))
            return None if is_input(address.slot) else self._other(put, found.raw(), found.dtype)
        if self.watched is None:
            nearly = False
            if frame.around is not None:  # one that is right in another order of axes stands where it is due
                ordered, put = self._turned(frame, check, wanted, found, place)
                off = ordered.deviation if check.deviation is None and not is_input(address.slot) else None
                nearly = off is not None and off.rel_l2 < NEARLY
                set_so = off is not None or ordered.reason == OTHER_FORM
                check, wanted = (ordered, put) if set_so else (check, wanted)
            check, other = (check, entry) if nearly else self._at_border(check, entry, found, place, frame)
            if other is None:
                self.checks.append(check)
                if self._prints and is_input(address.slot):  # behind something wrong the free run's is another one
                    self.keep(check.port, found.dtype, found.raw())
                return self._instead(wanted, found) if address in self.instead else None
            wanted = wanted if other is entry else held(other)
        check, doubtful = self._doubted(frame, check, wanted, found, same)
        if frame.around is not None:
            told = check
            check, wanted = self._turned(frame, check, wanted, found, place)
            doubtful = doubtful or (check.suspicious and address in self.turned.known)
            doubtful = doubtful and check is told and address not in self.turned.instead
            if self.watched is not None and address in self.turned.known and address not in self.turned.instead:
                return None
        if check.reason == OTHER_FORM:
            self.checks.append(check)
            kept = is_input(address.slot) or len(self.checks) - 1 in self._said
            return None if kept else self._other(wanted, found.raw(), found.dtype)
        if check.suspicious and owner is not None and place[0] == "glue" and not doubtful:
            check = self._settled(owner, check, wanted, found)
        if check.suspicious and self.watched is None:
            check = replace(check, kept=self.keep(check.port, found.dtype, found.raw()))
        if doubtful:
            frame.doubtful.append(len(self.checks))
        if check.suspicious and is_input(address.slot):
            self.borders.came(check, entry, found, doubtful)
        elif check.suspicious and DTYPES[entry.dtype].exact:
            self._told.add(entry.content)
        self.checks.append(check)
        if doubtful:
            return self._instead(wanted, found) if address in self.instead else None
        if self.watched is not None:
            self.watched(check, found.raw(), found.dtype)
        if same and self.disturb is None and self.plan.given is None:
            self._right.add(prints.taken(found.raw()))
            return None
        return self._handed(frame, check, tensor, wanted, found)

    def _turned(self, frame: Frame, check: Check, wanted: Held, found: Held, place: Place) -> tuple[Check, Held]:
        given = any(self.checks[at].port in self.turned.known for at in frame.doubtful)
        return self.turned.judged(check, wanted, found, self.plan.coarsest(place[1]), given)

    def _of_several(
        self, owner: Optional[Frame], row: Sequence[tuple[Formed, Slice]], found: Held, place: Place
    ) -> None:
        """Judge a value that several layers of the reference make: each part by itself."""
        for part, where in row:
            one = Held(part.key, part.order, part.dtype, part.raw())
            array = np.ascontiguousarray(found.raw()[..., where.places])
            layer = part.key.layer if place[0] == "layer" else place[1]
            other, here = Held(where.key, 0, found.dtype, array), (place[0], layer, place[2])
            check = judged(self.plan.coarsest(layer), one, other, here, False)
            check = replace(check, isolated=not (owner is not None and owner.loose))
            if check.suspicious and self.watched is None:
                check = replace(check, kept=self.keep(where.key, found.dtype, array))
            self.checks.append(check)
            if self.watched is not None:
                self.watched(check, array, found.dtype)

    def _found(self, address: Key, tensor: object) -> Optional[Held]:
        """The port's value, if it can be looked at."""
        with suppress(ValueError):
            dtype = self._adapter.dtype(tensor)
            return Held(address, 0, dtype, self._adapter.to_numpy(tensor)) if dtype in DTYPES else None
        return None

    def _doubted(self, frame: Frame, check: Check, wanted: Held, found: Held, same: bool) -> tuple[Check, bool]:
        """The check of an argument that may only be in another form, and whether what is made of it is to tell."""
        array, dtype = found.raw(), found.dtype
        if check.port in self.masks.known or isinstance(self.plan.entries.get(check.port), Padded):
            return check, False
        if is_input(check.port.slot) and array.ndim == len(wanted.shape) and array.shape != wanted.shape:
            check = replace(check, error=math.inf, deviation=None, reason=OTHER_SHAPE)  # axes of one elsewhere
        if not is_input(check.port.slot) and check.suspicious and in_other_words(wanted, array, dtype):
            kept = self.watched is None and self.keep(check.port, dtype, array)
            self._said[len(self.checks)] = replace(check, kept=kept)  # who is given it will tell
            return replace(check, error=0.0, reason=OTHER_FORM), False
        if not is_input(check.port.slot) or check.where != "glue" or self.watched is not None:
            return check, False
        blind = not same and not check.suspicious and sees_nothing(wanted, array, dtype)
        check = unexcused(check, wanted, found) if blind else check
        if not check.suspicious:
            return check, False
        self.masks.learn(check.port, wanted, array, dtype)
        results = self.plan.results.get((self._step, CallId(frame.path, frame.number)), ())
        if (blind or mask_like(wanted)) and without_effect(results, check):
            return replace(check, error=0.0, reason=OTHER_FORM), False
        if not (blind or other_form(wanted, array, dtype)):
            return check, False
        self.indices |= {check.port} if are_indices(wanted, array, dtype) else set()
        if blind or tells_other_things(wanted, array, dtype):
            frame.misled.append(len(self.checks))
        elif mask_like(wanted):
            self.masks.note(check.port, wanted, array, dtype)
        return check, True

    def _at_border(
        self, check: Check, entry: Entry, found: Held, place: Place, frame: Frame
    ) -> tuple[Check, Optional[Entry]]:
        """The check of a value that may stand at another border, and its counterpart; None leaves it as it is."""
        other: Optional[Entry] = entry
        given, here, around = is_input(check.port.slot), (frame.path, frame.number), frame.outer
        if check.suspicious and not given and frame.around is not None:
            inside = (one for one in self.checks[frame.first :] if not one.suspicious and not is_input(one.port.slot))
            if beyond := self.borders.beyond(check, entry, found, map(self.content, inside)):
                return beyond, None
        if check.suspicious:
            short = self.plan.coarsest(place[1])

            def judge(entry: Entry, shape: Optional[tuple[int, ...]] = None) -> Check:
                return judged(short, held(entry, shape), found, place, False)

            inner = here if given and frame.path in self.plan.uses.around else around
            if moved := self.borders.moved(check, entry, found, judge, inner, frame.call):
                check, other = replace(moved.check, isolated=check.isolated), moved.entry
        if (settled := self.borders.settled(check, entry)) is not None:
            due, check = settled
            due = replace(due, kept=self.keep(due.port, found.dtype, found.raw())) if due.suspicious else due
            self._amend(due)
        code, maker = around if given else here, frame.around if given else frame
        sure = maker is None or maker.is_sure(self.checks)
        excused, check = self.borders.opened(check, entry.content, code, around, sure)
        for due in excused:
            self._amend(due)
        return check, other

    def left(self, frame: Frame) -> None:
        """All that this call hands on was looked at."""
        for check in self.borders.left((frame.path, frame.number), frame.outer):
            self._amend(check)
        self.portions.left(frame, self.checks)

    def ended(self) -> None:
        """A run has ended."""
        for check in self.borders.ended(self.checks, self.free):
            self._amend(check)
        taken = {self.content(c) for c in self.checks if is_input(c.port.slot) and c.reason == OTHER_FORM}
        wrong = {at: check for at, check in self._said.items() if self.content(check) not in taken}
        first = {self.content(check): at for at, check in reversed([*wrong.items()])}
        for at in range(min(wrong, default=len(self.checks)), len(self.checks)):
            check = wrong.get(at, self.checks[at])
            if check.suspicious:  # a mask that is wrong goes far
                self.checks[at] = replace(check, follows=check.follows or first.get(self.content(check), at) < at)

    def _amend(self, check: Check) -> None:
        """Put this in the place of what was found of the same value; what it comes of is known by now."""
        index = next(n for n, known in enumerate(self.checks) if known.port == check.port)
        self.checks[index] = replace(check, follows=check.suspicious and (check.follows or self.checks[index].follows))

    def _handed(self, frame: Frame, check: Check, tensor: object, wanted: Held, found: Held) -> Optional[object]:
        """What is handed on in the place of a value; None leaves it as it is."""
        address, array, dtype = found.key, found.raw(), found.dtype
        if (frame.path, frame.number) in self.free and is_input(address.slot):
            frame.loose = frame.loose or check.suspicious
            return None
        if not self.plan.held and (frame.around is not None or not is_input(address.slot)):
            return None
        odd = array.shape != wanted.shape and not is_input(address.slot)
        self.odd |= {(frame.path, frame.number)} if odd else set()
        free = odd and (frame.path, frame.number) in self.free
        if address in self.turned.instead and (order := self.turned.instead[address]) is not None:
            wanted = laid(wanted, order, array.shape)
        other = (
            None
            if free
            else self._other(wanted, array, dtype, address in self.turned.instead or address in self.masks.known)
        )
        if other is None:
            target = frame if is_input(address.slot) else frame.around
            if target is not None and check.suspicious:
                target.loose = True
            return None
        if check.suspicious and is_input(address.slot) and id(tensor) not in self.shared:
            self._mend(tensor, other, array)
        return other

    def content(self, check: Check) -> object:
        """What tells the reference's value from others: equal where it is handed on as it is."""
        entry = self.plan.entries.get(check.port)
        return None if entry is None else entry.content

    def known_wrong(self, owner: Optional[Frame], check: Check) -> Check:
        """The same value handed to another layer is the same mistake."""
        entry = self.plan.entries.get(check.port)
        if owner is None or entry is None:
            return check
        known = entry.content in owner.wrong or entry.content in self._told
        owner.wrong.add(entry.content)
        return replace(check, follows=True) if known else check

    def _settled(self, owner: Frame, check: Check, wanted: Held, found: Held) -> Check:
        """Whether the same code was off by this already: a shortcut carries a mistake past the layers."""
        check = self.known_wrong(owner, check) if check.isolated and is_input(check.key.slot) else check
        if wanted.shape != found.shape or not check.isolated or check.follows:
            return check
        with np.errstate(all="ignore"):
            one, right = found.load().reshape(-1), wanted.load().reshape(-1)
            difference: Numbers = np.subtract(one, right, dtype=np.float64)
        return replace(check, follows=True) if owner.mistakes.repeats(difference) else check

    def keep(self, key: Key, dtype: str, array: Array) -> bool:
        """Put a value into the port's dump; false if there are too many."""
        if key in self._prints:
            return self._prints[key] == prints.taken(array)
        place = key.layer, key.slot
        if self._sink is None or self.instead or len(self._prints) >= KEPT or self._kept[place] >= CALLS:
            return False
        self.order += 1
        self._sink.write(Record(key._replace(phase=Phase.FORCED), self.order, dtype, array))
        self._prints[key], self._kept[place] = prints.taken(array), self._kept[place] + 1
        return True

    def _other(self, wanted: Held, array: Array, dtype: str, as_it_is: bool = False) -> Optional[object]:
        """The reference's value as the port would have it, or in its own form; None where the two are of another
        nature."""
        value, word = wanted.raw(), wanted.dtype
        one, other = DTYPES[word], DTYPES[dtype]
        if not as_it_is and value.size == array.size and squeezed(value.shape) == squeezed(array.shape):
            value = value.reshape(array.shape)
        value = in_its_words(value, array) if word == dtype == "bool" and not as_it_is else value
        if self.disturb is not None and not one.exact:
            value = encode(self.disturb(decode(value, word), word), word)
        if self.plan.given is not None and not one.exact and "complex" not in word:
            value, word = encode(decode(value, word), self.plan.given), self.plan.given
        elif word != dtype:
            if one.exact != other.exact or "complex" in word + dtype or "bool" in (word, dtype):
                return None
            if other.exact or word in SHORT or (dtype in SHORT and dtype == self.plan.short):
                value, word = encode(decode(value, word), dtype), dtype
        self._right.add(prints.taken(value))
        return self._adapter.from_numpy(value, word)

    def _instead(self, wanted: Held, found: Held) -> Optional[object]:
        """What is handed on in the place of an argument in another form; None for what it is."""
        self.own.look(found)
        if self.instead[found.key]:
            return self._other(as_added(wanted, found), found.raw(), found.dtype, as_it_is=True)
        flat = found.raw().reshape(-1)
        ways = (flat[::-1], np.roll(flat, 1))[:: 1 if flat.size == math.prod(wanted.shape) else -1]  # may come again
        other = next((o for o in ways if not np.array_equal(o, flat)), None)
        if other is None:
            return None
        self.moved |= {found.key} - self.masks.words.keys()
        return self._adapter.from_numpy(np.ascontiguousarray(other.reshape(found.shape)), found.dtype)

    def _mend(self, tensor: object, other: object, array: Array) -> None:
        """What the code around keeps is made right as well, where it is this very tensor."""
        taken = prints.taken(array) in self._right
        self.taken |= taken
        if not (taken and self.spared.get(self._step)):
            self.settle()
            self.lent.lend(self._step, tensor, other, array)

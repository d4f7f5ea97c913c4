"""Places that are wrong only where nothing that the net hands on is made of them: the port runs once more, free, with
the reference's numbers in that part alone, and hands on what it did.

Of indices that have a number for none, a wrong port reads others. Held to the reference, it makes the same of them,
whether that part is the reference's or its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.checks import OTHER_FORM, UNREAD, Check
from aligner.compare.net import is_input
from aligner.compare.unread import LARGEST, TELLING, Unread, of_none, part_of
from aligner.dtypes import DTYPES, decode, encode
from aligner.errors import DumpError
from aligner.record import Array, Key, Phase, Scalar
from aligner.replay.freely import FreeRuns
from aligner.replay.lent import Lent
from aligner.structure import (
    Tensors,
    flatten_arguments,
    flatten_result,
    substitute_arguments,
    substitute_result,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Dump, Entry
    from aligner.replay.frames import Plan

MOST, SECONDS = 6, 20.0
"""Places that are looked into one by one, and how long."""

HELD = 1 << 26
"""Elements of all parts that are held at a time."""

NEAR = 1e-3
"""Errors of one value in two runs are the same that differ by no more than this part."""

SAME = 1e-7
"""Relative L2 that kernels may make of the same numbers, from one run to the next."""


class _Part(NamedTuple):
    """The elements of a value that are wrong, and what the reference has there. `whole`: none else is wrong."""

    wrong: npt.NDArray[np.bool_]
    entry: Entry
    whole: bool = True

    @property
    def is_word(self) -> bool:
        """Whether they are whole numbers."""
        return DTYPES[self.entry.dtype].exact

    def mixed(self, own: Array) -> Array:
        """The value with other numbers there: the reference's, or of whole ones those that the rest has, as they may be
        indices and its word for none."""
        numbers = np.asarray(self.entry.load(), np.float64)
        if self.is_word:
            right = np.unique(own[~self.wrong])
            if len(right) > 1:
                numbers = np.where(own == right[0], right[-1], right[0])
        return np.asarray(np.where(self.wrong, numbers, own))


Parts = Mapping[Key, _Part]


def unread(
    checks: Sequence[Check],
    adapter: Adapter,
    model: Any,
    run: Callable[[int], object],
    steps: Sequence[int],
    port: Dump,
    plan: Plan,
    errors: Callable[[int, Plan], Mapping[Key, float]],
) -> tuple[list[Check], Plan]:
    """The checks and the plan, in which what is wrong in a part that nothing is made of is no mistake: there it is the
    port's own affair. `errors` tells how far each value of a step is off that is held to a plan.
    """
    places: dict[object, list[Check]] = {}
    kinds = {path: type(layer) for path, layer in adapter.layers(model)}
    for check in checks:
        if check.suspicious and check.isolated:  # of layers of one class at once; also what comes of another mistake
            inside = [name[len(check.owner) :] for name in check.between or ()]
            around = kinds.get(check.port.layer), kinds.get(check.port.layer.rpartition(".")[0])
            places.setdefault((check.follows, *around, check.port.slot, *inside), []).append(check)
    parts: list[Parts] = []
    left = HELD
    for some in sorted(places.values(), key=lambda some: some[0].follows):  # what is wrong by itself before the rest
        part = _parts(some, port, plan, left)
        parts += [part] if part else []
        left -= sum(one.wrong.size for one in part.values())
    found: Parts = {}
    if parts and hasattr(adapter, "computing"):
        try:
            found = _unread(_Runs(adapter, model, run, steps), parts)
        except DumpError:
            raise
        except Exception:  # a port that cannot be run so
            found = {}
    words = [some for some in parts if not found.keys() & some.keys() and all(one.is_word for one in some.values())]
    found = {**found, **_unread_held(words, plan, steps, errors)}
    excused = [_excused(check, found) for check in checks]
    return [*_acquitted(excused, {*found}, port, plan)], _with_own(plan, found)


def _excused(check: Check, parts: Parts) -> Check:
    if check.port not in parts or not parts[check.port].whole:
        return check
    right, part = replace(check, error=0.0, deviation=None), parts[check.port]
    facts: dict[str, Scalar] = {"count": int(part.wrong.sum()), "total": part.wrong.size}
    return replace(right, reason=UNREAD, facts=facts) if part.is_word else right


def _acquitted(checks: Sequence[Check], found: Set[Key], port: Dump, plan: Plan) -> Iterator[Check]:
    """What is no mistake either: an argument that says other things than the reference's, and was blamed for nothing
    but what is made in such parts.
    """
    for place, check in enumerate(checks):
        call = check.port.layer, check.port.call
        if (
            check.fails
            and is_input(check.port.slot)
            and check.where == "glue"
            and _says_other_things(check, port, plan)
        ):
            ends = [
                n for n, c in enumerate(checks) if (c.port.layer, c.port.call) == call and not is_input(c.port.slot)
            ]
            inside = [
                one for one in checks[place : max(ends, default=-1) + 1] if (one.port.layer, one.port.call) != call
            ]
            made = [*inside, *(checks[end] for end in ends)]
            if any(one.port in found for one in inside) and not any(one.suspicious for one in made):
                yield replace(check, error=0.0, deviation=None, reason=OTHER_FORM)
                continue
        yield check


def _says_other_things(check: Check, port: Dump, plan: Plan) -> bool:
    """Whether the two are of different kinds: truth values, whole numbers, broken ones."""
    entry, own = plan.entries.get(check.port), port.find(check.port)
    if entry is None or own is None:
        return False
    kinds = {(one.dtype == "bool", DTYPES[one.dtype].exact) for one in (entry, own)}
    return len(kinds) > 1


def _with_own(plan: Plan, parts: Parts) -> Plan:
    own: dict[Key, Any] = {port: Unread(part.entry, part.wrong) for port, part in parts.items()}
    return plan.learned(own, plan.orders)


def _unread_held(
    parts: Sequence[Parts], plan: Plan, steps: Sequence[int], errors: Callable[[int, Plan], Mapping[Key, float]]
) -> Parts:
    """Those of which nothing is made that is held: it is as far off with the reference's numbers as with its own."""
    found: Parts = {}
    for some in parts[:MOST]:
        here = [step for step in steps if any(port.step == step for port in some)]
        try:
            both = [(errors(step, plan), errors(step, _with_own(plan, some))) for step in here]
        except DumpError:
            raise
        except Exception:  # such as that of an index that is none
            continue
        if all(_is_as_far(one, other, some) for one, other in both):
            found = {**found, **some}
    return found


def _is_as_far(one: Mapping[Key, float], other: Mapping[Key, float], parts: Parts) -> bool:
    return one.keys() == other.keys() and all(
        one[port] == other[port] or abs(one[port] - other[port]) <= SAME + NEAR * min(one[port], other[port])
        for port in one
        if port not in parts
    )


def _unread(runs: _Runs, parts: Sequence[Parts]) -> Parts:
    until = time.monotonic() + SECONDS
    plain = runs.ends({})
    if sum(one.size for one in plain if one.dtype.kind == "f") < TELLING:
        return {}
    together = {port: part for some in parts for port, part in some.items()}
    if _same(plain, runs.ends(together)):
        return together
    apart = itertools.islice(parts, MOST) if len(parts) > 1 else ()
    asked = (some for some in apart if time.monotonic() < until)
    return {port: part for some in asked if _same(plain, runs.ends(some)) for port, part in some.items()}


def _parts(checks: Sequence[Check], port: Dump, plan: Plan, left: int) -> Parts:
    """Those of all values of a place; none where one is not wrong in a part, in most calls in all of it, or they are
    larger than what is left. Of candidates that are written to their ends fewer are left in each call, and of words
    most may be the one for none.
    """
    found: dict[Key, _Part] = {}
    for check in checks:
        part = _part(check, port, plan)
        if part is None or part.wrong.size > left:
            return {}
        found[check.port], left = part, left - part.wrong.size
    return found if any(one.is_word or 2 * one.wrong.sum() <= one.wrong.size for one in found.values()) else {}


def _part(check: Check, port: Dump, plan: Plan) -> Optional[_Part]:
    entry = plan.entries.get(check.port)
    own = port.find(check.port._replace(phase=Phase.FORCED)) or port.find(check.port)  # of many calls not all are kept
    if entry is None or own is None or not check.port.layer or check.reason:
        return None
    if check.against is not None or check.passed_on is not None or check.axes is not None:
        return None
    if DTYPES[entry.dtype].exact != DTYPES[own.dtype].exact:
        return None
    wrong = part_of(entry, own, most=False)
    if (
        wrong is None
        and not check.by_effect
        and DTYPES[own.dtype].exact
        and own.shape == entry.shape
        and own.nbytes <= LARGEST
    ):
        wrong = of_none(entry.load(), own.load())
        return None if wrong is None else _Part(wrong, entry, whole=False)
    return None if wrong is None else _Part(wrong, entry)


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Whether all that is handed on is the same."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype.kind != "f":
        return one.shape == other.shape and bool(np.array_equal(one, other))
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    ours, theirs = (np.where(equal, 0.0, each).astype(np.float64) for each in (one, other))
    size = np.linalg.norm(np.where(np.isfinite(one), one, 0.0).astype(np.float64))  # squares may be too large for less
    return float(np.linalg.norm(ours - theirs)) <= SAME * float(size)


class _Runs:
    """Free runs of the port in which parts of values are the reference's.

    What a layer is given, the code around may hand on, too: the very tensor is written to, and given back.
    """

    def __init__(self, adapter: Adapter, model: Any, run: Callable[[int], object], steps: Sequence[int]) -> None:
        self._adapter, self._runs = adapter, FreeRuns(adapter, model, run, steps)
        self._lent, self._owned = Lent(adapter), {id(one.tensor) for one in adapter.parameters(model)}

    def ends(self, parts: Parts) -> Sequence[Array]:
        """What the net hands on."""
        self._lent.begin(-1, self._owned)
        try:
            return [*self._runs.ends(partial(self._called, parts)).values()]
        finally:
            self._lent.returned()

    def _called(
        self, parts: Parts, call: Key, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        due = {key.slot: part for key, part in parts.items() if key._replace(slot="") == call}
        given: Tensors = []
        own: tuple[Any, Any] = args, kwargs
        if any(map(is_input, due)):
            flatten_arguments(args, kwargs, self._adapter.is_tensor, given)
            mixed = self._mixed(given, due)
            own = substitute_arguments(args, kwargs, mixed)
            for slot, tensor in given:
                if slot in mixed:
                    self._lent.lend(call.step, tensor, mixed[slot], self._adapter.to_numpy(tensor))
        output = inner(*own[0], **own[1])
        made: Tensors = []
        flatten_result(output, self._adapter.is_tensor, made)
        return substitute_result(output, self._mixed(made, due)) if due else output

    def _mixed(self, found: Iterable[tuple[str, object]], due: Mapping[str, _Part]) -> dict[str, object]:
        """The values with the reference's numbers in these parts."""
        mixed: dict[str, object] = {}
        for slot, tensor in found:
            part, word = due.get(slot), self._adapter.dtype(tensor)
            if part is not None:
                numbers = part.mixed(decode(self._adapter.to_numpy(tensor), word))
                mixed[slot] = self._adapter.from_numpy(encode(numbers, word), word)
        return mixed

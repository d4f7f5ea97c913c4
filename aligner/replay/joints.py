"""Which layer of the reference a layer of the port stands for, by what it is given.

Layers that are alike in everything but their names are matched in the order in which they are defined or run, and a
port may do both otherwise (the shortcut first, a norm more). A run tells: just before a layer runs it gets the weights
of the reference's layer that was given the same values. Where none was, it hands on what its counterpart so far made,
so that the next are given right values again; where one was, it hands that on at once and need not be computed. Layers
that the reference gave the very same values (the first convolution of a block and its shortcut) are tried in all
orders, and what comes after them tells. A layer that is given a value of the reference that none like it was given is
one too many, if the others find their counterparts when it hands that value on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from typing import Any, Optional

from aligner.adapter import Adapter, Arguments
from aligner.compare.held import Held
from aligner.dtypes import DTYPES
from aligner.dump.reader import Dump, Entry
from aligner.record import Key, Phase
from aligner.replay.answering import answered, leaves
from aligner.replay.counterparts import Fill, Group, Run
from aligner.replay.forms import squeezed
from aligner.replay.items import Item, Match
from aligner.replay.numbered import crossing, torn
from aligner.replay.sample import NEAR, Sample
from aligner.replay.standing import Standing
from aligner.replay.transfer import Transfer
from aligner.replay.trial import Trial, executed
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_result

SEEN = 2
"""So many layers at least show that two have each other's places, or that one is too many."""

MOST_ORDERS = 6
"""Runs at most: all orders of three layers (q, k and v)."""

SURE = 0.9
"""How sure a match by values is."""

_Signature = tuple[tuple[str, tuple[int, ...]], ...]


class Joints:
    """Layers of one port whose weights were matched by their order alone."""

    def __init__(
        self,
        reference: Dump,
        adapter: Adapter,
        model: Any,
        first: Transfer,
        step: int,
        fill: Fill,
    ) -> None:
        self._reference, self._adapter, self._model, self._step = reference, adapter, model, step
        self._first = first
        self._norms = first.norms[0]
        self._leaves = {path: leaf for path, leaf in leaves(adapter, model).items() if path not in first.norms[1]}
        self._fill = fill
        self._specs = {path: adapter.spec(leaf) for path, leaf in self._leaves.items()}
        free = [match for match in first.matches if match.by == "structure" and match.confidence < 1.0]
        bound = {match.reference.slot.layer for match in first.matches} - {m.reference.slot.layer for m in free}
        self._ours = _layers([m.reference for m in free] + [i for i in first.left_reference if i.required], bound)
        bound = {match.port.slot.layer for match in first.matches} - {m.port.slot.layer for m in free}
        self._theirs = _layers([m.port for m in free] + [i for i in first.left_port if i.required], bound)
        pairs = {(match.reference.slot.layer, match.port.slot.layer) for match in free}
        for one, other in pairs:  # a parameter that has another name there, or stands in a layer of its own
            if _signature(self._ours.get(one, ())) != _signature(self._theirs.get(other, ())):
                self._ours.pop(one, None)
                self._theirs.pop(other, None)
        self._prior = {other: one for one, other in pairs if one in self._ours and other in self._theirs}
        self._sure = {
            m.port.slot.layer: m.reference.slot.layer
            for m in reversed(first.matches)
            if m.port.slot.layer not in self._theirs
        }
        """Of layers with one possible counterpart, that one; what they are given tells of those before them."""
        self._alike: dict[_Signature, list[str]] = {}
        order = executed(reference, step)
        for path in sorted(self._ours, key=lambda path: order.get(path, len(order))):
            self._alike.setdefault(_signature(self._ours[path]), []).append(path)
        self._samples: dict[Key, Optional[Sample]] = {}
        self._standing: Optional[Standing] = None
        self._aside: Set[str] = frozenset()
        """Layers with a first counterpart that are one too many."""
        self.known = 0
        """How many layers were given what their counterparts were given."""
        self.gained = False
        """In another order more of them were."""
        self.lone = False
        """Without some that are one too many, more of the others were."""
        self.certain = False
        """Each layer that got another counterpart was given what that one was given, and not what the first one was."""

    def found(self, call: Callable[[], None], before: Trial) -> Transfer:
        """The matches that the runs tell; `before` is what a run with the first ones showed."""
        first = self._ran(call, before, {})
        best = run = self._without_added(call, before, first)
        fewest, orders, left = best.lost(), dict[Group, Group](), dict[Group, Iterator[Group]]()
        if not any(best.known.values()):
            return self._first
        for _ in range(MOST_ORDERS):
            tried = {}
            for group, lost in fewest.items():
                others = left.setdefault(group, permutations(group))
                order = next((one for one in others if one != best.order(group)), None) if lost else None
                if order is not None:
                    tried[group] = order
            if not tried:
                break
            latest = self._ran(call, before, {**orders, **tried})
            for group, lost in latest.lost().items():
                if group in tried and lost < fewest[group]:
                    fewest[group], orders[group] = lost, tried[group]
                elif group in tried and fewest[group] < SEEN <= lost - fewest[group]:
                    left[group] = iter(())  # each that stands elsewhere shows, and no order has one alone elsewhere
                elif group not in fewest:  # only now it was given the right values
                    fewest[group] = lost
            if latest.orders == orders:
                run = latest
        run = run if run.orders == orders else self._ran(call, before, orders)
        self.known = sum(run.known.values())
        self.gained, self.lone = self.known > sum(first.known.values()), bool(self._aside)
        changed = [path for path, other in run.taken.items() if self._prior.get(path) != other]
        run.fitted.update(path for path, group in run.groups.items() if group in orders)  # what comes behind has told
        told = {path for path in changed if run.known[path] or path in run.fitted}
        self.certain = told == set(changed) and not told & set(run.groups)
        return self._transfer(run)

    def _without_added(self, call: Callable[[], None], before: Trial, first: Run) -> Run:
        """The first run, or one in which layers that are one too many hand on what they are given: those that were
        given another value, or the ones like them that ran before.
        """
        beside = first.beside & self._prior.keys()
        for aside in (beside, {path for other in beside if (path := self._like_before(first, other)) is not None}):
            for _ in range(2):  # some of them may be none
                if not aside:
                    break
                self._aside = aside
                run = self._ran(call, before, {})
                met = {run.taken[path] for path, known in run.known.items() if known and path in run.taken}
                aside = {path for path in self._aside if self._prior[path] in met}
                if aside == self._aside and sum(run.known.values()) >= sum(first.known.values()) + SEEN:
                    return run
                if aside == self._aside:
                    break
        self._aside = frozenset()
        return first

    def _like_before(self, run: Run, path: str) -> Optional[str]:
        """The layer like this one that ran last before it, if it was given what its counterpart was."""
        ran = [*run.known]
        alike = (p for p in ran[: ran.index(path)] if p in self._prior)
        latest = [p for p in alike if _signature(self._theirs[p]) == _signature(self._theirs[path])][-1:]
        return next((p for p in latest if run.known[p]), None)

    def _ran(self, call: Callable[[], None], before: Trial, orders: Mapping[Group, Group]) -> Run:
        run = Run(self._fill, orders)
        with ExitStack() as hooks:
            for path, layer in self._adapter.layers(self._model):
                if path in self._theirs or path in self._sure:
                    known = partial(self._seen, run, path, before)
                    given = partial(self._given, run, path, before, orders) if path in self._theirs else known
                    hooks.callback(self._adapter.intervene(layer, given, partial(self._made, run, path, [])).remove)
            hooks.callback(answered(self._adapter, self._leaves, run.due).remove)
            try:
                call()
            except Exception:  # what ran before tells of a net that stops in the middle
                if not any(run.known.values()):
                    raise
        return run

    def _seen(
        self, run: Run, path: str, before: Trial, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Arguments:
        """Before a layer runs whose counterpart is known."""
        run.due.pop(path, None)  # of a call that somebody else has answered
        wanted = self._sample(self._sure[path], "input.0")
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        if path not in run.known and wanted is not None and found:
            run.off[path] = _off(self._taken_of(found[0][1]), wanted)
            run.known[path] = run.off[path] <= NEAR
            self._expect(run, path, self._sure[path], before)
        return args, kwargs

    def _given(
        self,
        run: Run,
        path: str,
        before: Trial,
        orders: Mapping[Group, Group],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Arguments:
        """Before a layer runs: choose its counterpart, and give it its weights."""
        run.due.pop(path, None)
        if path in run.known:
            return args, kwargs
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        one = self._taken_of(found[0][1]) if found else None
        alike = self._alike.get(_signature(self._theirs[path]), [])
        near = [other for other in alike if one is not None and one.near(self._sample(other, "input.0"))]
        run.known[path] = bool(near) and path not in self._aside
        mine = self._prior.get(path)
        if found and not near and self._stands(found[0][1]):
            run.beside.add(path)
        if path in self._aside or (mine is None and path in run.beside):
            return args, kwargs
        counterparts = near or ([] if mine is None else [mine])
        run.off[path] = min((_off(one, self._sample(other, "input.0")) for other in counterparts), default=1.0)
        if not near and mine is not None:  # the code before is wrong, or an order before was
            near = [other for other in alike if _same(self._sample(mine, "input.0"), self._sample(other, "input.0"))]
        made = before.made.get(path)
        fitting = [other for other in near if made is None or self._shape(other) == squeezed(made)]
        if not run.known[path] and len(fitting) == 1 < len(near):
            run.fitted.add(path)
        near = fitting or near
        chosen = near[0] if len(near) == 1 else mine
        if len(near) > 1:
            group = tuple(near)
            run.groups[path] = group
            place = run.met.get(group, 0)
            run.met[group] = place + 1
            order = orders.get(group)
            left = [other for other in near if other not in run.taken.values()]
            if order is not None and place < len(order):
                chosen = order[place]
            elif mine not in left and left:
                chosen = left[0]
        if chosen is not None:
            run.taken[path] = chosen
            run.fill(self._matches(chosen, path))
            self._expect(run, path, chosen, before)
        return args, kwargs

    def _expect(self, run: Run, path: str, chosen: str, before: Trial) -> None:
        """A layer that was given what its counterpart was, and has its settings, makes what that one made."""
        alike = path in self._leaves and self._specs[path] == self._reference.layers[chosen].spec
        entry = self._entry(chosen, "output.0") if run.known[path] and alike else None
        if entry is not None and (entry.shape, entry.dtype) == (before.made.get(path), before.single.get(path)):
            run.due[path] = partial(self._adapter.from_numpy, entry.raw(), entry.dtype)

    def _made(
        self,
        run: Run,
        path: str,
        done: list[bool],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        output: object,
    ) -> object:
        """After it has run: where the way was lost, hand on what its counterpart made."""
        found, given = Tensors(), Tensors()
        flatten_result(output, self._adapter.is_tensor, found)
        if not done and (path in self._aside or (path in run.beside and path not in self._prior)):
            flatten_arguments(args, kwargs, self._adapter.is_tensor, given)
            done.append(True)
            shapes = [tuple(self._adapter.to_numpy(each[0][1]).shape) for each in (found, given) if each]
            alike = len(shapes) == 2 and shapes[0] == shapes[1]
            return substitute_result(output, {found[0][0]: given[0][1]}) if alike else output
        chosen = run.taken.get(path, self._sure.get(path))
        lost = chosen is not None and not run.known.get(path, True) and not done and found
        entry = self._entry(chosen, "output.0") if chosen is not None and lost else None
        done.append(True)
        if entry is None:
            return output
        slot, tensor = found[0]
        shape = tuple(self._adapter.to_numpy(tensor).shape)
        dtype = self._adapter.dtype(tensor)
        if squeezed(shape) != squeezed(entry.shape) or dtype != entry.dtype:
            return output
        return substitute_result(output, {slot: self._adapter.from_numpy(entry.raw().reshape(shape), dtype)})

    def _transfer(self, run: Run) -> Transfer:
        """The first matches, with those of the layers that the run tells in their place."""
        pairs: dict[str, str] = {}
        for path, other in run.taken.items():
            if (run.known[path] or path in run.fitted) and other not in pairs.values():
                pairs[path] = other
        for path, other in self._prior.items():
            if path not in pairs and other not in pairs.values() and path not in self._aside:
                pairs[path] = other
        for path, items in self._theirs.items():
            left = [other for other in self._alike.get(_signature(items), ()) if other not in pairs.values()]
            if path not in pairs and left and path not in self._aside:
                pairs[path] = left[0]
        told = {path for path in pairs if run.known.get(path, False) or path in run.fitted}
        back = crossing(self._prior, pairs, told) | torn({**self._sure, **self._prior}, pairs, {*run.groups})
        pairs = {path: other for path, other in pairs.items() if path not in back}
        pairs.update((path, one) for path in back if (one := self._prior.get(path)) and one not in pairs.values())
        changed = {path: other for path, other in pairs.items() if self._prior.get(path) != other}
        gone = {*changed, *(path for path in self._prior if path not in pairs)}
        kept = [match for match in self._first.matches if match.port.slot.layer not in gone]
        matches = kept + [match for path, other in changed.items() for match in self._matches(other, path)]
        position = {item.slot: index for index, item in enumerate(_all(self._first)[0])}
        matches.sort(key=lambda match: position[match.reference.slot])
        used = {match.reference.slot for match in matches}, {match.port.slot for match in matches}
        ours, theirs = _all(self._first)
        return Transfer(
            tuple(matches),
            tuple(item for item in ours if item.slot not in used[0]),
            tuple(item for item in theirs if item.slot not in used[1]),
        )

    def _matches(self, reference: str, port: str) -> list[Match]:
        roles = {item.role: item for item in self._theirs[port]}
        return [Match(item, roles[item.role], "values", SURE) for item in self._ours[reference]]

    def _entry(self, layer: str, slot: str) -> Optional[Entry]:
        if slot.startswith("output"):
            layer = self._norms.get(layer, layer)
        return self._reference.find(Key(self._step, Phase.FORWARD, layer, 0, slot))

    def _shape(self, layer: str) -> Optional[tuple[int, ...]]:
        entry = self._entry(layer, "output.0")
        return None if entry is None else squeezed(entry.shape)

    def _sample(self, layer: str, slot: str) -> Optional[Sample]:
        key = Key(self._step, Phase.FORWARD, layer, 0, slot)
        if key not in self._samples:
            entry = self._entry(layer, slot)
            self._samples[key] = None if entry is None else Sample.of(entry.raw(), entry.dtype)
        return self._samples[key]

    def _stands(self, tensor: object) -> bool:
        """Whether it is a value of the reference's run."""
        dtype = self._adapter.dtype(tensor)
        if dtype not in DTYPES:
            return False
        if self._standing is None:
            forward = (entry for entry in self._reference.entries if entry.key.phase is Phase.FORWARD)
            self._standing = Standing.of(forward)
        found = Held(Key(self._step, Phase.FORWARD, "", 0, ""), 0, dtype, self._adapter.to_numpy(tensor))
        return bool(self._standing.near(found, self._step))

    def _taken_of(self, tensor: object) -> Optional[Sample]:
        dtype = self._adapter.dtype(tensor)
        return Sample.of(self._adapter.to_numpy(tensor), dtype) if dtype in DTYPES else None


def _off(one: Optional[Sample], other: Optional[Sample]) -> float:
    return 1.0 if one is None else one.off(other)


def _same(one: Optional[Sample], other: Optional[Sample]) -> bool:
    return _off(one, other) <= NEAR


def _layers(items: Iterable[Item], bound: Iterable[str]) -> dict[str, list[Item]]:
    """The layers all of whose parameters are free, with these."""
    layers: dict[str, list[Item]] = {}
    for item in items:
        layers.setdefault(item.slot.layer, []).append(item)
    return {path: members for path, members in layers.items() if path not in set(bound)}


def _signature(items: Sequence[Item]) -> _Signature:
    return tuple(sorted((item.role, item.shape) for item in items))


def _all(transfer: Transfer) -> tuple[list[Item], list[Item]]:
    return (
        [match.reference for match in transfer.matches] + [*transfer.left_reference],
        [match.port for match in transfer.matches] + [*transfer.left_port],
    )

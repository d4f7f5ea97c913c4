"""The reference's weights, out of its dump and into the port; runs of the port tell where names and shapes do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.adapter import Parameter as Native
from aligner.compare.layer_map import Rule
from aligner.compare.net import STATISTICS, WEIGHTS, idle
from aligner.dtypes import DTYPES, decode, encode
from aligner.dump.reader import Dump, Entry
from aligner.errors import ReplayError
from aligner.record import Array, Key, Phase
from aligner.replay import combining, fused, mapped, trial
from aligner.replay.items import Item, Match, Slot
from aligner.replay.joints import Joints
from aligner.replay.naming import as_named
from aligner.replay.reshaping import Form
from aligner.replay.transfer import Transfer, left_over, plan

Renames = Mapping[str, str]

BLOCKS = 2
"""Blocks that are asked how their rows lie."""

Arguments = Callable[[], tuple[tuple[object, ...], dict[str, object]]]
"""Makes the arguments of the reference's call anew; what a net does to them is not seen by the next run."""


class Loader:
    """Of one port. Its parameters are asked for when they are needed: a framework may put others in their place."""

    def __init__(self, reference: Dump, adapter: Adapter, model: Any) -> None:
        self._reference = reference
        self._adapter = adapter
        self._model = model
        self.transfer = Transfer((), (), ())
        """What went where, or would have gone."""
        self.given: Mapping[str, str] = {}
        """The user's map, name by name."""
        self._arguments: Optional[Arguments] = None
        self._forms: Sequence[Form] = ()
        """In which the parameters are matched beside their own."""
        self._step = 0

    def load(
        self,
        renames: Mapping[str, str],
        allow_missing: bool,
        arguments: Optional[Arguments],
        step: int,
        rules: Sequence[Rule] = (),
    ) -> None:
        """Fill the port; `rules` are the user's map, `transfer` says what went where.

        Without `arguments` the port cannot be run to find out what is whose.

        Raises:
            ReplayError: the dump holds no weights, or parameters are left over on either side.
            UsageError: the map names what is on neither side.
        """
        self._arguments, self._step = arguments, step
        items = self._reference_items(), self._port_items()
        wanted: Mapping[str, str] = {}
        if rules:
            layers = list(self._reference.layers), [path for path, _ in self._adapter.layers(self._model)]
            self.given = mapped.given_pairs(rules, items, layers)
            wanted = mapped.renames(self.given, items)
            renames = {**wanted, **renames}
        self.transfer = self._folded(plan(*items, renames), items, renames)
        if rules:
            mapped.check_followed(self.transfer, wanted, items[1])
        held = self._held()
        self._fill(self.transfer.matches)
        if arguments is not None and trial.doubtful(self.transfer):
            self.transfer = self._in_other_orders(self.transfer, items, renames)
            self._restore(held)
        if any(self.transfer.failing) and not allow_missing:
            self._refuse(self.transfer)
        if arguments is not None and any(match.by == "parts" for match in self.transfer.matches):
            self.transfer = self._by_heads(self.transfer)
        if arguments is not None:
            self.transfer = self._raised(self.transfer, held)

    def _refuse(self, transfer: Transfer) -> None:
        ours, theirs = transfer.failing
        message = "weights-left-over" if ours and theirs else "weights-left-reference" if ours else "weights-left-port"
        raise ReplayError(
            message if transfer.matches or transfer.left_reference else "weights-none",
            reference=os.fspath(self._reference.path),
            left_reference=left_over(ours),
            left_port=left_over(theirs),
        )

    def refill(self, transfer: Transfer, buffers_alone: bool) -> None:
        """The reference's values once more: a run in train mode has changed the port's buffers."""
        buffers = {slot for slot, native in self._natives().items() if native.buffer}
        self._fill(match for match in transfer.matches if not buffers_alone or match.port.slot in buffers)

    def _fill(self, matches: Iterable[Match]) -> None:
        self._filler()(matches)

    def _filler(self) -> Callable[[Iterable[Match]], None]:
        """Loads matches, as the net and the dump are now; to look for all parameters takes longer than to load one."""
        return partial(self._loaded, self._natives(), self._entries())

    def _loaded(self, natives: Mapping[Slot, Native], entries: Mapping[Slot, Entry], matches: Iterable[Match]) -> None:
        for native, array, dtype in self._values(natives, entries, matches):
            self._adapter.load(native, array, dtype)

    def _values(
        self, natives: Mapping[Slot, Native], entries: Mapping[Slot, Entry], matches: Iterable[Match]
    ) -> Iterator[tuple[Native, Array, str]]:
        """The port's parameters with what the reference has for them, in the port's form."""
        whole: dict[Slot, tuple[Array, str]] = {}
        ports: dict[Slot, Item] = {}
        unkept = {slot for slot, row in self._table().items() if row[5:6] == [False]}
        for match in matches:
            raw, dtype = _bits(match.reference, entries)
            native = natives.get(match.port.slot)
            if native is not None and (not native.kept or (match.reference.slot in unkept and not native.trainable)):
                continue  # a port has what its constructor makes
            if not match.reformed:
                yield natives[match.port.slot], raw, dtype
                continue
            array = match.reference.view.take(raw)
            values, word = whole.get(match.port.slot) or (np.zeros(match.port.whole, DTYPES[dtype].storage), dtype)
            match.port.view.put(values, array if word == dtype else encode(decode(array, dtype), word))
            whole[match.port.slot], ports[match.port.slot] = (values, word), match.port
        for slot, (values, word) in whole.items():
            recipe = ports[slot].recipe
            if recipe is None:
                yield natives[slot], values, word
                continue
            parts = {name: natives[Slot(layer, role)] for name, layer, role in recipe.parts}
            made = recipe.apart(decode(values, word).astype(np.float64), {name: parts[name].shape for name in parts})
            for name, native in parts.items():
                yield native, encode(made[name], word), word

    def counterpart(
        self, slot: Slot, matches: Sequence[Match], find: Callable[[Slot], Optional[Entry]]
    ) -> Optional[tuple[Array, str]]:
        """What stands for one of the port's parameters in other records of the reference's, in the port's form: its
        gradient, or what an update made of it; `matches` are those of the parameter.

        None where one of them lacks. What is worked out of several (a norm folded into a layer) has no such values.
        """
        entries = {match.reference.slot: find(match.reference.slot) for match in matches}
        known = {at: entry for at, entry in entries.items() if entry is not None}
        made = any(match.reference.recipe is not None or match.port.recipe is not None for match in matches)
        if made or not matches or len(known) < len(entries):
            return None
        natives = self._natives()
        return next(((array, dtype) for _, array, dtype in self._values({slot: natives[slot]}, known, matches)), None)

    def _folded(self, first: Transfer, items: tuple[Sequence[Item], Sequence[Item]], renames: Renames) -> Transfer:
        """Match again where one side has more BatchNorms: each may be in the layer before it on the other side.

        All of them or none: a port that lacks some has forgotten them.

        Raises:
            ReplayError: it is, and the norm went by its batch.
        """
        counts = [sum(item.slot.role == "running_var" for item in side) for side in items]
        if counts[0] == counts[1] or not any(first.failing):
            return first
        side = 0 if counts[0] > counts[1] else 1
        if any(item.kind == "BatchNorm" for item in items[1 - side]):  # without statistics
            return first
        folds = combining.folds_of_dump(self._reference, self._step) if side == 0 else self._folds_of_port()
        form = partial(combining.with_norms, side, folds)
        best = plan(*items, renames, (form,))
        if not any(best.norms) or any(item.recipe is not None for item in best.failing[side]):
            return first
        if bool(self._reference.header.get("training")) if side else any(fold.training for fold in folds):
            layer, norm = next(iter(best.norms[side].items()))
            raise ReplayError("weights-folded-training", side=("reference", "port")[side], layer=layer, norm=norm)
        self._forms = (form,)
        return best

    def _folds_of_port(self) -> Sequence[combining.Fold]:
        """None where the port cannot be run: the capture will say why."""
        if self._arguments is None:
            return ()
        self._adapter.set_training(self._model, False)  # nothing is to be learnt from this run
        try:
            return combining.folds_of_run(self._adapter, self._model, self._called)
        except Exception:
            return ()

    def _in_other_orders(
        self, first: Transfer, items: tuple[Sequence[Item], Sequence[Item]], renames: Mapping[str, str]
    ) -> Transfer:
        """Match alike layers in the order they run, or by what they are given, where more of the port agrees.

        Behind a mistake neither order may agree anywhere: then the one in which more layers are given the right values.
        """
        self._adapter.set_training(self._model, False)  # nothing is to be learnt from these runs
        before = self._tried(first)
        if before is None or before.agreeing == before.judged:
            return first
        tried = [(first, before)]
        order = trial.executed(self._reference, self._step)
        best = plan(trial.in_order(items[0], order), trial.in_order(items[1], before.order), renames, self._forms)
        if not trial.same(first, best) and len(best.matches) == len(first.matches):
            self._fill(best.matches)
            after = self._tried(best)
            position = {match.reference.slot: index for index, match in enumerate(first.matches)}
            matches = sorted(best.matches, key=lambda match: position.get(match.reference.slot, len(position)))
            best = replace(best, matches=tuple(matches))
            if after is not None and after.score >= before.score:
                tried = [*tried, (best, after)] if after.score == before.score else [(best, after)]
        found = [self._by_joints(*each) if each[1].agreeing < each[1].judged else (each[0], 0) for each in tried]
        best, _ = max(found, key=lambda pair: pair[1])  # of equals the first
        best = replace(best, matches=tuple(as_named(first.matches, best.matches)))
        self._fill(best.matches)
        return best

    def _by_joints(self, first: Transfer, before: trial.Trial) -> tuple[Transfer, int]:
        """Match alike layers by what they are given; and how many were given the right values."""
        try:
            joints = Joints(self._reference, self._adapter, self._model, first, self._step, self._filler())
            other = joints.found(self._called, before)
        except Exception:
            return first, 0
        if trial.same(first, other):
            return first, joints.known
        self._fill(other.matches)
        after = self._tried(other)
        if after is None or (after.agreeing < before.agreeing and not joints.lone):  # what is too many spoils a run
            return first, joints.known
        # Behind a mistake nothing agrees in a run; what layers are given where they are held to be right tells there.
        return (other if after.agreeing > before.agreeing or joints.certain or joints.gained else first), joints.known

    def _held(self) -> Mapping[Slot, tuple[Array, str]]:
        """What the port's vectors hold before they are loaded."""
        return {
            slot: (np.array(self._adapter.read(native)), native.dtype)
            for slot, native in self._natives().items()
            if len(native.shape) == 1 and native.dtype in DTYPES and not DTYPES[native.dtype].exact
        }

    def _restore(self, held: Mapping[Slot, tuple[Array, str]]) -> None:
        """Vectors that have no counterpart get back what was loaded over while one was looked for."""
        natives = self._natives()
        for item in self.transfer.left_port:
            if item.slot in held:
                self._adapter.load(natives[item.slot], *held[item.slot])

    def _raised(self, first: Transfer, held: Mapping[Slot, tuple[Array, str]]) -> Transfer:
        """Norms of which one side multiplies by 1 + weight, where the port's own weights and a run say so.

        A port that has forgotten the 1 does the same to its weights; but then it holds the reference's of its own.
        """
        entries = self._entries()

        def values(match: Match) -> Optional[tuple[Array, Array, float]]:
            entry, own = entries[match.reference.slot], held.get(match.port.slot)
            if own is None:
                return None
            return entry.load().astype(np.float64), decode(*own).astype(np.float64), DTYPES[entry.dtype].eps or 0.0

        other = replace(first, matches=tuple(combining.raised(first.matches, values)))
        if not any(
            match.reference.recipe is not known.reference.recipe for match, known in zip(other.matches, first.matches)
        ):
            return first
        self._adapter.set_training(self._model, False)
        before = self._tried(first)
        self._fill(other.matches)
        after = self._tried(other)
        if before is not None and after is not None and after.agreeing > before.agreeing:
            return other
        self._fill(first.matches)
        return first

    def _by_heads(self, first: Transfer) -> Transfer:
        """Rows of parts may lie head by head: what is made of them tells, where they are given the right values.

        If a block has another mistake, the next may tell.
        """
        self._adapter.set_training(self._model, False)
        numbers = fused.heads(first.matches)
        for held in self._parts(first)[:BLOCKS] if numbers else ():
            before = self._tried(first, held)
            if before is None or before.telling(held) is None:
                continue
            if before.shows(held):
                return first
            for heads in numbers:
                other = first.headed(heads)
                self._fill(other.matches)
                found = self._tried(other, held)
                if found is not None and found.shows(held):
                    return other
            self._fill(first.matches)
        return first

    def _parts(self, transfer: Transfer) -> Sequence[Mapping[str, Sequence[Entry]]]:
        """The port's layers that have parts, block by block, with what their counterparts were given."""
        blocks: dict[str, dict[str, list[Entry]]] = {}
        for match in transfer.matches:
            layer = match.port.slot.layer
            given = self._reference.find(Key(self._step, Phase.FORWARD, match.reference.slot.layer, 0, "input.0"))
            if match.by == "parts":
                known = blocks.setdefault(layer.rpartition(".")[0], {}).setdefault(layer, [])
                known += [given] if given is not None else []
        return [*blocks.values()]

    def _tried(
        self, transfer: Transfer, held: Mapping[str, Sequence[Entry]] = MappingProxyType({})
    ) -> Optional[trial.Trial]:
        """What a run with these weights shows; None where the net does not run: the capture will say why."""
        assert self._arguments is not None
        try:
            given = self._arguments(), transfer, self._step
            return trial.run(self._reference, self._adapter, self._model, *given, held)
        except Exception:
            return None

    def _called(self) -> None:
        assert self._arguments is not None
        args, kwargs = self._arguments()
        with self._adapter.running(self._model):
            self._model(*args, **kwargs)

    def _entries(self) -> Mapping[Slot, Entry]:
        found = (entry for entry in self._reference.entries if entry.key.phase is Phase.PARAMETER)
        return {Slot(entry.key.layer, entry.key.slot): entry for entry in found}

    def _natives(self) -> Mapping[Slot, Native]:
        return {Slot(p.layer, p.role): p for p in self._adapter.parameters(self._model)}

    def _port_items(self) -> list[Item]:
        kinds = {path: self._adapter.spec(layer).kind for path, layer in self._adapter.layers(self._model)}
        return [
            Item(slot, native.shape, native.name, kinds.get(native.layer, ""), self._required(native))
            for slot, native in self._natives().items()
        ]

    def _required(self, native: Native) -> bool:
        """Whether it must have a counterpart: no buffer, and no table that the port has worked out for itself."""
        if native.buffer or native.trainable or native.role in WEIGHTS | STATISTICS:
            return _required(native.buffer, native.role)
        known = DTYPES.get(native.dtype)
        if known is None or known.exact:
            return False
        values = decode(self._adapter.read(native), native.dtype).reshape(-1)
        return not bool((values == np.rint(values)).all())

    def _table(self) -> Mapping[Slot, Sequence[Any]]:
        return {Slot(row[0], row[1]): row for row in self._reference.header.get("parameters") or ()}

    def _reference_items(self) -> list[Item]:
        """The dump's parameters; the header's table has their own names and which are buffers."""
        table, items = self._table(), []
        unused = idle(self._reference)
        for slot, entry in self._entries().items():
            row = table.get(slot)
            layer = self._reference.layers.get(slot.layer)
            name = row[2] if row else ".".join(slot).lstrip(".")
            required = _required(bool(row and row[4:5] == [True]), slot.role) and slot.layer not in unused
            kind = layer.spec.kind if layer else ""
            items.append(Item(slot, entry.shape, name, kind, required, slot.layer in unused))
        return items


def _bits(item: Item, entries: Mapping[Slot, Entry]) -> tuple[Array, str]:
    """A parameter of the reference, as it is or as what it is made of comes to; and its type."""
    if item.recipe is None:
        return entries[item.slot].raw(), entries[item.slot].dtype
    parts = {word: entries[Slot(layer, role)] for word, layer, role in item.recipe.parts}
    dtype = next(iter(parts.values())).dtype
    made = item.recipe.made({word: entry.load().astype(np.float64) for word, entry in parts.items()})
    return encode(made.reshape(item.whole), dtype), dtype


def _required(buffer: bool, role: str) -> bool:
    """Whether a parameter without counterpart must stop the replay; other buffers are constants nets work out anew."""
    return not buffer or role in STATISTICS

"""One checkpoint into the other framework's words: by the net that is to have it, else by the rules of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from aligner.compare.layer_map import Rule
from aligner.compare.net import STATISTICS
from aligner.compare.views import squeezed
from aligner.ingest.kinds import FLAT_KERNELS
from aligner.weights import output, renaming
from aligner.weights.items import items_of
from aligner.weights.output import Entry
from aligner.weights.pairing import pair
from aligner.weights.stored import Checkpoint, Left, Weight, size_of


@dataclass(frozen=True)
class Wanted:
    """A parameter of the net that is to have the checkpoint: as `name` and `shape` stand in its own checkpoints."""

    name: str
    shape: tuple[int, ...]
    layer: str
    role: str
    canonical: tuple[int, ...]
    """Its shape in everybody's layout."""
    dtype: str
    kind: str
    buffer: bool
    same_as: str = ""
    """Another name of the same parameter, which stands in the net's checkpoints as well."""


@dataclass(frozen=True)
class Moved:
    """A tensor on its way. `by`: as in pairing, or "kept", "rule" or "guess" of the rules of names."""

    source: Weight
    entry: Entry
    by: str
    confidence: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What is written, and what did not map."""

    moved: tuple[Moved, ...]
    unused: tuple[Weight, ...] = ()
    """Tensors of the source that the net has no place for."""
    lacking: tuple[Wanted, ...] = ()
    """Parameters of the net that the source has nothing for."""
    misshapen: tuple[tuple[Weight, Wanted], ...] = ()
    left: tuple[Left, ...] = ()
    needless: frozenset[str] = field(default_factory=frozenset)
    """Names among the unused and the lacking that no net misses: tables, counters."""
    prefixes: tuple[str, str] = ("", "")
    """What the names of source and net have in front and the other's have not."""

    @property
    def failing(self) -> bool:
        """Whether something that matters did not map."""
        names = [weight.name for weight in self.unused] + [one.name for one in self.lacking]
        return bool(self.misshapen) or any(name not in self.needless for name in names)


@dataclass(frozen=True)
class _Form:
    """A parameter of the net in the shape in which it is matched; it has no values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)


def by_rules(source: Checkpoint, words: str, form: str) -> Plan:
    """Without a net: each tensor under the name that the other framework gives such a layer."""
    items = items_of(source.weights)
    found, dropped = renaming.renamed(items, words)
    weights = {weight.name: weight for weight in source.weights}
    if source.form == "dump" and words == renaming.MINDSPORE:  # a dump has kernels in everybody's layout
        found = [
            replace(one, shape=renaming.with_flat_axis(one.shape))
            if one.item.kind in FLAT_KERNELS and one.item.slot.role == "weight" and len(one.shape) == 3
            else one
            for one in found
        ]
    moved = [_moved(weights[one.item.name], one.name, one.shape, one.by) for one in found]
    left = [Left(item.name, "convert-dropped") for item in dropped]
    return _writable(Plan(tuple(moved), left=tuple(left)), form)


def _moved(weight: Weight, name: str, shape: tuple[int, ...], by: str, sure: float = 1.0) -> Moved:
    return Moved(weight, Entry(name, shape, weight.stored), by, sure)


def _writable(plan: Plan, form: str) -> Plan:
    """Without what the form of the file cannot hold."""
    kept = tuple(one for one in plan.moved if output.knows(form, one.entry.dtype))
    out = [Left(one.source.name, "convert-type") for one in plan.moved if one not in kept]
    return replace(plan, moved=kept, left=(*plan.left, *out))


def by_net(source: Checkpoint, net: Sequence[Wanted], form: str, rules: Sequence[Rule] = ()) -> Plan:
    """With the net that is to have it: its names, its shapes, its order.

    Raises:
        ReplayError, UsageError: the map names what is not there.
    """
    wanted: Mapping[str, Wanted] = {one.name: one for one in net}
    own_names = [one for one in net if not one.same_as]
    ports = [Weight(one.name, _Form(one.dtype, one.canonical), one.layer, one.role, one.kind) for one in own_names]  # type: ignore[arg-type]  # nobody reads it
    found = pair(source.weights, ports, rules, source.ordered, by_values=False)
    good, bad = list[Moved](), list[tuple[Weight, Wanted]]()
    for one in found.pairs:
        own = wanted[one.port.name]
        if squeezed(one.reference.shape) != squeezed(own.shape):
            bad.append((one.reference, own))
        else:
            good.append(_moved(one.reference, own.name, own.shape, one.by, one.confidence))
    sources = {one.entry.name: one for one in good}
    for alias in (one for one in net if one.same_as in sources):
        known = sources[alias.same_as]
        good.append(_moved(known.source, alias.name, alias.shape, known.by, known.confidence))
    order = {one.name: number for number, one in enumerate(net)}
    good.sort(key=lambda one: order[one.entry.name])
    required = {name for _, name in found.required}
    lacking = [wanted[weight.name] for weight in found.left[1]]
    idle = {w.name for w in found.left[0] if w.name not in required}
    idle |= {one.name for one in lacking if (one.buffer and one.role not in STATISTICS) or one.name not in required}
    left = tuple(Left(name, "convert-dropped") for name in found.counters if name not in wanted)
    plan = Plan(tuple(good), found.left[0], tuple(lacking), tuple(bad), left, frozenset(idle), found.prefixes)
    return _writable(plan, form)


def default_words(source: Checkpoint, form: str, framework: Optional[str]) -> str:
    """Whose words are to be written: the net's, else those of the file's form, else the source's own."""
    if framework is not None:
        return renaming.MINDSPORE if framework == "mindspore" else renaming.TORCH
    own = {"ckpt": renaming.MINDSPORE, "pth": renaming.TORCH}
    return own.get(form) or renaming.words_of(items_of(source.weights))

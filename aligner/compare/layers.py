"""Which layer and which call of the port stands for which of the reference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from aligner.compare.calls import paired_calls
from aligner.compare.composites import COMPOSITES, by_hand
from aligner.compare.naming import by_content, by_map, by_name, by_replay, family
from aligner.compare.net import CallId, Net, Visit
from aligner.compare.sequence import BEST, Feature, align, rising
from aligner.compare.strangers import guessed, strangers
from aligner.compare.verdict import LayerPair
from aligner.vocabulary import KINDS

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

LARGEST = 6000
"""Longer rows are cut at calls that are unique on both sides, and at this length if there are none."""


@dataclass
class Pairing:
    """The result, filled step by step; what was found first is never overruled."""

    layers: list[LayerPair] = field(default_factory=list)
    calls: dict[CallId, CallId] = field(default_factory=dict)
    """Calls of the first step; later steps follow them."""
    alone: set[CallId] = field(default_factory=set)
    """The reference's calls of the first step that have no counterpart."""

    def add(self, pairs: Iterable[LayerPair]) -> None:
        """Take in pairs of layers that are both still free."""
        ours, theirs = {p.reference for p in self.layers}, {p.port for p in self.layers}
        for pair in pairs:
            if pair.reference not in ours and pair.port not in theirs:
                self.layers.append(pair)
                ours.add(pair.reference)
                theirs.add(pair.port)

    @property
    def single(self) -> Mapping[str, str]:
        """Layers with one counterpart that has no other."""
        ours = Counter(pair.reference for pair in self.layers)
        theirs = Counter(pair.port for pair in self.layers)
        return {p.reference: p.port for p in self.layers if ours[p.reference] == theirs[p.port] == 1}

    def counterpart(self, call: CallId, single: Mapping[str, str]) -> Optional[CallId]:
        """The port's call; one that the first step does not have follows its layer, if that has one counterpart."""
        found = self.calls.get(call)
        if found is None and call not in self.alone and call.layer in single:
            found = CallId(single[call.layer], call.number)
        return found


def pair_layers(
    reference: Net, port: Net, given: Optional[Mapping[str, str]] = None, mapping: object = None, parted: object = ()
) -> Pairing:
    """Pair layers and calls: the user's map, the replay's, equal paths, then likeness and order; without pairs of
    likeness that a forced pass has `parted`.

    Raises:
        UsageError: the map names layers that are in neither dump.
    """
    pairing = Pairing()
    pairing.add(by_map(given or {}, reference, port))
    replayed = by_replay(mapping, reference, port)
    pairing.add(by_hand(replayed, reference, port))
    holders = _holders(reference), _holders(port)
    sizes = _sizes(reference), _sizes(port)
    whole = [
        pair
        for pair in replayed
        if (reference.kind(pair.reference) in COMPOSITES) == (port.kind(pair.port) in COMPOSITES)
        or sizes[0].get(pair.reference, set()) & sizes[1].get(pair.port, set())
    ]
    pairing.add(pair for pair in whole if pair.reference not in holders[0] and pair.port not in holders[1])
    pairing.add(_consistent(by_name(reference, port), replayed, holders, reference, port))
    if reference.partial or port.partial:
        pairing.add(by_content(reference, port))
    pairing.calls.update(paired_calls(pairing.layers, reference, port))
    _pair_rows(pairing, reference, port, bool(replayed))
    _pair_parents(pairing, reference, port, {(pair.reference, pair.port) for pair in replayed})
    _pair_owners(pairing, reference, port)
    apart = strangers(pairing.layers, pairing.calls, reference, port)
    told = [tuple(row) for row in parted if isinstance(row, list)] if isinstance(parted, list) else []
    apart |= {pair for pair in guessed(pairing.layers, reference, port) if pair in told}
    pairing.layers = [pair for pair in pairing.layers if (pair.reference, pair.port) not in apart]
    pairing.calls = {one: other for one, other in pairing.calls.items() if (one.layer, other.layer) not in apart}
    known = {(pair.reference, pair.port) for pair in pairing.layers}
    pairing.layers += [pair for pair in replayed if (pair.reference, pair.port) not in known]  # for their parameters
    pairing.alone.update(visit.id for visit in reference.visits if visit.id not in pairing.calls)
    place = {path: index for index, path in enumerate(reference.paths)}
    pairing.layers.sort(key=lambda pair: place[pair.reference])
    return pairing


def _consistent(
    named: Iterable[LayerPair],
    replayed: Iterable[LayerPair],
    holders: tuple[Set[str], Set[str]],
    reference: Net,
    port: Net,
) -> Iterable[LayerPair]:
    """Pairs by name, without layers around others whose weights are all elsewhere on the other side.

    Where the first layer of each stage is the last of the one before on the other side, equal names mean nothing.
    """
    ours = {path for path in reference.parameters if reference.weights(path)}
    theirs = {path for path in port.parameters if port.weights(path)}
    known = {(p.reference, p.port) for p in replayed if p.reference in ours and p.port in theirs}
    for pair in named:
        inside = f"{pair.reference}.", f"{pair.port}."
        held = pair.reference and (pair.reference in holders[0] or pair.port in holders[1])
        met = [(one.startswith(inside[0]), other.startswith(inside[1])) for one, other in known] if held else []
        if any(one or other for one, other in met) and (True, True) not in met:
            continue
        yield pair


def _sizes(net: Net) -> Mapping[str, set[int]]:
    """How many numbers each thing has that a layer makes.

    A Linear for q, k and v has an attention's weights, and is its first step: what comes out of it is another thing.
    """
    return {layer: {math.prod(shape) for shape in visits[0].shapes[1]} for layer, visits in net.by_layer().items()}


def _holders(net: Net) -> set[str]:
    """Layers around others with weights, and the net itself: a parameter of their own does not tell what they do.

    A class token may belong to the net on one side and to its embedding on the other; they are no pair for that.
    """
    found = {"", *net.roots}
    for visit in net.visits:
        if net.weights(visit.call.layer):
            found.update(v.call.layer for v in _around(visit) if net.kind(v.call.layer) not in COMPOSITES)
    return found


def _pair_rows(pairing: Pairing, reference: Net, port: Net, told: bool) -> None:
    """Calls without a counterpart, aligned by likeness between those that have one; `told`: whose weights are whose."""
    where = {visit.id: index for index, visit in enumerate(port.visits)}
    ours = {visit.id: index for index, visit in enumerate(reference.visits)}
    fixed = sorted(
        (ours[a], where[b]) for a, b in pairing.calls.items() if _in_row(reference, reference.visits[ours[a]])
    )
    kept = [fixed[i] for i in rising([b for _, b in fixed])]
    taken = set(pairing.calls.values())
    one = [i for i, v in enumerate(reference.visits) if v.id not in pairing.calls and _in_row(reference, v)]
    other = [j for j, v in enumerate(port.visits) if v.id not in taken and _in_row(port, v)]
    found: list[tuple[int, int, float]] = []
    after = _after(reference, {}), _after(port, {b: a for a, b in pairing.calls.items()})
    for rows, columns in _segments(one, other, kept):
        found += _aligned(reference, port, rows, columns, after)
    used = {i for i, _, _ in found}, {j for _, j, _ in found}
    rest = [i for i in one if i not in used[0]], [j for j in other if j not in used[1]]
    found += _unique(reference, port, *rest)
    _take(pairing, reference, port, [*_alone_or_known(pairing, reference, port, found, told)])


def _alone_or_known(
    pairing: Pairing, reference: Net, port: Net, found: Iterable[tuple[int, int, float]], told: bool
) -> Iterable[tuple[int, int, float]]:
    """Without calls, however alike, of layers that have weights and are both others' counterparts; or are nobody's,
    where that was told: weights that could go over and did not were seen to belong elsewhere.
    """
    known = {(pair.reference, pair.port) for pair in pairing.layers}
    ours, theirs = {one for one, _ in known}, {other for _, other in known}
    for i, j, sure in found:
        one, other = reference.visits[i].call.layer, port.visits[j].call.layer
        weights = reference.weights(one)
        both, neither = one in ours and other in theirs, one not in ours and other not in theirs
        apart = both or (told and neither and weights == port.weights(other))
        cut = (one, other) in known and _given(reference.visits[i]) != _given(port.visits[j])  # one call is several
        if not cut and ((one, other) in known or not weights or not apart):
            yield i, j, sure


def _given(visit: Visit) -> int:
    """How many numbers a call is given."""
    return sum(math.prod(entry.shape) for entry in visit.inputs)


def _in_row(net: Net, visit: Visit) -> bool:
    return visit.call.layer not in net.inner or net.kind(visit.call.layer) in COMPOSITES


def _segments(
    one: Sequence[int], other: Sequence[int], anchors: Sequence[tuple[int, int]]
) -> list[tuple[list[int], list[int]]]:
    """Cut two rising rows of indices at anchors that rise on both sides."""
    parts = []
    i = j = 0
    for end, stop in [*anchors, (1 << 60, 1 << 60)]:
        rows, columns = [], []
        while i < len(one) and one[i] < end:
            rows.append(one[i])
            i += 1
        while j < len(other) and other[j] < stop:
            columns.append(other[j])
            j += 1
        if rows and columns:
            parts.append((rows, columns))
    return parts


def _after(net: Net, counterparts: Mapping[CallId, CallId]) -> Mapping[CallId, CallId]:
    """For each call the one before it inside the same layer, as the reference's; the net's own code is too long."""
    last: dict[int, CallId] = {}
    found: dict[CallId, CallId] = {}
    for visit in net.visits:
        if visit.parent is None or visit.parent.parent is None:
            continue
        before = last.get(id(visit.parent))
        if before is not None and (not counterparts or before in counterparts):
            found[visit.id] = counterparts.get(before, before)
        last[id(visit.parent)] = visit.id
    return found


def _aligned(
    reference: Net,
    port: Net,
    rows: Sequence[int],
    columns: Sequence[int],
    after: tuple[Mapping[CallId, CallId], Mapping[CallId, CallId]],
) -> list[tuple[int, int, float]]:
    if max(len(rows), len(columns)) > LARGEST:
        anchors = _unique(reference, port, rows, columns)
        anchors = [anchors[k] for k in rising([b for _, b, _ in anchors])]
        if anchors:
            parts = _segments(
                [i for i in rows if i not in {a for a, _, _ in anchors}],
                [j for j in columns if j not in {b for _, b, _ in anchors}],
                [(a, b) for a, b, _ in anchors],
            )
            return anchors + [pair for part in parts for pair in _aligned(reference, port, *part, after)]
        pieces = range(0, max(len(rows), len(columns)), LARGEST)
        return [
            pair
            for k in pieces
            for pair in _aligned(reference, port, rows[k : k + LARGEST], columns[k : k + LARGEST], after)
        ]
    ours = [_feature(reference, reference.visits[i], after[0]) for i in rows]
    theirs = [_feature(port, port.visits[j], after[1]) for j in columns]
    return [(rows[i], columns[j], _sure(score, ours[i])) for i, j, score in align(ours, theirs)]


def _sure(score: float, feature: Feature) -> float:
    """How sure a pair by likeness is, 0 to 1: a layer without weights has less that can agree."""
    return round(min(1.0, max(0.1, score / (BEST if feature.weights else BEST - 2.0))), 2)


def _feature(net: Net, visit: Visit, after: Optional[Mapping[CallId, CallId]] = None) -> Feature:
    layer = visit.call.layer
    kind = net.kind(layer)
    inputs, outputs = visit.shapes
    parts = ("", *layer.split("."))
    idle = not visit.children and _contents(visit.inputs) == _contents(visit.outputs) != []
    before = (after or {}).get(visit.id)
    return Feature(kind, family(kind), outputs, inputs, net.weights(layer), (parts[-1], parts[-2]), before, idle)


def _contents(entries: Sequence[Entry]) -> list[object]:
    return [entry.content for entry in entries]


def _unique(reference: Net, port: Net, one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int, float]]:
    """Calls that are alike in everything but the name and the only ones so, wherever they stand."""
    rows: list[dict[object, list[int]]] = [{}, {}]
    for net, indices, table in ((reference, one, rows[0]), (port, other, rows[1])):
        for index in indices:
            feature = _feature(net, net.visits[index])
            if feature.weights:
                signature = (feature.kind, feature.outputs, feature.inputs, feature.weights)
                table.setdefault(signature, []).append(index)
    return [
        (ours[0], rows[1][signature][0], 0.8)
        for signature, ours in rows[0].items()
        if len(ours) == 1 and len(rows[1].get(signature, ())) == 1
    ]


def _take(pairing: Pairing, reference: Net, port: Net, found: Sequence[tuple[int, int, float]]) -> None:
    """Add pairs of calls, and the pairs of layers they mean."""
    known = {(pair.reference, pair.port) for pair in pairing.layers}
    taken = {call.layer for call in pairing.calls}, {call.layer for call in pairing.calls.values()}
    sure: dict[tuple[str, str], list[float]] = {}
    for i, j, confidence in found:
        first, second = reference.visits[i], port.visits[j]
        if reference.kind(first.call.layer) != port.kind(second.call.layer):
            first, second = _whole(reference, first, second, taken[0]), _whole(port, second, first, taken[1])
        one, other = first.id, second.id
        pairing.calls[one] = other
        sure.setdefault((one.layer, other.layer), []).append(confidence)
    for (ours, theirs), values in sure.items():
        if (ours, theirs) not in known:
            pairing.layers.append(LayerPair(ours, theirs, min(values), "structure"))


def _whole(net: Net, visit: Visit, other: Visit, taken: Set[str]) -> Visit:
    """The layer that is written around this one alone, and makes what the other one may make: a Swish that calls its
    Sigmoid stands against a SiLU."""
    parent = visit.parent
    if parent is None or parent.parent is None or len(parent.children) > 1 or parent.shapes != other.shapes:
        return visit
    layer = parent.call.layer
    known = layer in taken or net.kind(layer) in KINDS
    return visit if known or net.weights(layer) or net.weights(visit.call.layer) else parent


def _pair_parents(pairing: Pairing, reference: Net, port: Net, replayed: Set[tuple[str, str]]) -> None:
    """Layers that hold others: those that hold the same pairs, and agree in shapes, own parameters, kind and name."""
    taken = {p.reference for p in pairing.layers}, {p.port for p in pairing.layers}
    where = {visit.id: visit for visit in port.visits}
    common: Counter[tuple[str, str]] = Counter()
    totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    both: Counter[tuple[str, str]] = Counter()
    weighted: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for visit in reference.visits:
        other = pairing.calls.get(visit.id)
        if other is None or not _in_row(reference, visit):
            continue
        ours = {v.call.layer for v in _around(visit)} - taken[0]
        theirs = {v.call.layer for v in _around(where[other])} - taken[1]
        totals[0].update(ours)
        totals[1].update(theirs)
        common.update((a, b) for a in ours for b in theirs)
        if reference.weights(visit.call.layer):
            weighted[0].update(ours)
            weighted[1].update(theirs)
            both.update((a, b) for a in ours for b in theirs)
    first = _first(reference), _first(port)
    ranked = []
    for (a, b), count in common.items():
        overlap = count / (totals[0][a] + totals[1][b] - count)
        if not weighted[0][a] == weighted[1][b] == both[a, b]:
            continue  # one holds a layer that is elsewhere on the other side: they begin or end at other values
        one, two = first[0][a], first[1][b]
        alike = [one.shapes[1] == two.shapes[1], one.shapes[0] == two.shapes[0]]
        alike += [(a, b) in replayed, reference.kind(a) == port.kind(b), a.rpartition(".")[2] == b.rpartition(".")[2]]
        if overlap >= 0.5 and (alike[0] or overlap >= 0.8):
            ranked.append((-overlap, -sum(alike), one.call.first, two.call.first, a, b))
    pairs = [
        LayerPair(a, b, round(-overlap * (0.8 - score * 0.04), 2), "structure")
        for overlap, score, *_, a, b in sorted(ranked)
    ]
    pairing.add(pairs)
    ours_by, theirs_by = reference.by_layer(), port.by_layer()
    for pair in pairing.layers:
        if pair.reference in first[0] and pair.port in first[1] and pair.reference not in taken[0]:
            calls = zip(ours_by[pair.reference], theirs_by[pair.port])
            pairing.calls.update((x.id, y.id) for x, y in calls)


def _around(visit: Visit) -> Iterable[Visit]:
    parent = visit.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _first(net: Net) -> Mapping[str, Visit]:
    found: dict[str, Visit] = {}
    for visit in net.visits:
        found.setdefault(visit.call.layer, visit)
    return found


def _pair_owners(pairing: Pairing, reference: Net, port: Net) -> None:
    """Layers that never run but own parameters (attention's out_proj): inside their parent's counterpart, by name or
    as the only one with such parameters."""
    counterparts = {pair.reference: pair.port for pair in pairing.layers}
    running = {visit.call.layer for visit in reference.visits}
    taken = set(counterparts.values())
    for path in reference.parameters:
        if path in counterparts or path in running:
            continue
        parent, _, last = path.rpartition(".")
        around = counterparts.get(parent, parent)
        inside = [p for p in port.parameters if p not in taken and p.rpartition(".")[0] == around]
        alike = [p for p in inside if port.weights(p) == reference.weights(path)]
        named = [p for p in inside if p.rpartition(".")[2] == last]
        chosen = named or (alike if len(alike) == 1 else [])
        if chosen:
            pairing.add([LayerPair(path, chosen[0], 0.9 if named else 0.7, "structure")])
            taken.add(chosen[0])

"""Ports of a net as lists of parameters: the same layers under other names, joined, taken apart and put elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Optional

from aligner.replay.items import Item, Slot

_NAMED = re.compile(r"(^|_)(q|k|v|query|key|value)(_|$)")

Whence = tuple[str, str, Optional[tuple[int, int]], Optional[tuple[int, int]]]
"""The reference's parameter, which of its rows, and which of the port's they are; None for all."""


@dataclass
class Layer:
    path: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    whence: dict[str, list[Whence]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def around(self) -> str:
        return self.path.rpartition(".")[0]


def linear(path: str, ins: int, outs: int) -> Layer:
    return Layer(path, "Linear", {"weight": (outs, ins), "bias": (outs,)})


def norm(path: str, size: int) -> Layer:
    return Layer(path, "LayerNorm", {"weight": (size,), "bias": (size,)})


def items(layers: Iterable[Layer]) -> list[Item]:
    found = [(Slot(layer.path, role), shape, layer.kind) for layer in layers for role, shape in layer.shapes.items()]
    return [Item(slot, shape, ".".join(slot), kind, True) for slot, shape, kind in found]


def copied(layers: Sequence[Layer]) -> list[Layer]:
    return [
        Layer(one.path, one.kind, dict(one.shapes), {r: [(one.path, r, None, None)] for r in one.shapes})
        for one in layers
    ]


def fused(layers: list[Layer], random: Random) -> list[Layer]:
    """Queries, keys and values as one layer, or keys and values alone."""
    for around in dict.fromkeys(layer.around for layer in layers):
        row = [one for one in layers if one.around == around and one.kind == "Linear" and _NAMED.search(one.name)]
        row.sort(key=lambda one: "qkv".index(_NAMED.search(one.name).group(2)[0]))
        row = row[1:] if random.random() < 0.3 else row
        if len(row) < 2 or len({(one.shapes["weight"][1], *one.shapes) for one in row}) > 1:
            continue
        whole, start = Layer(f"{around}.{random.choice(['in_proj', 'qkv', 'c_attn'])}", "Linear", {}), 0
        for role in row[0].shapes:
            start = 0
            for one in row:
                stop = start + one.shapes[role][0]
                [(path, known, _, _)] = one.whence[role]
                whole.whence.setdefault(role, []).append((path, known, None, (start, stop)))
                start = stop
            whole.shapes[role] = (start, *row[0].shapes[role][1:])
        at = min(layers.index(one) for one in row)
        layers = [one for one in layers if one not in row]
        layers.insert(at, whole)
    return layers


def split(layers: list[Layer], random: Random) -> list[Layer]:
    """One layer of queries, keys and values as three."""
    found: list[Layer] = []
    for one in layers:
        if "qkv" not in one.name or any(shape[0] % 3 for shape in one.shapes.values()):
            found.append(one)
            continue
        for number, letter in enumerate("qkv"):
            part = Layer(f"{one.around}.{one.name.replace('qkv', letter)}", one.kind, {})
            for role, shape in one.shapes.items():
                rows = shape[0] // 3
                part.shapes[role] = (rows, *shape[1:])
                part.whence[role] = [(one.path, role, (number * rows, number * rows + rows), None)]
            found.append(part)
    return found


def flattened(layers: list[Layer], random: Random) -> list[Layer]:
    """The layers of a Sequential in the layer around it."""
    inside: dict[str, list[Layer]] = {}
    for one in layers:
        inside.setdefault(one.around, []).append(one)
    for around, row in inside.items():
        if 1 < len(row) < 5 and all(one.name.isdigit() for one in row) and not around.rpartition(".")[2].isdigit():
            for number, one in enumerate(row):
                one.path = f"{around}_fc{number + 1}"
    return layers


def wrapped(layers: list[Layer], random: Random) -> list[Layer]:
    """Some layers in one that holds nothing else."""
    chosen = {name for name in sorted({one.name for one in layers}) if random.random() < 0.4}
    for one in layers:
        one.path += ".inner" if one.name in chosen else ""
    return layers


def paired(layers: list[Layer], random: Random) -> list[Layer]:
    """Blocks of two layers as a row of twice as many."""
    names: dict[str, dict[str, None]] = {}
    for one in layers:
        match = re.match(r"(.*?\blayers)\.\d+\.([^.]+)", one.path)
        if match:
            names.setdefault(match.group(1), {})[match.group(2)] = None
    for row, parts in names.items():
        if len(parts) == 2:
            for one in layers:
                match = re.match(rf"{re.escape(row)}\.(\d+)\.([^.]+)(.*)", one.path)
                if match:
                    one.path = f"{row}.{2 * int(match.group(1)) + [*parts].index(match.group(2))}{match.group(3)}"
    return layers


def renamed(layers: list[Layer], random: Random) -> list[Layer]:
    """Other words for some."""
    words = sorted({word for one in layers for word in one.path.split(".") if not word.isdigit()})
    share = random.choice([0.0, 0.4, 1.0])
    known = {word: f"{random.choice('abcde')}{n}_{word[:2]}" for n, word in enumerate(words) if random.random() < share}
    for one in layers:
        one.path = ".".join(known.get(word, word) for word in one.path.split("."))
    return layers


WAYS = (flattened, paired, wrapped, renamed)


def port(reference: Sequence[Layer], random: Random) -> list[Layer]:
    """A port of the net, cut otherwise."""
    layers = random.choice((fused, split))(copied(reference), random)
    for way in WAYS:
        layers = way(layers, random) if random.random() < 0.6 else layers
    assert max(Counter(one.path for one in layers).values()) == 1
    return layers


def truth(layers: Iterable[Layer]) -> set[tuple[Slot, object, Slot, object]]:
    return {
        (Slot(path, known), rows, Slot(one.path, role), own)
        for one in layers
        for role, row in one.whence.items()
        for path, known, rows, own in row
    }

"""Pairs of layers by what they are called: the user's map, the map a replay left, and equal paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Optional

from aligner.compare.net import Net, ancestors
from aligner.compare.verdict import LayerPair
from aligner.vocabulary import KINDS

WRAPPERS = frozenset({"_backbone", "_orig_mod"})
"""Path parts that AMP and compilers put in; adapters drop them, dumps of other origin may not."""

_FAMILIES = (
    "ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Hardshrink "
    "Softshrink Softplus Softsign Threshold Sigmoid LogSigmoid Tanh Tanhshrink Softmax LogSoftmax Softmin",
    "BatchNorm LayerNorm RMSNorm GroupNorm InstanceNorm LocalResponseNorm",
    "MaxPool1d AvgPool1d AdaptiveAvgPool1d AdaptiveMaxPool1d MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d "
    "MaxPool3d AvgPool3d AdaptiveAvgPool3d AdaptiveMaxPool3d",
    "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "LSTM GRU RNN",
    "LSTMCell GRUCell RNNCell",
    "Upsample PixelShuffle ConvTranspose",
    "Sequential ModuleList ModuleDict",
)
_FAMILY = {kind: group.split()[0] for group in _FAMILIES for kind in group.split()}


def family(kind: str) -> str:
    """The group of kinds that are mistaken for one another; "" for a class the vocabulary does not know."""
    return _FAMILY.get(kind, kind) if kind in KINDS else ""


def by_map(given: Mapping[str, str], reference: Net, port: Net) -> list[LayerPair]:
    """Pairs the user asked for: a path, or a prefix that stands for every layer inside; a parameter for its layer."""
    pairs: list[LayerPair] = []
    ours, theirs = set(reference.paths), set(port.paths)
    for path in reference.paths:
        prefix = _longest(path, given)
        if prefix is not None:
            rest = path[len(prefix) :].lstrip(".")
            wanted = ".".join(part for part in (given[prefix], rest) if part)
            if wanted in theirs:
                pairs.append(LayerPair(path, wanted, 1.0, "map"))
    known = {pair.reference for pair in pairs}
    for name, other in given.items():
        one, two = name.rpartition(".")[0], other.rpartition(".")[0]
        if name not in ours and one in ours and two in theirs and one not in known:
            known.add(one)
            pairs.append(LayerPair(one, two, 1.0, "map"))
    return pairs


def kept_map(rows: object, reference: Net, port: Net, taken: Set[str]) -> Mapping[str, str]:
    """The map that the port was captured with, as far as it fits these dumps and speaks of no layer that is taken."""
    if not isinstance(rows, (list, tuple)):
        return {}
    names = set(all_names(reference)), set(all_names(port))
    return {a: b for a, b, *_ in rows if a in names[0] and b in names[1] and b not in taken}


def all_names(net: Net) -> list[str]:
    """What a map may speak of: layers and parameters."""
    own = [f"{layer}.{role}".lstrip(".") for layer, roles in net.parameters.items() for role in roles]
    return [*net.paths, *own]


def _longest(path: str, given: Mapping[str, str]) -> Optional[str]:
    """The longest name in the map that is this path or stands before it; the net's own "" only stands for itself."""
    if path in given:
        return path
    return next((prefix for prefix in ancestors(path) if prefix and prefix in given), None)


def by_replay(mapping: object, reference: Net, port: Net) -> list[LayerPair]:
    """Pairs by which the weights were loaded; where a layer got weights from two, the surer one."""
    if not isinstance(mapping, (list, tuple)):
        return []
    known = set(reference.paths), set(port.paths)
    found: list[LayerPair] = []
    for item in mapping:
        if isinstance(item, (list, tuple)) and len(item) >= 2 and item[0] in known[0] and item[1] in known[1]:
            sure = float(item[2]) if len(item) > 2 and isinstance(item[2], (int, float)) else 1.0
            by = "values" if item[3:] == ["values"] else "name" if item[0] == item[1] and sure == 1.0 else "replay"
            found.append(LayerPair(item[0], item[1], sure, by))
    return sorted(found, key=lambda pair: -pair.confidence)


def by_name(reference: Net, port: Net) -> list[LayerPair]:
    """Layers with equal paths that do not contradict each other."""
    doubtful = _misnumbered(reference, port)
    outputs = tuple(_outputs(net) for net in (reference, port))
    theirs = {canonical(path): path for path in reversed(port.paths)}
    theirs.update({path: path for path in port.paths})
    pairs = []
    for path in reference.paths:
        other = theirs.get(path) or theirs.get(canonical(path))
        if path == "" and "" in port.paths:
            other = ""
        if other is None or any(p in doubtful for p in (path, *ancestors(path))):
            continue
        one, two = family(reference.kind(path)), family(port.kind(other))
        shapes = outputs[0].get(path), outputs[1].get(other)
        if path and one and two and one != two and None not in shapes and shapes[0] != shapes[1]:
            continue
        pairs.append(LayerPair(path, other, 1.0, "name"))
    return pairs


def by_content(reference: Net, port: Net) -> list[LayerPair]:
    """Layers whose weights are the same bits, and nobody else's: a compiled graph runs branches in its own order."""
    tables: list[dict[frozenset[object], list[str]]] = [{}, {}]
    for net, table in zip((reference, port), tables):
        for path, own in net.parameters.items():
            held = frozenset(entry.content for entry in own.values() if entry.shape)
            table.setdefault(held, []).append(path)
    return [
        LayerPair(paths[0], tables[1][held][0], 1.0, "structure")
        for held, paths in tables[0].items()
        if held and len(paths) == len(tables[1].get(held, ())) == 1
    ]


def canonical(path: str) -> str:
    """The path without what wrappers put in; a layer that has nothing but such a name keeps it."""
    parts = [part for part in path.split(".") if part not in WRAPPERS] or [path]
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)


def _outputs(net: Net) -> Mapping[str, object]:
    return {layer: visits[0].shapes[1] for layer, visits in net.by_layer().items()}


def _misnumbered(reference: Net, port: Net) -> set[str]:
    """Numbered layers whose numbers mean nothing: a layer more or less in a Sequential shifts all that follow.

    The numbers of one parent count as names only if no two layers with the same number contradict each other.
    """
    groups: dict[str, list[str]] = {}
    both = set(port.paths)
    for path in reference.paths:
        parent, _, last = path.rpartition(".")
        if last.isdigit():
            groups.setdefault(parent, []).append(path)
    doubtful: set[str] = set()
    for paths in groups.values():
        if any(path in both and _contradict(path, reference, port) for path in paths):
            doubtful.update(paths)
    return doubtful


def _contradict(path: str, reference: Net, port: Net) -> bool:
    one, other = family(reference.kind(path)), family(port.kind(path))
    if one and other and one != other:
        return True
    weights = dict(reference.weights(path)), dict(port.weights(path))
    if bool(weights[0]) != bool(weights[1]):
        return path not in reference.inner and path not in port.inner
    common: Iterable[str] = weights[0].keys() & weights[1].keys()
    return any(weights[0][role] != weights[1][role] for role in common)

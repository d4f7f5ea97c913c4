"""The files of one net on one device, and what the folder or the net tells of its layers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from aligner.errors import IngestError
from aligner.ingest import files, weights
from aligner.ingest.files import Folder, ValueFile
from aligner.ingest.scopes import Scopes, full_names, plain
from aligner.ingest.weights import Known
from aligner.record import Layer


@dataclass(frozen=True)
class Net:
    """What the net's own code tells: its layers in order, its parameters, its arguments' names."""

    layers: Sequence[Layer]
    parameters: Sequence[Known]
    arguments: Sequence[str]


@dataclass
class Source:
    """The files of one net on one device, by iteration, and what the folder tells of the graphs."""

    folder: Folder
    steps: Mapping[int, list[tuple[str, ValueFile]]]
    """Each file with its graph."""
    scopes: Scopes
    ranks: Mapping[str, int]
    said: Mapping[str, tuple[str, bool]]


def source(folder: Folder, rank: Optional[int], net: Optional[str], layers: Iterable[Layer] = ()) -> Source:
    """The files to import.

    Raises:
        IngestError: there are several nets or devices and none was chosen, or there is no such.
    """
    chosen_rank = _chosen("--rank", rank, folder.ranks, folder)
    chosen_net = _chosen("--name", net, folder.nets, folder)
    places = [place for place in folder.values if place.rank == chosen_rank and place.net == chosen_net]
    if not places:
        raise IngestError("ingest-choose", path=folder.path, option="--name", known=", ".join(folder.nets))
    steps: dict[int, list[tuple[str, ValueFile]]] = {}
    for place in sorted(places, key=lambda place: (place.iteration, int(place.graph))):
        steps.setdefault(place.iteration, []).extend((place.graph, file) for file in folder.values[place])
    texts = [files.read_text(path) for path in (*folder.orders, *folder.graphs) if _of_rank(path, chosen_rank)]
    names = [*full_names(texts), *_scopes_of(layers)]
    ranks = {plain(name): at for at, name in enumerate(names)}
    return Source(folder, steps, Scopes(names), ranks, weights.declared(texts))


def _chosen(option: str, wanted: Any, known: Sequence[Any], folder: Folder) -> Any:
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        raise IngestError("ingest-choose", path=folder.path, option=option, known=", ".join(map(str, known)))
    return wanted


def _of_rank(path: str, rank: int) -> bool:
    found = [match for match in map(files.RANK.fullmatch, path.split(os.sep)) if match]
    return not found or int(found[-1][1]) == rank


def _scopes_of(layers: Iterable[Layer]) -> Iterable[str]:
    """Full names such as the operators of these layers would have."""
    classes = {layer.path: layer.type.rpartition(".")[2] for layer in layers}
    for path in classes:
        parts = path.split(".") if path else []
        known = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
        if known and all(name in classes for name in known):
            yield "/".join(["Default", *(f"{p}-{classes[n]}" for p, n in zip(parts, known)), "-"])

"""The parameters of a dump of aligner's: with the layers and roles that the adapters have given them."""

from __future__ import annotations

import os

from aligner.dump.reader import open_dump
from aligner.errors import CheckpointError
from aligner.record import Phase
from aligner.weights.stored import Checkpoint, Weight


def open_one(path: str) -> Checkpoint:
    """The parameters and buffers, by their own names.

    Raises:
        DumpError: it is none, or damaged.
        CheckpointError: it was captured without weights.
    """
    dump = open_dump(path)
    dump.verify()
    rows = {(row[0], row[1]): str(row[2]) for row in dump.header.get("parameters") or ()}
    found: dict[str, Weight] = {}
    for entry in dump.entries:
        if entry.key.phase is not Phase.PARAMETER:
            continue
        layer, role = entry.key.layer, entry.key.slot
        name = rows.get((layer, role), ".".join(part for part in (layer, role) if part))
        known = dump.layers.get(layer)
        found.setdefault(name, Weight(name, entry, layer, role, known.spec.kind if known else ""))
    if not found:
        dump.close()
        raise CheckpointError("checkpoint-dump-bare", path=os.fspath(path))
    return Checkpoint(os.fspath(path), "dump", tuple(found.values()), files=(dump,))

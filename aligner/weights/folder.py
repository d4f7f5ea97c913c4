"""A folder of shards: model-00001-of-00002.safetensors with its index, pytorch_model-*.bin, or files side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from aligner.errors import CheckpointError, because, form_of
from aligner.errors import Reason as Why
from aligner.weights.stored import Checkpoint, Left

ENDINGS = (".safetensors", ".bin", ".pth", ".pt", ".ckpt")
"""Of files that may be shards, the likeliest first: a folder may have the same weights twice."""

LARGEST_INDEX = 64 << 20

NOT_WEIGHTS = frozenset({"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scheduler.bin"})


def open_folder(path: str, open_file: Callable[[str], Checkpoint]) -> Checkpoint:
    """All shards as one.

    Raises:
        CheckpointError: there are none, one of the index is missing or cannot be read, or two have a name in common.
    """
    wanted, shards = _shards(path)
    opened: list[Checkpoint] = []
    try:
        for shard in shards:
            opened.append(open_file(os.path.join(path, shard)))
        return _joined(path, opened, wanted)
    except BaseException:
        for one in opened:
            one.close()
        raise


def _joined(path: str, opened: Sequence[Checkpoint], wanted: Optional[Mapping[str, str]]) -> Checkpoint:
    weights = [weight for one in opened for weight in one.weights]
    left = [entry for one in opened for entry in one.left]
    names = {weight.name for weight in weights}
    if len(names) < len(weights):
        twice = next(w.name for n, w in enumerate(weights) if w.name in {each.name for each in weights[:n]})
        raise CheckpointError("checkpoint-shards-twice", path=path, name=twice)
    lacking = [name for name in wanted or () if name not in names and name not in {entry.name for entry in left}]
    if lacking:
        raise CheckpointError("checkpoint-shards-lack", path=path, name=lacking[0], count=len(lacking))
    files = tuple(file for one in opened for file in one.files)
    ordered = all(one.ordered for one in opened)
    left = [Left(entry.name, entry.why) for entry in left]
    return Checkpoint(path, opened[0].form, tuple(weights), tuple(left), ordered, files)


def _shards(path: str) -> tuple[Optional[Mapping[str, str]], list[str]]:
    """Which file of the folder each name is in, where an index tells it, and the files."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise CheckpointError("checkpoint-unreadable", path=path, reason=error.strerror or error) from error
    indices = [name for name in names if name.endswith(".index.json")]
    for ending in ENDINGS:
        index = next((name for name in indices if name.endswith(f"{ending}.index.json")), None)
        if index is not None:
            table = _index(os.path.join(path, index))
            missing = [shard for shard in table.values() if shard not in names]
            if missing:
                raise CheckpointError("checkpoint-shard-missing", path=path, name=missing[0], index=index)
            return table, list(dict.fromkeys(table.values()))
        found = [name for name in names if name.endswith(ending) and name not in NOT_WEIGHTS]
        if found:
            return None, found
    if any(name.startswith("rank_") for name in names):
        raise CheckpointError("checkpoint-distributed", path=path)
    raise CheckpointError("checkpoint-no-shards", path=path, endings=" ".join(ENDINGS))


def _index(path: str) -> Mapping[str, str]:
    try:
        return _table(path)
    except Why as error:
        raise CheckpointError("checkpoint-damaged", path=path, reason=because(error)) from error
    except OSError as error:
        raise CheckpointError("checkpoint-unreadable", path=path, reason=error.strerror or error) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = because(Why("why-other-form", form_of(error)))
        raise CheckpointError("checkpoint-damaged", path=path, reason=reason) from error


def _table(path: str) -> Mapping[str, str]:
    if os.path.getsize(path) > LARGEST_INDEX:
        raise Why("why-long-header", os.path.getsize(path))
    with open(path, encoding="utf-8") as file:
        table: Any = json.load(file)["weight_map"]
    if not isinstance(table, dict) or not all(_is_name(shard) for shard in table.values()):
        raise Why("why-other-header")
    return table


def _is_name(shard: Any) -> bool:
    """Whether it is a file of the folder itself, and not a way out of it."""
    return isinstance(shard, str) and os.path.basename(shard) == shard and shard not in ("", ".", "..")

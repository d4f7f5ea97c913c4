"""Opens whatever holds weights, by what it is and not by what it is called: .ckpt is also Lightning's ending."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Optional

from aligner.dump import kinds, userblock
from aligner.errors import CheckpointError
from aligner.weights import ckpt, dumped, folder, pth, safetensors
from aligner.weights.stored import Checkpoint, File

HEAD = 512

OPENERS: Mapping[str, Callable[[File], Checkpoint]] = {
    "zip": pth.open_zip,
    "pickle": pth.open_old,
    "safetensors": safetensors.open_one,
    "ckpt": ckpt.open_one,
}


def is_dump(path: str) -> bool:
    """Whether the file is a dump of aligner's, or looks like one that is damaged."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
    except OSError:
        return not os.path.isdir(path) and path.endswith(".h5")
    return userblock.format_of(head) is not None or head.startswith(kinds.HDF5_SIGNATURE)


def is_weights(path: str) -> bool:
    """Whether the path is a file or folder of weights that is no dump."""
    if os.path.isdir(path):
        return True
    if is_dump(path) or not os.path.isfile(path):
        return path.endswith(folder.ENDINGS) and not is_dump(path)
    return _word_of(path) is not None or path.endswith(folder.ENDINGS)


def open_checkpoint(path: str) -> Checkpoint:
    """What holds weights at this path. The caller closes it.

    Raises:
        CheckpointError: it is none, or damaged.
        DumpError: it is a damaged dump.
    """
    if os.path.isdir(path):
        return folder.open_folder(path, _open_file)
    return dumped.open_one(path) if is_dump(path) else _open_file(path)


def _open_file(path: str) -> Checkpoint:
    file = File(path)
    try:
        head = file.read(0, HEAD)
        return _opener(file, head)(file)
    except BaseException:
        file.close()
        raise


def _opener(file: File, head: bytes) -> Callable[[File], Checkpoint]:
    """What opens a file that begins so.

    Raises:
        CheckpointError: nothing does.
    """
    word = _word(head, file.size)
    if word is not None:
        return OPENERS[word]
    if not file.size:
        raise CheckpointError("checkpoint-empty", path=file.path)
    kind = kinds.kind(head, os.path.basename(file.path))
    if kind is None:
        raise CheckpointError("checkpoint-unknown", path=file.path)
    raise CheckpointError("checkpoint-other-kind", path=file.path, kind=kind)


def _word_of(path: str) -> Optional[str]:
    with open(path, "rb") as file:
        head = file.read(HEAD)
    return _word(head, os.path.getsize(path))


def _word(head: bytes, size: int) -> Optional[str]:
    """What a file is that begins so: "zip", "pickle", "safetensors", "ckpt", or None."""
    if head.startswith(b"PK\x03\x04") and b".npy" not in head[:200]:
        return "zip"
    if safetensors.is_one(head, size):
        return "safetensors"
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return "pickle"
    return "ckpt" if ckpt.is_one(head) else None

"""What a file is that is not a dump, told from its first bytes: people hand over all kinds of files."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from aligner.errors import DumpError

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_STARTS = (
    (b"\x93NUMPY", "NumPy .npy"),
    (b"\x80\x02", "PyTorch / pickle"),
    (b"\x80\x03", "pickle"),
    (b"\x80\x04", "pickle"),
    (b"\x80\x05", "pickle"),
    (b"\x1f\x8b", "gzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"CDF", "NetCDF 3"),
    (b"\x7fELF", "ELF"),
    (b"%PDF", "PDF"),
    (b"\x89PNG", "PNG"),
    (b"GGUF", "GGUF"),
)
_ENDINGS = {
    ".ckpt": "checkpoint (.ckpt)",
    ".mindir": "MindIR",
    ".onnx": "ONNX",
    ".csv": "CSV",
    ".json": "JSON",
    ".safetensors": "safetensors",
    ".py": "Python",
}


def kind(head: bytes, name: str) -> Optional[str]:
    """A word for the file, the same in every language, or None if it is unknown."""
    if head.startswith(b"PK\x03\x04"):
        return "NumPy .npz" if b".npy" in head else "PyTorch .pt / .pth" if b"data.pkl" in head else "zip"
    for start, word in _STARTS:
        if head.startswith(start):
            return word
    return _ENDINGS.get(Path(name).suffix.lower())


def _is_hdf5(path: Path, size: int) -> bool:
    """Whether the HDF5 library would open the file: its signature may stand at 0, 512, 1024, 2048, ..."""
    places = [0, *(1 << n for n in range(9, 40) if 1 << n < size)]
    try:
        with path.open("rb") as file:
            for place in places:
                file.seek(place)
                if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
                    return True
    except OSError:  # a pipe or a device
        return False
    return False


def refusal(path: Path, head: bytes, size: int) -> DumpError:
    """The error for a file that does not begin as a dump does."""
    if not size:
        return DumpError("dump-empty", path=path)
    if _is_hdf5(path, size):
        from aligner.dump import guard

        found = guard.inspect(path)
        return DumpError("dump-foreign", path=path) if found is None else guard.refusal(path, found)
    word = kind(head, path.name)
    return DumpError("dump-unknown", path=path) if word is None else DumpError("dump-other-kind", path=path, kind=word)

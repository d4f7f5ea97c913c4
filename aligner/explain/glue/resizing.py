"""Maps in hand brought to the wanted size, as ops.interpolate does it."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.explain.glue.hand import Piece
from aligner.explain.glue.views import Shape, View
from aligner.explain.patterns.upsampling import Rule, resampled

RULES = {
    "nearest": Rule("nearest", "plain"),
    "bilinear": Rule("linear", "half"),
    "bilinear, align_corners=True": Rule("linear", "corners"),
    "bilinear, asymmetric": Rule("linear", "plain"),
    "bicubic": Rule("cubic", "half", a=-0.75),
}

LARGEST = 1 << 21
"""Elements of a value that is made larger."""


def views(piece: Piece, wanted: Shape) -> Iterator[View]:
    """Every way to resize the last two axes."""
    array = piece.array
    if len(wanted) != 4 or array.ndim != 4 or array.shape[:2] != wanted[:2] or array.shape[2:] == wanted[2:]:
        return
    if array.dtype.kind != "f" or min(array.shape[2:]) < 2 or wanted[0] * wanted[1] * wanted[2] * wanted[3] > LARGEST:
        return
    for how, rule in RULES.items():
        made = resampled(array.reshape(-1, *array.shape[2:]).astype(float), wanted[2:], rule).reshape(wanted)
        text = f"interpolate([{piece.name}], {wanted[2:]}, {how})"
        yield View(piece, "resize", how, text, made)


def cause(reference: str, port: str) -> str:
    """What it is called when the port resizes in another way."""
    if "nearest" in (reference, port) or "bicubic" in (reference, port):
        return "upsample-mode-default-nearest"
    return "interpolate-align-corners" if "corners" in reference + port else "resize-bilinear-half-pixel"

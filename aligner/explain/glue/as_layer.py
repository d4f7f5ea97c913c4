"""A function that stands for a layer (ops.interpolate, a pooling, a norm): the rules for layers asked of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Optional

from aligner.explain.case import Case, Value
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns import norms, pooling, rearranging, upsampling
from aligner.explain.patterns.pair import Pair
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect
from aligner.record import Attribute, LayerSpec

Rule = Callable[[Scene], Iterable[Suspect]]

NEAR, NORMED = 6, 2
"""Values in hand that the function may have been given, and those that a norm may have been given."""

GAINS, SHIFTS = ("weight", "gamma", "gain", "scale"), ("bias", "beta", "shift")


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The first that fits, of the nearest values."""
    rank = pair.expected.ndim
    given = [piece for piece in hand.pieces(lambda shape: len(shape) == rank) if piece.rank in (0, 1)]
    for number, piece in enumerate(sorted(given, key=lambda piece: -piece.rank)[:NEAR]):
        for spec, rule in _asked(pair, piece, normed=number < NORMED):
            found = _found(case, pair, hand, piece, spec, rule)
            if found is not None:
                yield found
                return


def resized(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The same for maps that were made larger only."""
    if pair.expected.ndim not in (3, 4, 5):
        return
    lead = pair.expected.shape[:2]
    for piece in list(hand.pieces(lambda shape: len(shape) == pair.expected.ndim and shape[:2] == lead))[:NEAR]:
        if piece.array.shape[2:] != pair.expected.shape[2:]:
            found = _found(case, pair, hand, piece, LayerSpec("Upsample", {}), upsampling.suspects)
            if found is not None:
                yield found
                return


def _found(case: Case, pair: Pair, hand: Hand, piece: Piece, spec: LayerSpec, rule: Rule) -> Optional[Suspect]:
    made = replace(
        case, where="layer", reference=spec, port=spec, inputs=(piece.value,), parameters=_affine(hand, piece)
    )
    for suspect in rule(Scene(made, pair)):
        if suspect.error is not None:
            facts = {**suspect.facts, "other": f"[{piece.name}]", "kind": spec.kind, "port_kind": spec.kind}
            return replace(suspect, change={}, facts=facts)
    return None


def _asked(pair: Pair, piece: Piece, normed: bool) -> Iterator[tuple[LayerSpec, Rule]]:
    shape, wanted = piece.array.shape, pair.expected.shape
    if normed and shape == wanted and pair.alike:
        yield LayerSpec("LayerNorm", {"normalized_shape": (shape[-1],), "eps": 1e-5, "affine": True}), norms.suspects
        yield LayerSpec("RMSNorm", {"normalized_shape": (shape[-1],), "eps": 1e-6, "affine": True}), norms.suspects
    if len(shape) == len(wanted) == 4:
        yield from _shuffles(shape, wanted)
    if len(shape) < 3 or shape[:2] != wanted[:2]:
        return
    if shape[2:] != wanted[2:] and pair.alike:
        yield LayerSpec("Upsample", {}), upsampling.suspects
    axes = len(shape) - 2
    for kind in ("MaxPool", "AvgPool"):
        for settings in _pools(shape[2:], wanted[2:]):
            yield LayerSpec(f"{kind}{axes}d", settings), pooling.suspects


def _shuffles(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[tuple[LayerSpec, Rule]]:
    """Channels that became pixels."""
    n, c, h, w = shape
    r = wanted[2] // h
    if r > 1 and c % r**2 == 0 and wanted == (n, c // r**2, h * r, w * r):
        yield LayerSpec("PixelShuffle", {"upscale_factor": r}), rearranging.suspects


def _pools(sizes: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Mapping[str, Attribute]]:
    axes = len(sizes)
    steps = {size // max(made, 1) for size, made in zip(sizes, wanted)}
    for step in steps - {0}:
        for kernel, before in ((step, 0), (3, 1), (3, 0), (5, 2)):
            if kernel > 1 and kernel >= step and (step > 1 or (axes > 1 and 2 * before == kernel - 1)):
                padding = ((before, before),) * axes
                yield {
                    "kernel_size": (kernel,) * axes,
                    "stride": (step,) * axes,
                    "padding": padding,
                    "ceil_mode": False,
                    "count_include_pad": True,
                }


def _affine(hand: Hand, piece: Piece) -> dict[str, Value]:
    """Parameters of the parent that may be a norm's, by their names."""
    found: dict[str, Value] = {}
    for held in hand.pieces(lambda shape: shape == piece.array.shape[-1:]):
        for role, words in (("weight", GAINS), ("bias", SHIFTS)):
            if held.rank == 2 and any(word in held.value.slot.lower() for word in words):
                found.setdefault(role, held.value)
    return found

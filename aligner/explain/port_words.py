"""How a port writes the reference's settings, in the words of its own framework.

A port of MindTorch (or of torch) is written in torch's words, which are the vocabulary's but for a few; one of
MindSpore's in those of aligner.explain.spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from aligner.explain import spelling
from aligner.explain.case import TORCH, Case
from aligner.explain.spelling import Keywords, literal
from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import KINDS

_RENAMED: Mapping[tuple[str, str], str] = {
    ("LayerNorm", "affine"): "elementwise_affine",
    ("RMSNorm", "affine"): "elementwise_affine",
    ("TransformerEncoderLayer", "eps"): "layer_norm_eps",
    ("TransformerDecoderLayer", "eps"): "layer_norm_eps",
}
_MODES = {"constant": "Constant", "reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}


def written(case: Case, spec: LayerSpec, names: Iterable[str], rank: Optional[int] = None) -> str:
    """A call that gives the case's port these settings of `spec`: "nn.LayerNorm(..., eps=1e-05)"."""
    return spelled(case.words, spec, names, rank)


def spelled(words: str, spec: LayerSpec, names: Iterable[str], rank: Optional[int] = None) -> str:
    """The same in the words of a port."""
    if words != TORCH:
        return spelling.written(spec, names, rank)
    wanted = list(names)
    found: Keywords = {}
    for name in wanted:
        special = _SPECIAL.get((spec.kind.rstrip("123d") if spec.kind[-1:] == "d" else spec.kind, name))
        value = spec.attributes.get(name)
        found.update(special(value) if special else {_RENAMED.get((spec.kind, name), name): value})
    rest = [] if set(KINDS.get(spec.kind, ("",))) <= set(wanted) else ["..."]
    told = [f"{name}={literal(value)}" for name, value in found.items()]
    return f"{_class(spec, rank)}({', '.join(rest + told)})"


def parameter(case: Case, role: str) -> str:
    """The port's name of a parameter: gamma for a norm's weight, where it is MindSpore's."""
    return role if case.words == TORCH else spelling.parameter(case.port.kind, role)


def _class(spec: LayerSpec, rank: Optional[int]) -> str:
    if spec.kind in ("BatchNorm", "InstanceNorm"):
        return spelling.constructor(spec.kind, rank)
    if spec.kind == "Pad":
        mode = _MODES.get(str(spec.attributes.get("mode")), "Constant")
        return f"nn.{mode}Pad{max((rank or 4) - 2, 1)}d"
    return f"nn.{spec.kind}" if spec.kind in KINDS else spec.kind


def _padding(value: Any) -> Keywords:
    """One number for each axis, as torch's layers put as much before as after."""
    if isinstance(value, str) or value is None or any(before != after for before, after in value):
        return {"padding": value}
    sides = tuple(before for before, _ in value)
    return {"padding": sides[0] if len(set(sides)) == 1 else sides}


def _paddings(value: Any) -> Keywords:
    return {"padding": tuple(amount for pair in value for amount in pair)}


def _nothing(value: Attribute) -> Keywords:
    """Said by the class."""
    return {}


_SPECIAL: Mapping[tuple[str, str], Callable[[Any], Keywords]] = {
    **{(kind, "padding"): _padding for kind in ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "Unfold")},
    ("Pad", "padding"): _paddings,
    ("Pad", "mode"): _nothing,
}
"""(Kind without its dimension, setting) -> the keywords that say it."""

"""The choices in attention that ports get wrong: each as the plan that the mistake makes, and the cause's name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from aligner.explain.glue.attention_plan import ROTATIONS, Plan
from aligner.explain.glue.hand import Piece
from aligner.record import Scalar


@dataclass(frozen=True)
class Edit:
    """The plan with one choice made otherwise."""

    plan: Plan
    cause: str
    facts: Mapping[str, Scalar]


def edits(plan: Plan, others: Sequence[Piece] = ()) -> Iterator[Edit]:
    """Every single mistake, those that are made most first; `others` may have been taken for one of the sources."""
    if plan.weighted:
        yield from _scales(plan)
        yield from _masks(plan)
    yield from _splits(plan)
    if plan.given is None:
        yield from _sources(plan)
        yield from _ropes(plan)
    yield from _beneath(plan)
    if plan.weighted:
        for axis in (-2, -3):
            yield altered(plan, "softmax-axis", "axis", plan.axis, axis, axis=axis)
        missing = altered(plan, "softmax-missing", "softmax", "taken", "not taken", weighted=False)
        yield replace(missing, facts={**missing.facts, "other": "softmax(scores)"})
    if plan.given is not None or len(plan.sources) > 1:
        yield from _taken(plan, others)


def _beneath(plan: Plan) -> Iterator[Edit]:
    """What lies beneath the mask left out: a bias, a bound."""
    if plan.bias is not None:
        name = f"[{plan.bias.name}]"
        missing = altered(plan, "addend-missing", "bias", name, "none", bias=None)
        yield replace(missing, facts={**missing.facts, "other": name})
    if plan.cap:
        told = f"{plan.cap:g} * tanh(scores / {plan.cap:g})"
        missing = altered(plan, "function-missing", "bound", told, "none", cap=0.0)
        more: dict[str, Scalar] = {"function": told, "reference_function": told, "port_function": "identity"}
        yield replace(missing, facts={**missing.facts, **more, "other": "scores"})


def _taken(plan: Plan, others: Sequence[Piece]) -> Iterator[Edit]:
    """Another value of the same shape in the place of one source."""
    whose = {1: ("value",), 2: ("query", "key and value"), 3: ("query", "key", "value")}[len(plan.sources)]
    for number, source in enumerate(plan.sources):
        for other in others:
            if other is not source and other.array.shape == source.array.shape:
                sources = (*plan.sources[:number], other, *plan.sources[number + 1 :])
                old, new = f"[{source.name}]", f"[{other.name}]"
                edit = altered(plan, "wrong-tensor", whose[number], old, new, sources=sources)
                yield replace(edit, facts={**edit.facts, "other": old, "instead": new})


def altered(plan: Plan, cause: str, setting: str, old: Scalar, new: Scalar, **changes: object) -> Edit:
    """The plan with fields of it changed; `setting` is told to be `new` in place of `old`."""
    facts: dict[str, Scalar] = {"setting": setting, "reference_value": old, "port_value": new}
    facts.update(other=f"{setting} {old}", instead=f"{setting} {new}")
    return Edit(replace(plan, **changes), cause, facts)  # type: ignore[arg-type]  # fields of Plan by name


def _scales(plan: Plan) -> Iterator[Edit]:
    size = head_size(plan)
    width = size * plan.heads
    for scale in (
        1.0,
        1 / math.sqrt(size),
        1 / math.sqrt(width),
        math.sqrt(size),
        1 / size,
        plan.scale / math.sqrt(size),
    ):
        if not math.isclose(scale, plan.scale):
            cause = "attention-scale-missing" if scale == 1.0 else "scale-other"
            yield altered(plan, cause, "scale", number(plan.scale, plan), number(scale, plan), scale=scale)


def _masks(plan: Plan) -> Iterator[Edit]:
    for edit in _masked(plan):
        yield edit
        if edit.plan.fill != -1e9 and (edit.plan.causal or edit.plan.mask is not None):
            yield replace(edit, plan=replace(edit.plan, fill=-1e9))
    if plan.mask is not None or plan.causal:
        for fill in (-1e4, -1e9, -np.inf, -100.0, -10.0, 0.0, 1e-9, -1e-9, -1.0):
            if fill != plan.fill:
                cause = "attention-mask-fill-1e4" if fill <= -1e4 else "mask-fill-other"
                yield altered(plan, cause, "value of masked scores", f"{plan.fill:g}", f"{fill:g}", fill=fill)


def _masked(plan: Plan) -> Iterator[Edit]:
    if plan.causal:
        for other in ("causal", "causal, not itself", "causal, one ahead"):
            if other != plan.causal:
                yield altered(plan, "causal-mask-diagonal", "mask", plan.causal, other, causal=other)
        yield altered(plan, "causal-mask-missing", "mask", "causal", "none", causal="")
        yield altered(plan, "mha-mask-inverted", "mask", "causal", "causal, inverted", causal="causal, inverted")
    else:
        yield altered(plan, "mask-extra", "mask", "none", "causal", causal="causal")
    if plan.causal or plan.mask is not None:
        yield altered(plan, "mask-after-softmax", "mask", "before the softmax", "after it", late=True)
    if plan.mask is None:
        return
    name = f"[{plan.mask.name}]"
    yield altered(plan, "attention-mask-missing", "mask", name, "none", mask=None, sense="")
    if plan.sense in ("keep", "drop"):
        other = "drop" if plan.sense == "keep" else "keep"
        words = {"keep": "seen where true", "drop": "hidden where true"}
        yield altered(plan, "mha-mask-inverted", name, words[plan.sense], words[other], sense=other)
        yield altered(plan, "mask-added-as-numbers", name, words[plan.sense], "added to the scores", sense="add")


def _splits(plan: Plan) -> Iterator[Edit]:
    for split, word in (
        ("viewed", "(batch, head, length, channel) by a reshape alone"),
        ("channel first", "(channel, head)"),
    ):
        yield altered(
            plan, "head-split-order", "split into heads", "(length, head, channel), then transposed", word, split=split
        )
    for merge, word in (("viewed", "a reshape without transposing back"), ("channel first", "(channel, head)")):
        if plan.stage == "mixed":
            yield altered(
                plan, "head-merge-order", "merge of the heads", "transposed back, then a reshape", word, merge=merge
            )
    if plan.groups != plan.heads:
        other = "tile" if plan.repeat == "repeat" else "repeat"
        yield altered(plan, "gqa-repeat-vs-tile", "key and value heads", plan.repeat, other, repeat=other)
    for heads in range(1, 65):
        if heads != plan.heads and plan.groups == plan.heads and plan.stage == "mixed" and plan.given is None:
            width = head_size(plan) * plan.heads
            if width % heads == 0:
                for scale in (plan.scale, 1 / math.sqrt(width // heads)):
                    yield altered(
                        plan, "head-count", "heads", plan.heads, heads, heads=heads, groups=heads, scale=scale
                    )


def _sources(plan: Plan) -> Iterator[Edit]:
    if len(plan.sources) == 1:
        for layout in ("parts", "by head", "by channel", "viewed"):
            if layout != plan.layout and plan.groups == plan.heads:
                edit = altered(plan, "qkv-interleaved-layout", "q, k, v in one", plan.layout, layout, layout=layout)
                told = {"port_parameter": plan.sources[0].name, "order": layout, "wanted": plan.layout}
                yield replace(edit, facts={**edit.facts, **told})
    whose = ["query", "key", "value"]
    orders = permutations(range(3)) if len(plan.sources) != 2 else ((0, 1, 2), (0, 2, 1))
    for order in orders:
        if order != plan.order:
            old, new = (", ".join(whose[o.index(i)] for i in range(3)) for o in (plan.order, order))
            cause = "wrong-tensor" if len(plan.sources) == 3 else "chunk-order"
            edit = altered(plan, cause, "order", old, new, order=order)
            yield replace(edit, facts={**edit.facts, "other": old, "instead": new})
    if len(plan.sources) == 3:
        for instead in ((0, 0, 2), (0, 1, 1), (1, 1, 2), (0, 1, 0), (0, 2, 2)):
            order = tuple(plan.order[i] for i in instead)
            changed = next(i for i in range(3) if instead[i] != i)
            old, new = (f"[{plan.sources[o[changed]].name}]" for o in (plan.order, order))
            yield altered(plan, "wrong-tensor", whose[changed], old, new, order=order)


def _ropes(plan: Plan) -> Iterator[Edit]:
    if not plan.rope:
        return
    for other in ROTATIONS:
        if other != plan.rope:
            yield altered(plan, "rope-interleaved-vs-half", "rotary embedding", plan.rope, other, rope=other)
    yield altered(plan, "rope-missing", "rotary embedding", "query and key", "nothing", rope="")
    for only in ("query", "key"):
        yield altered(plan, "rope-missing", "rotary embedding", "query and key", f"the {only}", rope_of=only)
    yield altered(plan, "rope-sign", "rotary embedding", "forwards", "backwards", rope_sign=-1.0)
    for theta in (1e4, 1e3, 1e5, 5e5, 1e6):
        if theta != plan.theta:
            yield altered(
                plan, "rope-theta", "base of the rotary embedding", f"{plan.theta:g}", f"{theta:g}", theta=theta
            )


def head_size(plan: Plan) -> int:
    """Channels of a head."""
    if plan.given is not None:
        return int(plan.sources[0].array.shape[-1] // plan.groups)
    array = plan.sources[0].array
    if array.ndim == 4:
        return int(array.shape[3])
    return int(array.shape[2] // (plan.heads + 2 * plan.groups if len(plan.sources) == 1 else plan.heads))


def number(scale: float, plan: Plan) -> str:
    """A scale as people write it."""
    size = head_size(plan)
    for n in (size, size * plan.heads):
        for text, known in ((f"1 / sqrt({n})", 1 / math.sqrt(n)), (f"sqrt({n})", math.sqrt(n)), (f"1 / {n}", 1 / n)):
            if math.isclose(scale, known):
                return text
    return f"{scale:.6g}"


def spelled(plan: Plan) -> str:
    """The plan in a line."""
    sources = ", ".join(f"[{piece.name}]" for piece in plan.sources)
    words = [f"heads={plan.heads}"]
    if plan.groups != plan.heads:
        words.append(f"kv_heads={plan.groups}")
    if plan.given is None:
        words.append(f"scale={number(plan.scale, plan)}")
    else:
        words.append(f"{'scores' if plan.weighted else 'weights'}=[{plan.given.name}]")
    if plan.rope:
        only = f" of {plan.rope_of} only" if plan.rope_of else ""
        words.append(f"rotary={plan.rope}{only}{', backwards' if plan.rope_sign < 0 else ''}")
    if plan.bias is not None:
        words.append(f"bias=[{plan.bias.name}]")
    if plan.cap:
        words.append(f"bound={plan.cap:g}")
    masks = [plan.causal] if plan.causal else []
    if plan.mask is not None:
        masks.append(f"{plan.sense} [{plan.mask.name}]")
    if masks:
        words.append(f"mask={' and '.join(masks)}")
    if masks and np.isfinite(plan.fill):
        words.append(f"fill={plan.fill:g}")
    for told, stages in ((plan.short, plan.rounded), (plan.rope_short, plan.rope_rounded)):
        if told:
            words.append(f"{told} for {' and '.join(stages)}")
    if plan.dead:
        words.append(f"queries that see nothing={plan.dead}")
    for name, usual in (("split", "transposed"), ("merge", "transposed"), ("layout", "parts"), ("axis", -1)):
        if getattr(plan, name) != usual:
            words.append(f"{name}={getattr(plan, name)}")
    return f"attention({sources}; {', '.join(words)})"

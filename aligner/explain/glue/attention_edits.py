"""The choices in attention that ports get wrong: each as the plan that the mistake makes, and the cause's name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from aligner.explain.glue.attention_plan import ROTATIONS, Plan, as_code
from aligner.explain.glue.hand import Piece
from aligner.explain.phrase import Fact, phrase

CAUSAL = {
    "causal": "triu(diagonal=1)",
    "causal, not itself": "triu(diagonal=0)",
    "causal, one ahead": "triu(diagonal=2)",
    "causal, inverted": "~triu(diagonal=1)",
}
"""What is hidden, as code."""


@dataclass(frozen=True)
class Edit:
    """The plan with one choice made otherwise."""

    plan: Plan
    cause: str
    facts: Mapping[str, Fact]


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
            edit = altered(plan, "softmax-axis", "axis", plan.axis, axis, axis=axis)
            codes = {"other": f"softmax(axis={plan.axis})", "instead": f"softmax(axis={axis})"}
            yield replace(edit, facts={**edit.facts, **codes})
        missing = altered(plan, "softmax-missing", "softmax", True, False, weighted=False)
        yield replace(missing, facts={**missing.facts, "other": "softmax(scores)"})
    if plan.given is not None or len(plan.sources) > 1:
        yield from _taken(plan, others)


def _beneath(plan: Plan) -> Iterator[Edit]:
    """What lies beneath the mask left out: a bias, a bound."""
    if plan.bias is not None:
        name = f"[{plan.bias.name}]"
        missing = altered(plan, "addend-missing", "bias", name, None, bias=None)
        yield replace(missing, facts={**missing.facts, "other": name})
    if plan.cap:
        told = f"{plan.cap:g} * tanh(scores / {plan.cap:g})"
        missing = altered(plan, "function-missing", "bound", told, None, cap=0.0)
        more: dict[str, Fact] = {"function": told, "reference_function": told, "port_function": "identity"}
        yield replace(missing, facts={**missing.facts, **more, "other": "scores"})


def _taken(plan: Plan, others: Sequence[Piece]) -> Iterator[Edit]:
    """Another value of the same shape in the place of one source."""
    whose = {1: ("value",), 2: ("query", "kv"), 3: ("query", "key", "value")}[len(plan.sources)]
    for number, source in enumerate(plan.sources):
        for other in others:
            if other is not source and other.array.shape == source.array.shape:
                sources = (*plan.sources[:number], other, *plan.sources[number + 1 :])
                old, new = f"[{source.name}]", f"[{other.name}]"
                edit = altered(plan, "wrong-tensor", whose[number], old, new, sources=sources)
                yield replace(edit, facts={**edit.facts, "other": old, "instead": new})


def altered(plan: Plan, cause: str, setting: Fact, old: Fact, new: Fact, **changes: object) -> Edit:
    """The plan with fields of it changed; `setting` is told to be `new` in place of `old`."""
    facts: dict[str, Fact] = {"setting": setting, "reference_value": old, "port_value": new}
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
                yield altered(plan, cause, "fill", f"{plan.fill:g}", f"{fill:g}", fill=fill)


def _masked(plan: Plan) -> Iterator[Edit]:
    if plan.causal:
        for other in ("causal", "causal, not itself", "causal, one ahead"):
            if other != plan.causal:
                old, new = CAUSAL[plan.causal], CAUSAL[other]
                yield altered(plan, "causal-mask-diagonal", "mask", old, new, causal=other)
        right = CAUSAL["causal"]
        yield altered(plan, "causal-mask-missing", "mask", right, None, causal="")
        turned = "causal, inverted"
        yield altered(plan, "mha-mask-inverted", "mask", right, CAUSAL[turned], causal=turned)
    else:
        yield altered(plan, "mask-extra", "mask", None, CAUSAL["causal"], causal="causal")
    if plan.causal or plan.mask is not None:
        before, after = phrase("before-softmax"), phrase("after-softmax")
        yield altered(plan, "mask-after-softmax", "mask", before, after, late=True)
    if plan.mask is None:
        return
    name = f"[{plan.mask.name}]"
    yield altered(plan, "attention-mask-missing", "mask", name, None, mask=None, sense="")
    if plan.sense in ("keep", "drop"):
        other = "drop" if plan.sense == "keep" else "keep"
        words = {"keep": phrase("seen-where-true"), "drop": phrase("hidden-where-true")}
        yield altered(plan, "mha-mask-inverted", name, words[plan.sense], words[other], sense=other)
        yield altered(plan, "mask-added-as-numbers", name, words[plan.sense], phrase("added-to-scores"), sense="add")


def _splits(plan: Plan) -> Iterator[Edit]:
    for split, word in (("viewed", "heads-viewed"), ("channel first", "heads-channel-first")):
        yield altered(plan, "head-split-order", "split", phrase("heads-transposed"), phrase(word), split=split)
    for merge, word in (("viewed", "merge-viewed"), ("channel first", "heads-channel-first")):
        if plan.stage == "mixed":
            yield altered(plan, "head-merge-order", "merge", phrase("merge-transposed"), phrase(word), merge=merge)
    if plan.groups != plan.heads:
        other = "tile" if plan.repeat == "repeat" else "repeat"
        yield altered(plan, "gqa-repeat-vs-tile", "repeat", plan.repeat, other, repeat=other)
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
                old, new = (phrase(f"layout-{word.replace(' ', '-')}") for word in (plan.layout, layout))
                edit = altered(plan, "qkv-interleaved-layout", "layout", old, new, layout=layout)
                told: dict[str, Fact] = {"port_parameter": f"[{plan.sources[0].name}]", "order": new, "wanted": old}
                yield replace(edit, facts={**edit.facts, **told})
    whose = ["query", "key", "value"]
    orders = permutations(range(3)) if len(plan.sources) != 2 else ((0, 1, 2), (0, 2, 1))
    for order in orders:
        if order != plan.order:
            first, second = (f"({', '.join(whose[o.index(i)] for i in range(3))})" for o in (plan.order, order))
            cause = "wrong-tensor" if len(plan.sources) == 3 else "chunk-order"
            edit = altered(plan, cause, "order", first, second, order=order)
            yield replace(edit, facts={**edit.facts, "other": first, "instead": second})
    if len(plan.sources) == 3:
        for instead in ((0, 0, 2), (0, 1, 1), (1, 1, 2), (0, 1, 0), (0, 2, 2)):
            order = tuple(plan.order[i] for i in instead)
            changed = next(i for i in range(3) if instead[i] != i)
            first, second = (f"[{plan.sources[o[changed]].name}]" for o in (plan.order, order))
            edit = altered(plan, "wrong-tensor", whose[changed], first, second, order=order)
            yield replace(edit, facts={**edit.facts, "other": first, "instead": second})


def _ropes(plan: Plan) -> Iterator[Edit]:
    if not plan.rope:
        return
    for other in ROTATIONS:
        if other != plan.rope:
            yield altered(plan, "rope-interleaved-vs-half", phrase("rotary"), plan.rope, other, rope=other)
    yield altered(plan, "rope-missing", phrase("rotary"), "query, key", phrase("nothing"), rope="")
    for only in ("query", "key"):
        yield altered(plan, "rope-missing", phrase("rotary"), "query, key", only, rope_of=only)
    yield altered(plan, "rope-sign", phrase("rotary"), phrase("forwards"), phrase("backwards"), rope_sign=-1.0)
    for theta in (1e4, 1e3, 1e5, 5e5, 1e6):
        if theta != plan.theta:
            yield altered(plan, "rope-theta", phrase("rotary-base"), f"{plan.theta:g}", f"{theta:g}", theta=theta)


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
    in_order = plan.order == (0, 1, 2)
    taken = plan.sources if in_order or len(plan.sources) != 3 else [plan.sources[i] for i in plan.order]
    sources = ", ".join(f"[{piece.name}]" for piece in taken)
    words = [f"heads={plan.heads}"]
    if not in_order and len(plan.sources) != 3:
        words.append(f"order=({', '.join(('query', 'key', 'value')[plan.order.index(i)] for i in range(3))})")
    if plan.groups != plan.heads:
        words.append(f"kv_heads={plan.groups}")
    if plan.given is None:
        words.append(f"scale={number(plan.scale, plan)}")
    else:
        words.append(f"{'scores' if plan.weighted else 'weights'}=[{plan.given.name}]")
    if plan.rope:
        how = [plan.rope_of] if plan.rope_of else []
        how += [f"base={plan.theta:g}"] if plan.theta != 1e4 else []
        only = f"({', '.join(how)})" if how else ""
        words.append(f"rotary={'-' if plan.rope_sign < 0 else ''}{plan.rope}{only}")
    words += _over_scores(plan)
    for told, stages in ((plan.short, plan.rounded), (plan.rope_short, plan.rope_rounded)):
        if told:
            words.append(as_code(told, stages))
    if plan.dead:
        words.append(f"unseeing={plan.dead}")
    for name, usual in (
        ("split", "transposed"),
        ("merge", "transposed"),
        ("layout", "parts"),
        ("axis", -1),
        ("repeat", "repeat"),
    ):
        if getattr(plan, name) != usual:
            words.append(f"{name}={str(getattr(plan, name)).replace(' ', '_')}")
    return f"attention({sources}; {', '.join(words)})"


def _over_scores(plan: Plan) -> list[str]:
    """What lies over the scores: a bias, a bound, a mask and the softmax."""
    words = []
    if plan.bias is not None:
        words.append(f"bias=[{plan.bias.name}]")
    if plan.cap:
        words.append(f"bound={plan.cap:g}")
    masks = [CAUSAL[plan.causal]] if plan.causal else []
    if plan.mask is not None:
        masks.append(f"{plan.sense}([{plan.mask.name}])")
    if masks:
        words.append(f"mask={' & '.join(masks)}")
    if plan.late:
        words.append("mask_after_softmax=True")
    if not plan.weighted and plan.given is None:
        words.append("softmax=None")
    if masks and np.isfinite(plan.fill):
        words.append(f"fill={plan.fill:g}")
    return words

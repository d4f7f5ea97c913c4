"""Attention computed in a shorter float type than the reference's, and queries that see no key at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from aligner.explain.glue.attention_edits import Edit, altered
from aligner.explain.glue.attention_plan import DEAD, STAGES, Plan
from aligner.explain.patterns.angles import SHORTS, TURNS

COARSE = 0.3
"""Rounding makes no larger an error, while nothing overflows."""

EACH: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the scores", ("product", "scores")),
    ("query, key and the scores", STAGES[:3]),
    ("the sum of scores and mask", ("scores",)),
    ("the scores and the softmax", STAGES[:4]),
    ("the softmax", ("scores", "weights")),
    ("all of it", STAGES),
    ("query, key, weights and value, before the products", ("query and key", "weights", "value")),
    ("query and key, before their product", ("query and key",)),
    ("weights and value, before their product", ("weights", "value")),
    ("the weights", ("weights",)),
)
"""What may be computed in a short type, in words, and as stages of a plan."""

PRODUCTS = {words for words, stages in EACH if not {"product", "scores", "result"} & set(stages)}
"""Only what goes into products is rounded: so a device may be set to compute them."""


def unseeing(plan: Plan) -> Iterator[Edit]:
    """Rows of the mask that hide every key: the softmax's answer, zeros, or the mean of all values."""
    if not plan.causal and plan.mask is None:
        return
    words = {"": "NaN" if np.isneginf(plan.fill) else "what the softmax gives", "zero": "zeros", "mean": "the mean"}
    for dead in ("zero", "mean", ""):
        if dead != plan.dead:
            told = "query that sees no key"
            yield altered(plan, "flash-attention-fully-masked-row", told, words[plan.dead], words[dead], dead=dead)


def shortened(plan: Plan, before: float, lost: bool) -> Iterator[Edit]:
    """Each part of attention in a shorter type; `before` is the error to explain, `lost` that NaN or Inf appear."""
    if plan.rope and not lost:
        yield from _turns(plan)
    if not plan.weighted or (before > COARSE and not lost):
        return
    fills = (plan.fill, -np.inf) if lost and np.isfinite(plan.fill) else (plan.fill,)
    for word in ("float16",) if lost else (*SHORTS, "tf32", "hf32"):
        for told, stages in EACH:
            if word not in SHORTS and told not in PRODUCTS:
                continue
            for fill in fills:
                yield replace_facts(_short(plan, word, told, stages, fill, lost), word)


def _short(plan: Plan, word: str, told: str, stages: tuple[str, ...], fill: float, lost: bool) -> Edit:
    cause = "attention-in-short-float"
    if told in PRODUCTS:
        cause = "ascend-matmul-precision-mode"
    if lost:
        cause = "attention-softmax-fp16-overflow" if fill == plan.fill else "attention-fill-fp16-overflow"
    return altered(plan, cause, told, "float32", word, short=word, rounded=stages, fill=fill)


def _turns(plan: Plan) -> Iterator[Edit]:
    for word in SHORTS:
        for told, stages in TURNS:
            edit = altered(plan, "rotary-precision", told, "float32", word, rope_short=word, rope_rounded=stages)
            yield replace_facts(edit, word)


def replace_facts(edit: Edit, word: str) -> Edit:
    """The edit with the name of the type among its facts."""
    return replace(edit, facts={**edit.facts, "dtype": word})


def sees_nothing(plan: Plan) -> bool:
    """Whether some query of the mask sees no key."""
    if plan.mask is None:
        return False
    array = np.asarray(plan.mask.array)
    hidden = array <= DEAD if plan.sense == "add" else array == 0 if plan.sense == "keep" else array != 0
    return bool(hidden.all(axis=-1).any())

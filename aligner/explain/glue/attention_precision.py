"""Attention computed in a shorter float type than the reference's, and queries that see no key at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from aligner.explain.glue.attention_edits import Edit, altered
from aligner.explain.glue.attention_plan import DEAD, STAGES, Plan
from aligner.explain.patterns.angles import SHORTS, TURNS
from aligner.explain.phrase import Fact, phrase

COARSE = 0.3
"""Rounding makes no larger an error, while nothing overflows."""

EACH: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("scores", ("product", "scores")),
    ("query-key-scores", STAGES[:3]),
    ("scores-and-mask", ("scores",)),
    ("scores-softmax", STAGES[:4]),
    ("softmax", ("scores", "weights")),
    ("all-of-attention", STAGES),
    ("operands", ("query_key", "weights", "value")),
    ("query-key", ("query_key",)),
    ("weights-value", ("weights", "value")),
    ("weights", ("weights",)),
)
"""What may be computed in a short type, as a phrase, and as stages of a plan."""

PRODUCTS = {words for words, stages in EACH if not {"product", "scores", "result"} & set(stages)}
"""Only what goes into products is rounded: so a device may be set to compute them."""


def unseeing(plan: Plan) -> Iterator[Edit]:
    """Rows of the mask that hide every key: the softmax's answer, zeros, or the mean of all values."""
    if not plan.causal and plan.mask is None:
        return
    usual: Fact = "NaN" if np.isneginf(plan.fill) else phrase("softmax-of-nothing")
    words: dict[str, Fact] = {"": usual, "zero": phrase("zeros"), "mean": phrase("mean-of-values")}
    for dead in ("zero", "mean", ""):
        if dead != plan.dead:
            cause = "flash-attention-fully-masked-row"
            yield altered(plan, cause, "unseeing", words[plan.dead], words[dead], dead=dead)


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
    return altered(plan, cause, phrase(told), "float32", word, short=word, rounded=stages, fill=fill)


def _turns(plan: Plan) -> Iterator[Edit]:
    for word in SHORTS:
        for told, stages in TURNS:
            edit = altered(
                plan, "rotary-precision", phrase(told), "float32", word, rope_short=word, rope_rounded=stages
            )
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

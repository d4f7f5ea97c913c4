"""What some of torch's functions do in one, in the steps that ports write out: so these have values to be set against.

They run beside the function and are heard like the user's own code; the function's own result goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p:
        return None
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:]).triu(diagonal=1).bool()
        scores = scores.masked_fill(hidden, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(torch.logical_not(attn_mask), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.matmul(torch.softmax(scores, dim=-1), value)


def _normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    if p != 2.0 or out is not None:
        return None
    return input / torch.clamp(torch.sqrt((input * input).sum(dim, keepdim=True)), min=eps)


def _cosine(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    one, other = torch.sqrt((x1 * x1).sum(dim)), torch.sqrt((x2 * x2).sum(dim))
    return (x1 * x2).sum(dim) / torch.clamp(one * other, min=eps)


STEPS: Mapping[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention,
    "normalize": _normalize,
    "cosine_similarity": _cosine,
}


def taken(name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Run a function's steps, if they are known; what cannot be written out so is left."""
    steps = STEPS.get(name)
    if steps is None:
        return
    try:
        with torch.no_grad():
            steps(*args, **kwargs)
    except Exception:  # called in a way that is not known here
        return

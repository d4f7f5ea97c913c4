"""What some of torch's functions do in one, in the steps that ports write out: so these have values to be set against.

They run beside the function and are heard like the user's own code; the function's own result goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch

from aligner_hooks.torch_.written_out import LARGEST, LOSSES


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


def _einsum(equation: Any, *operands: Any) -> Any:
    """From left to right, two at a time: by a product of each with each, or by one of matrices."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation or len(operands) < 2:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    letters = inputs.split(",")
    if len(letters) != len(operands) or any(len({*one}) < len(one) for one in letters):
        return None
    value, known = operands[0], letters[0]
    for number, other in enumerate(operands[1:], 1):
        value, known = _product(value, known, other, letters[number], "".join((output, *letters[number + 1 :])))
    return value.permute([known.index(letter) for letter in output])


def _product(one: Any, mine: str, other: Any, theirs: str, left: str) -> tuple[Any, str]:
    """What two come to, and the letters of its axes; summed over those that nothing is `left` of."""
    for letter in [each for each in mine if each not in theirs + left]:
        one, mine = one.sum(mine.index(letter)), mine.replace(letter, "")
    for letter in [each for each in theirs if each not in mine + left]:
        other, theirs = other.sum(theirs.index(letter)), theirs.replace(letter, "")
    summed = [letter for letter in mine if letter in theirs and letter not in left]
    if not summed:
        letters = mine + "".join(letter for letter in theirs if letter not in mine)
        return _laid(one, mine, letters) * _laid(other, theirs, letters), letters
    both = [letter for letter in mine if letter in theirs and letter in left]
    rows = [letter for letter in mine if letter not in theirs]
    columns = [letter for letter in theirs if letter not in mine]
    sizes = dict(zip(mine + theirs, (*one.shape, *other.shape)))
    shapes = [
        [*(sizes[letter] for letter in both), *(math.prod(sizes[letter] for letter in part) for part in parts)]
        for parts in ((rows, summed), (summed, columns))
    ]
    first = _laid(one, mine, "".join((*both, *rows, *summed))).reshape(shapes[0])
    second = _laid(other, theirs, "".join((*both, *summed, *columns))).reshape(shapes[1])
    letters = "".join((*both, *rows, *columns))
    return torch.matmul(first, second).reshape([sizes[letter] for letter in letters]), letters


def _laid(value: Any, mine: str, letters: str) -> Any:
    """With its axes in the order of these letters, one of size one for each that it has not."""
    value = value.permute([mine.index(letter) for letter in letters if letter in mine])
    return value.reshape([value.shape[[x for x in letters if x in mine].index(x)] if x in mine else 1 for x in letters])


STEPS: Mapping[str, Callable[..., Any]] = {
    **LOSSES,
    "scaled_dot_product_attention": _attention,
    "normalize": _normalize,
    "cosine_similarity": _cosine,
    "einsum": _einsum,
}


def taken(name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Run a function's steps, if they are known; what cannot be written out so is left."""
    steps = STEPS.get(name)
    if steps is None or (
        name in LOSSES and sum(one.numel() for one in args if isinstance(one, torch.Tensor)) > LARGEST
    ):
        return
    try:
        with torch.no_grad():
            steps(*args, **kwargs)
    except Exception:  # called in a way that is not known here
        return

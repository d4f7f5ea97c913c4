"""What torch's losses, norms and distances do in one, in the steps that ports write out: see steps.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import torch


def _reduced(loss: Any, reduction: str) -> Any:
    return loss.sum() if reduction == "sum" else loss.mean() if reduction == "mean" else loss


def _log_softmax(input: Any, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dim is None or dtype is not None:
        return None
    shifted = input - input.amax(dim, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    largest = input.amax(dim, keepdim=True)
    found = torch.log(torch.exp(input - largest).sum(dim, keepdim=True)) + largest
    return found if keepdim else found.squeeze(dim)


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    axis = 1 if input.dim() > 1 else 0
    likely = torch.log_softmax(input, axis)
    if target.is_floating_point():
        kept = target if not label_smoothing else target * (1 - label_smoothing) + label_smoothing / input.shape[axis]
        each = -(kept * likely if weight is None else kept * likely * _along(weight, input, axis)).sum(axis)
        return (
            each.sum() / (each.numel() if input.dim() > 1 else 1) if reduction == "mean" else _reduced(each, reduction)
        )
    if not label_smoothing:
        return _picked(likely, target, weight, ignore_index, reduction, axis)
    known = target != ignore_index
    each = _of_each(likely, target, weight, known, axis)
    scaled = likely if weight is None else likely * _along(weight, input, axis)
    spread = -(scaled.sum(axis) * known) / input.shape[axis]
    each = (1 - label_smoothing) * each + label_smoothing * spread
    return each.sum() / _weights(target, weight, known).sum() if reduction == "mean" else _reduced(each, reduction)


def _nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    return _picked(input, target, weight, ignore_index, reduction, 1 if input.dim() > 1 else 0)


def _picked(likely: Any, target: Any, weight: Any, ignore_index: int, reduction: str, axis: int) -> Any:
    known = target != ignore_index
    each = _of_each(likely, target, weight, known, axis)
    return each.sum() / _weights(target, weight, known).sum() if reduction == "mean" else _reduced(each, reduction)


def _of_each(likely: Any, target: Any, weight: Any, known: Any, axis: int) -> Any:
    index = target.masked_fill(torch.logical_not(known), 0)
    picked = likely.gather(axis, index.unsqueeze(axis)).squeeze(axis)
    return -picked * _weights(target, weight, known)


def _weights(target: Any, weight: Any, known: Any) -> Any:
    """How much each counts."""
    if weight is None:
        return known.float()
    return weight[target.masked_fill(torch.logical_not(known), 0)] * known


def _along(weight: Any, input: Any, axis: int) -> Any:
    return weight.reshape([-1 if at == axis else 1 for at in range(input.dim())])


def _binary(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    each = -(target * torch.log(input).clamp(min=-100) + (1 - target) * torch.log(1 - input).clamp(min=-100))
    return _reduced(each if weight is None else each * weight, reduction)


def _binary_of_scores(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    if pos_weight is None:
        each = torch.clamp(input, min=0) - input * target + torch.log(1 + torch.exp(-torch.abs(input)))
    else:
        yes, no = torch.log(torch.sigmoid(input)), torch.log(torch.sigmoid(-input))
        each = -(pos_weight * target * yes + (1 - target) * no)
    return _reduced(each if weight is None else each * weight, reduction)


def _smooth(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    apart = torch.abs(input - target)
    return _reduced(torch.where(apart < beta, 0.5 * apart * apart / beta, apart - 0.5 * beta), reduction)


def _huber(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    apart = torch.abs(input - target)
    return _reduced(torch.where(apart <= delta, 0.5 * apart * apart, delta * (apart - 0.5 * delta)), reduction)


def _squares(input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:
    apart = input - target
    return _reduced(apart * apart, reduction)


def _magnitudes(input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:
    return _reduced(torch.abs(input - target), reduction)


def _divergence(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    share = torch.exp(target) if log_target else target
    each = share * ((target if log_target else torch.log(target)) - input)
    return each.sum() / input.shape[0] if reduction == "batchmean" else _reduced(each, reduction)


def _ranking(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0.0,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    return _reduced(torch.clamp(-target * (input1 - input2) + margin, min=0), reduction)


def _pairwise(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    apart = x1 - x2 + eps
    return torch.sqrt((apart * apart).sum(-1, keepdim=keepdim)) if p == 2.0 else None


def _triplet(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    near, far = _pairwise(anchor, positive, p, eps), _pairwise(anchor, negative, p, eps)
    return _reduced(torch.clamp(near - far + margin, min=0), reduction) if p == 2 and not swap else None


def _each_with_each(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    if p not in (1.0, 2.0) or x1.numel() * x2.shape[-2] > LARGEST:
        return None
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return torch.abs(apart).sum(-1) if p == 1.0 else torch.sqrt((apart * apart).sum(-1))


def _layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    return _scaled(_centred(input, axes, eps), weight, bias)


def _rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: Optional[float] = None) -> Any:
    axes, least = tuple(range(-len(normalized_shape), 0)), torch.finfo(input.dtype).eps if eps is None else eps
    return _scaled(input * torch.rsqrt((input * input).mean(axes, keepdim=True) + least), weight, None)


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    parts = input.reshape(input.shape[0], num_groups, -1)
    whole = _centred(parts, (-1,), eps).reshape(input.shape)
    return _scaled(whole, *(one if one is None else _along(one, input, 1) for one in (weight, bias)))


def _centred(value: Any, axes: Sequence[int], eps: float) -> Any:
    centred = value - value.mean(axes, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(axes, keepdim=True) + eps)


def _scaled(value: Any, weight: Any, bias: Any) -> Any:
    value = value if weight is None else value * weight
    return value if bias is None else value + bias


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return _scaled(torch.matmul(input, weight.transpose(0, 1)), None, bias)


def _difference(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n != 1 or prepend is not None or append is not None:
        return None
    return input.narrow(dim, 1, input.shape[dim] - 1) - input.narrow(dim, 0, input.shape[dim] - 1)


def _gated(input: Any, dim: int = -1) -> Any:
    one, other = input.chunk(2, dim)
    return one * torch.sigmoid(other)


def _softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return torch.log(1 + torch.exp(input * beta)) / beta


def _lerp(input: Any, end: Any, weight: Any) -> Any:
    return input + (end - input) * weight


LARGEST = 1 << 22
"""Elements of what is taken apart."""

LOSSES: Mapping[str, Callable[..., Any]] = {
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "binary_cross_entropy": _binary,
    "binary_cross_entropy_with_logits": _binary_of_scores,
    "smooth_l1_loss": _smooth,
    "huber_loss": _huber,
    "mse_loss": _squares,
    "l1_loss": _magnitudes,
    "kl_div": _divergence,
    "margin_ranking_loss": _ranking,
    "triplet_margin_loss": _triplet,
    "pairwise_distance": _pairwise,
    "cdist": _each_with_each,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "linear": _linear,
    "diff": _difference,
    "glu": _gated,
    "softplus": _softplus,
    "lerp": _lerp,
}

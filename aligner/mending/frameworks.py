"""An operation that is the reference's, with its arguments, on right values, and makes another: nobody's line is wrong.

Sums are left out, where rounding grows when they cancel, and so are operations that only move values. What jumps, as
rounding to whole numbers does, must have been given the very values.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from aligner.compare.checks import Check
from aligner.fingerprint import distances
from aligner.mending.events import Event
from aligner.mending.matching import Matching
from aligner.mending.witness import Witness
from aligner.words.calls import Constant, equal
from aligner.words.operations import row

_SMOOTH = """
div pow fmod square sqrt rsqrt exp expm1 log log1p log2 abs erf erfinv sin cos tan atan2 reciprocal tanh sigmoid
logsigmoid relu relu6 silu mish hardswish hardsigmoid elu selu celu leaky_relu prelu softplus gelu glu clamp softmax
log_softmax logsumexp max min normalize cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div
binary_cross_entropy binary_cross_entropy_with_logits interpolate grid_sample avg_pool max_pool adaptive_avg_pool
adaptive_max_pool conv layer_norm rms_norm group_norm batch_norm
"""
_JUMPING = "floor ceil round sign mod floordiv topk sort argsort argmax argmin"
SMOOTH, JUMPING = frozenset(_SMOOTH.split()), frozenset(_JUMPING.split())

SAME = 1e-6
"""Operands that are farther apart may be what makes the difference."""


class Differing(NamedTuple):
    """The port's call and the reference's, and which of the results is not the same."""

    port: Event
    reference: Event
    result: int


class ByFramework(NamedTuple):
    """A wrong value, and the framework's operation that makes it."""

    check: Check
    operation: Differing
    witness: Optional[Witness]
    """Its call, if it can be made again and the reference's value is in a dump."""


def differing(matching: Matching) -> Optional[Differing]:
    """The first such operation on the way to a wrong value."""
    wrong = _wrong(matching)
    for event in matching.heard:
        telling = event.word in SMOOTH or event.word in JUMPING
        off = bool({*event.results} & wrong) or "reduction" in event.arguments
        if not (telling and off) or event.part or row(event.name) is None:
            continue
        for model in matching.ours.events:
            alike = model.word == event.word and row(model.name) is not None and _is_same(matching, model, event)
            result = _result(matching, model, event, wrong) if alike else None
            if result is not None:
                return Differing(event, model, result)
    return None


def _wrong(matching: Matching) -> set[int]:
    """Values on the way to a wrong one, those of one number among them, which steps are given as that number."""
    events = [event for _, event in matching.wrong if event is not None]
    numbers = {one.value for event in events for one in event.operands if isinstance(one, Constant)}
    single = {value for event in matching.heard for value in event.results if matching.theirs.number(value) in numbers}
    return {value for value, _ in matching.wrong} | single


def _is_same(matching: Matching, model: Event, event: Event) -> bool:
    """The same arguments, and operands that are each other's counterparts."""
    if len(model.operands) != len(event.operands) or not event.operands or not model.results:
        return False
    names = {*model.arguments, *event.arguments}
    if not all(equal(model.arguments.get(name), event.arguments.get(name)) for name in names):
        return False
    if not all(map(matching.match, model.operands, event.operands)) or matching.theirs.rough & {*event.operands}:
        return False
    pairs = [(one, other) for one, other in zip(model.operands, event.operands) if isinstance(one, int)]
    limit = 0.0 if event.word in JUMPING else SAME
    return all(_apart(matching, one, other) <= limit for one, other in pairs if one >= 0)


def _result(matching: Matching, model: Event, event: Event, wrong: set[int]) -> Optional[int]:
    """The first result, of one shape on both sides, that is wrong and not its counterpart; or a loss not summed up.

    The parts of such a loss are right by themselves, and the reference may have them too.
    """
    for number, (one, other) in enumerate(zip(model.results, event.results)):
        alike = matching.ours.shapes[one] == matching.theirs.shapes[other]
        off = other in wrong if alike else "reduction" in model.arguments
        if off and other not in matching.twins.get(one, ()):
            return number
    return None


def _apart(matching: Matching, one: int, other: object) -> float:
    assert isinstance(other, int)
    return float(distances([matching.ours.values[one]], [matching.theirs.values[other]], turned=False)[0, 0])

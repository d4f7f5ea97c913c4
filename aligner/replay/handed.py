"""Whether an argument that comes in another form was understood, or is there as a part of another one."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.checks import OTHER_BORDER, OTHER_SHAPE, Check
from aligner.compare.held import held
from aligner.compare.masking import mask_like
from aligner.compare.net import is_input
from aligner.dtypes import decode
from aligner.record import Array, Key
from aligner.replay.forms import squeezed, tells_other_things

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

NEAR = 1e-2
"""Parts are those of one value where they differ from it by no more than this part."""

LEAST_PARTS = 2


def understood(doubtful: Sequence[Check], inside: Sequence[Check], entries: Mapping[Key, Entry]) -> bool:
    """Whether each of these arguments went on to a call inside that got it as the reference's did, and is right.

    What is wrong then around that call does not come of the argument: an encoder layer whose norms stand in another
    place is wrong, whatever its mask is written as. One that some call inside gets wrong was not understood, though it
    is right further inside, where that call was given the reference's.
    """
    spoiled = [entries.get(check.port) for check in inside if check.suspicious and is_input(check.key.slot)]
    if any(_same(entries.get(check.port), other) for check in doubtful for other in spoiled):
        return False
    wrong = {(check.key.layer, check.key.call) for check in inside if check.suspicious and not is_input(check.key.slot)}
    taken = [entries.get(check.port) for check in inside if _is_taken(check, wrong)]
    return all(any(_same(entries.get(check.port), other) for other in taken) for check in doubtful)


def in_one_piece(missing: Sequence[Entry], given: Iterable[tuple[Array, str]]) -> bool:
    """Whether the arguments that only the reference hands over are the parts of one that the port does.

    Layers that take a list of tensors and join them themselves are given them joined by other people's ports.
    """
    if len(missing) < LEAST_PARTS or len({len(entry.shape) for entry in missing}) != 1:
        return False
    whole = sum(math.prod(entry.shape) for entry in missing)
    alike = [(array, dtype) for array, dtype in given if array.size == whole and array.ndim == len(missing[0].shape)]
    parts = [entry.load() for entry in missing] if alike else []
    for axis in range(len(missing[0].shape)) if alike else ():
        if len({part.shape[:axis] + part.shape[axis + 1 :] for part in parts}) != 1:
            continue
        joined = np.concatenate(parts, axis).astype(np.float64)
        for array, dtype in alike:
            if array.shape == joined.shape:
                apart = np.linalg.norm(decode(array, dtype).astype(np.float64) - joined)
                if apart <= NEAR * np.linalg.norm(joined):
                    return True
    return False


def takes_more(function: Any, given: tuple[tuple[object, ...], Mapping[str, object]], structure: object) -> bool:
    """Whether a call of this function leaves something open: a parameter that it has a value of its own for, None among
    what is given. Else nothing that it takes was forgotten. What an object that nobody looks into holds is not known.
    """
    if "opaque" in _gaps(structure):
        return False
    try:
        parameters = [*inspect.signature(function).parameters.values()]
        bound = inspect.signature(function).bind(*given[0], **given[1]).arguments
    except (TypeError, ValueError):
        return True
    anything = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
    return anything or any(one.name not in bound for one in parameters) or "none" in _gaps(structure)


def _gaps(structure: object) -> set[str]:
    """Words for what is given and is no value."""
    if isinstance(structure, Mapping):
        return ({"none", "opaque"} & {*structure}).union(*map(_gaps, structure.values()))
    return set[str]().union(*map(_gaps, structure)) if isinstance(structure, list) else set()


def lacking(missing: Sequence[Entry], own: Sequence[tuple[int, ...]]) -> Sequence[Entry]:
    """Of the arguments that only the reference hands over, those that none that the port alone does may stand for in
    another form: half of a table of sines, a list in place of its parts.
    """
    left = [*own]
    found: list[Entry] = []
    for entry in missing:
        twin = next((shape for shape in left if _may_stand_for(entry.shape, shape)), None)
        if twin is None:
            found.append(entry)
        else:
            left.remove(twin)
    return found


def in_effect(checks: Sequence[Check], made: int, free: Container[tuple[str, int]]) -> Sequence[Check]:
    """The checks of a call, of which those from `made` on are of what it hands on. Where all of that is right, calls
    inside that make another shape stand at another border: a convolution that pads by itself, or gets what is padded.

    That holds of those that keep their own values, the `free` ones.
    """
    odd = [check for check in checks[:made] if check.suspicious or check.follows]
    results = checks[made:]
    if not odd or not results or any(check.suspicious for check in results):
        return checks
    if any(check.deviation is not None or check.reason != OTHER_SHAPE for check in odd):
        return checks
    calls = {(check.port.layer, check.port.call) for check in odd if not is_input(check.port.slot)}
    if not all((one := (check.port.layer, check.port.call)) in calls and one in free for check in odd):
        return checks
    return [
        replace(check, error=0.0, reason=OTHER_BORDER, facts={}, follows=False) if check.suspicious else check
        for check in checks
    ]


def excused(check: Check) -> Check:
    """The check of a value that is right, and no counterpart of the reference's value of that name."""
    return replace(check, error=0.0, deviation=None, reason=OTHER_BORDER, facts={}, follows=False)


def with_their_results(checks: Sequence[Check]) -> Sequence[Check]:
    """The checks of arguments of another size, as they are to be told, where all that the layer makes of them is right:
    a norm of all, of which the code takes a part."""
    results = [check for check in checks if not is_input(check.port.slot)]
    right = {(one.port.layer, one.port.call) for one in results if one.reason == OTHER_BORDER}
    right -= {(one.port.layer, one.port.call) for one in results if one.suspicious}
    larger = (one for one in checks if one.suspicious and one.reason == OTHER_SHAPE and is_input(one.port.slot))
    larger = (one for one in larger if (one.port.layer, one.port.call) in right)
    layers = {check.port.layer for check in checks}
    return [excused(one) for one in larger if not any(layer.startswith(f"{one.port.layer}.") for layer in layers)]


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The sizes of a tensor's axes, in plain numbers."""
    return tuple(int(size) for size in tensor.shape)


def _may_stand_for(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    others = sum(one != other for one, other in zip(wanted, shape)) if len(wanted) == len(shape) > 1 else math.inf
    return others <= 1 or math.prod(wanted) == math.prod(shape) or _is_one_hot(squeezed(wanted), squeezed(shape))


def _is_one_hot(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether one may tell by an axis of its own what the other tells by a number, in any order of axes."""
    more = Counter(wanted) - Counter(shape)
    return len(wanted) == len(shape) + 1 > LEAST_PARTS and sum(more.values()) == 1


def _is_taken(check: Check, wrong: set[tuple[str, int]]) -> bool:
    right = is_input(check.key.slot) and check.where == "glue" and not check.suspicious
    return right and (check.key.layer, check.key.call) not in wrong


def _same(one: Optional[Entry], other: Optional[Entry]) -> bool:
    """Whether the reference hands the one on as the other: the same values, or the same mask in another form."""
    if one is None or other is None:
        return False
    if one.content == other.content:
        return True
    if squeezed(one.shape) != squeezed(other.shape):
        return False
    first, second = (held(entry) for entry in (one, other))
    return mask_like(first) and mask_like(second) and not tells_other_things(first, second.raw(), other.dtype)

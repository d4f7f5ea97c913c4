"""Whether an argument that comes in another form was understood: by a call inside that it was handed on to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from aligner.compare.checks import Check
from aligner.compare.held import Held
from aligner.compare.net import is_input
from aligner.record import Key
from aligner.replay.forms import mask_like, squeezed, tells_other_things

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


def understood(doubtful: Sequence[Check], inside: Sequence[Check], entries: Mapping[Key, Entry]) -> bool:
    """Whether each of these arguments went on to a call inside that got it as the reference's did, and is right.

    What is wrong then around that call does not come of the argument: an encoder layer whose norms stand in another
    place is wrong, whatever its mask is written as.
    """
    wrong = {(check.key.layer, check.key.call) for check in inside if check.suspicious and not is_input(check.key.slot)}
    taken = [entries.get(check.port) for check in inside if _is_taken(check, wrong)]
    return all(any(_same(entries.get(check.port), other) for other in taken) for check in doubtful)


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
    first, second = (Held(entry.key, entry.order, entry.dtype, entry.raw()) for entry in (one, other))
    return mask_like(first) and mask_like(second) and not tells_other_things(first, second.raw(), other.dtype)

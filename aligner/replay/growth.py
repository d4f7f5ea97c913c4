"""How far noise of rounding's size moves what the port hands on in a free run.

Where no place is wrong by itself, what the net hands on is off by what rounding has grown to, or by a mistake that
nobody has seen. Noise that is larger than rounding, put on all that goes in and on what every layer makes, tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.deviation import measure
from aligner.compare.growth import LIMIT
from aligner.compare.held import Held
from aligner.compare.tolerance import Tolerance
from aligner.dtypes import DTYPES, decode, encode
from aligner.noise import Change, noise
from aligner.record import Array, Key, Phase
from aligner.replay.freely import FreeRuns
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

STRENGTH = 64.0
"""The noise, in units of eps of float32: what layers differ by from one framework to the other is below it."""

RUNS, SECONDS = 4, 60.0
"""Runs with other noise, at most: numbers that are chosen by others may need some; and how long."""

OFF = 1e-4
"""What is off by less needs no explanation."""

Off = tuple[float, float]
"""By the rule, and as a whole."""


def grown(
    adapter: Adapter,
    model: Any,
    run: Callable[[int], object],
    steps: Sequence[int],
    reference: Dump,
    port: Dump,
    again: Callable[[], Any],
) -> Iterator[Mapping[str, Any]]:
    """For each value that the net hands on and that is off, how far noise moves it; `again` has each run begin as the
    free run began. Nothing where noise moves nothing: then a compiled graph ran, without it.
    """
    off = {key: away for key, away in _off(reference, port, steps).items() if max(away) > OFF}
    if not off or not hasattr(adapter, "computing"):
        return
    runs, moved = FreeRuns(adapter, model, run, steps), dict.fromkeys(off, (0.0, 0.0))
    until, eps = time.monotonic() + SECONDS, DTYPES["float32"].eps or 0.0
    for seed in range(RUNS):
        with again():
            ends = runs.ends(partial(_disturbed, adapter, noise(STRENGTH * eps, seed)))
        for key, most in moved.items():
            own = port.find(key)
            if own is None or key not in ends or ends[key].shape != own.shape:
                return  # it goes another way: nothing is told by it
            away = _apart(own.load(), ends[key])
            moved[key] = max(most[0], away[0]), max(most[1], away[1])
        if time.monotonic() > until or all(is_grown(off[key], moved[key]) for key in off):
            break
    for key, (scaled, whole) in moved.items() if any(max(most) > 0.0 for most in moved.values()) else ():
        yield {"at": [key.step, key.layer, key.call, key.slot], "error": scaled, "whole": whole}


def is_grown(off: Off, moved: Off) -> bool:
    """Whether noise tells how a value comes to be so far off."""
    return any(one <= LIMIT * other for one, other in zip(off, moved))


def _off(reference: Dump, port: Dump, steps: Sequence[int]) -> dict[Key, Off]:
    """How far the broken numbers are off that the net hands on in both dumps alike."""
    found: dict[Key, Off] = {}
    for entry in port.entries:
        key = entry.key
        if key.phase is Phase.FORWARD and not key.layer and key.slot.startswith("output") and key.step in steps:
            other = reference.find(key)
            if other is not None and other.shape == entry.shape and not DTYPES[entry.dtype].exact:
                found[key] = _apart(other.load(), entry.load())
    return found


def _apart(one: Array, other: Array) -> Off:
    key = Key(0, Phase.FORWARD, "", 0, "")
    word = "float64"
    ours, theirs = (Held(key, 0, word, np.ascontiguousarray(each, np.float64)) for each in (one, other))
    found = measure(ours, theirs, Tolerance(1e-3))
    return (0.0, 0.0) if found.nonfinite else (found.scaled, found.rel_l2)


def _disturbed(
    adapter: Adapter,
    change: Change,
    call: Key,
    inner: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    def changed(found: Tensors) -> dict[str, object]:
        made: dict[str, object] = {}
        for slot, tensor in found:
            word = adapter.dtype(tensor)
            if word in DTYPES and not DTYPES[word].exact and "complex" not in word:
                values = change(decode(adapter.to_numpy(tensor), word), word)
                made[slot] = adapter.from_numpy(encode(values, word), word)
        return made

    found: Tensors = []
    own: tuple[Any, Any] = args, kwargs
    if call.layer == "":
        flatten_arguments(args, kwargs, adapter.is_tensor, found)
        own = substitute_arguments(args, kwargs, changed(found))
    output = inner(*own[0], **own[1])
    made: Tensors = []
    flatten_result(output, adapter.is_tensor, made)
    return substitute_result(output, changed(made))

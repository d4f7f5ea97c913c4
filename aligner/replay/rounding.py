"""What rounding explains at single places of a forced pass, measured where the usual figure does not do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Optional

import numpy as np

from aligner.compare.checks import Check
from aligner.compare.net import ancestors
from aligner.compare.reading import read
from aligner.dtypes import DTYPES, decode
from aligner.noise import DISTURBED, apart, noise
from aligner.record import Array, Key
from aligner.replay.alone import Alone
from aligner.replay.forced import ForcedPass
from aligner.replay.judgement import RULE

DOUBTFUL = 300.0
"""What is off by more than this many times what a float explains is not looked into: no function of a net makes so
much of round-off, unless it jumps, and a jump is a finding."""

SEEDS = 8
"""Runs at most in which each of them has a chance of one half."""

MOST, SECONDS = 12, 3.0
"""Places whose code is run once more in float64; more of them as long as it takes no longer."""

Kept = Callable[[Check], Optional[Array]]
"""The numbers that the forced pass found at a place, if they were kept."""


def disturbed(forced: ForcedPass, run: Callable[[int], object], kept: Kept, eps: float) -> list[Check]:
    """The pass's checks, with what rounding explains measured where one is suspicious: how far noise moves it."""
    suspicious = {check.port for check in forced.checks if check.suspicious and check.kept and check.ratio < DOUBTFUL}
    moved: dict[Key, float] = {}

    def told(check: Check, array: Array, dtype: str) -> None:
        known = kept(check) if check.port in suspicious else None
        if known is not None and known.shape == array.shape:
            moved[check.port] = apart(decode(array, dtype), known)

    for step in sorted({key.step for key in suspicious}):
        forced.disturbed(step, lambda step=step: run(step), noise(DISTURBED * eps), told)  # type: ignore[misc]  # now
    moved.update(_jumps(forced, run, kept, eps))
    return [replace(check, expected=max(check.expected, moved.get(check.port, 0.0))) for check in forced.checks]


def _jumps(forced: ForcedPass, run: Callable[[int], object], kept: Kept, eps: float) -> Mapping[Key, float]:
    """Errors of whole numbers that are one off where a little noise makes them the reference's: what they count lies on
    a border, as a zero at a padded place may. Which side a border belongs to may be a mistake as well; so this is asked
    only where nothing comes of it, and all that a layer around hands out agrees.
    """

    @cache
    def agrees(step: int, layer: str) -> bool:
        found = [
            pair
            for (at, call), pairs in forced.plan.results.items()
            if (at, call.layer) == (step, layer)
            for pair in pairs
        ]
        return bool(found) and not any(read(pair, RULE).over for pair in found)

    off: dict[Key, Array] = {}
    wanted: dict[Key, Array] = {}
    for check in forced.checks:
        entry = forced.plan.entries.get(check.port)
        exact = check.suspicious and check.kept and entry is not None and DTYPES[entry.dtype].exact
        known = kept(check) if exact else None
        if known is None or entry is None or known.shape != entry.shape or known.dtype == np.bool_:
            continue
        if not any(agrees(check.port.step, around) for around in ancestors(check.port.layer)):
            continue
        apart = np.abs(known.astype(np.int64) - entry.load().astype(np.int64))
        if apart.max() == 1 and 2 * apart.sum() < apart.size:
            off[check.port], wanted[check.port] = apart > 0, entry.load()

    def told(check: Check, array: Array, dtype: str) -> None:
        if check.port in off and array.shape == off[check.port].shape:
            off[check.port] = off[check.port] & (decode(array, dtype) != wanted[check.port])

    for step in sorted({key.step for key in off}):
        for seed in range(SEEDS):
            if not any(left.any() for key, left in off.items() if key.step == step):
                break
            change = noise(DISTURBED * eps, seed, zeros=True)
            forced.disturbed(step, lambda step=step: run(step), change, told)  # type: ignore[misc]  # now
    calls = {(key.step, key.layer, key.call) for key, left in off.items() if not left.any()}
    found = (check for check in forced.checks if (check.port.step, check.port.layer, check.port.call) in calls)
    return {check.port: check.error for check in found if check.port in off or check.follows}


class ByItself:
    """What code between layers rounds where noise does not tell: how far it comes out otherwise in float64.

    A kernel that approximates (MindSpore's tanh: 1e-4) is no mistake of the code's. `dtype` is the one that the parent
    is put into, if any. MOST places are looked into, and more in a loop whose turns take little.
    """

    def __init__(self, alone: Alone, dtype: Optional[str]) -> None:
        self._alone, self._dtype = alone, dtype
        self._asked, self._spent = 0, 0.0

    def rounds(self, check: Check, kept: Optional[Array]) -> float:
        """How far off the value is by that."""
        if kept is None or (self._asked >= MOST and self._spent > SECONDS):
            return 0.0
        self._asked, since = self._asked + 1, time.monotonic()
        try:
            _, made = self._alone.inside(check, self._dtype, "float64")
        except Exception:  # not all code runs in float64
            return 0.0
        finally:
            self._spent += time.monotonic() - since
        if made.short or made.dtype != "float64" or made.array.shape != kept.shape:
            return 0.0
        return apart(made.array, kept)

"""How far off a stage of a training step may be by rounding alone: gradients that cancel, and what an update changes.

A parameter moves by a small part of itself in a step: what an update does wrong is set against that part, not against
the parameter. Where each stage was given the reference's values, its own rounding is all that it may be off by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.deviation import measure
from aligner.compare.held import Held
from aligner.compare.kinks import excuse_kinks
from aligner.compare.later import is_end
from aligner.compare.net import NEUTRAL, is_input
from aligner.compare.reach import excuse_unreached
from aligner.compare.reading import Reading
from aligner.compare.short import excuse_short
from aligner.compare.sorting import is_given
from aligner.compare.tolerance import Tolerance
from aligner.compare.training import Owner, Training, as_it_begins
from aligner.dtypes import DTYPES
from aligner.record import Key, Phase
from aligner.training.numbers import ALIKE, term
from aligner.training.rules import Before, nearer, number, updated
from aligner.training.settings import differences
from aligner.words.optimizers import EPS_FIRST, KEPT, RMSPROP
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry
    from aligner.training.rules import Floats

CANCELLED = 8.0
"""A sum is off by so many times what rounds of the sum of its terms' sizes, at most."""

STRICT = 20.0
"""A stage that was given the reference's values is off by so many times what its type rounds, at most."""

STORED = 10.0
"""What an update has made is off by so many times what its type rounds of the parameter itself, at most."""

RULED = 1e-4
"""What an update is off by from its rule in float64, at most, as a part of what it changes."""

LOST = 1e-5
"""A loss of the reference's own values is off by this part of itself at most."""

LATER = (Phase.BACKWARD, Phase.GRADIENT, Phase.UPDATE)
"""Of a training alone."""

BUFFER, MOVED = 1e-5, 1e-3
"""Running statistics are wrong if off by more than this part of themselves and of what the step has changed."""


def judge_stages(readings: Iterable[Reading], reference: Dump, training: Training, tolerance: Tolerance) -> None:
    """Judge gradients and updates by what rounding explains there."""
    if not training:
        return
    readings = [*readings]
    training.pair(readings)
    short = excuse_short(readings)
    given = [r for r in readings if training.held and is_given(r.pair.key, frozenset({""})) and r.over]
    others = {reading.pair.key.step for reading in given}
    apart = training.apart(given)
    ends = {_content(r) for r in readings if r.pair.reference is not None and is_end(r.pair.key)}
    scales = {step: training.scale(step) for step in {reading.pair.key.step for reading in readings}}
    for reading in readings:
        key = reading.pair.key
        if not reading.matched and training.one_sided is not None and (key.phase in LATER or key.layer == LOSS):
            reading.covered, reading.over, reading.reason = True, False, "covered-untrained"
        elif not reading.matched and key.step in training.joined and key.layer == LOSS:
            reading.covered, reading.over, reading.reason = True, False, "covered-summed"
        elif not reading.matched and training.is_called_alone(reading):
            reading.covered, reading.over, reading.reason = True, False, "covered-called"
        elif not reading.matched and training.is_unmoved(key):
            reading.covered, reading.over, reading.reason = True, False, "covered-unmoved"
        elif not reading.matched and training.is_behind(reading):
            reading.covered, reading.over, reading.reason = True, False, "covered-behind"
        elif not reading.matched and training.is_kept(key):
            reading.covered, reading.over, reading.reason = True, False, "covered-kept"
        elif key.layer == LOSS and not reading.matched and is_input(key.slot):  # a script tells of no label
            reading.covered, reading.over, reading.reason = True, False, "covered-loss"
        elif key.step in others and reading.over and (key.layer == LOSS or is_end(key) or _content(reading) in ends):
            reading.covered, reading.over, reading.reason = True, False, "covered-data"
        elif key.step >= apart and reading.over and reading not in given and training.is_moved(key):
            reading.covered, reading.over, reading.reason = True, False, "covered-apart"
        elif reading.over and training.others and reading.matched and (key.layer == LOSS or is_end(key)):
            reading.covered, reading.over, reading.reason = True, False, "covered-others"
            training.hidden = True
        elif reading.over and key.phase is Phase.BACKWARD and training.unused(key.step):
            reading.covered, reading.over, reading.reason = True, False, "covered-unused"
        elif reading.over and key.phase is Phase.UPDATE and key.slot in NEUTRAL:
            reading.covered, reading.over, reading.reason = True, False, "covered-counter"
            reading.facts = {"role": key.slot}
        elif training.is_alone(reading):  # whatever else has its value: one side's optimizer does not update it
            reading.covered, reading.over = False, True
        if reading.covered or not reading.matched or reading.deviation is None:
            continue
        if reading.deviation.exact or reading.deviation.nonfinite:
            continue
        if key.layer == LOSS and not is_input(key.slot):
            times = training.times(key.step)
            _unscale(reading, times if key.phase is Phase.FORWARD else scales[key.step] / times, tolerance)
            if training.held and key.phase is Phase.FORWARD:
                _judge(reading, reading.deviation.rel_l2, max(LOST, STRICT * reading.own))
        elif key.phase is Phase.BACKWARD:
            _unscale(reading, scales[key.step], tolerance)
        own = key.phase is Phase.GRADIENT and not training.held  # as its backward runs made it
        if (key.phase is Phase.BACKWARD or own) and reading.over:
            _excuse_cancelled(reading, reference, tolerance, short.get(key.step, 0.0))
        elif training.held and key.phase is Phase.GRADIENT:
            _judge(reading, reading.deviation.rel_l2, STRICT * reading.own)
        elif training.held and key.phase is Phase.UPDATE:
            _judge_update(reading, reference, training, tolerance)
    excuse_unreached(readings)
    excuse_kinks(readings)
    if training.held:
        _excuse_shares(readings, training)
        _excuse_fewer(readings, training)


def _excuse_fewer(readings: Sequence[Reading], training: Training) -> None:
    """Where one side's optimizers lack some parameters, the others make up the norm that all are clipped to."""
    for step in {r.pair.key.step for r in readings if r.pair.key.phase is Phase.GRADIENT and not r.matched}:
        norms = [training.norm(side, step) for side in (0, 1)]
        given = [r for r in readings if r.over and r.matched and r.pair.key[:2] == (step, Phase.GRADIENT)]
        factors = [_multiple(one) for one in given]
        known = [one for one in factors if one is not None]
        if None in norms or not known or len(known) < len(given) or max(known) - min(known) > ALIKE * max(known):
            continue
        ours, theirs = (norm or 0.0 for norm in norms)
        if abs(ours - theirs) <= ALIKE * ours:
            for one in given:
                one.covered, one.over, one.reason = True, False, "covered-fewer"


def _excuse_shares(readings: Sequence[Reading], training: Training) -> None:
    """Where a loss is wrong, nobody knows by how many batches one side divides it and the other its gradients: that the
    optimizer is given that much more or less, all of it alike, comes of this."""
    losses: dict[int, list[Reading]] = {}
    for reading in readings:
        key = reading.pair.key
        if key.layer == LOSS and key.phase is Phase.FORWARD and not is_input(key.slot):
            losses.setdefault(key.step, []).append(reading)
    most = max(map(len, losses.values()), default=0)
    for step, rows in losses.items():
        if most < 2 or training.times(step) != 1.0 or not any(one.over for one in rows):
            continue
        given = [r for r in readings if r.over and r.matched and r.pair.key[:2] == (step, Phase.GRADIENT)]
        factors = [_multiple(one) for one in given]
        known = [one for one in factors if one is not None]
        if not known or len(known) < len(given) or max(known) - min(known) > ALIKE * max(known):
            continue
        if 1 / most <= known[0] * (1 + ALIKE) and known[0] <= most * (1 + ALIKE):
            for one in given:
                one.covered, one.over, one.reason = True, False, "covered-share"


def _multiple(reading: Reading) -> Optional[float]:
    one, other = reading.pair.reference, reading.pair.port
    if one is None or other is None or one.shape != other.shape:
        return None
    found = term(_floats(other), {"gradient": _floats(one)})
    return None if found is None else found.factor


def _content(reading: Reading) -> object:
    return None if reading.pair.reference is None else (reading.pair.key.phase, reading.pair.reference.content)


def _unscale(reading: Reading, scale: float, tolerance: Tolerance) -> None:
    """Set a gradient against the reference's as if both sides had multiplied their loss by the same."""
    one, other = reading.pair.reference, reading.pair.port
    if scale == 1.0 or one is None or other is None or DTYPES[other.dtype].exact:
        return
    found = measure(one, Held(other.key, 0, "float64", np.asarray(other.load(), np.float64) / scale), tolerance)
    reading.deviation, reading.error, reading.over = found, tolerance.error(found), tolerance.over(found)


def _judge(reading: Reading, error: float, limit: float) -> None:
    reading.over, reading.error = error > limit, error


def _judge_update(reading: Reading, reference: Dump, training: Training, tolerance: Tolerance) -> None:
    """A parameter or buffer by what the step has changed of it, and what is kept of one as it is."""
    key, deviation = reading.pair.key, reading.deviation
    assert deviation is not None
    owner = training.owner(key)
    if owner is not None and owner[1] != key.slot:
        _judge(reading, deviation.rel_l2, STRICT * reading.own)
        return
    eps = DTYPES[reading.pair.entry.dtype].eps or 0.0
    before = reference.find(key._replace(call=0)) if key.call else None
    before = before or as_it_begins(reference, key)
    if deviation.rel_l2 <= (STORED * eps if owner is not None else BUFFER) or before is None:
        _judge(reading, deviation.rel_l2, math.inf if before is not None else STRICT * reading.own)
        return
    change = measure(reading.pair.entry, before, tolerance)
    moved = change.rel_l2 * change.rms
    error = deviation.rel_l2 * deviation.rms / moved if moved else math.inf
    _judge(reading, error, STRICT * reading.own if owner is not None else MOVED)
    if reading.over and owner is not None and _is_by_rule(reading, reference, training, owner, before):
        reading.over, reading.rounded = False, True


def _is_by_rule(reading: Reading, reference: Dump, training: Training, owner: Owner, before: Entry) -> bool:
    """Whether it is off by where MindSpore's Adam and RMSProp add their eps, and by nothing else: with small gradients
    updates are smaller, whoever writes them."""
    step = reading.pair.key.step
    ours, theirs = (training.settings(side, step).get(owner) for side in (0, 1))
    if ours is None or theirs is None or theirs[1].get(EPS_FIRST) is not True or ours[0].kind != theirs[0].kind:
        return False
    given = reference.find(Key(step, Phase.GRADIENT, owner[0], 0, owner[1]))
    if given is None or reading.pair.port is None or differences({owner: ours[1]}, {owner: theirs[1]}, [owner]):
        return False
    state: dict[str, Floats] = {}
    for word in KEPT:
        entry = as_it_begins(reference, reading.pair.key._replace(slot=f"{owner[1]}.{word}"), kept=True)
        state.update({} if entry is None else {word: _floats(entry)})
    start = Before(_floats(before), _floats(given), state, ours[0].count)
    made, own = updated(theirs[0].kind, theirs[1], start), _floats(reading.pair.port)
    if made is None:
        return False
    if theirs[0].kind == RMSPROP:
        made = nearer(own, made, updated(theirs[0].kind, {**theirs[1], EPS_FIRST: False}, start))
    off, change = float(np.linalg.norm(own - made)), float(np.linalg.norm(made - start.parameter))
    stored = STORED * (DTYPES[reading.pair.entry.dtype].eps or 0.0) * float(np.linalg.norm(made))
    if off > max(stored, RULED * change):
        return False
    if theirs[0].kind == RMSPROP:  # of an Adam it is over after the first updates
        training.rooted[owner] = number(theirs[1], "eps", 1e-8)
    return True


def _floats(entry: Entry) -> Floats:
    return np.asarray(entry.load(), np.float64)


def _excuse_cancelled(reading: Reading, reference: Dump, tolerance: Tolerance, short: float) -> None:
    """A gradient that is truly zero (of a bias before a BatchNorm, of the keys' bias) is what rounds of its terms, in
    its own type or in the shortest that the step computes in (`short`)."""
    key, deviation = reading.pair.key, reading.deviation
    assert deviation is not None
    if key.slot.startswith("output.") or is_input(key.slot):
        return
    eps = max(DTYPES[reading.pair.entry.dtype].eps or 0.0, short)
    terms = 0.0
    number = 0
    while (back := reference.find(Key(key.step, Phase.BACKWARD, key.layer, number, "output.0"))) is not None:
        size = _norm(back, tolerance)
        given = reference.find(Key(key.step, Phase.FORWARD, key.layer, number, "input.0"))
        many = math.sqrt(math.prod(back.shape))
        inside = _norm(given, tolerance) if given is not None and len(reading.pair.entry.shape) > 1 else many
        terms += size * inside
        number += 1
    if not number:  # layers were not recorded
        weight = reference.find(key._replace(slot="weight"))
        terms = 0.0 if weight is None else _norm(weight, tolerance)
    if deviation.max_abs <= CANCELLED * eps * terms:
        reading.over, reading.rounded = False, True


def _norm(entry: Entry, tolerance: Tolerance) -> float:
    if DTYPES[entry.dtype].exact:
        return math.sqrt(math.prod(entry.shape))
    found = measure(entry, entry, tolerance)
    return found.rms * math.sqrt(found.total)

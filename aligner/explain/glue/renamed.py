"""Relations of the two values said in the words of code: a ratio is a scale, a move of a value in hand has its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Optional

import numpy as np

from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns import slices
from aligner.explain.patterns.pair import FEW, Pair, distinct, numbers
from aligner.explain.patterns.relations import relations
from aligner.explain.phrase import Fact, Phrase
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

NEAR = 4
"""Values in hand that may have been moved."""

LONGEST = 4096
"""A length that a mean may go over."""

LARGEST = 1 << 22
"""Elements of a table that is looked through."""

SHUFFLES = {"axis-interleaved", "axis-order"}


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The relations, renamed where what was in hand tells more."""
    for suspect in relations(pair):
        if suspect.error is None:
            yield suspect
        elif suspect.cause == "constant-ratio":
            factor = suspect.facts["inverse"]
            yield replace(suspect, cause="scale-missing", facts={**suspect.facts, "factor": factor, **_codes(factor)})
        elif suspect.cause == "concat-order" and _repeats(str(suspect.facts["order"])):
            yield replace(suspect, weight=0.5)
        elif suspect.cause == "channel-ratio":
            yield _counted(pair, hand, suspect)
        elif suspect.cause == "channel-shift":
            yield _looked_up(pair, hand, suspect)
        elif suspect.cause in SHUFFLES | {"axis-rolled", "concat-order"}:
            yield _of_moves(pair, hand, suspect)
        else:
            yield suspect


def _counted(pair: Pair, hand: Hand, suspect: Suspect) -> Suspect:
    """Ratios that are whole numbers, or shares of a length in hand, are those of counts that a mean is taken over."""
    if str(suspect.facts.get("axis")) != "0" or pair.expected.ndim < 2:
        return suspect  # samples differ in what counts, channels do not
    others = tuple(range(1, pair.expected.ndim))
    square = np.square(pair.expected, dtype=np.float64).sum(axis=others)
    both = np.multiply(pair.expected, pair.actual, dtype=np.float64).sum(axis=others)
    ratios = (both / np.where(square == 0, np.inf, square))[square > 0]
    sizes = {size for piece in hand.pieces(lambda s: len(s) > 1) for size in piece.array.shape if 1 < size <= LONGEST}
    for total in (1, *sorted(sizes)):
        counts = ratios * total
        if (
            distinct(ratios) > 1
            and counts.min() > (1.5 if total == 1 else 0.5)
            and np.abs(counts - counts.round()).max() < 2e-5 * total
        ):
            whole = sorted({int(n) for n in counts.round()})
            facts = {"counts": ", ".join(map(str, whole[:8])), "total": total, **_counts_as_code(total)}
            return replace(suspect, cause="mean-over-other-count", facts={**suspect.facts, **facts}, weight=0.75)
    return suspect


def _counts_as_code(total: int) -> dict[str, Scalar]:
    if total == 1:
        return {"reference_code": "sum(x) / counts", "port_code": "sum(x)"}
    return {"reference_code": "sum(x) / counts", "port_code": f"sum(x) / {total}"}


def _looked_up(pair: Pair, hand: Hand, suspect: Suspect) -> Suspect:
    """A shift that is one row of a value in hand (a bias, a position of a table) says what was left out, or added."""
    size = pair.expected.shape[-1]
    apart = np.asarray(pair.expected - pair.actual, np.float64).reshape(-1, size)
    shift, scale = apart.mean(axis=0), float(np.sqrt(np.square(pair.expected, dtype=np.float64).mean()))
    if distinct(shift) < FEW or np.abs(apart - shift).max() > 1e-4 * scale:
        return suspect
    for piece in hand.pieces(lambda s: len(s) >= 1 and s[-1] == size and int(np.prod(s)) <= LARGEST):
        rows = np.asarray(piece.array, np.float64).reshape(-1, size)
        for word, wanted in (("missing", shift), ("extra", -shift)):
            row = int(np.abs(rows - wanted).max(axis=1).argmin())
            if np.linalg.norm(rows[row] - wanted) <= 1e-4 * np.linalg.norm(wanted):
                which = (
                    "" if len(rows) == 1 else f"[{', '.join(map(str, np.unravel_index(row, piece.array.shape[:-1])))}]"
                )
                other = f"[{piece.name}]{which}"
                added = {f"{'reference' if word == 'missing' else 'port'}_code": f"... + {other}"}
                facts = {**suspect.facts, "other": other, "reference_code": "...", "port_code": "...", **added}
                return replace(suspect, cause=f"addend-{word}", facts=facts, weight=0.85)
    return suspect


def _codes(factor: Fact) -> dict[str, Scalar]:
    return {"reference_code": f"... * {factor}", "port_code": "..."}


def _of_moves(pair: Pair, hand: Hand, suspect: Suspect) -> Suspect:
    """Both sides as moves of one value in hand."""
    for piece in _near(pair, hand):
        ours, theirs = _moves(pair, piece, True), _moves(pair, piece, False)
        if ours is None or (theirs is None and not SHUFFLES & {ours.cause}):
            continue
        if theirs is not None and ours.cause == theirs.cause == "axis-rolled":
            codes = {
                "reference_code": f"roll([{piece.name}], {_steps(ours)})",
                "port_code": f"roll([{piece.name}], {_steps(theirs)})",
            }
            return replace(suspect, cause="roll-sign", facts={**suspect.facts, **codes, "other": f"[{piece.name}]"})
        if ours.cause == "axis-interleaved":
            return replace(suspect, cause="channel-shuffle-order", facts={**suspect.facts, "other": f"[{piece.name}]"})
    return replace(suspect, cause="concat-order") if suspect.cause == "axis-rolled" else suspect


def _steps(rolled: Suspect) -> str:
    """How far each axis is rolled, as code."""
    order = rolled.facts["order"]
    each = order if isinstance(order, tuple) else (order,)
    return ", ".join(str(step.parts[0] if isinstance(step, Phrase) else step) for step in each)


def _repeats(order: str) -> bool:
    """Whether some slices stand twice: that is no other order, but another value."""
    ends = [part.split("-") for part in order.split(", ") if part.replace("-", "").isdigit()]
    found = [n for part in ends for n in range(int(part[0]), int(part[-1]) + 1)]
    return len(set(found)) < len(found)


def _near(pair: Pair, hand: Hand) -> list[Piece]:
    shape = pair.expected.shape
    return [piece for piece in hand.pieces(lambda s: s == shape) if piece.rank < 2][:NEAR]


def _moves(pair: Pair, piece: Piece, reference: bool) -> Optional[Suspect]:
    held = numbers(piece.value)
    if held is None:
        return None
    made = Pair(held, pair.expected if reference else pair.actual, pair.limit, pair.facts)
    for rule in (slices.suspects, slices.shifted):
        for suspect in rule(made):
            if suspect.error is not None:
                return suspect
    return None

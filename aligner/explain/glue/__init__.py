"""Causes told from the numbers between layers: what a parent's own code did wrong with right values in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from aligner.explain.case import Case
from aligner.explain.glue import (
    as_layer,
    attention,
    called,
    cells,
    differences,
    divisors,
    dropped,
    edges,
    elementwise,
    formulas,
    grids,
    handed,
    heads,
    heard,
    integers,
    joins,
    lines,
    loss_inputs,
    loss_totals,
    losses,
    masked,
    operations,
    order,
    parts,
    patches,
    picked,
    pixels,
    renamed,
    responses,
    rounded,
    sampled,
    scalars,
    shapes,
    spread,
    tables,
    turned,
)
from aligner.explain.glue.hand import Hand
from aligner.explain.glue.place import Place
from aligner.explain.inquiry import Spent, current
from aligner.explain.patterns import angles, steps
from aligner.explain.patterns.pair import Pair
from aligner.explain.precision import SHORT_EXPECTED
from aligner.explain.suspect import Suspect
from aligner.vocabulary import KINDS

Rule = tuple[str, Callable[[], Iterable[Suspect]]]
"""A name, and what asks it."""

TOUCHED = 5
"""Elements that a rule touches for each of the value's, before it is known whether it has anything to say."""

FEW = 6
"""Fewer numbers than these fit too many formulas: only what a loss is may be told of them."""

WEAK = {"channel-ratio", "channel-shift", "ratio-and-shift", "negative-side-scaled"}
"""Relations that hold but say little: other rules are asked, too."""


def suspects(case: Case) -> Iterator[Suspect]:
    """The mistakes that numbers prove, else what they hint at.

    For the code between layers, and for a layer of a class of the user's own, which is nothing but code.
    """
    if case.where != "glue" and not _of_own(case):
        return
    pair = Pair.of(case)
    if case.order is not None:  # whatever else is seen comes of it
        yield from called.suspects(case, pair)
        return
    known = list(lines.suspects(case))
    yield from known
    if pair is None:
        yield from () if known else operations.suspects(case)
        return
    inquiry = current()
    yield from inquiry.ask("fills", partial(masked.fills, case, pair))
    if pair.alike and pair.before <= pair.limit / 20.0:
        return
    hand = Hand.of(case)
    for name, rule in _alike(case, pair, hand) if pair.alike else _other_shape(case, pair, hand):
        asked = inquiry.ask(name, rule, TOUCHED * pair.expected.size)
        found = list(heard.checked(case, handed.renamed(case, asked)))
        yield from found
        if any(_settles(suspect) for suspect in found):
            return
    yield from () if known else operations.suspects(case)


def _settles(suspect: Suspect) -> bool:
    return suspect.error is not None and suspect.cause not in WEAK and suspect.weight >= 0.6


def _of_own(case: Case) -> bool:
    return case.where == "layer" and case.reference.kind not in KINDS and case.port.kind not in KINDS


def _alike(case: Case, pair: Pair, hand: Hand) -> Iterator[Rule]:
    """The rules for values of one shape, the surest first; each is asked when those before it proved nothing."""
    place = _Places(case, pair, hand)
    yield "loss_inputs", partial(loss_inputs.suspects, case, pair, hand)
    yield "losses", partial(losses.suspects, case, pair, hand)
    if pair.expected.size < FEW:
        yield "edges", partial(edges.suspects, case, pair, hand)
        yield "loss_totals", partial(loss_totals.suspects, case, pair, hand)
        yield "scalars", partial(scalars.suspects, pair, hand)
        if case.rounding <= SHORT_EXPECTED:  # within what a short type rounds, some formula gives any number
            yield "formulas", lambda: formulas.suspects(place())
        return
    yield "steps", partial(steps.suspects, pair)
    yield "diagonal", partial(grids.diagonal, pair)
    yield "edges", partial(edges.suspects, case, pair, hand)
    yield "joins", partial(joins.suspects, pair, hand)
    yield "pixels", partial(pixels.suspects, pair, hand)
    yield "elementwise", partial(elementwise.suspects, case, pair, hand)
    yield "divisors", partial(divisors.suspects, pair, hand)
    yield "responses", partial(responses.suspects, pair, hand)
    yield "scalars", partial(scalars.suspects, pair, hand)
    yield "sampled", partial(sampled.suspects, pair, hand)
    yield "patches", partial(patches.suspects, pair, hand)
    yield "picked", partial(picked.suspects, pair, hand)
    yield "integers", partial(integers.suspects, pair, hand)
    yield "dropped", partial(dropped.suspects, case, pair, hand)
    yield "cells", partial(cells.suspects, pair, hand)
    yield "formulas", lambda: formulas.suspects(place())
    yield "order", lambda: order.suspects(place())
    yield "rounded", lambda: rounded.suspects(place())
    yield "masked", partial(masked.suspects, pair)
    yield "turned", partial(turned.suspects, pair, hand)
    yield "angles", partial(angles.suspects, pair)
    yield "attention", partial(attention.suspects, case, pair, hand)
    yield "rows", partial(masked.rows, pair)
    yield "as_layer", partial(as_layer.suspects, case, pair, hand)
    yield "differences", lambda: differences.suspects(place())
    yield "spread", partial(spread.suspects, case, pair, hand)
    yield "grids", partial(grids.suspects, pair)
    yield "heads", partial(heads.suspects, pair, hand)
    yield "renamed", partial(renamed.suspects, pair, hand)
    yield "parts", partial(parts.suspects, case, pair, hand)
    yield "peeled", partial(parts.peeled, case, pair, hand)
    yield "tables", lambda: tables.suspects(place())


def _other_shape(case: Case, pair: Pair, hand: Hand) -> Iterator[Rule]:
    yield "loss_inputs", partial(loss_inputs.suspects, case, pair, hand)
    yield "losses", partial(losses.suspects, case, pair, hand)
    yield "handed", partial(handed.suspects, case, pair)
    yield "joins", partial(joins.suspects, pair, hand)
    yield "picked", partial(picked.suspects, pair, hand)
    yield "shapes", partial(shapes.suspects, pair, hand)
    yield "as_layer", partial(as_layer.suspects, case, pair, hand)
    yield "renamed", partial(renamed.suspects, pair, hand)


class _Places:
    """The place with its pool, made when a rule first needs it; too much work for one rule is so for the next."""

    def __init__(self, case: Case, pair: Pair, hand: Hand) -> None:
        self._of = partial(Place.of, case, pair, hand)
        self._made: list[Place] = []
        self._spent = False

    def __call__(self) -> Place:
        if self._spent:
            raise Spent
        if not self._made:
            self._spent = True
            self._made.append(self._of())
            self._spent = False
        return self._made[0]

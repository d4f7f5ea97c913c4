"""Causes told from the numbers between layers: what a parent's own code did wrong with right values in hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from aligner.explain.patterns import angles, steps
from aligner.explain.patterns.pair import Pair
from aligner.explain.precision import SHORT_EXPECTED
from aligner.explain.suspect import Suspect
from aligner.vocabulary import KINDS

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
    yield from masked.fills(case, pair)
    if pair.alike and pair.before <= pair.limit / 20.0:
        return
    hand = Hand.of(case)
    for rule in _alike(case, pair, hand) if pair.alike else _other_shape(case, pair, hand):
        found = list(heard.checked(case, handed.renamed(case, rule)))
        yield from found
        if any(_settles(suspect) for suspect in found):
            return
    yield from () if known else operations.suspects(case)


def _settles(suspect: Suspect) -> bool:
    return suspect.error is not None and suspect.cause not in WEAK and suspect.weight >= 0.6


def _of_own(case: Case) -> bool:
    return case.where == "layer" and case.reference.kind not in KINDS and case.port.kind not in KINDS


def _alike(case: Case, pair: Pair, hand: Hand) -> Iterator[Iterable[Suspect]]:
    """The rules for values of one shape, the surest first; each is asked when those before it proved nothing."""
    yield loss_inputs.suspects(case, pair, hand)
    yield losses.suspects(case, pair, hand)
    if pair.expected.size < FEW:
        yield edges.suspects(case, pair, hand)
        yield loss_totals.suspects(case, pair, hand)
        yield scalars.suspects(pair, hand)
        if case.rounding <= SHORT_EXPECTED:  # within what a short type rounds, some formula gives any number
            yield formulas.suspects(Place.of(case, pair, hand))
        return
    yield steps.suspects(pair)
    yield grids.diagonal(pair)
    yield edges.suspects(case, pair, hand)
    yield joins.suspects(pair, hand)
    yield pixels.suspects(pair, hand)
    yield elementwise.suspects(case, pair, hand)
    yield divisors.suspects(pair, hand)
    yield responses.suspects(pair, hand)
    yield scalars.suspects(pair, hand)
    yield sampled.suspects(pair, hand)
    yield patches.suspects(pair, hand)
    yield picked.suspects(pair, hand)
    yield integers.suspects(pair, hand)
    yield dropped.suspects(case, pair, hand)
    yield cells.suspects(pair, hand)
    place = Place.of(case, pair, hand)
    yield formulas.suspects(place)
    yield order.suspects(place)
    yield rounded.suspects(place)
    yield masked.suspects(pair)
    yield turned.suspects(pair, hand)
    yield angles.suspects(pair)
    yield attention.suspects(case, pair, hand)
    yield masked.rows(pair)
    yield as_layer.suspects(case, pair, hand)
    yield differences.suspects(place)
    yield spread.suspects(case, pair, hand)
    yield grids.suspects(pair)
    yield heads.suspects(pair, hand)
    yield renamed.suspects(pair, hand)
    yield parts.suspects(case, pair, hand)
    yield parts.peeled(case, pair, hand)
    yield tables.suspects(place)


def _other_shape(case: Case, pair: Pair, hand: Hand) -> Iterator[Iterable[Suspect]]:
    yield loss_inputs.suspects(case, pair, hand)
    yield losses.suspects(case, pair, hand)
    yield handed.suspects(case, pair)
    yield joins.suspects(pair, hand)
    yield picked.suspects(pair, hand)
    yield shapes.suspects(pair, hand)
    yield as_layer.suspects(case, pair, hand)
    yield renamed.suspects(pair, hand)

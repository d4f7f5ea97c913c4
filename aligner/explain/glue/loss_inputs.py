"""What the code hands a loss: scores that are no logits any more, logarithms forgotten, labels shifted otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.functions import sigmoid, softmax
from aligner.explain.patterns.loss_forms import log_softmax
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

LABELLED = ("CrossEntropyLoss", "NLLLoss", "SoftmaxCrossEntropyWithLogits")
FARTHEST = 3
"""Positions that labels may be shifted by."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """Of a value that goes into a loss."""
    kind = "" if case.consumer is None else case.consumer.kind
    if not kind.endswith(("Loss", "WithLogits")):
        return
    if kind in LABELLED:
        yield from _shifted(pair, hand)
    if pair.alike and pair.expected.dtype.kind == "f":
        with np.errstate(all="ignore"):
            yield from _spread(pair) if (kind, case.slot) == ("GaussianNLLLoss", "input.2") else _applied(kind, pair)


def _applied(kind: str, pair: Pair) -> Iterator[Suspect]:
    """A function of the right value."""
    x = pair.expected.astype(np.float64)
    axis = 1 if x.ndim > 2 and kind in LABELLED else -1
    hypotheses = {
        "CrossEntropyLoss": (("ce-on-softmax-output", "softmax", softmax(x, axis)),),
        "SoftmaxCrossEntropyWithLogits": (("ce-on-softmax-output", "softmax", softmax(x, -1)),),
        "BCEWithLogitsLoss": (("bce-double-sigmoid", "sigmoid", sigmoid(x)),),
        "NLLLoss": (
            ("nll-on-probabilities", "exp", np.exp(x)),
            ("ce-on-softmax-output", "log_softmax(softmax)", log_softmax(np.exp(x), axis)),
        ),
        "KLDivLoss": (("kldiv-input-not-log", "exp", np.exp(x)),),
    }
    for cause, function, found in hypotheses.get(kind, ()):
        left = pair.proved(found, pair.actual)
        if left is not None:
            logs = function == "exp"
            values = ("log(p)", "p") if logs else ("logits", f"{function}(logits)")
            facts = {"setting": "scores", "reference_value": values[0], "port_value": values[1], "loss": kind}
            yield pair.suspect(cause, left, 0.95, None, **facts)
            return


def _spread(pair: Pair) -> Iterator[Suspect]:
    """A deviation or a logarithm in place of a variance."""
    x = pair.expected.astype(np.float64)
    for told, found in (
        ("square", np.square(x)),
        ("root", np.sqrt(x)),
        ("log", np.log(x)),
        ("exp", np.exp(x)),
    ):
        left = pair.proved(found, pair.actual)
        if left is not None:
            values = {"reference_value": phrase("variance"), "port_value": phrase(f"variance-{told}")}
            facts: dict[str, Fact] = {"setting": "var", "loss": phrase("gaussian-nll"), **values}
            yield pair.suspect("gaussian-nll-variance", left, 0.95, None, **facts)
            return


def _shifted(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """Both sides are parts of one sequence, cut at other ends."""
    for piece in hand.pieces(lambda shape: len(shape) >= 2 and shape[1] > 1):
        wanted = _cut(piece, pair.expected, pair.limit)
        found = None if wanted is None else _cut(piece, pair.actual, pair.limit)
        if wanted is None or found is None or wanted[0] == found[0]:
            continue
        codes = [f"[{piece.name}]{_code(*ends)}" for ends in (wanted[0], found[0])]
        facts: dict[str, Fact] = {
            "setting": "shift",
            "reference_value": codes[0],
            "port_value": codes[1],
            "loss": phrase("cross-entropy"),
        }
        yield pair.suspect("lm-label-shift", found[1], 0.95, None, **facts)
        return


def _cut(piece: Piece, whole: Floats, limit: float) -> Optional[tuple[tuple[int, int], float]]:
    """Where the second axis was cut for this value, and how nearly it is that."""
    array = piece.array
    for first in range(FARTHEST + 1):
        for last in range(FARTHEST + 1 - first):
            part = array[:, first : array.shape[1] - last]
            if part.size != whole.size:
                continue
            for laid in (part, np.moveaxis(part, -1, 1) if part.ndim > 2 else part):
                off = np.abs(laid.reshape(-1).astype(np.float64) - whole.reshape(-1))
                left = float(np.linalg.norm(off) / (np.linalg.norm(whole.astype(np.float64)) or 1.0))
                if left <= limit:
                    return (first, last), left
    return None


def _code(first: int, last: int) -> str:
    if not first and not last:
        return ""
    return f"[:, {first or ''}:{-last if last else ''}]"

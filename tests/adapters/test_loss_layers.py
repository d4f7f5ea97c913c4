"""Losses: both frameworks' settings in the same words, and copies that compute by the changed ones."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the reference's side")
pytest.importorskip("mindspore", reason="the port's side")

import mindspore as ms
import torch
from aligner_hooks.mindspore_ import MindSporeAdapter
from aligner_hooks.torch_ import TorchAdapter
from mindspore import mint
from mindspore import nn as cells

from aligner.explain.case import distance
from aligner.explain.suspects import suspects
from aligner.vocabulary import KINDS
from tests.unit.explain.cases import case

REFERENCE, PORT = TorchAdapter(), MindSporeAdapter()
nn = torch.nn
SETTINGS = {
    "beta": 0.25,
    "delta": 0.3,
    "margin": 0.4,
    "ignore_index": 0,
    "label_smoothing": 0.2,
    "eps": 1e-4,
    "blank": 1,
}
RANDOM = np.random.default_rng(8)
SCORES = RANDOM.standard_normal((6, 5)).astype(np.float32)
OTHER = RANDOM.standard_normal((6, 5)).astype(np.float32)
LABELS = np.array([0, 3, 1, 0, 4, 2], np.int32)
SIGNS = np.array([1, -1, 1, -1, -1, 1], np.float32)
BITS = (OTHER > 0).astype(np.float32)


def pairs():
    """(torch's loss, MindSpore's) with the same settings, other than the default ones."""
    for kind, names in KINDS.items():
        if not kind.endswith("Loss"):
            continue
        given = {name: SETTINGS[name] for name in names if name in SETTINGS}
        name = {"MultiLabelMarginLoss": "MultilabelMarginLoss"}.get(kind, kind)
        for home in (cells, mint.nn):
            own = getattr(home, name, None)
            if own is not None:
                yield getattr(nn, kind)(**given, reduction="sum"), own(**given, reduction="sum")


@pytest.mark.parametrize(
    ("reference", "port"), [*pairs()], ids=lambda loss: f"{type(loss).__module__}.{type(loss).__name__}"
)
def test_both_sides_say_a_loss_in_the_same_words(reference, port):
    one, other = REFERENCE.spec(reference), PORT.spec(port)
    assert one == other
    assert set(one.attributes) == set(KINDS[one.kind])
    for adapter, layer in ((REFERENCE, reference), (PORT, port)):
        copy = adapter.respecified(layer, {"reduction": "none"})
        assert adapter.spec(copy).attributes == {**one.attributes, "reduction": "none"}
        assert adapter.spec(layer) == one


def test_the_flags_of_the_base_class_say_the_reduction():
    for reduction in ("mean", "sum", "none"):
        for loss in (
            cells.MSELoss(reduction),
            cells.CosineEmbeddingLoss(reduction=reduction),
            cells.MAELoss(reduction),
        ):
            assert PORT.spec(loss).attributes["reduction"] == reduction


def test_class_weights_stay_with_a_copy():
    weight = ms.Tensor(np.linspace(0.5, 2.0, 5), ms.float32)
    for made in (cells.CrossEntropyLoss(weight=weight), mint.nn.CrossEntropyLoss(weight=weight)):
        copy = PORT.respecified(made, {"label_smoothing": 0.1})
        assert (copy.weight.asnumpy() == weight.asnumpy()).all()


# What: torch's loss, the careless port's, what both are given, and the cause.
CARELESS = {
    "ignored label": (
        nn.CrossEntropyLoss(ignore_index=0),
        cells.CrossEntropyLoss(),
        (SCORES, LABELS),
        "ce-ignore-index-lost",
    ),
    "smoothing": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        cells.CrossEntropyLoss(),
        (SCORES, LABELS),
        "ce-label-smoothing",
    ),
    "beta": (nn.SmoothL1Loss(beta=0.25), cells.SmoothL1Loss(reduction="mean"), (SCORES, OTHER), "smoothl1-beta"),
    "one for each": (nn.SmoothL1Loss(), cells.SmoothL1Loss(), (SCORES, OTHER), "smoothl1-reduction-default"),
    "delta": (nn.HuberLoss(delta=0.5), cells.HuberLoss(), (SCORES, OTHER), "huber-delta"),
    "sum": (nn.MSELoss(reduction="sum"), cells.MSELoss(), (SCORES, OTHER), "loss-reduction"),
    "margin": (
        nn.CosineEmbeddingLoss(margin=0.4),
        cells.CosineEmbeddingLoss(),
        (SCORES, np.abs(OTHER), SIGNS),
        "loss-margin",
    ),
    "constant": (
        nn.GaussianNLLLoss(full=True),
        cells.GaussianNLLLoss(),
        (SCORES, OTHER, np.abs(OTHER) + 0.1),
        "gaussian-nll-full",
    ),
}


@pytest.mark.parametrize("what", sorted(CARELESS))
def test_a_careless_loss_is_told_and_the_change_makes_it_right(what):
    reference, port, arrays, cause = CARELESS[what]
    expected = reference(*(torch.from_numpy(a.astype(np.int64) if a.dtype.kind == "i" else a) for a in arrays))
    actual = port(*map(ms.Tensor, arrays))
    specs = REFERENCE.spec(reference), PORT.spec(port)
    found = case(
        specs[0].kind,
        specs[0].attributes,
        specs[1].attributes,
        port_kind=specs[1].kind,
        expected=expected.numpy(),
        actual=actual.asnumpy(),
        inputs=arrays,
    )
    first = next(suspect for suspect in suspects(found) if suspect.change)
    assert first.cause == cause
    copy = PORT.respecified(port, first.change)
    assert distance(copy(*map(ms.Tensor, arrays)).asnumpy(), expected.numpy()) < 1e-6

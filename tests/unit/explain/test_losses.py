"""Wrong losses are told from what they make of logits and labels; the right one and a mere number are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain.catalogue import LANGUAGES, sentences
from aligner.explain.patterns.loss_forms import FAMILIES, Given, Loss
from aligner.explain.patterns.loss_mistakes import mistakes
from aligner.explain.suspects import suspects
from aligner.record import LayerSpec
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.standard_normal((4, 9, 7)) * 1.5
LABELS = np.where(RANDOM.random((4, 9)) < 0.3, 0, RANDOM.integers(1, 7, (4, 9)))
WEIGHT = np.linspace(0.5, 2.5, 7)
FLAT = RANDOM.standard_normal((6, 5))
OTHER = RANDOM.standard_normal((6, 5))
BITS = (RANDOM.random((6, 5)) < 0.4).astype(np.float64)
SIGNS = np.array([1.0, -1, -1, 1, -1, 1])


def given(*arrays):
    return tuple(Given(f"x{number}", np.asarray(array)) for number, array in enumerate(arrays))


CLASSES = Loss("cross entropy", given(LOGITS, LABELS), {"axis": -1, "ignore": 0, "weight": WEIGHT, "smoothing": 0.1})
BINARY = Loss("binary cross entropy", given(FLAT, BITS), {"logits": True})
KL = {"through": "log_softmax", "target": "softmax", "temperature": 2.0, "factor": 4.0, "reduction": "batchmean"}
DIVERGENCE = Loss("KL divergence", given(FLAT, OTHER), KL)
PAIRS = Loss("cosine embedding", given(FLAT, np.abs(OTHER), SIGNS), {"margin": 0.2})
TRIPLET = Loss("triplet margin", given(FLAT, OTHER, FLAT[::-1]), {"margin": 1.0})
BOXES = Loss("smooth L1 loss", given(FLAT, OTHER), {"edge": 0.5})

# What: the reference's loss, the port's, and the cause.
WRONG = {
    "padding counts": (CLASSES, CLASSES.changed(ignore=None), "ce-ignore-index-lost"),
    "no weights": (CLASSES, CLASSES.changed(weight=None), "ce-class-weight-missing"),
    "mean without weights": (CLASSES, CLASSES.changed(reduction="mean of counted"), "ce-class-weight-mean"),
    "mean over padding": (CLASSES, CLASSES.changed(reduction="mean of all"), "ce-sparse-softmax-mean-over-padding"),
    "sum": (CLASSES, CLASSES.changed(reduction="sum"), "loss-reduction"),
    "other smoothing": (CLASSES, CLASSES.changed(spread="others"), "ce-label-smoothing"),
    "softmax twice": (CLASSES, CLASSES.changed(through="softmax"), "ce-on-softmax-output"),
    "probabilities": (CLASSES, CLASSES.changed(logs="given", through="softmax"), "nll-on-probabilities"),
    "shift": (CLASSES.changed(shift=1), CLASSES.changed(shift=-1), "lm-label-shift"),
    "no shift": (CLASSES.changed(shift=1), CLASSES, "lm-label-shift"),
    "older loss": (CLASSES, CLASSES.changed(ignore=None, weight=None, smoothing=0.0), "ce-settings-lost"),
    "float16": (CLASSES, CLASSES.changed(through="bfloat16"), "loss-in-fp16"),
    "sigmoid twice": (BINARY, BINARY.changed(through="sigmoid"), "bce-double-sigmoid"),
    "pos_weight as weight": (
        BINARY.changed(pos_weight=WEIGHT[:5]),
        BINARY.changed(weight=WEIGHT[:5]),
        "bce-logits-pos-weight",
    ),
    "alpha": (BINARY.changed(alpha=0.25, gamma=2.0), BINARY.changed(alpha=0.75, gamma=2.0), "focal-alpha"),
    "gamma": (BINARY.changed(alpha=0.25, gamma=2.0), BINARY.changed(alpha=0.25, gamma=1.0), "focal-gamma"),
    "mean": (DIVERGENCE, DIVERGENCE.changed(reduction="mean"), "kldiv-reduction-batchmean"),
    "swapped": (DIVERGENCE, DIVERGENCE.changed(swapped=True), "kldiv-argument-order"),
    "no log": (DIVERGENCE, DIVERGENCE.changed(through="softmax"), "kldiv-input-not-log"),
    "cold teacher": (DIVERGENCE, DIVERGENCE.changed(target_temperature=1.0), "distillation-temperature"),
    "no factor": (DIVERGENCE, DIVERGENCE.changed(factor=1.0), "distillation-scale"),
    "margin": (PAIRS, PAIRS.changed(margin=0.0), "loss-margin"),
    "triplet's margin": (TRIPLET, TRIPLET.changed(margin=0.3), "loss-margin"),
    "beta": (BOXES, BOXES.changed(edge=1.0), "smoothl1-beta"),
    "Huber": (BOXES, BOXES.turned("Huber loss"), "huber-vs-smoothl1"),
    "L1": (BOXES, BOXES.turned("L1 loss"), "loss-other"),
}


def around(reference, *more):
    """What the code of a head has in hand."""
    names = [f"block.layer.l{number}" for number in range(3)]
    held = [
        value(part.array.astype(np.float32) if part.array.dtype.kind == "f" else part.array, layer=name)
        for part, name in zip(reference.given, names)
    ]
    rows = [reference.get(name) for name in ("weight", "pos_weight")]
    return (*(value(row.astype(np.float32), slot="weight") for row in rows if row is not None), *held, *more)


def glue(expected, actual, known, **more):
    found = case("Head", {}, where="glue", expected=expected, actual=actual, known=known, rounding=1e-6, **more)
    return suspects(found)


@pytest.mark.parametrize("what", sorted(WRONG))
def test_a_loss_written_as_code_is_told_by_the_number_it_gives(what):
    reference, port, cause = WRONG[what]
    first = glue(np.float32(reference()), np.float32(port()), around(reference))[0]
    assert first.cause == cause
    assert first.error is not None
    assert first.error < 1e-5
    for language in LANGUAGES:
        assert not any("<" in text for text in sentences(first.cause, first.facts, language))


@pytest.mark.parametrize("what", sorted(WRONG))
def test_nothing_is_told_of_a_number_that_no_mistake_gives(what):
    reference, port, _ = WRONG[what]
    number = np.float32(reference() + 0.7310585 * (port() - reference()))
    assert [suspect for suspect in glue(np.float32(reference()), number, around(reference)) if suspect.error] == []


@pytest.mark.parametrize("what", sorted(WRONG))
def test_nothing_is_told_where_the_reference_is_no_known_loss(what):
    reference, port, _ = WRONG[what]
    found = glue(np.float32(1.2345 * reference()), np.float32(port()), around(reference))
    assert [suspect for suspect in found if suspect.error is not None] == []


@pytest.mark.parametrize(
    "reference", [CLASSES, BINARY, DIVERGENCE, PAIRS, TRIPLET, BOXES], ids=lambda loss: loss.family
)
def test_each_mistake_is_in_the_catalogue_and_says_what_differs(reference):
    for mistake in mistakes(reference, (0.3,)):
        facts = {"reference_value": "one", "port_value": "other", "setting": "it", "written": "f()", "loss": "loss"}
        assert all(sentences(mistake.cause, facts, "en")[part] for part in (0, 2)), mistake.cause
        assert mistake.reference != mistake.port or mistake.cause == "loss-reduction"


def test_every_family_makes_something_or_nothing_and_never_stumbles():
    for family in FAMILIES:
        for arrays in ((FLAT, OTHER), (FLAT, SIGNS), (LOGITS, LABELS), (FLAT, OTHER, FLAT), (FLAT, OTHER, SIGNS)):
            with np.errstate(all="ignore"):
                terms = Loss(family, given(*arrays), {}).terms()
            assert terms is None or terms.each.size


# Sums of losses.

TERMS = {"a": 1.2345678, "b": 0.4567891, "c": 2.6180339}


def total(**weights):
    return np.float32(sum(weights[name] * number for name, number in TERMS.items()))


@pytest.mark.parametrize(
    ("reference", "port", "cause", "told"),
    [
        ({"a": 1, "b": 2.5, "c": 0.5}, {"a": 1, "b": 1, "c": 0.5}, "loss-weight", ("2.5", "1")),
        ({"a": 1, "b": 1, "c": 0.5}, {"a": 1, "b": 1, "c": 0.0}, "addend-missing", ()),
        ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 0, "c": 1}, "addend-missing", ()),
    ],
)
def test_a_term_with_another_weight_is_named(reference, port, cause, told):
    known = [value(np.float32(number), layer=f"block.layer.{name}") for name, number in TERMS.items()]
    first = glue(total(**reference), total(**port), known)[0]
    assert first.cause == cause
    assert tuple(first.facts[name] for name in ("reference_value", "port_value") if name in first.facts) == told
    wrong = next(name for name in TERMS if reference[name] != port[name])
    assert f".{wrong} " in first.facts["other"]


def test_a_number_that_is_off_by_anything_else_is_not_explained():
    known = [value(np.float32(number), layer=f"block.layer.{name}") for name, number in TERMS.items()]
    right = total(a=1, b=1, c=0.5)
    for off in (0.0123, 0.31415, 1.7182):
        assert [s for s in glue(right, np.float32(right + off), known) if s.error is not None] == []


# What is handed to a loss that is a layer.


def consumer(kind):
    return LayerSpec(kind, {})


@pytest.mark.parametrize(
    ("kind", "function", "cause"),
    [
        ("CrossEntropyLoss", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), "ce-on-softmax-output"),
        ("BCEWithLogitsLoss", lambda x: 1 / (1 + np.exp(-x)), "bce-double-sigmoid"),
        ("NLLLoss", np.exp, "nll-on-probabilities"),
        ("KLDivLoss", np.exp, "kldiv-input-not-log"),
    ],
)
def test_what_is_applied_before_a_loss_is_named_by_that_loss(kind, function, cause):
    x = FLAT.astype(np.float32)
    found = case("Head", {}, where="glue", expected=x, actual=function(x), slot="input.0", known=[value(x)])
    assert suspects(replace(found, consumer=consumer(kind)))[0].cause == cause
    assert cause not in {suspect.cause for suspect in suspects(replace(found, consumer=consumer("Linear")))}


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 0), (0, 2)])
def test_logits_and_labels_that_are_cut_otherwise_are_a_shift(first, last):
    for array in (LOGITS.astype(np.float32), LABELS.astype(np.int32)):
        wanted = array[:, :-1].reshape(-1, *array.shape[2:])
        found = array[:, first : array.shape[1] - last].reshape(-1, *array.shape[2:])
        held = [value(array, layer="block.layer.out")]
        made = case("Head", {}, where="glue", expected=wanted, actual=found, slot="input.0", known=held)
        told = suspects(replace(made, consumer=consumer("CrossEntropyLoss")))[0]
        assert told.cause == "lm-label-shift"
        assert told.facts["reference_value"].endswith("[:, :-1]")

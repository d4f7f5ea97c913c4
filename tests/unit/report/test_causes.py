"""What a report says of causes: proof, guesses, and that nothing is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from aligner.compare.place import Place
from aligner.explain.catalogue import catalogue, sentences
from aligner.record import Key, LayerSpec, Phase
from aligner.report.causes import cause_rows, proof, unproved
from aligner.report.origins import reasons, statement
from tests.unit.report import comparisons
from tests.unit.report.comparisons import EPS, RATIO, SHIFT, SIGN, diverged, origin

KEY = Key(0, Phase.PARAMETER, "bn1", 0, "bias")


def told(*causes, language="en", **changes):
    made = origin(causes=causes, **changes)
    return cause_rows(made, diverged(origins=(made,), specs=changes.pop("specs", {})), language)


def test_a_proved_cause_has_reason_change_and_both_errors():
    rows = dict(told(EPS))
    assert list(rows) == ["why", "seen", "change", "proof"]
    assert rows["why"].startswith("LayerNorm's eps is 1e-07")
    assert "nn.LayerNorm(..., epsilon=1e-05)" in rows["change"]
    assert rows["proof"] == "with the change the error as a whole falls from 4.7e-04 to 2.4e-07: confirmed"


def test_what_is_not_proved_is_called_a_guess():
    rows = told(RATIO, SIGN)
    assert rows[0] == ("guess", "The port's values are the reference's times 2")
    assert rows[-1] == ("also", "The port's values have the opposite sign (possible, not proved)")


def test_a_proof_ends_the_guessing_but_another_proof_is_told():
    assert [label for label, _ in told(EPS, RATIO)] == ["why", "seen", "change", "proof"]
    same = replace(EPS, id="setting-differs")
    assert [label for label, _ in told(EPS, same)] == ["why", "seen", "change", "proof"]
    second = replace(RATIO, confirmed=True)
    assert told(EPS, second)[-1] == ("also", "The port's values are the reference's times 2 (confirmed as well)")


def test_a_refuted_trial_is_no_cause():
    assert SHIFT.refuted
    assert told(SHIFT) == [("why", "not known: no known mistake fits")]
    assert next(label for label, _ in told(SHIFT, RATIO)) == "guess"
    assert not any("plus" in text for _, text in told(RATIO, SHIFT))


def test_settings_that_were_put_right_in_vain_are_told_of():
    vain = replace(EPS, confirmed=False, error_after=4.7e-4)
    assert told(vain) == [("why", "not known: with these settings put right the error stays")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"confirmed": True}, "with this undone the error as a whole falls from 5.0e-01 to 3.0e-04: confirmed"),
        ({"error_before": math.inf, "confirmed": True}, "with this undone the error as a whole is 3.0e-04: confirmed"),
        (
            {"error_before": None},
            "with this undone the error as a whole is 3.0e-04: not proved, more than rounding is left",
        ),
        (
            {"error_before": None, "ran": False},
            "with this undone the error as a whole is 3.0e-04, in the numbers alone: nothing was run so, not proved",
        ),
        ({"error_after": None}, "none: this was not tried"),
    ],
)
def test_the_proof_in_words(changes, said):
    assert proof(replace(RATIO, **changes), "en") == said


def test_other_inputs_have_no_cause_to_look_for():
    assert told(where="inputs") == []


def test_a_hostile_fact_shows_and_does_not_act():
    bad = replace(RATIO, facts={"ratio": "\x1b[31m"})
    assert "\\x1b[31m" in told(bad)[0][1]


def test_layers_without_proof_are_worth_a_program():
    made = diverged(origins=(*comparisons.norms(1), origin(layer="a"), origin(layer="b", where="glue")))
    assert [o.layer for o in unproved(made)] == ["a"]


@pytest.mark.parametrize(
    ("key", "port", "said"),
    [
        (KEY, None, "wrong before anything runs: the parameter bias is missing in the port"),
        (None, KEY, "wrong before anything runs: the parameter bias is not in the reference"),
        (KEY, KEY, "wrong before anything runs: the parameter bias has another shape"),
        (None, KEY._replace(slot="bias.0"), "wrong before anything runs: the parameter bias has another form"),
    ],
)
def test_a_parameter_of_one_side_is_not_of_another_shape(key, port, said):
    place = Place("parameters", "bn1", key, port, None, 1e-6, False)
    alone = {"deviation": None, "own_error": math.inf, "input_error": None}
    assert statement(origin(where="parameters", slot="bias", place=place, **alone), 1e-3, "en") == said


def test_another_kind_of_layer_is_told_once():
    specs = {"bn1": (LayerSpec("GELU"), LayerSpec("ReLU"))}
    other = replace(EPS, id="kind-differs", facts={"kind": "GELU", "port_kind": "ReLU", "written": "nn.GELU()"})
    for causes, rows in (((), 1), ((other,), 0), ((RATIO, replace(other, confirmed=False)), 1)):
        made = origin(causes=causes)
        texts = [text for label, text in reasons(made, diverged(origins=(made,), specs=specs), "en") if not label]
        assert texts == ["layer: GELU in the reference, ReLU in the port"] * rows


@pytest.mark.parametrize("language", ["en", "zh"])
def test_figures_of_the_evidence_are_named(language):
    """What is left is the relative L2, wherever it is told; elements that differ are counted, not a share of 1."""
    named = {"en": "a relative L2 of 3.0e-04 is left", "zh": "3.0e-04（相对 L2）"}[language]
    leaving = [name for name, entry in catalogue().items() if "{left} is left" in entry.evidence[0]]
    told = [sentences(name, {"left": "3.0e-04"}, language)[1] for name in leaving]
    assert len(told) > 20
    assert all(named in text for text in told)
    facts = {"correlation": "1.0e-02", "differing": 64, "total": 64}
    counted = sentences("inputs-unrelated", facts, language)[1]
    assert counted.count("64") == 2
    assert "<" not in counted

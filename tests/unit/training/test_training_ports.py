"""Training steps of MindSpore's, held to those of torch's: what is wrong, in which stage and why."""

from __future__ import annotations

import pytest

import aligner
from aligner.cli import main

pytest.importorskip("torch", reason="the references are torch's")
pytest.importorskip("mindspore", reason="the ports are MindSpore's")

HERE = "tests.unit.training"


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Compare a training in torch with one in MindSpore that was captured from it."""
    monkeypatch.chdir(tmp_path)

    def call(reference, port):
        assert main(["capture", f"{HERE}.small_tasks:{reference}", "-o", "ref.h5", "-f", "-q"]) == 0
        words = ["capture", f"{HERE}.small_ports:{port}", "--from", "ref.h5", "-o", "port.h5", "-f", "-q"]
        assert main([*words, "--search", "0"]) == 0
        return aligner.compare("ref.h5", "port.h5")

    return call


RIGHT = [("right", "right"), ("right", "sgd"), ("decay", "decay"), ("adam", "adam"), ("adamw_decay", "adamw")]


@pytest.mark.parametrize(("reference", "port"), [*RIGHT, ("clipped", "clipped")])
def test_a_port_that_is_right_is_aligned(compared, reference, port):
    """MindSpore's Adam adds its eps in another place, and a bias before a norm has no gradient but rounding."""
    found = compared(reference, port)
    assert (found.outcome, found.origins, found.suspects) == ("aligned", (), ())


def test_an_eps_under_the_root_is_a_warning(compared):
    """Of five numbers the kernel's vectors do not hold the last; its gradient is small enough for this to show."""
    found = compared("rmsprop", "rmsprop")
    assert (found.outcome, found.origins) == ("aligned", ())
    warned = dict(found.warnings)["eps-under-root"]
    assert (warned["eps"], warned["acts"], warned["first"]) == ("1e-08", "1e-04", "fc bias")


SETTINGS = [
    ("rmsprop", "rmsprop_rate", {"optimizer-learning-rate"}),
    ("right", "rate", {"optimizer-learning-rate"}),
    ("decay", "filtered", {"weight-decay-gamma-beta-filter"}),
    ("adam", "adam_weight_decay", {"adamweightdecay-no-bias-correction"}),
    ("adamw_decay", "adam_decay", {"adam-weight-decay-l2-vs-decoupled"}),
]


@pytest.mark.parametrize(("reference", "port", "causes"), SETTINGS)
def test_a_wrong_setting_of_an_optimizer_is_proved_by_its_update(compared, reference, port, causes):
    found = compared(reference, port)
    assert [origin.where for origin in found.origins] == ["update"]
    assert {cause.id for cause in found.origins[0].causes if cause.confirmed} == causes


def test_a_wrong_loss_is_none_of_the_net(compared):
    found = compared("right", "loss_sum")
    assert [(origin.layer, origin.where) for origin in found.origins] == [("(loss)", "loss")]
    cause = found.origins[0].causes[0]
    assert (cause.id, cause.confirmed, cause.error_before, cause.error_after < 1e-4) == (
        "loss-factor",
        True,
        pytest.approx(3.0),
        True,
    )


def test_a_loss_that_is_more_than_its_cross_entropy_is_confirmed_by_what_lies_between(compared):
    """Both have the same penalty, so that neither loss is one sum of the scores."""
    (origin,) = compared("penalized", "penalized_smoothed").origins
    assert (origin.where, origin.causes[0].id, origin.causes[0].confirmed) == ("loss", "loss-targets", True)


def test_a_cause_is_not_confirmed_by_what_is_not_told(compared):
    (origin,) = compared("smoothed", "first_row_more").origins
    assert [(cause.id, cause.confirmed) for cause in origin.causes] == [("loss-targets", False)]


def test_what_is_no_such_sum_is_not_confirmed(compared):
    """The gradients at the scores are those of a cross entropy; the value is not."""
    (origin,) = compared("right", "shifted_smoothed").origins
    assert (origin.where, origin.causes[0].id, origin.causes[0].confirmed) == ("loss", "loss-targets", False)


@pytest.mark.parametrize(
    ("reference", "port", "cause", "facts"),
    [
        ("uneven", "uneven_fixed", "loss-batch-size-fixed", {"rows": 3, "by": 4}),
        ("masked", "masked_all", "loss-mean-over-all", {"all": 4}),
    ],
)
def test_what_a_loss_is_divided_by_is_told_from_its_factor(compared, reference, port, cause, facts):
    (origin,) = compared(reference, port).origins
    told = origin.causes[0]
    assert (origin.where, told.id, told.confirmed) == ("loss", cause, True)
    assert {name: told.facts[name] for name in facts} == facts


def test_an_uneven_batch_is_no_mistake(compared):
    assert compared("uneven", "uneven").outcome == "aligned"


def test_what_an_optimizer_begins_with_is_told_where_it_is_another(compared):
    (origin,) = compared("rmsprop", "rmsprop_ones").origins
    told = origin.causes[0]
    assert (origin.where, origin.steps, told.id, told.confirmed) == ("update", (0,), "optimizer-state-begins", False)
    assert (told.facts["reference_value"], told.facts["port_value"]) == ("0", "1")


def test_a_gradient_that_is_cut_is_no_forward_mistake(compared):
    found = compared("right", "stopped")
    assert {origin.phase for origin in found.origins} == {"backward"}

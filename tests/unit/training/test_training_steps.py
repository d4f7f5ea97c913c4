"""Training steps of two nets in torch, one held to the other: what is wrong, in which stage and why."""

from __future__ import annotations

import pytest

import aligner
from aligner import registry
from aligner.capture.options import Options
from aligner.capture.session import Capture
from aligner.cli import main

torch = pytest.importorskip("torch", reason="the trainings are torch's")

from tests.unit.training import small_tasks as tasks  # noqa: E402 - it imports torch

TASKS = "tests.unit.training.small_tasks"


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Compare a training with another that was captured from it."""
    monkeypatch.chdir(tmp_path)

    def call(reference, port, *more):
        assert main(["capture", f"{TASKS}:{reference}", "-o", "ref.h5", "-f", "-q"]) == 0
        words = ["capture", f"{TASKS}:{port}", "--from", "ref.h5", "-o", "port.h5", "-f", "-q", "--search", "0"]
        assert main([*words, *more]) == 0
        return aligner.compare("ref.h5", "port.h5")

    return call


@pytest.mark.parametrize(
    ("name", "steps"), [("right", 3), ("adam", 3), ("adamw_decay", 3), ("rmsprop", 3), ("clipped", 2), ("grouped", 3)]
)
def test_a_training_that_is_right_is_aligned(compared, name, steps):
    found = compared(name, name)
    assert (found.outcome, found.origins, found.suspects) == ("aligned", (), ())
    assert all(row.same_data and row.first is None and not row.inherited for row in found.steps)
    assert len(found.steps) == steps


SETTINGS = [
    ("right", "rate", "optimizer-learning-rate"),
    ("rate", "right", "optimizer-learning-rate"),
    ("decay", "right", "optimizer-weight-decay"),
    ("grouped", "decay", "optimizer-weight-decay"),
    ("right", "momentum", "optimizer-momentum"),
    ("dampened", "right", "optimizer-dampening"),
    ("nesterov", "right", "optimizer-nesterov"),
    ("right", "maximized", "optimizer-setting"),
    ("adam", "adam_betas", "optimizer-betas"),
    ("adam", "adam_eps", "optimizer-eps"),
    ("adamw_decay", "adam_decay", "adam-weight-decay-l2-vs-decoupled"),
    ("rmsprop", "rmsprop_alpha", "optimizer-alpha"),
    ("rmsprop", "rmsprop_centered", "rmsprop-centered"),
    ("rmsprop", "adam", "optimizer-kind"),
]


@pytest.mark.parametrize(("reference", "port", "cause"), SETTINGS)
def test_a_wrong_setting_of_an_optimizer_is_proved_by_its_update(compared, reference, port, cause):
    found = compared(reference, port)
    assert found.outcome == "diverged"
    assert [origin.where for origin in found.origins] == ["update"]
    first = found.origins[0].causes[0]
    assert (first.id, first.confirmed) == (cause, True)
    assert first.error_after <= 2e-5 < first.error_before


def test_two_wrong_settings_are_both_proved(compared):
    found = compared("right", "two")
    assert [origin.where for origin in found.origins] == ["update"]
    told = {cause.id: cause.confirmed for cause in found.origins[0].causes}
    assert told == {"optimizer-learning-rate": True, "optimizer-weight-decay": True}


def test_an_update_that_no_setting_explains_is_told_by_its_numbers(compared):
    cause = compared("right", "odd").origins[0].causes[0]
    told = cause.id, cause.confirmed, cause.facts["term"], cause.facts["factor"]
    assert told == ("update-term", False, "weight", "-0.01")


@pytest.mark.parametrize(
    ("reference", "port", "cause"),
    [("right", "head", "parameter-not-optimized"), ("head", "right", "frozen-params-trained")],
)
def test_parameters_that_one_optimizer_alone_has(compared, reference, port, cause):
    found = compared(reference, port)
    assert found.outcome == "diverged"
    first = found.origins[0].causes[0]
    assert [origin.where for origin in found.origins] == ["update"]
    assert (first.id, first.confirmed) == (cause, True)


TREATMENTS = [
    ({}, {"change": tasks.scaled(3.0)}, "gradient-scaled"),
    ({"change": tasks.all_clipped(0.25)}, {}, "gradients-untreated"),
    ({"change": tasks.all_clipped(0.25)}, {"change": tasks.all_clipped(0.5)}, "clip-global-norm"),
    ({"change": tasks.all_clipped(0.25)}, {"change": tasks.each_clipped}, "clip-per-tensor-vs-global"),
    ({"change": tasks.all_clipped(0.25)}, {"change": tasks.by_value_clipped}, "clip-value-vs-norm"),
    ({"accumulate": 2, "change": tasks.scaled(0.5)}, {"accumulate": 2}, "grad-accumulation-mean-vs-sum"),
    ({"accumulate": 2}, {"accumulate": 2, "zeroed": False}, "gradients-of-some-batches"),
    ({"scale": 64.0, "change": tasks.scaled(1 / 64)}, {"scale": 64.0}, "loss-scale-not-removed"),
    ({}, {"scale": 64.0}, "loss-scale-not-removed"),
    (
        {"scale": 64.0, "change": tasks.divided_and_clipped(0.25, 64.0)},
        {"scale": 64.0, "change": tasks.clipped_and_divided(0.25, 64.0)},
        "loss-scale-clip-before-unscale",
    ),
    ({}, {"change": tasks.crossed}, "gradients-crossed"),
]


def captured(path, run, reference=None):
    """A loop of a user's in a block; with a reference, held to it."""
    torch.manual_seed(0)
    net = tasks.Net().train()
    options = Options(gradients=True, force=True, search=0.0)
    if reference is None:
        with Capture(registry.of(net), net, path, options) as capture:
            tasks.loop(net, capture, **run)
        return
    with aligner.replay(reference, net) as replay:
        net.train()
        with replay.capture(path, options) as capture:
            tasks.loop(net, capture, **run)


@pytest.mark.parametrize(("reference", "port", "cause"), TREATMENTS)
def test_what_is_made_of_gradients_before_the_update(tmp_path, reference, port, cause):
    captured(tmp_path / "ref.h5", reference)
    captured(tmp_path / "port.h5", port, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert [(origin.where, origin.causes[0].id, origin.steps) for origin in found.origins] == [("clip", cause, (0, 1))]
    assert found.origins[0].causes[0].confirmed


OVERFLOW = {"overflow": 0, "steps": 3}


def test_an_update_that_both_sides_skip_is_a_step_of_its_own(tmp_path):
    captured(tmp_path / "ref.h5", OVERFLOW)
    captured(tmp_path / "port.h5", OVERFLOW, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert (found.outcome, found.origins) == ("aligned", ())
    assert [row.skipped for row in found.steps] == [(True, True), (False, False), (False, False)]


def test_an_update_that_is_not_skipped_is_told_and_drowns_nothing(tmp_path):
    captured(tmp_path / "ref.h5", OVERFLOW)
    captured(tmp_path / "port.h5", {**OVERFLOW, "skips": False}, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    origins = [(origin.where, origin.causes[0].id, origin.steps) for origin in found.origins]
    assert origins == [("update", "update-not-skipped", (0,))]
    assert [row.skipped for row in found.steps] == [(True, False), (False, False), (False, False)]


def test_an_update_that_the_port_alone_skips(tmp_path):
    captured(tmp_path / "ref.h5", {"steps": 2})
    captured(tmp_path / "port.h5", {**OVERFLOW, "steps": 2})
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert [origin.causes[0].id for origin in found.origins if origin.where == "update"] == ["update-skipped"]


@pytest.mark.parametrize("run", [{}, {"accumulate": 2, "change": tasks.all_clipped(0.25)}, {"scale": 64.0}])
def test_a_loop_that_is_right_is_aligned(tmp_path, run):
    captured(tmp_path / "ref.h5", run)
    captured(tmp_path / "port.h5", run, tmp_path / "ref.h5")
    assert aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").outcome == "aligned"


BATCHES = [
    ({"accumulate": 2, "inside": 0.5}, {"accumulate": 2, "inside": 0.5, "kept": True}, "gradients-not-zeroed", (1,)),
    ({"accumulate": 2}, {"accumulate": 2, "each": tasks.all_clipped(0.1)}, "clip-per-batch", (0, 1)),
    ({"accumulate": 2, "inside": 0.5}, {"accumulate": 2}, "grad-accumulation-mean-vs-sum", (0, 1)),
]


@pytest.mark.parametrize(("reference", "port", "cause", "steps"), BATCHES)
def test_what_is_made_of_the_batches_of_one_update(tmp_path, reference, port, cause, steps):
    captured(tmp_path / "ref.h5", reference)
    captured(tmp_path / "port.h5", port, tmp_path / "ref.h5")
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    assert [(origin.where, origin.causes[0].id, origin.steps) for origin in found.origins] == [("clip", cause, steps)]


@pytest.mark.parametrize(
    ("reference", "port"),
    [({}, tasks.scaled(0.5)), ({"change": tasks.all_clipped(0.25)}, tasks.divided_and_clipped(0.25, 2.0))],
)
def test_one_side_may_divide_its_loss_and_the_other_its_gradients(tmp_path, reference, port):
    captured(tmp_path / "ref.h5", {"accumulate": 2, "inside": 0.5, **reference})
    captured(tmp_path / "port.h5", {"accumulate": 2, "change": port}, tmp_path / "ref.h5")
    assert aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").outcome == "aligned"


def test_another_loss_scale_that_is_removed_is_no_mistake(tmp_path):
    captured(tmp_path / "ref.h5", {})
    captured(tmp_path / "port.h5", {"scale": 64.0, "change": tasks.scaled(1 / 64)}, tmp_path / "ref.h5")
    assert aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").outcome == "aligned"


@pytest.mark.parametrize("port", ["loss_sum", "smoothed"])
def test_a_wrong_loss_is_none_of_the_net(compared, port):
    found = compared("right", port)
    assert [(origin.layer, origin.where) for origin in found.origins] == [("(loss)", "loss")]
    assert all(found.origins[row.origin].where == "loss" for row in found.steps)


def test_a_part_of_a_loss_that_counts_otherwise_is_told_by_its_layer(compared):
    (origin,) = compared("two_heads", "two_heads_other").origins
    told = origin.causes[0]
    assert (origin.where, told.id, told.confirmed) == ("loss", "loss-part-factor", True)
    assert (told.facts["layer"], told.facts["factor"]) == ("aux", "2")


def test_a_gradient_that_is_cut_is_no_forward_mistake(compared):
    found = compared("right", "detached")
    assert {origin.phase for origin in found.origins} == {"backward"}
    assert found.origins[0].layer in ("bn", "")
    told = found.origins[0].causes[0]
    assert (told.id, told.confirmed) == ("gradient-times", False)


@pytest.mark.parametrize("trained", ["ref", "port"])
def test_one_side_alone_that_has_its_training_is_no_mistake(tmp_path, trained):
    for name in ("ref", "port"):
        torch.manual_seed(0)
        net = tasks.Net().train()
        options = Options(gradients=name == trained, force=True, search=0.0)
        with Capture(registry.of(net), net, tmp_path / f"{name}.h5", options) as capture:
            tasks.loop(net, capture)
    found = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")
    other = {"ref": "port", "port": "ref"}[trained]
    assert found.origins == ()
    assert [facts["path"] for name, facts in found.warnings if name == "untrained"] == [str(tmp_path / f"{other}.h5")]


def test_a_port_with_fewer_steps_has_not_lost_its_parameters(tmp_path):
    captured(tmp_path / "ref.h5", {"steps": 3})
    captured(tmp_path / "port.h5", {"steps": 2}, tmp_path / "ref.h5")
    assert aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").origins == ()

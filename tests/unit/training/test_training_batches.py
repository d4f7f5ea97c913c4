"""How a port's batch differs from the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.training.batches import suspects, undone

RNG = np.random.default_rng(0)
BATCHES = {step: RNG.random((4, 3, 5, 6)) for step in range(3)}
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
ROWS = np.concatenate([BATCHES[0], BATCHES[1], BATCHES[2]])


def normalised(batch):
    return (batch - MEAN[:, None, None]) / DEVIATION[:, None, None]


CASES = [
    (BATCHES[1][:3], "data-batch-size"),
    (BATCHES[1].transpose(0, 2, 3, 1), "data-axes"),
    (BATCHES[2], "data-other-step"),
    (BATCHES[1][[2, 0, 3, 1]], "data-order-inside"),
    (ROWS[[4, 0, 9, 5]], "data-order"),
    (BATCHES[1] * 255, "data-scaled"),
    (BATCHES[1] - 0.5, "data-scaled"),
    (normalised(BATCHES[1]), "data-normalised"),
    (normalised(BATCHES[1].transpose(0, 2, 3, 1).transpose(0, 3, 1, 2)), "data-normalised"),
]


@pytest.mark.parametrize(("port", "cause"), CASES)
def test_what_is_done_to_a_batch(port, cause):
    assert [suspect.cause for suspect in suspects(port, BATCHES, 1)] == [cause]


@pytest.mark.parametrize("port", [RNG.random((4, 3, 5, 6)), BATCHES[1] ** 2, np.zeros((4, 3, 5, 6))])
def test_other_numbers_are_told_as_such(port):
    (suspect,) = suspects(port, BATCHES, 1)
    assert (suspect.cause, suspect.facts) == ("data-other", {"rows": 4, "known": 0})


SHUFFLED = dict(zip(BATCHES, np.split(ROWS[RNG.permutation(12)], 3)))
LATER = {step: BATCHES[(step + 1) % 3] for step in BATCHES}
UNDONE = [
    ("data-scaled", {step: 2 * batch - 1 for step, batch in BATCHES.items()}),
    ("data-normalised", {step: normalised(batch) for step, batch in BATCHES.items()}),
    ("data-order", SHUFFLED),
    ("data-other-step", LATER),
    ("data-batch-size", dict(enumerate(np.split(ROWS, 6)))),
]


@pytest.mark.parametrize(("cause", "port"), UNDONE)
def test_what_is_told_is_undone_in_every_wrong_step(cause, port):
    assert undone(cause, port, BATCHES, [0, 1, 2]) < 1e-12


@pytest.mark.parametrize(
    ("cause", "port"),
    [
        ("data-scaled", {**UNDONE[0][1], 2: 3 * BATCHES[2]}),
        ("data-normalised", {**UNDONE[1][1], 1: BATCHES[1]}),
        ("data-order", {**SHUFFLED, 2: RNG.random((4, 3, 5, 6))}),
        ("data-other-step", {0: BATCHES[1], 1: BATCHES[2], 2: BATCHES[1]}),
        ("data-order", {0: SHUFFLED[0], 1: SHUFFLED[1]}),
        ("data-other", SHUFFLED),
    ],
)
def test_what_is_told_of_one_step_and_is_not_so_in_another_is_not_proved(cause, port):
    assert undone(cause, port, BATCHES, [0, 1, 2]) > 1e-2


def test_rows_of_a_batch_that_was_not_captured_may_be_among_others():
    (suspect,) = suspects(np.concatenate([ROWS[[9, 5, 2]], RNG.random((1, 3, 5, 6))]), BATCHES, 1)
    assert (suspect.cause, suspect.facts["rows"]) == ("data-order", "2:1, 1:1, 0:2")


def test_a_batch_of_one_value_is_looked_at_without_a_warning():
    assert list(suspects(np.ones((2, 3)), {0: np.zeros((2, 3))}, 0)) is not None

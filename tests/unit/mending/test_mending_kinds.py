"""What is written to make a value one of the kind that a step takes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner import registry  # noqa: E402 - only after it is known to be there
from aligner.mending.kinds import as_condition, as_index  # noqa: E402 - as above

NAMES = {"order": torch.tensor([2, 0]), "ordered": torch.tensor([2.0, 0.0]), "seen": torch.tensor([True, False])}


@pytest.mark.parametrize(
    ("text", "said"), [("order", "order"), ("ordered", "ordered.long()"), ("order + 1", "order + 1")]
)
def test_an_index_is_made_of_whole_numbers(text, said):
    assert as_index(text, NAMES, registry.load("torch")) == said


@pytest.mark.parametrize(
    ("text", "said"), [("seen", "seen"), ("ordered", "ordered > 0"), ("x.float()", "x.float() > 0")]
)
def test_a_condition_is_made_of_true_and_false(text, said):
    assert as_condition(text, NAMES, registry.load("torch")) == said

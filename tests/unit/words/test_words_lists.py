"""Lists of numbers that are values."""

from __future__ import annotations

import pytest

from aligner.words.calls import Taken
from aligner.words.lists import listed

X = Taken(0, (5,))


@pytest.mark.parametrize(
    ("name", "args", "wanted"),
    [
        ("np.append", (1.0, X), [("value of (1.0,)", X)]),
        ("np.append", (X, (0, 2)), [(X, "value of (0, 2)")]),
        ("np.concatenate", (((1.0,), X, (2, 3.5)),), [("value of (1.0,)", X, "value of (2, 3.5)")]),
        ("np.concatenate", (((1.0,), (2.0,)),), [((1.0,), (2.0,))]),
        ("ops.concat", ((X, X),), [(X, X)]),
        ("Tensor.__getitem__", (X, ((0, 2), slice(None))), [X, ("value of (0, 2)", slice(None))]),
        ("Tensor.__getitem__", (X, (0, 2)), [X, (0, 2)]),
    ],
)
def test_a_list_that_is_a_value_is_told_as_one(name, args, wanted):
    assert listed(name, args, lambda numbers: f"value of {numbers}") == wanted

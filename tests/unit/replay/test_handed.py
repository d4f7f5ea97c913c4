"""Whether a call leaves an argument open that may have been forgotten."""

from __future__ import annotations

import pytest

from aligner.replay.handed import takes_more
from aligner.structure import flatten_arguments


class Opaque:
    pass


def layer(x, tables, mask=None):
    return x


def plain(x, context):
    return x


def rest(x, *others):
    return x


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "wanted"),
    [
        (plain, (1.0, {"mask": 2.0}), {}, False),
        (layer, (1.0, (2.0, 3.0), 4.0), {}, False),
        (layer, (1.0, (2.0, 3.0)), {"mask": 4.0}, False),
        (layer, (1.0, (2.0, 3.0)), {}, True),
        (layer, (1.0, (2.0, 3.0), None), {}, True),
        (plain, (1.0, {"mask": None}), {}, True),
        (layer, (1.0, Opaque()), {}, False),  # what it holds is not known
        (rest, (1.0,), {}, True),
        (rest, (1.0, 2.0), {}, True),
        (7, (1.0,), {}, True),  # what has no signature may take anything
    ],
)
def test_it_is_open_where_something_has_no_value_of_the_callers(function, args, kwargs, wanted):
    structure = flatten_arguments(args, kwargs, lambda value: isinstance(value, float), [])
    assert takes_more(function, (args, kwargs), structure) is wanted

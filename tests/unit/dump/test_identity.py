"""What a dump is known by, and what of a lineage in a header is believed."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.dump.identity import GENERATIONS, LINEAGE, Identity, descended, identity, lineage
from tests.unit.compare.memory_dump import Recorder


def dump(values=1.0, name="Net", rename="", **header):
    made = Recorder(name, **header)
    made.parameter(f"{rename}fc", "Linear", "weight", np.full((3, 3), values, np.float32))
    made.call("", "Net", lambda x: made.call(f"{rename}fc", "Linear", lambda x: x, x), np.ones((2, 3), np.float32))
    return made.dump()


def test_two_captures_that_came_out_the_same():
    one, other = identity(dump()), identity(dump(created="2026"))
    assert one.token != other.token
    assert one.is_of(other)
    assert one.differs(other) is False


def test_other_values_and_other_names():
    one = identity(dump())
    assert not one.is_of(identity(dump(2.0)))
    assert one.differs(identity(dump(2.0))) is True
    renamed = identity(dump(rename="body."))
    assert not one.is_of(renamed)
    assert one.differs(renamed) is False  # weights are known by their values


def test_a_port_that_came_out_as_its_reference_is_not_that_reference():
    reference = dump()
    port = dump(**{LINEAGE: descended(reference)})
    assert not identity(port).is_of(identity(reference))
    assert lineage(port.header)[0].is_of(identity(reference))


def test_a_lineage_ends():
    made = dump()
    for _ in range(2 * GENERATIONS):
        made = dump(**{LINEAGE: descended(made)})
    assert len(lineage(made.header)) == GENERATIONS


def test_what_an_older_aligner_wrote():
    assert lineage({}) == []
    assert lineage({"reference": "a.h5"}) == [Identity("a.h5", "", "", "")]
    assert lineage({"reference": "a.h5", "reference_token": "t"})[0].token == "t"
    assert lineage({"reference": "a.h5"})[0].differs(identity(dump())) is None


@pytest.mark.parametrize(
    "odd", [None, 1, "x", [], {}, [1], [[]], [{}], [{"token": 1, "inputs": 5}], [{"inputs": [[]]}]]
)
def test_a_lineage_of_any_form(odd):
    for found in lineage({LINEAGE: odd, "reference": odd, "reference_token": odd}):
        assert not found.is_of(identity(dump()))
        found.differs(identity(dump()))

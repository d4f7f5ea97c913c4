"""The JSON report: the schema that programs rely on."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest

from aligner.report import json_
from tests.unit.report import comparisons


def document(comparison):
    out = io.StringIO()
    json_.write(comparison, out)
    assert out.getvalue().isascii()

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(out.getvalue(), parse_constant=refuse)


@pytest.mark.parametrize("name", [*comparisons.SCENARIOS, "hostile"])
def test_every_answer_is_a_document(name):
    made = {**comparisons.SCENARIOS, "hostile": comparisons.hostile}[name]()
    found = document(made)
    assert found["schema"] == "aligner.compare/1"
    assert found["outcome"] == made.outcome
    assert len(found["pairs"]) == len(made.verdicts)
    assert found["counts"] == made.counts


def test_golden(golden):
    golden("diverged.json", json_.dumps(json_.document(comparisons.diverged())) + "\n")


def test_the_contract():
    found = document(comparisons.diverged())
    assert {"path", "framework", "version"} <= found["reference"].keys() & found["port"].keys()
    first = found["first_divergence"]
    assert (first["layer"], first["slot"], first["order"]) == ("bn1", "output.0", 5)
    assert {"phase", "call", "step", "error", "max_abs", "rel_l2"} <= first.keys()
    (origin,) = found["origins"]
    assert (origin["layer"], origin["port_layer"], origin["where"]) == ("bn1", "bn1", "layer")
    assert {"phase", "step", "own_error", "ratio", "causes"} <= origin.keys()
    assert origin["settings"][0]["eps"] == 1e-5
    assert {"layer", "phase", "slot", "outcome", "error", "max_abs", "rel_l2", "cosine", "ratio"} <= found["pairs"][
        0
    ].keys()
    assert set(found["counts"]) >= {
        "aligned",
        "rounding",
        "origin",
        "inherited",
        "nonfinite",
        "unmatched",
        "incomparable",
    }


def test_causes_with_their_trials():
    found = document(comparisons.proved())
    assert found["checked"] == 77
    origin = found["origins"][0]
    assert origin["ratio"] == 1310.0
    (cause,) = origin["causes"]
    assert {"id", "confirmed", "summary", "evidence", "fix", "error_before", "error_after", "change", "facts"} == set(
        cause
    )
    assert (cause["id"], cause["confirmed"]) == ("layernorm-eps-default", True)
    assert (cause["error_before"], cause["error_after"]) == (4.7e-4, 2.4e-7)


def test_every_origin_is_there_with_the_first_of_its_family():
    found = document(comparisons.proved())
    assert [origin["family"] for origin in found["origins"]] == [0] * 12
    below = document(comparisons.below())
    assert [suspect["family"] for suspect in below["suspects"]] == [0, 0]
    assert below["suspects"][0]["settings"][0]["eps"] == 1e-5
    assert [warning["id"] for warning in below["warnings"]] == ["below-tolerance"] * 2 + ["nan-on-both"]


def test_numbers_are_not_rounded():
    found = document(comparisons.diverged())
    assert found["first_divergence"]["max_abs"] == 5.2e-3 * 1.6


def test_what_json_lacks_is_a_string():
    assert document(comparisons.nonfinite())["first_divergence"]["error"] == "inf"
    assert json_.plain([math.nan, -math.inf, np.float32(0.5), np.int64(3), (1, None)]) == [
        "nan",
        "-inf",
        0.5,
        3,
        [1, None],
    ]


def test_nothing_diverged_is_null():
    assert document(comparisons.aligned())["first_divergence"] is None

"""Outputs of two calls are paired by place where both give the same, and by what they hold where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.comparison import compare
from aligner.compare.outputs import matched_outputs
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry, Recorder

RANDOM = np.random.default_rng(0)
A, B, C = (RANDOM.standard_normal((4, 6)).astype(np.float32) for _ in range(3))
LOSS, WIDE = np.float32(2.5), RANDOM.standard_normal((4, 9)).astype(np.float32)


def entries(**outputs):
    """Slots without "output." and with "_" for "."."""
    named = [(slot.strip("_").replace("_", "."), value) for slot, value in outputs.items()]
    keys = [Key(0, Phase.FORWARD, "", 0, f"output.{slot}") for slot, _ in named]
    return [
        MemoryEntry(Record(key, n, "float32", np.array(value))) for n, (key, (_, value)) in enumerate(zip(keys, named))
    ]


def pairs(one, other):
    return {(a.key.slot[7:], b.key.slot[7:]) for a, b in matched_outputs(one, other, {})}


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (entries(_0=LOSS, _1=A), entries(_0=A), {("1", "0")}),
        (entries(_0=A), entries(_0=LOSS, _1=A), {("0", "1")}),
        (entries(_0=A, _1=B), entries(_0=B), {("1", "0")}),
        (entries(_0=A, _1=B), entries(_0=B * 1.001), {("1", "0")}),
        (entries(_0=A, _1=A), entries(_0=A), {("0", "0")}),
        (entries(_0_a=A, _0_b=B), entries(_0=A, _1=B), {("0.a", "0"), ("0.b", "1")}),
        (entries(_0_a=A, _0_b=WIDE), entries(_0=WIDE, _1=A), {("0.a", "1"), ("0.b", "0")}),
        (entries(_0=A, _1=B, _2=LOSS), entries(_0=C, _1=LOSS), {("0", "0"), ("2", "1")}),
        (entries(_0=A), entries(_0=WIDE, _1=B[None]), {("0", "1")}),
        (entries(_0=np.full((4, 6), np.nan)), entries(_0=B, _1=C), {("0", "0")}),
    ],
)
def test_what_stands_elsewhere_is_found_by_what_it_holds(one, other, found):
    assert pairs(one, other) == found


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (entries(_0=A, _1=B), entries(_0=B, _1=A), {("0", "0"), ("1", "1")}),
        (entries(_0=A, _1=WIDE), entries(_0=WIDE, _1=A), {("0", "0"), ("1", "1")}),
        (entries(_0_a=A, _0_b=B), entries(_0=B, _1=A), {("0.a", "0"), ("0.b", "1")}),
        (entries(_0_a=A, _0_b=B), entries(_0_b=B, _0_a=A), {("0.a", "0.a"), ("0.b", "0.b")}),
        (entries(_0=WIDE, _1=A, _2=B), entries(_0=B, _1=A), {("0", "0"), ("1", "1")}),
        (entries(_0=A), entries(_0=WIDE), {("0", "0")}),
        (entries(_0=A, _1=LOSS), entries(_1=WIDE), {("0", "1")}),
    ],
)
def test_places_count_where_both_sides_give_the_same_or_nothing_else_is_there(one, other, found):
    assert pairs(one, other) == found


def net(given, head=1.0):
    recorder = Recorder("Net")
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)

    def run(v):
        y = recorder.call("body", "Linear", lambda u: u * np.float32(2), v)
        z = recorder.call("head", "Linear", lambda u: u * np.float32(head) + 1, y)
        return given(y, z)

    recorder.call("", "Net", run, x)
    return recorder.dump()


def test_what_the_port_lacks_of_the_nets_outputs_is_told_and_the_rest_is_judged():
    reference = net(lambda y, z: (y.sum(1), z))
    right, wrong = compare(reference, net(lambda y, z: z)), compare(reference, net(lambda y, z: z, head=1.1))
    assert (right.outcome, [message for message, _ in right.warnings]) == ("aligned", ["outputs-lacking"])
    assert right.warnings[0][1] == {"count": 1, "slots": "output.0"}
    assert (wrong.outcome, [origin.layer for origin in wrong.origins]) == ("diverged", ["head"])


def test_a_port_that_gives_nothing_is_incomparable_and_one_that_is_wrong_inside_has_diverged():
    reference = net(lambda y, z: z)
    assert compare(reference, net(lambda y, z: ())).outcome == "incomparable"
    assert compare(reference, net(lambda y, z: (), head=1.1)).outcome == "diverged"


def test_a_wrapper_around_the_reference_is_no_output_that_the_port_lacks():
    recorder = Recorder("Net")
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)

    def run(v):
        return recorder.call("body", "Linear", lambda u: u * np.float32(2), v)

    recorder.call("outer", "Wrapper", lambda v: recorder.call("", "Net", run, v), x)
    plain = Recorder("Net")
    plain.call("", "Net", lambda v: plain.call("body", "Linear", lambda u: u * np.float32(2), v), x)
    result = compare(recorder.dump(), plain.dump())
    assert (result.outcome, result.warnings) == ("aligned", ())


def test_what_earlier_calls_have_told_holds_where_values_and_shapes_do_not():
    known: dict[str, str] = {}
    matched_outputs(entries(_0=A, _1_0=B), entries(_0=A, _1=B, _2=C), known)
    assert known == {"output.0": "output.0", "output.1.0": "output.1"}
    told = matched_outputs(entries(_0=A, _1_0=B), entries(_0=A, _1=B.T, _2=B + 9), known)
    assert [(a.key.slot, b.key.slot) for a, b in told] == [("output.0", "output.0"), ("output.1.0", "output.1")]

"""Pairing on random nets: whatever two nets look like, every record has one verdict; alike nets pair up right."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.compare.comparison import compare
from aligner.compare.layers import pair_layers
from aligner.compare.net import survey
from aligner.errors import IncomparableError
from tests.unit.compare.memory_dump import Recorder

LEAVES = st.tuples(
    st.sampled_from(["Linear", "LayerNorm", "Conv2d", "ReLU", "GELU", "Odd"]), st.sampled_from([3, 4, 5])
)
TREES = st.recursive(
    LEAVES.map(lambda leaf: ("leaf", *leaf)),
    lambda inner: st.lists(inner, min_size=1, max_size=4).map(lambda parts: ("block", parts)),
    max_leaves=12,
)
NETS = st.lists(TREES, min_size=1, max_size=5).map(lambda parts: ("block", parts))
HEAVY = {"Linear", "LayerNorm", "Conv2d"}


def record(tree, name, wrap=False, scale=1.0):
    """Run the net; `name(number)` gives the part of a path for the n-th layer. Returns the dump and all paths."""
    rec, paths, count = Recorder(), [], iter(range(10**6))

    def run(node, path, value):
        paths.append(path)

        def inside(v):
            if node[0] == "leaf":
                return np.resize(np.cos(v.sum() + np.arange(node[2])), node[2]) * scale
            for part in node[1]:
                v = run(part, f"{path}.{name(next(count))}".lstrip("."), v)
            return v

        kind = node[1] if node[0] == "leaf" else "Block"
        if kind in HEAVY:
            rec.parameter(path, kind, "weight", np.arange(node[2] + 1.0) + len(paths))
        if wrap and node[0] == "block":
            return rec.call(f"{path}.wrap".lstrip("."), "Wrap", lambda u: rec.call(path, kind, inside, u), value)
        return rec.call(path, kind, inside, value)

    run(tree, "", np.arange(4.0))
    return rec.dump(), paths


@given(NETS, NETS, st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_record_has_one_verdict(one, other, named):
    reference, _ = record(one, lambda n: f"layer{n}")
    port, _ = record(other, (lambda n: f"layer{n}") if named else (lambda n: f"x{n * 7}"), scale=1.5)
    try:
        result = compare(reference, port)
    except IncomparableError:
        return
    for side, dump in (("reference", reference), ("port", port)):
        keys = [getattr(v, side).key for v in result.verdicts if getattr(v, side) is not None]
        assert len(keys) == len(set(keys)) == len(dump.entries)
    assert sum(result.counts.values()) == len(result.verdicts)
    failing = [v for v in result.verdicts if v.fails]
    assert bool(failing) == (result.outcome != "aligned")
    for verdict in result.verdicts:
        assert verdict.origin is None or 0 <= verdict.origin < len(result.origins)


@given(NETS)
@settings(max_examples=80, deadline=None)
def test_other_names_alone_change_nothing(tree):
    reference, ours = record(tree, lambda n: f"layer{n}")
    port, theirs = record(tree, lambda n: f"part_{n * 3}x")
    pairing = pair_layers(survey(reference), survey(port))
    found = {pair.reference: pair.port for pair in pairing.layers}
    assert found == dict(zip(ours, theirs))
    assert compare(reference, port).aligned


@given(NETS)
@settings(max_examples=60, deadline=None)
def test_wrappers_change_nothing(tree):
    reference, _ = record(tree, lambda n: f"layer{n}")
    port, _ = record(tree, lambda n: f"part_{n * 3}x", wrap=True)
    for pair in ((reference, port), (port, reference)):
        assert compare(*pair).aligned

"""The blocked measurement against plain float64 arithmetic on the whole arrays."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aligner.compare import deviation
from aligner.compare.deviation import KEEP, measure
from aligner.compare.kernels import BLOCK
from aligner.compare.tolerance import FLOOR, RULES, Tolerance
from aligner.dtypes import DTYPES, decode
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]
WHOLE = [name for name, kind in DTYPES.items() if kind.exact]
WIDTH = {2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}


def entry(array, dtype=None):
    array = np.asarray(array)
    return MemoryEntry(Record(Key(0, Phase.FORWARD, "x", 0, "output.0"), 1, dtype or array.dtype.name, array))


def oracle(reference, port, tolerance):
    """Everything by its definition, in float64 on whole arrays."""
    with np.errstate(all="ignore"):
        a = reference.reshape(-1).astype(np.complex128 if reference.dtype.kind == "c" else np.float64)
        b = port.reshape(-1).astype(np.complex128 if port.dtype.kind == "c" else np.float64)
        size, finite = np.abs(a), np.isfinite(a) & np.isfinite(b)
        own = size[np.isfinite(a)]
        top = own.max() if own.size and own.max() > 0 else 1.0
        rms = math.sqrt(np.mean((own / top) ** 2)) * top if own.size else 0.0
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = ~finite & ~same
        a, b, size = a[finite], b[finite], size[finite]
        d = np.abs(b - a)
        scale = max(min(1.0, rms), FLOOR)
        exponent = -int(np.frexp(max([*size, *np.abs(b), 0.0]))[1])
        parts = [np.ldexp(np.ascontiguousarray(v).view(np.float64), exponent) for v in (a, b)]
        aa, bb, dd = (float(np.sum(v**2)) for v in (*parts, parts[1] - parts[0]))
        ab = float(np.sum(parts[0] * parts[1]))
        metrics = {"scaled": d / (scale + size), "allclose": d / (1 + size), "abs": d, "l2": d}
        value = tolerance.value * (rms if tolerance.rule == "l2" else 1.0)
        return SimpleNamespace(
            max_abs=max(d, default=0.0),
            scaled=max(metrics["scaled"], default=0.0),
            allclose=max(metrics["allclose"], default=0.0),
            rel_l2=(math.sqrt(dd / aa) if aa else (math.inf if dd else 0.0)),
            cosine=(ab / math.sqrt(aa) / math.sqrt(bb)) if aa and bb else float(aa == bb),
            over=metrics[tolerance.rule],
            mismatched=int((metrics[tolerance.rule] > value).sum()) + int(apart.sum()),
            nonfinite=int(apart.sum()),
            rms=rms,
            # Squares of float64 numbers that are 1e140 apart, or differ by so little, fit into no common unit.
            within_range=all(total > 1e-280 or not np.any(values) for total, values in ((aa, a), (bb, b), (dd, d))),
        )


def agrees(reference, port, dtypes, tolerance):
    found = measure(entry(reference, dtypes[0]), entry(port, dtypes[1]), tolerance)
    with np.errstate(all="ignore"):
        one, other = decode(reference, dtypes[0]), decode(port, dtypes[1])
    wanted = oracle(one, other, tolerance)
    near = {"rel": 1e-9, "abs": 0.0}
    assert found.rms == pytest.approx(wanted.rms, rel=1e-6, abs=0)
    assert found.max_abs == pytest.approx(wanted.max_abs, **near)
    assert found.scaled == pytest.approx(wanted.scaled, rel=1e-6, abs=0)
    assert found.allclose == pytest.approx(wanted.allclose, **near)
    if wanted.within_range:
        assert found.rel_l2 == pytest.approx(wanted.rel_l2, rel=1e-6, abs=1e-300)
        assert found.cosine == pytest.approx(wanted.cosine, abs=1e-6)
    assert (found.nonfinite, found.total) == (wanted.nonfinite, one.size)
    for side, values in enumerate((one, other)):
        assert found.nan[side] == np.isnan(values).sum()
        assert found.inf[side] == (np.isinf(values) & ~np.isnan(values)).sum()
    # A rounded rms may move an element that lies on the very limit.
    limit = tolerance.value * (wanted.rms if tolerance.rule == "l2" else 1.0)
    if not limit or not np.any(np.abs(wanted.over - limit) <= 1e-6 * limit):
        assert found.mismatched == wanted.mismatched
    if not found.nonfinite and found.max_abs and math.isfinite(wanted.scaled):
        at = found.worst
        if at is None:  # so small beside a huge number that nothing is left of it
            assert max(wanted.over) == 0.0
            return found
        a, b = (np.asarray(v)[at].astype(np.complex128) for v in (one, other))
        scale = {"scaled": max(min(1.0, wanted.rms), FLOOR), "allclose": 1.0}.get(tolerance.rule)
        figure = abs(b - a) if scale is None else abs(b - a) / (scale + abs(a))
        assert figure == pytest.approx(max(wanted.over), rel=1e-6)
    return found


def bits(dtype, shape):
    """Any bit pattern at all: NaN, Inf, denormals, extremes."""
    storage = DTYPES[dtype].storage
    if dtype == "bool":
        return hnp.arrays(np.bool_, shape)
    if storage.kind == "c":
        half = WIDTH[storage.itemsize // 2]
        return hnp.arrays(half, (*shape, 2)).map(lambda a: np.ascontiguousarray(a).view(storage)[..., 0])
    return hnp.arrays(WIDTH[storage.itemsize], shape).map(lambda a: a.view(storage))


def close_pair(dtype, shape):
    """Ordinary values of one scale and a port that differs a little, in some places much."""

    def make(args):
        seed, scale, noise, spikes = args
        rng = np.random.default_rng(seed)
        a = rng.standard_normal(shape) * scale
        b = a + rng.standard_normal(shape) * scale * noise + (rng.random(shape) < spikes) * scale
        return stored(a, dtype), stored(b, dtype)

    scales = st.sampled_from([1e-30, 1e-12, 1e-6, 1e-3, 1.0, 50.0, 1e10, 1e30])
    noises = st.sampled_from([0, 1e-9, 1e-6, 1e-3, 1.0])
    return st.tuples(st.integers(0, 1 << 30), scales, noises, st.floats(0, 0.1)).map(make)


def stored(values, dtype):
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if dtype.startswith("float8"):
            return np.asarray(np.asarray(values) * 7 % 256, np.uint8)
        return np.asarray(values).astype(DTYPES[dtype].storage)


shapes = st.sampled_from([(), (0, 3), (1,), (5,), (2, 3), (3, 1, 4)])
tolerances = st.builds(Tolerance, st.sampled_from([0.0, 1e-6, 1e-3, 0.1]), st.sampled_from(RULES))


@given(st.data(), st.sampled_from(FLOATS + COMPLEX), shapes, tolerances)
@settings(max_examples=400, deadline=None)
def test_any_bits(data, dtype, shape, tolerance):
    agrees(data.draw(bits(dtype, shape)), data.draw(bits(dtype, shape)), (dtype, dtype), tolerance)


@given(st.data(), st.sampled_from(FLOATS[:4] + COMPLEX), shapes, tolerances)
@settings(max_examples=400, deadline=None)
def test_ordinary_values(data, dtype, shape, tolerance):
    reference, port = data.draw(close_pair(dtype, shape))
    agrees(reference, port, (dtype, dtype), tolerance)


@given(st.data(), st.sampled_from(FLOATS + WHOLE), st.sampled_from(FLOATS), shapes, tolerances)
@settings(max_examples=300, deadline=None)
def test_two_dtypes(data, one, other, shape, tolerance):
    agrees(data.draw(bits(one, shape)), data.draw(bits(other, shape)), (one, other), tolerance)


@given(st.data(), st.sampled_from(WHOLE), st.sampled_from(WHOLE), shapes)
@settings(max_examples=300, deadline=None)
def test_integers_compare_exactly(data, one, other, shape):
    reference, port = data.draw(bits(one, shape)), data.draw(bits(other, shape))
    if data.draw(st.booleans()):
        with np.errstate(all="ignore"):
            port = reference.astype(port.dtype)
    found = measure(entry(reference, one), entry(port, other), Tolerance(1e9))
    pairs = [(int(a), int(b)) for a, b in zip(reference.reshape(-1), port.reshape(-1))]
    assert found.exact
    assert found.mismatched == sum(a != b for a, b in pairs)
    assert found.max_abs == pytest.approx(float(max((abs(a - b) for a, b in pairs), default=0)), rel=1e-15)
    assert Tolerance(1e9).over(found) == any(a != b for a, b in pairs)


@given(st.integers(0, 1 << 30), st.sampled_from([1.0, 3.0, 1e4]), st.sampled_from([1e-6, 1e-3, 1e-2, 0.5]))
@settings(max_examples=200, deadline=None)
def test_never_looser_than_allclose(seed, size, tolerance):
    """On tensors of scale one or more."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(40) * size
    a *= max(1.0, 1.0 / math.sqrt(np.mean(a * a)))
    b = a + rng.standard_normal(40) * tolerance * rng.choice([0.1, 0.5, 1.0, 2.0], 40) * (1 + np.abs(a))
    over = Tolerance(tolerance).over(measure(entry(a), entry(b), Tolerance(tolerance)))
    assert over or np.allclose(b, a, rtol=tolerance * (1 + 1e-12), atol=tolerance * (1 + 1e-12))


@given(st.integers(0, 1 << 30), st.sampled_from(["float32", "float16", "bfloat16", "float64", "complex64", "int32"]))
@settings(max_examples=12, deadline=None)
@example(seed=0, dtype="float32")
def test_many_blocks(seed, dtype):
    """A tensor of several blocks, with a rare outlier and specials: the maxima must not be lost between blocks."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(BLOCK, 3 * BLOCK))
    a = rng.standard_normal(count) * float(rng.choice([1e-4, 1.0, 100.0]))
    b = a * (1 + 1e-6 * rng.standard_normal(count))
    b[rng.integers(0, count, 5)] += 0.01 * np.abs(a).max()
    a, b = stored(a, dtype), stored(b, dtype)
    if dtype in ("float32", "float64", "float16") and seed % 2:
        a[rng.integers(0, count, 3)] = np.nan
        b[rng.integers(0, count, 3)] = np.inf
    rule = RULES[seed % 4]
    if dtype == "int32":
        assert measure(entry(a), entry(b), Tolerance(1e-3, rule)).mismatched == (a != b).sum()
    else:
        agrees(a, b, (dtype, dtype), Tolerance(1e-3, rule))


@pytest.mark.parametrize("noise", [1e-7, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", [KEEP, 0], ids=["read once", "read twice"])
def test_a_dense_block(noise, rule, keep, monkeypatch):
    """Many elements near and over the limit: the float32 count is settled in float64 where it could be wrong."""
    monkeypatch.setattr(deviation, "KEEP", keep)
    rng = np.random.default_rng(3)
    a = rng.standard_normal(BLOCK + 17).astype(np.float32)
    b = (a + rng.standard_normal(a.size) * noise).astype(np.float32)
    agrees(a, b, ("float32", "float32"), Tolerance(1e-3, rule))

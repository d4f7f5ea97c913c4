"""Whatever a layer was given and whatever it made: rules find nothing, or something, and never fall over."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.explain.patterns import suspects
from aligner.vocabulary import KINDS
from tests.unit.explain.cases import case

SHAPES = st.lists(st.integers(1, 5), max_size=5).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "float16", "int64", "bool", "uint8", "complex64"])
FORMS = st.sampled_from(["plain", "zeros", "ones", "nan", "inf", "huge"])
VALUES = st.sampled_from([None, 0, 1, 2, -1, 0.5, True, False, "same", "reflect", "tanh", (2, 2), ((1, 1), (1, 1)), ()])
ROLES = ("weight", "bias", "running_mean", "running_var", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0")


def array(drawn):
    shape, dtype, form, seed = drawn
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    if form in ("zeros", "ones"):
        values = np.full(shape, float(form == "ones"))
    if form in ("nan", "inf", "huge") and values.size:
        values = np.asarray(values)
        values.reshape(-1)[0] = {"nan": np.nan, "inf": -np.inf, "huge": 65504.0}[form]
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


ARRAYS = st.tuples(SHAPES, DTYPES, FORMS, st.integers(0, 99)).map(array)


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    words=st.dictionaries(st.sampled_from(sorted({w for words in KINDS.values() for w in words})), VALUES, max_size=6),
    expected=ARRAYS,
    actual=st.one_of(st.none(), ARRAYS),
    inputs=st.lists(ARRAYS, max_size=3),
    parameters=st.dictionaries(st.sampled_from(ROLES), ARRAYS, max_size=4),
)
def test_odd_cases_raise_nothing(kind, words, expected, actual, inputs, parameters):
    with np.errstate(all="ignore"):
        other = expected * 2 if actual is None else actual
    wrong = case(kind, words, expected=expected, actual=other, inputs=inputs, parameters=parameters)
    for suspect in suspects(wrong):
        assert suspect.cause
        assert 0.0 <= suspect.weight <= 1.0

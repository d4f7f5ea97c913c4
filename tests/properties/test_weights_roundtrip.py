"""Every type and shape comes out of each form of file as it went in, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.dtypes import DTYPES
from aligner.weights import output
from aligner.weights.opening import open_checkpoint
from tests.unit.weights.written import Array

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@st.composite
def tables(draw):
    """Names with arrays of any bits."""
    found = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        word, shape = draw(st.sampled_from(sorted(DTYPES))), draw(SHAPES)
        size = int(np.prod(shape, dtype=int)) * DTYPES[word].storage.itemsize
        bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
        made = Array(np.zeros(shape), "float32")
        made.dtype, made.nbytes = word, size
        made.bits = (bits & 1 if word == "bool" else bits).view(DTYPES[word].storage).reshape(shape)
        found[name] = made
    return found


@pytest.mark.parametrize("ending", [".pth", ".ckpt", ".safetensors"])
@given(table=tables())
@settings(deadline=None, max_examples=60)
def test_what_goes_in_comes_out(tmp_path_factory, ending, table):
    path = str(tmp_path_factory.mktemp("a") / f"a{ending}")
    form = output.form_of(path)
    kept = {name: one for name, one in table.items() if output.knows(form, one.dtype)}
    if not kept or (form == "ckpt" and not all(map(plain, kept.items()))):
        return
    output.write(path, form, "torch", [output.Entry(name, one.shape, one) for name, one in kept.items()])
    opened = open_checkpoint(path)
    found = {weight.name: weight for weight in opened.weights}
    assert set(found) == set(kept)
    for name, one in kept.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
        assert found[name].stored.raw().tobytes() == one.bits.tobytes()
        pieces = [piece.tobytes() for piece in found[name].stored.stream(np.empty(32, np.uint8))]
        assert b"".join(pieces) == one.bits.tobytes()
    opened.close()


def plain(entry):
    """What MindSpore cannot tell apart, or counts as an optimizer's, is left out of the test."""
    return entry[1].nbytes > 0 and entry[0].isalpha() and len(entry[0]) > 7

"""Whatever a capture may hand over comes back bit for bit, closed, recovered and through h5py."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import h5py
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aligner.dtypes import DTYPES
from aligner.dump import names, sections
from aligner.dump.checksum import Checksum, checksum
from aligner.dump.reader import open_dump
from aligner.dump.recovery import recover
from aligner.dump.writer import DumpWriter
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

words = st.text(max_size=12)
shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), words)
attributes = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
structures = st.recursive(
    st.one_of(
        words.map(lambda slot: {"tensor": slot}),
        st.just({"none": True}),
        scalars.filter(lambda v: v is not None).map(lambda v: {"value": v}),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: {"list": items}),
        st.lists(st.tuples(words, inner).map(list), max_size=3).map(lambda items: {"dict": items}),
    ),
    max_leaves=6,
)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(shapes)
    storage = DTYPES[dtype].storage
    size = math.prod(shape) * storage.itemsize
    seed = draw(st.integers(0, 3))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    array = raw.view(storage).reshape(shape)
    if draw(st.booleans()):
        array = array.T
    if draw(st.booleans()) and array.ndim and array.shape[0] > 1:
        array = array[::2]
    return dtype, array


keys = st.builds(Key, st.integers(0, 12000), st.sampled_from(Phase), words, st.integers(0, 99), words)
layers = st.builds(
    Layer, words, words, st.builds(LayerSpec, words, st.dictionaries(words, attributes, max_size=3)), st.booleans(),
    st.booleans(),
)  # fmt: skip
numbers = st.integers(0, 10**6)
arguments = st.lists(structures, max_size=2).map(lambda items: {"args": items})
lasts = st.none() | st.integers(10**6, 10**9)  # no call ends before it begins
calls = st.builds(Call, numbers, st.sampled_from(Phase), words, numbers, numbers, lasts, arguments, structures)
notes = st.builds(Note, words, words, st.dictionaries(words, scalars, max_size=3))


def spelled(key):
    return key._replace(layer=names.plain(key.layer), slot=names.plain(key.slot))


def shown(value):
    return tuple(map(shown, value)) if isinstance(value, tuple) else sections.spelled(value)


def check(path, records, said):
    with open_dump(path) as dump:
        dump.verify()
        assert len(dump.entries) == len(records)
        for entry, (key, dtype, array) in zip(dump.entries, records):
            raw = entry.raw()
            assert (entry.key, entry.dtype, entry.shape) == (spelled(key), dtype, array.shape)
            assert raw.tobytes() == array.tobytes()
            assert raw.dtype == array.dtype
        assert len(dump.calls) == len(said[1])
        wanted = sorted(call.first for call in said[1])
        assert [call.first for call in dump.calls] == wanted
        by_text = sorted(str((c.inputs, c.outputs, c.last)) for c in said[1])
        assert sorted(str((c.inputs, c.outputs, c.last)) for c in dump.calls) == by_text
        assert set(dump.layers) == {names.plain(layer.path) for layer in said[0]}
        for layer in {names.plain(layer.path): layer for layer in said[0]}.values():
            found = dump.layers[names.plain(layer.path)]
            assert found.spec.kind == names.plain(layer.spec.kind)
            assert sorted(map(repr, found.spec.attributes.values())) == sorted(
                map(repr, {names.plain(n): shown(v) for n, v in layer.spec.attributes.items()}.values())
            )
        assert [note.facts for note in dump.notes] == [sections.spelled(dict(note.facts)) for note in said[2]]


@SETTINGS
@given(st.lists(st.tuples(keys, arrays()), max_size=8), st.lists(layers, max_size=3), st.lists(calls, max_size=3),
       st.lists(notes, max_size=3))  # fmt: skip
def test_round_trip(values, some_layers, some_calls, some_notes):
    records = [(key, dtype, array) for key, (dtype, array) in values]
    said = (some_layers, some_calls, some_notes)
    with tempfile.TemporaryDirectory() as folder:
        for killed in (False, True):
            path = Path(folder) / f"{killed}.h5"
            writer = DumpWriter(path, {})
            for order, (key, dtype, array) in enumerate(records):
                writer.write(Record(key, order, dtype, array))
            for layer in some_layers:
                writer.layer(layer)
            for call in some_calls:
                writer.call(call)
            for note in some_notes:
                writer.note(note)
            if killed:
                writer._open = False
                writer._file.close()
                writer._journal.close()
                check(path, records, said)
                recover(path)
            else:
                writer.close()
            check(path, records, said)
            with h5py.File(path, "r") as file:
                count = sum(len(file[step][phase]) for step in file if step.startswith("step") for phase in file[step])
                assert count == len(records)


@SETTINGS
@given(st.binary(max_size=300), st.lists(st.integers(0, 20), max_size=10))
def test_checksums_do_not_depend_on_the_pieces(data, cuts):
    flat = np.frombuffer(data, np.uint8)
    whole = Checksum()
    at, last = 0, flat.size & ~7
    for cut in cuts:
        whole.update(flat[at : min(last, at + 8 * cut)])
        at = min(last, at + 8 * cut)
    whole.update(flat[at:])
    assert whole.value() == checksum(flat)


@SETTINGS
@given(words)
def test_spelled_out_names_are_plain_and_stay_as_they_are(word):
    once = names.plain(word)
    assert names.is_plain(once)
    assert names.plain(once) == once
    if names.is_plain(word):
        assert once == word


@SETTINGS
@given(keys, st.integers(0, 10**7))
def test_names_of_datasets_can_be_printed_and_hold_no_slash(key, order):
    name = names.dataset(key, order)
    assert len(name) <= names.MAX_NAME
    assert b"/" not in name
    assert b"\0" not in name
    assert name.decode("utf-8").isprintable()


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@SETTINGS
@given(json_values)
def test_json_comes_back(value):
    assert sections.from_json(sections.to_json(value)) == value

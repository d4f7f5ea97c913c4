"""Walking a comparison in a notebook: layers, pairs, arrays on demand, worst elements."""

from __future__ import annotations

import numpy as np
import pytest

import aligner
from aligner.compare.verdict import Outcome
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError, UsageError
from aligner.notebook.views import UnknownLayerError
from tests.unit.compare.memory_dump import Recorder
from tests.unit.report import comparisons, small_dumps


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    small_dumps.write(folder / "ref.h5")
    small_dumps.write(folder / "port.h5", shift=0.01, rename="stem_")
    return aligner.compare(folder / "ref.h5", folder / "port.h5")


def test_from_the_result_to_the_element(result):
    layer = result["norm"]
    assert (layer.kind, layer.outcome, layer.port_path) == ("BatchNorm", Outcome.ORIGIN, "stem_norm")
    assert layer.origin is result.origins[0]
    assert [spec.attributes["eps"] for spec in layer.settings] == [1e-5, 1e-3]
    assert (layer.input.outcome, layer.input.error) == (Outcome.ALIGNED, 0.0)
    pair = layer.output
    assert pair.reference.shape == pair.port.shape == (2, 4)
    assert np.allclose(pair.difference, 0.01, atol=1e-6)
    assert pair.difference.dtype == np.float32
    assert (len(pair.worst(3)), pair.worst(1)[0].index) == (3, pair.deviation.worst)


def test_a_slice_of_both_sides(result):
    part = result["norm"].output[0, :2]
    assert part.reference.shape == part.port.shape == (2,)
    assert np.allclose(part.port - part.reference, part.difference)
    assert result["norm"].output[0, 0].difference == pytest.approx(0.01, abs=1e-6)


def test_parameters_slots_and_calls(result):
    layer = result["conv"]
    assert list(layer.parameters) == ["weight"]
    assert layer["weight"].error == 0
    assert [pair.key.slot for pair in layer] == ["weight", "input.0", "output.0"]
    assert len(layer) == 3
    (call,) = layer.calls
    assert [pair.key.slot for pair in call] == ["input.0", "output.0"]


def test_the_net_itself_and_the_ports_name(result):
    assert result["(net)"].path == result[""].path == ""
    assert result["stem_norm"].path == "norm"


def test_unknown_names_say_what_is_near(result):
    with pytest.raises(KeyError) as caught:
        result["nrm"]
    assert "Did you mean norm?" in str(caught.value)
    assert isinstance(caught.value, UsageError)
    with pytest.raises(UnknownLayerError, match=r"It has: input\.0, output\.0"):
        result["norm"]["weight"]


def test_a_side_that_is_not_there():
    with pytest.raises(UsageError, match="one of the two dumps only"):
        comparisons.unmatched()["dropout"].output.port  # the attribute reads the file


def test_a_layer_without_inputs_says_so():
    with pytest.raises(UsageError, match="has no input"):
        comparisons.unmatched()["dropout"].input


def test_dumps_that_went_away_are_told_of(tmp_path):
    paths = [small_dumps.write(tmp_path / name) for name in ("ref.h5", "port.h5")]
    result = aligner.compare(*paths)
    paths[1].unlink()
    with pytest.raises(DumpError):
        result["conv"].output.port
    small_dumps.write(paths[0], rename="x_")
    with pytest.raises(UsageError, match="Compare again"):
        result["conv"].output.reference


def test_one_line_each(result):
    for shown in (result, result["norm"], result["norm"].output):
        assert "\n" not in repr(shown)
        assert repr(shown).startswith("<")
    assert "origin" in repr(result["norm"].output)
    assert "\x1b" not in repr(comparisons.hostile()[comparisons.HOSTILE])


def test_worst_prints_as_a_table_and_is_a_sequence(result, monkeypatch):
    monkeypatch.setenv("ALIGNER_LANG", "en")
    worst = result["norm"].output.worst(2)
    head, *rows = repr(worst).splitlines()
    assert head.split() == ["index", "reference", "port", "difference", "error"]
    assert len(rows) == len(worst) == len(list(worst)) == len(worst[:2])
    assert list(result["conv"].output.worst()) == []


def test_values_whose_shapes_differ_by_axes_of_size_one_stand_side_by_side(tmp_path):
    paths = tmp_path / "ref.h5", tmp_path / "port.h5"
    for path, extra in zip(paths, (False, True)):
        net = Recorder("Net")

        def body(v, net=net, extra=extra):
            v = v[..., None] if extra else v
            v = net.call("norm", "BatchNorm", lambda u: u * np.float32(1.1 if extra else 1), v)
            return v[..., 0] if extra else v

        net.call("", "Net", body, np.arange(6, dtype=np.float32).reshape(2, 3))
        with DumpWriter(path, {"framework": "numpy"}) as writer:
            net.write(writer)
    pair = aligner.compare(*paths)["norm"].output
    assert pair.difference.shape == (2, 3)
    assert pair.worst(1)[0].index == (1, 2)

"""compare() as a whole: outcomes, origins, what is covered, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import aligner
from aligner import messages
from aligner.compare.comparison import compare
from aligner.compare.verdict import DivergedError, Outcome
from aligner.dump.reader import open_dump
from aligner.dump.writer import DumpWriter
from aligner.errors import DumpError, IncomparableError, UsageError
from aligner.record import Phase
from aligner.report import elements
from tests.unit.compare.memory_dump import Recorder
from tests.unit.compare.nets import Side, dump, relu, residual_net, sample
from tests.unit.compare.test_layers import other_names


def percent(values):
    return values * 1.01


def origins(result):
    return [(o.layer, o.where, o.between) for o in result.origins]


def outcomes(result):
    return {(v.key.layer, v.key.slot): v.outcome for v in result.verdicts}


def complete(result, reference, port):
    """Every record of both dumps has exactly one verdict."""
    for side, source in (("reference", reference), ("port", port)):
        keys = [getattr(v, side).key for v in result.verdicts if getattr(v, side) is not None]
        assert sorted(keys, key=str) == sorted((e.key for e in source.entries), key=str)
        assert len(keys) == len(set(keys))
    for message, facts in [(v.reason, v.facts) for v in result.verdicts if v.reason] + list(result.warnings):
        for language in messages.LANGUAGES:
            assert messages.text(message, language, facts)


def run(reference, port, **options):
    result = compare(reference, port, **options)
    complete(result, reference, port)
    return result


def test_a_clean_port_is_aligned():
    result = run(dump(), dump(noise=1e-7))
    assert result.aligned
    assert result.exit_code == 0
    assert result.first is None
    assert result.check() is result
    assert result.counts["aligned"] == len(result.verdicts) == len(result.pairs)
    assert not result.origins
    assert not result.warnings
    assert repr(result).startswith("<Comparison aligned")
    assert "\n" not in repr(result)


@pytest.mark.parametrize("rename", [None, other_names])
@pytest.mark.parametrize("layer", ["stem", "blocks.0.fc1", "blocks.1.act", "blocks.2.norm", "head"])
def test_a_wrong_layer_is_the_origin(layer, rename):
    result = run(dump(), dump(change={layer: percent}, rename=rename, noise=1e-7))
    assert origins(result) == [(layer, "layer", None)]
    assert result.exit_code == 1
    assert (result.first.key.layer, result.first.key.slot, result.first.outcome) == (layer, "output.0", Outcome.ORIGIN)
    assert result.origins[0].own_error == result.first.error
    assert result.origins[0].input_error < 1e-5
    assert result.origins[0].port_layer == (rename or str)(layer)
    assert layer in result.specs
    failing = [v for v in result.verdicts if v.fails]
    assert {v.origin for v in failing} == {0}
    assert [v.outcome for v in failing[1:]] == [Outcome.INHERITED] * (len(failing) - 1)
    with pytest.raises(DivergedError, match=layer):
        result.check()


@pytest.mark.parametrize("rename", [None, other_names, lambda p: None if p.endswith("act") else p])
def test_wrong_code_between_layers(rename):
    """The port's block forgets its residual: all layers are right, the block is not."""
    result = run(dump(), dump(rename=rename, glue=lambda i, y, x: y if i == 1 else y + x))
    assert origins(result) == [("blocks.1", "glue", ("blocks.1.fc2", "blocks.1.norm"))]
    assert outcomes(result)["blocks.1.norm", "input.0"] is Outcome.ORIGIN


def test_wrong_code_after_the_last_layer():
    result = run(dump(), dump(change={"blocks.1": percent}))
    assert origins(result) == [("blocks.1", "glue", ("blocks.1.norm", ""))]
    assert result.first.key.slot == "output.0"


def test_wrong_code_before_the_first_layer():
    def net(factor):
        side = Side()
        side.block("", lambda v: side.linear("a", v * np.float32(factor), 4), sample())
        return side.net.dump()

    result = run(net(1), net(1.1))
    assert origins(result) == [("", "glue", ("", "a"))]
    assert result.origins[0].slot == "input.0"


def test_a_bug_that_crosses_the_tolerance_later_is_placed_where_it_began():
    """5e-5 in one layer, and a layer that blows differences up."""

    def net(error):
        rec = Recorder("Net")

        def body(v):
            v = rec.call("quiet", "Linear", lambda u: (u * (1 + error)).astype(np.float32), v)
            v = rec.call("middle", "Linear", lambda u: u * 2, v)
            return rec.call("loud", "Linear", lambda u: np.sin(u * 20), v)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(0.0), net(1e-4))
    assert origins(result) == [("quiet", "layer", None)]
    assert result.first.key.layer == "loud"
    assert result.first.outcome is Outcome.INHERITED
    assert result.origins[0].own_error < 1e-3


def test_two_bugs_on_two_branches():
    def net(left=1.0, right=1.0):
        rec = Recorder("Net")

        def body(v):
            a = rec.call("left", "Linear", lambda u: u * np.float32(left), v)
            b = rec.call("right", "Linear", lambda u: u * np.float32(right), v)
            return rec.call("join", "Linear", lambda x, y: x - y * np.float32(0.5), a, b)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(), net(1.01, 1.02))
    assert origins(result) == [("left", "layer", None), ("right", "layer", None)]


def test_a_layer_called_several_times_is_one_origin():
    def net(error):
        rec = Recorder("Net")

        def body(v):
            for _ in range(3):
                rec.call("shared", "Linear", lambda u: u * np.float32(1 + error), v)
            return v

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(0), net(0.1))
    assert origins(result) == [("shared", "layer", None)]
    assert result.origins[0].calls == 3


def test_a_wrong_weight_is_not_a_wrong_layer():
    result = run(dump(), dump(change={"blocks.1.fc1.weight": percent, "blocks.1.fc1": percent}))
    assert origins(result) == [("blocks.1.fc1", "parameters", None)]
    assert result.first.key.slot == "weight"
    assert outcomes(result)["blocks.1.fc1", "output.0"] is Outcome.INHERITED
    assert result.origins[0].phase == "parameter"


def test_a_transposed_weight_says_so():
    result = run(dump(), dump(change={"stem.weight": lambda w: w[:, :8].T}))
    verdict = next(v for v in result.verdicts if v.key.slot == "weight" and v.key.layer == "stem")
    assert verdict.outcome is Outcome.INCOMPARABLE
    assert verdict.reason == "shapes-differ"
    assert not result.aligned


def test_a_missing_bias():
    def net(bias):
        rec = Recorder("Net")
        rec.parameter("fc", "Linear", "weight", np.ones(3, np.float32))
        if bias:
            rec.parameter("fc", "Linear", "bias", np.array([1, 2, 3], np.float32))
        value = np.array([1, 2, 3] if bias else 0, np.float32)
        rec.call("", "Net", lambda v: rec.call("fc", "Linear", lambda u: u + value, v), sample(4, 3))
        return rec.dump()

    result = run(net(True), net(False))
    assert origins(result) == [("fc", "parameters", None)]
    assert outcomes(result)["fc", "bias"] is Outcome.UNMATCHED
    assert result.origins[0].slot == "bias"


def test_a_weight_that_only_the_port_has():
    """The reference ties its head to the embedding, the port does not."""

    def net(untied):
        rec = Recorder()
        table = np.arange(16, dtype=np.float32)
        rec.parameter("emb", "Embedding", "weight", table)
        if untied:
            rec.parameter("head", "Linear", "weight", table + 1)
        head = table + untied

        def body(v):
            v = rec.call("emb", "Embedding", lambda u: u + table, v)
            return rec.call("head", "Linear", lambda u: u * head, v)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(False), net(True))
    assert origins(result) == [("head", "parameters", None)]


def test_other_inputs_are_incomparable():
    result = run(dump(), dump(x=sample(seed=9)))
    assert result.outcome == "incomparable"
    assert result.exit_code == 3
    assert origins(result) == [("", "inputs", None)]
    assert (result.first.key.layer, result.first.key.slot) == ("", "input.0")


def test_inputs_in_lower_precision_are_the_same_inputs():
    """bfloat16 rounding is up to 4e-3: over the tolerance, and still the same data."""
    x = sample()
    rounded = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)

    def net(v, dtype):
        rec = Recorder("Net")
        rec.call("", "Net", lambda u: rec.call("fc", "Linear", lambda w: np.zeros(3, np.float32), u), v)
        if dtype == "bfloat16":
            for i, r in enumerate(rec.records):
                if r.key.slot.startswith("input"):
                    bits = (r.array.view(np.uint32) >> 16).astype(np.uint16)
                    rec.records[i] = type(r)(r.key, r.order, dtype, bits)
        return rec.dump()

    result = run(net(x, "float32"), net(rounded, "bfloat16"))
    assert result.exit_code == 0
    assert outcomes(result)["", "input.0"] is Outcome.ROUNDING


def test_nan_is_born_in_a_layer():
    def spoil(values):
        values = values.copy()
        values[0, 3] = np.nan
        return values

    result = run(dump(), dump(change={"blocks.1.fc1": spoil}))
    assert origins(result) == [("blocks.1.fc1", "layer", None)]
    assert result.first.outcome is Outcome.NONFINITE
    assert result.first.deviation.worst == (0, 3)
    assert result.first.error == float("inf")


def test_nan_on_both_sides_is_agreement_and_told():
    def spoil(values):
        return np.where(np.arange(values.shape[-1]) == 2, np.nan, values)

    result = run(dump(change={"head": spoil}), dump(change={"head": spoil}))
    assert result.aligned
    assert "nan-on-both" in [message for message, _ in result.warnings]


def test_an_activation_as_a_function_is_covered():
    result = run(dump(), dump(rename=lambda path: None if path.endswith("act") else path))
    assert result.aligned
    assert outcomes(result)["blocks.0.act", "output.0"] is Outcome.COVERED
    assert result.unpaired[0] == ("blocks.0.act", "blocks.1.act", "blocks.2.act")


def gate(rec, as_layer, function):
    """x * sigmoid(fc(x)): what the sigmoid hands on goes into no layer."""

    def body(v):
        y = rec.call("fc", "Linear", lambda u: u * np.float32(0.3), v)
        y = rec.call("gate", "Sigmoid", function, y) if as_layer else function(y)
        return rec.call("out", "Linear", lambda u: u * 2, v * y)

    rec.call("", "Net", body, sample())
    return rec.dump()


def test_a_function_whose_result_goes_into_no_layer_is_covered_by_the_layer_around():
    result = run(gate(Recorder(), True, np.tanh), gate(Recorder(), False, np.tanh))
    assert result.aligned
    verdict = next(v for v in result.verdicts if v.key == v.key._replace(layer="gate", slot="output.0"))
    assert (verdict.outcome, verdict.reason) == (Outcome.COVERED, "covered-around")


def test_a_forgotten_activation_is_listed():
    result = run(gate(Recorder(), True, np.tanh), gate(Recorder(), False, lambda v: v))
    assert outcomes(result)["gate", "output.0"] is Outcome.UNMATCHED
    assert origins(result) == [("", "glue", ("fc", "out"))]


def test_a_function_behind_a_bug_cannot_be_judged():
    """Its value goes into no layer, and everything before it is wrong already: listed, with that reason."""

    def net(as_layer, factor):
        rec = Recorder()

        def body(v):
            v = rec.call("early", "Linear", lambda u: u * np.float32(factor), v)
            y = rec.call("gate", "Sigmoid", np.tanh, v) if as_layer else np.tanh(v)
            return rec.call("out", "Linear", lambda u: u * 2, v * y)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(True, 1), net(False, 1.1))
    assert origins(result) == [("early", "layer", None)]
    assert {v.reason for v in result.verdicts if v.outcome is Outcome.UNMATCHED} == {"unmatched-behind"}


@pytest.mark.parametrize("swap", [False, True])
def test_more_levels_are_covered(swap):
    sides = [dump(), dump(wrapper="stages", rename=lambda p: p.replace("blocks.", "inner."))]
    result = run(*(sides[::-1] if swap else sides))
    assert result.aligned
    assert result.counts["unmatched"] == 0


def test_what_lies_inside_one_piece_is_covered():
    def net(cells):
        rec = Recorder()

        def lstm(v):
            if cells:
                rec.call("lstm.cell", "LSTMLoop", lambda u: u * 3, v)
            return np.tanh(v)

        rec.call("", "Net", lambda v: rec.call("lstm", "LSTM", lstm, v), sample())
        return rec.dump()

    for pair in ((net(False), net(True)), (net(True), net(False))):
        result = run(*pair)
        assert result.aligned
        assert outcomes(result)["lstm.cell", "output.0"] is Outcome.COVERED


def test_a_layer_with_weights_that_is_missing_fails_unless_allowed():
    result = run(dump(), dump(skip=1))
    assert not result.aligned
    missing = {v.key.layer for v in result.verdicts if v.outcome is Outcome.UNMATCHED}
    assert {"blocks.1.fc1", "blocks.1.norm"} <= missing
    allowed = run(dump(), dump(skip=1), allow_unmatched=["blocks.1*"])
    assert not [v for v in allowed.verdicts if v.outcome is Outcome.UNMATCHED and v.fails]
    assert [v for v in allowed.verdicts if v.allowed]


def test_an_extra_layer_of_the_port_fails_unless_allowed():
    def net(extra):
        rec = Recorder()

        def body(v):
            if extra:
                rec.parameter("probe", "Linear", "weight", np.arange(5.0))
                rec.call("probe", "Linear", lambda u: u * 3, v)
            return rec.call("fc", "Linear", lambda u: u * 2, v)

        rec.call("", "Net", body, sample())
        return rec.dump()

    result = run(net(False), net(True))
    assert result.exit_code == 1
    assert result.first.reference is None
    assert run(net(False), net(True), allow_unmatched=["probe"]).exit_code == 0


def test_a_bias_of_zeros_is_not_covered_by_another():
    """Constants are equal by chance."""

    def net(missing):
        rec = Recorder()
        for layer in ("a", "b"):
            if layer != missing:
                rec.parameter(layer, "Linear", "bias", np.zeros(4))
        rec.call("", "Net", lambda v: rec.call("b", "Linear", abs, rec.call("a", "Linear", abs, v)), sample())
        return rec.dump()

    assert outcomes(run(net(None), net("b")))["b", "bias"] is Outcome.UNMATCHED


def test_tied_weights_are_covered():
    def net(tied):
        rec = Recorder()
        w = np.arange(6.0)
        rec.parameter("emb", "Embedding", "weight", w)
        if not tied:
            rec.parameter("head", "Linear", "weight", w)
        rec.call("", "Net", lambda v: rec.call("head", "Linear", abs, rec.call("emb", "Embedding", abs, v)), sample())
        return rec.dump()

    assert run(net(False), net(True)).aligned
    assert run(net(True), net(False)).aligned


def test_shapes_that_differ():
    def net(function):
        rec = Recorder()
        rec.call("", "Net", lambda v: rec.call("b", "Linear", abs, rec.call("a", "Linear", function, v)), sample())
        return rec.dump()

    result = run(net(lambda v: v), net(np.transpose))
    assert origins(result) == [("a", "layer", None)]
    assert result.first.outcome is Outcome.INCOMPARABLE
    assert result.first.reason == "shapes-differ-same-count"
    assert result.first.facts == {"reference": "(8, 16)", "port": "(16, 8)"}


def test_integers_and_kinds_of_numbers():
    def net(dtype, add=0):
        rec = Recorder()
        rec.call(
            "", "Net", lambda v: rec.call("pick", "Argmax", lambda u: (np.argsort(u) + add).astype(dtype), v), sample()
        )
        return rec.dump()

    assert run(net("int64"), net("int32")).aligned
    changed = run(net("int64"), net("int64", 1), tolerance=100)
    assert origins(changed) == [("pick", "layer", None)]
    mixed = run(net("int64"), net("float32"))
    assert mixed.aligned
    assert "dtype-class-differs" in [message for message, _ in mixed.warnings]
    assert run(net("complex64"), net("float32")).first.outcome is Outcome.INCOMPARABLE


def test_steps_on_one_side_only():
    def net(steps):
        rec = Recorder()
        for step in range(steps):
            rec.step = step
            rec._numbers = {}
            rec.call("", "Net", lambda v: rec.call("a", "Linear", abs, v), sample(seed=step))
        return rec.dump()

    result = run(net(3), net(2))
    assert {v.key.step for v in result.verdicts if v.outcome is Outcome.UNMATCHED} == {2}
    assert "steps-differ" in [message for message, _ in result.warnings]
    assert run(net(3), net(3)).aligned


def test_nothing_in_common():
    def net(name, kind, width, value):
        rec = Recorder(name)
        rec.call("", name, lambda v: rec.call(f"{name}_layer", kind, lambda u: value, v), sample(width=width))
        return rec.dump()

    with pytest.raises(IncomparableError, match=r"LeNet.*Bert") as caught:
        compare(net("LeNet", "Conv2d", 16, np.ones(3)), net("Bert", "Embedding", 4, np.ones((7, 7))))
    assert caught.value.exit_code == 3


def test_header_differences_and_notes_are_told():
    reference, port = dump(header={"training": False, "amp": None}), dump(header={"training": True, "amp": "O2"})
    port.complete = False
    port.notes.append(type("Note", (), {"layer": "x", "message": "steps-differ", "facts": {"reference": 1, "port": 2}}))
    told = [message for message, _ in run(reference, port).warnings]
    assert told == ["dump-incomplete", "steps-differ", "training-differs", "amp-differs"]


def test_weights_that_were_not_recorded_are_no_wrong_ones():
    def unweighed(change=None):
        made = dump(header={"weights": False}, change=change)
        made.entries = [entry for entry in made.entries if entry.key.phase is not Phase.PARAMETER]
        return made

    result = run(unweighed(), dump())
    assert result.aligned
    assert not result.warnings
    assert {v.reason for v in result.verdicts if v.key.phase is Phase.PARAMETER} == {"unmatched-left-out"}
    result = run(unweighed(), dump(change={"blocks.1.fc1": lambda y: 2 * y}))
    assert [origin.where for origin in result.origins] == ["layer"]
    assert [message for message, _ in result.warnings] == ["weights-not-compared"]


def test_unknown_rule_and_tolerance():
    for options in ({"rule": "worst"}, {"tolerance": -1}, {"tolerance": float("nan")}):
        with pytest.raises(UsageError):
            compare(dump(), dump(), **options)


def test_verdicts_come_in_reading_order():
    result = run(dump(), dump())
    phases = [v.key.phase.value for v in result.verdicts]
    assert result.verdicts[0].key.layer == ""
    assert phases[1] == "parameter"
    orders = [v.reference.order for v in result.verdicts if v.key.phase.value == "forward"]
    assert orders == sorted(orders)


def test_progress_and_threads():
    seen = []
    serial = run(dump(), dump(noise=1e-4))
    with ThreadPoolExecutor(2) as executor:
        result = run(dump(), dump(noise=1e-4), executor=executor, progress=lambda *facts: seen.append(facts))
    assert [v.error for v in result.verdicts] == [v.error for v in serial.verdicts]
    assert seen[-1][:2] == (len(result.verdicts),) * 2
    assert seen[-1][2] > 0


def written(path, **options):
    recorder = residual_net(Side(**{k: options[k] for k in options}))
    with DumpWriter(path, {"model": "Net", "framework": "numpy"}) as writer:
        recorder.write(writer)
    return path


def test_real_dumps(tmp_path):
    paths = written(tmp_path / "ref.h5"), written(tmp_path / "port.h5", change={"blocks.1.fc2": percent})
    result = aligner.compare(*paths)
    assert origins(result) == [("blocks.1.fc2", "layer", None)]
    assert result.reference["path"] == str(paths[0])
    with open_dump(paths[0]) as one, open_dump(paths[1]) as other:
        complete(result, one, other)
        with ThreadPoolExecutor(2) as executor:
            again = compare(one, other, executor=executor)
        assert len(one.entries)  # a dump that the caller opened stays open
    assert [v.error for v in again.verdicts] == [v.error for v in result.verdicts]
    in_memory = compare(dump(), dump(change={"blocks.1.fc2": percent}))
    assert [v.error for v in result.verdicts] == [v.error for v in in_memory.verdicts]


def test_a_file_that_is_no_dump(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"nothing")
    with pytest.raises(DumpError):
        compare(tmp_path / "x.h5", written(tmp_path / "ref.h5"))


def test_dependence_on_relu_is_real():
    """The fixtures would hide a pairing error if activations changed nothing."""
    assert (relu(sample()) != sample()).any()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"float32_matmul": "float32", "float32_conv": "float32"}, []),
        ({"float32_matmul": "float32", "float32_conv": "hf32"}, ["short-conv"]),
        ({"float32_matmul": "hf32", "float32_conv": "hf32"}, ["short-matmul-conv"]),
        ({"float32_matmul": "tf32"}, ["short-matmul"]),
        ({"precision_mode": "must_keep_origin_dtype"}, []),
        ({"precision_mode": "force_fp16"}, ["precision-mode"]),
    ],
)
def test_a_device_that_shortens_float32_is_told_with_what_to_set(facts, said):
    port = dump(header={"framework": "mindspore", "device": "Ascend", **facts})
    warnings = [w for w in run(dump(), port).warnings if w[0].startswith(("short-", "precision-"))]
    assert [message for message, _ in warnings] == said
    if said and said[0].startswith("short"):
        assert "allow" in warnings[0][1]["change"]


@pytest.mark.parametrize("side", ["reference", "port"])
def test_what_a_capture_that_ended_early_lacks_is_not_to_be_looked_for_in_the_net(side):
    def net(short):
        built = Recorder("Net")

        def body(x):
            y = built.call("one", "ReLU", relu, x)
            return y if short else built.call("two", "Linear", lambda v: v @ weight, y)

        weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
        built.parameter("two", "Linear", "weight", weight)
        built.call("", "Net", body, sample())
        if short:
            built.records = [r for r in built.records if (r.key.layer, r.key.slot) != ("", "output.0")]
        made = built.dump()
        made.complete = not short
        return made

    one, other = net(side == "reference"), net(side == "port")
    found = {v.reason for v in run(one, other).verdicts if v.outcome is Outcome.UNMATCHED}
    assert found == {"only-port-ended" if side == "reference" else "only-reference-ended"}
    one.complete = other.complete = True
    assert not found & {v.reason for v in run(one, other).verdicts}


@pytest.mark.parametrize("rule", ["scaled", "allclose", "abs", "l2"])
def test_the_worst_element_is_worst_by_the_rule(rule):
    """It was always that of the default rule, beside an error of another."""
    random = np.random.default_rng(5)
    one = random.standard_normal((40, 50)).astype(np.float32) * 0.01
    one[3, 4] = 40.0
    other = one + random.standard_normal(one.shape).astype(np.float32) * 1e-4
    other[3, 4] += 0.01  # the largest difference, and by far not the largest error by the default rule

    def net(values):
        built = Recorder("Net")
        built.call("", "Net", lambda x: built.call("one", "ReLU", lambda v: values, x), sample())
        return built.dump()

    (found,) = [
        v.deviation for v in run(net(one), net(other), rule=rule).verdicts if v.key[2:] == ("one", 0, "output.0")
    ]
    apart, size = np.abs(other.astype(np.float64) - one), np.abs(one.astype(np.float64))
    rms = np.sqrt(np.square(size).mean())
    by = {"scaled": apart / (min(1.0, rms) + size), "allclose": apart / (1.0 + size)}.get(rule, apart)
    assert found.worst == np.unravel_index(np.argmax(by), by.shape)
    assert np.isclose(found.max_abs, apart.max())
    assert np.isclose(found.scaled, (apart / (min(1.0, rms) + size)).max())
    assert elements.worst(one, other, 3, rule)[0].index == found.worst
    listed = [one.error for one in elements.worst(one, other, 9, rule)]
    assert listed == sorted(listed, reverse=True), "the figure that is shown is the one it is sorted by"
    assert np.isclose(listed[0], by.max(), rtol=1e-4)
    whole = elements.worst(np.array([7, 10]), np.array([8, 10]), 1, rule)
    assert whole[0].error == 1.0, "integers are compared exactly"

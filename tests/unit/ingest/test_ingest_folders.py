"""A folder of MindSpore's files as a dump."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.cli import main
from aligner.dump.reader import open_dump
from aligner.record import Key, Phase
from tests.unit.ingest.folder import CONV, FC, RELU, Folder, small


def imported(tmp_path, *options):
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms"), "-o", str(out), "-f", *options]) == 0
    return open_dump(out)


def value(dump, layer, slot, step=0, call=0):
    entry = dump.find(Key(step, Phase.FORWARD, layer, call, slot))
    return None if entry is None else entry.load()


def notes(dump):
    return {note.message for note in dump.notes}


def test_layers_get_and_hand_on_what_their_operators_do(tmp_path):
    _, values = small(tmp_path / "ms")
    dump = imported(tmp_path)
    assert [layer.spec.kind for layer in dump.layers.values()] == ["", "Conv2d", "ReLU", "Linear"]
    assert [call.layer for call in sorted(dump.calls, key=lambda call: call.first)] == ["", "conv", "relu", "fc"]
    for layer, given, made in (("", "x", "fc"), ("conv", "x", "conv"), ("relu", "conv", "relu"), ("fc", "relu", "fc")):
        assert np.array_equal(value(dump, layer, "input.0").ravel(), values[f"0.{given}"].ravel()), layer
        assert np.array_equal(value(dump, layer, "output.0"), values[f"0.{made}"]), layer
    assert notes(dump) == {"ingest-partial"}


def test_weights_come_under_their_layers_and_in_our_words(tmp_path):
    folder, values = small(tmp_path / "ms")
    gamma = np.full(2, 1.5, np.float32)
    out = values["0.fc"] * 2
    folder.operator("LayerNorm", ["norm-LayerNorm"], [values["0.fc"], gamma], [out])
    folder.parameter("norm_gamma", gamma)
    dump = imported(tmp_path)
    found = {(e.key.layer, e.key.slot): e.load() for e in dump.entries if e.key.phase is Phase.PARAMETER}
    assert set(found) == {("conv", "weight"), ("fc", "weight"), ("fc", "bias"), ("norm", "weight")}
    assert np.array_equal(found["fc", "weight"], values["fc.weight"])


def test_iterations_are_steps(tmp_path):
    _, values = small(tmp_path / "ms", iterations=3)
    dump = imported(tmp_path)
    assert list(dump.steps) == [0, 1, 2]
    assert np.array_equal(value(dump, "relu", "output.0", step=2), values["2.relu"])
    assert list(imported(tmp_path, "--steps", "2").steps) == [0, 1]


def test_names_with_underscores_are_read_by_the_execution_order(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    folder.operator("ReLU", ["my_block-My_Block", "the_act-ReLU"], [x], [x + 1])
    folder.order("Default/my_block-My_Block/the_act-ReLU/ReLU-op0")
    assert "my_block.the_act" in imported(tmp_path).layers


def test_without_it_each_dash_ends_a_layer(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    folder.operator("ReLU", ["my_block-Block", "the_act-ReLU"], [x], [x + 1])
    assert "my_block.the_act" in imported(tmp_path).layers


def test_code_that_is_shared_stands_under_anothers_name_and_is_not_its_own(tmp_path):
    """The sum behind the first activation bears its name; the second norm's transposes bear the first one's."""
    folder = Folder(tmp_path / "ms")
    rng = np.random.default_rng(5)
    x = [rng.standard_normal((2, 3, 3), np.float32) for _ in range(9)]
    norm = ["norm_a-Norm"]
    folder.operator("Transpose", norm, [x[0]], [x[1]])
    folder.operator("LayerNorm", norm, [x[1]], [x[2]])
    folder.operator("Transpose", norm, [x[2]], [x[3]], 1)
    folder.operator("Erf", ["act-GELU"], [x[3]], [x[4]])
    folder.operator("Add", ["act-GELU"], [x[0], x[8]], [x[5]])
    folder.operator("Transpose", norm, [x[5]], [x[6]], 2)
    folder.operator("LayerNorm", ["norm_b-Norm"], [x[6]], [x[7]])
    folder.operator("Tanh", ["tanh-Tanh"], [x[4]], [x[8]])
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "norm_a", "output.0"), x[3])
    assert np.array_equal(value(dump, "act", "output.0"), x[4])
    assert value(dump, "norm_b", "input.0") is None
    assert "ingest-unvalued" in notes(dump)


def test_a_sum_behind_a_layer_under_its_name_is_not_its_output(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(6)]
    folder.operator("Tanh", ["tanh-Tanh"], [x[0]], [x[1]])
    folder.operator("Erf", ["act-GELU"], [x[1]], [x[2]])
    folder.operator("Add", ["act-GELU"], [x[2], x[1]], [x[3]])
    folder.operator("Sigmoid", ["other-Sigmoid"], [x[0]], [x[4]])
    folder.operator("Add", ["act-GELU"], [x[3], x[4]], [x[5]], 1)
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "act", "output.0"), x[3])


def test_a_layer_of_the_users_whose_last_step_is_elsewhere_has_no_output(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(4)]
    folder.operator("Tanh", ["tanh-Tanh"], [x[0]], [x[1]])
    folder.operator("Rsqrt", ["norm-MyNorm"], [x[1]], [x[2]])
    folder.operator("Mul", [], [x[1], x[2]], [x[3]])
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "norm", "input.0"), x[1])
    assert value(dump, "norm", "output.0") is None


def test_inputs_of_a_net_in_an_unknown_order_are_left_out(tmp_path):
    """A graph has them in another order than the net's arguments."""
    folder, values = small(tmp_path / "ms")
    graph = tmp_path / "ms" / "rank_0" / "graphs"
    graph.mkdir()
    lines = [f"%para{n}_{name}: <Tensor[Float32], (3)>  :  IsWeight: false" for n, name in enumerate(("mask", "x"))]
    (graph / "ms_output_trace_code_graph_0.ir").write_text("\n".join(lines))
    next((tmp_path / "ms").rglob("Parameter.args0*")).unlink()
    for name in ("mask", "x"):
        folder.parameter(name, values["0.x"])
    dump = imported(tmp_path)
    assert value(dump, "", "input.0") is None
    assert "ingest-unknown-parameters" in notes(dump)


def test_names_without_a_scope_are_found_in_the_execution_order(tmp_path):
    """As older MindSpores name files on Ascend, where an operator's number is its own in the whole net."""
    folder = Folder(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    folder.value("ReLU", "ReLU-op12", "output", 0, x, dtype="float32")
    folder.value("Tanh", "Tanh-op13", "output", 0, x + 1, dtype="float32")
    folder.order("Default/block-Block/act-ReLU/ReLU-op12", "Default/a-A/Tanh-op13", "Default/b-B/Tanh-op13")
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "block.act", "output.0"), x)
    assert set(dump.layers) == {"", "block", "block.act"}


def test_a_layer_that_ran_twice_has_two_calls(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) - at for at in range(5)]
    folder.operator("ReLU", [RELU], [x[0]], [x[1]])
    folder.operator("Tanh", ["tanh-Tanh"], [x[1]], [x[2]])
    folder.operator("ReLU", [RELU], [x[2]], [x[3]], number=1)
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "relu", "input.0", call=1), x[2])
    assert np.array_equal(value(dump, "relu", "output.0", call=1), x[3])


def test_a_layer_compiled_under_anothers_name_is_brought_home(tmp_path):
    """MindSpore compiles equal cells once: the act of the second block bears the first one's name."""
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(7)]
    for block in (0, 1):
        scope = ["blocks-CellList", f"{block}-Block"]
        folder.operator("Tanh", [*scope, "first-Tanh"], [x[3 * block]], [x[3 * block + 1]])
        folder.operator(
            "ReLU", ["blocks-CellList", "0-Block", "act-ReLU"], [x[3 * block + 1]], [x[3 * block + 2]], block
        )
        folder.operator("Sigmoid", [*scope, "last-Sigmoid"], [x[3 * block + 2]], [x[3 * block + 3]])
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "blocks.1.act", "output.0"), x[5])
    assert value(dump, "blocks.0.act", "output.0", call=1) is None
    assert np.array_equal(value(dump, "blocks.1", "input.0"), x[3])
    assert np.array_equal(value(dump, "blocks.1", "output.0"), x[6])


def test_a_weight_that_others_own_tells_whose_call_it_was(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(4)]
    gammas = [np.full(3, 1.0 + at, np.float32) for at in range(2)]
    folder.operator("LayerNorm", ["norm_a-LayerNorm"], [x[0], gammas[0]], [x[1]])
    folder.operator("Tanh", ["tanh-Tanh"], [x[1]], [x[2]])
    folder.operator("LayerNorm", ["norm_a-LayerNorm"], [x[2], gammas[1]], [x[3]], number=1)
    for name, array in zip(("norm_a", "norm_b"), gammas):
        folder.parameter(f"{name}_gamma", array)
    graph = tmp_path / "ms" / "rank_0" / "graphs"
    graph.mkdir()
    lines = [
        f"%para{n}_{name}.gamma: <Ref[Tensor[Float32]], (3), ref_key={name}.gamma, is_parameter>  :  IsWeight: true"
        for n, name in enumerate(("norm_a", "norm_b"))
    ]
    (graph / "ms_output_trace_code_graph_0.ir").write_text("\n".join(lines))
    dump = imported(tmp_path)
    assert np.array_equal(value(dump, "norm_b", "output.0"), x[3])


def test_what_amp_puts_around_layers_is_not_in_their_paths(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    scope = ["_backbone-Net", "norm-_OutputTo16", "_backbone-LayerNorm"]
    folder.operator("LayerNorm", scope, [x], [x + 1])
    folder.operator("Cast", scope[:2], [x + 1], [(x + 1).astype(np.float16)])
    folder.operator("ReLU", ["_backbone-Net", RELU], [(x + 1).astype(np.float16)], [(x + 2).astype(np.float16)])
    dump = imported(tmp_path)
    assert set(dump.layers) == {"", "norm", "relu"}
    assert dump.layers["norm"].spec.kind == "LayerNorm"
    assert value(dump, "norm", "output.0").dtype == np.float32
    assert dump.header["amp"] == "float16"


def test_a_float16_that_the_cpu_computed_in_float32_is_the_float16(tmp_path):
    folder, values = small(tmp_path / "ms")
    x = values["0.fc"]
    file = folder.value("Tanh", "Default_tanh-Tanh_Tanh-op0", "output", 0, x.astype(np.float16))
    whole = file.read_bytes()
    file.write_bytes(whole[: -x.size * 2] + x.tobytes())
    dump = imported(tmp_path)
    entry = dump.find(Key(0, Phase.FORWARD, "tanh", 0, "output.0"))
    assert entry.dtype == "float16"
    assert np.array_equal(entry.load(), x.astype(np.float16))


def test_bfloat16_is_saved_wider_and_kept_exactly(tmp_path):
    folder = Folder(tmp_path / "ms")
    exact = np.array([1.0, -0.5, 3.140625], np.float32)
    folder.value("ReLU", "Default_relu-ReLU_ReLU-op0", "output", 0, exact, dtype="BFloat16")
    entry = imported(tmp_path).find(Key(0, Phase.FORWARD, "relu", 0, "output.0"))
    assert entry.dtype == "bfloat16"
    assert np.array_equal(entry.load(), exact)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "float16", "float64", "complex64"])
def test_every_type_keeps_its_bits(tmp_path, dtype):
    folder = Folder(tmp_path / "ms")
    array = np.arange(6).reshape(2, 3).astype(dtype)
    folder.value("ReLU", "Default_relu-ReLU_ReLU-op0", "output", 0, np.asfortranarray(array))
    entry = imported(tmp_path).find(Key(0, Phase.FORWARD, "relu", 0, "output.0"))
    assert entry.dtype == dtype
    assert np.array_equal(entry.load(), array)


def test_two_runs_into_one_folder_are_told_and_the_last_is_taken(tmp_path):
    small(tmp_path / "ms")
    folder, values = Folder(tmp_path / "ms"), {}
    folder.time += 1000
    again, values = small(tmp_path / "other")
    for file in sorted((tmp_path / "other").rglob("*.npy")):
        target = tmp_path / "ms" / file.relative_to(tmp_path / "other")
        array = np.load(file)
        np.save(target.with_name(target.name.replace(".17951916", ".18951916")), array if array.ndim < 2 else array + 1)
    assert again.time
    dump = imported(tmp_path)
    assert "ingest-repeated" in notes(dump)
    assert np.array_equal(value(dump, "fc", "output.0"), values["0.fc"] + 1)


def test_inside_a_layer_of_the_users_several_values_are_not_guessed_at(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(5)]
    folder.operator("Tanh", ["pair-Pair", "a-Tanh"], [x[0]], [x[1]])
    folder.operator("Sigmoid", ["pair-Pair", "b-Sigmoid"], [x[0]], [x[2]])
    folder.operator("Add", [], [x[1], x[2]], [x[3]])
    dump = imported(tmp_path)
    assert "ingest-unvalued" in notes(dump)
    assert value(dump, "pair", "output.0") is None
    assert np.array_equal(value(dump, "pair.b", "output.0"), x[2])


def test_a_layer_called_an_unknown_number_of_times_has_no_call(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(4)]
    folder.operator("Add", ["sum-Sum"], [x[0]], [x[1]])
    folder.operator("Add", ["sum-Sum"], [x[1]], [x[2]], number=1)
    folder.operator("Tanh", ["tanh-Tanh"], [x[2]], [x[3]])
    dump = imported(tmp_path)
    assert "ingest-uncounted" in notes(dump)
    assert [call.layer for call in dump.calls] == ["", "tanh"]


def test_gradients_and_values_in_tiles_are_left_out(tmp_path):
    folder, _ = small(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    folder.value("ReLUGrad", "Gradients_Default_relu-ReLU_gradReLU_ReLUGrad-op0", "output", 0, x)
    folder.value("Conv2D", "Default_conv2-Conv2d_Conv2D-op0", "output", 0, x, form="NC1HWC0")
    dump = imported(tmp_path)
    assert {"ingest-backward", "ingest-tiled"} <= notes(dump)
    assert value(dump, "conv2", "output.0") is None


def test_one_of_several_nets_and_devices_must_be_chosen(tmp_path, capsys):
    small(tmp_path / "ms")
    (tmp_path / "ms" / "rank_0").rename(tmp_path / "ms" / "rank_3")
    small(tmp_path / "ms")
    assert main(["import", str(tmp_path / "ms"), "-o", str(tmp_path / "p.h5")]) == 2
    assert "--rank" in capsys.readouterr().err
    assert "conv" in imported(tmp_path, "--rank", "3").layers


def test_an_iterations_own_folder_will_do(tmp_path):
    small(tmp_path / "ms")
    out = tmp_path / "port.h5"
    assert main(["import", str(tmp_path / "ms" / "rank_0" / "Net" / "0" / "0"), "-o", str(out)]) == 0
    assert "conv" in open_dump(out).layers


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "holds no values"),
        (("statistic.csv",), "statistics only"),
        (("Conv2D.Default_conv-Conv2d_Conv2D-op0.0.0.1795191669000001",), "device's own form"),
        (("weights.npy",), "other names: 1"),
    ],
)
def test_a_folder_without_values_says_what_it_is(tmp_path, capsys, files, said):
    place = tmp_path / "ms" / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    for name in files:
        (place / name).write_bytes(b"x")
    assert main(["import", str(tmp_path / "ms"), "-o", str(tmp_path / "p.h5")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "p.h5").exists()


def test_operators_without_layers_say_what_jit_does(tmp_path, capsys):
    folder = Folder(tmp_path / "ms")
    x = np.arange(6, dtype=np.float32)
    folder.operator("ReLU", [], [x], [x + 1])
    assert main(["import", str(tmp_path / "ms"), "-o", str(tmp_path / "p.h5")]) == 2
    assert "@ms.jit" in capsys.readouterr().err
    assert not (tmp_path / "p.h5").exists()


def test_the_configuration_is_written_and_says_how_to_run(tmp_path, capsys):
    import json

    place = tmp_path / "run"
    assert main(["import", "--config", str(place)]) == 0
    assert "MINDSPORE_DUMP_CONFIG=" in capsys.readouterr().out
    settings = json.loads((place / "config.json").read_text())
    assert settings["common_dump_settings"]["path"] == str(place)
    assert settings["e2e_dump_settings"] == {"enable": True, "trans_flag": True}
    assert main(["import", "--config", str(place)]) == 2
    (place / "rank_0").mkdir()
    assert main(["import", "--config", str(place), "-f"]) == 2
    assert "earlier run" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["ms"], ["-o", "p.h5"], ["ms", "-o", "p.h5", "--config", "c"]])
def test_half_a_command_says_what_is_wanted(arguments, capsys):
    assert main(["import", *arguments]) == 2
    assert "aligner import" in capsys.readouterr().err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help_ends_with_examples(language, capsys):
    assert main(["import", "--help", "--lang", language]) == 0
    assert "aligner import --config dump" in capsys.readouterr().out


def test_the_code_between_layers_that_mindspore_forgot_is_not_a_layers(tmp_path):
    folder = Folder(tmp_path / "ms")
    x = [np.arange(6, dtype=np.float32) + at for at in range(4)]
    folder.operator("Conv2D", ["stem-Stem", CONV], [x[0]], [x[1]])
    folder.value("Sigmoid", "Expand__SiLU_Sigmoid-op0", "input", 0, x[1])
    folder.value("Sigmoid", "Expand__SiLU_Sigmoid-op0", "output", 0, x[2])
    folder.operator("MatMul", ["stem-Stem", FC], [x[2]], [x[3]])
    dump = imported(tmp_path)
    assert "ingest-placeless" in notes(dump)
    assert np.array_equal(value(dump, "stem.conv", "output.0"), x[1])
    assert np.array_equal(value(dump, "stem.fc", "input.0"), x[2])
    assert np.array_equal(value(dump, "stem", "output.0"), x[3])

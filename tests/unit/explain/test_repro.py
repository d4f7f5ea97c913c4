"""Programs that run one layer by itself: their text, their arrays, and that nothing hostile gets into them."""

from __future__ import annotations

import ast
import json
import runpy
from dataclasses import replace

import numpy as np
import pytest

from aligner.errors import UsageError
from aligner.explain.repro import Repro, Tensor, arrays, limit, script, write
from aligner.explain.speech import SPEECHES, is_harmless

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
HOSTILE = 'a"""\nimport os\nos.system("true")\n"""\\'


def one(name):
    return {"args": [{"tensor": name}]}


def made(**changes):
    repro = Repro(
        layer="blocks.0.fc",
        kind="Linear",
        framework="torch",
        version="2.13.0",
        python="nn.Linear(4, 2)",
        reason="",
        arguments=one("input.0"),
        outputs={"tensor": "output.0"},
        training=False,
        given={"input.0": Tensor(X, "float32")},
        expected={"output.0": Tensor(np.zeros((3, 2), np.float32), "float32")},
        parameters={
            name: Tensor(np.zeros(shape, np.float32), "float32") for name, shape in (("weight", (2, 4)), ("bias", 2))
        },
    )
    return replace(repro, **changes)


def called(repro):
    """The line that runs the layer."""
    (line,) = [row for row in script(repro).splitlines() if row.startswith("result = ")]
    return line


@pytest.mark.parametrize("framework", sorted(SPEECHES))
def test_it_is_a_short_program_that_needs_the_framework_and_numpy_alone(framework):
    text = script(made(framework=framework))
    modules = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    # Two packages are called mindtorch: the program finds out which, and that one needs MindSpore mended.
    more = {"importlib", "mindspore"} if framework == "mindtorch" else set()
    assert modules == {"sys", "pathlib", "numpy", framework} | more
    assert len(text.splitlines()) < (60 if more else 50)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_call_is_made_as_the_port_made_it():
    tensor = {"tensor": "input.0"}
    structure = {
        "args": [tensor, {"none": True}, {"tuple": [tensor, {"value": 3}]}, {"list": []}, {"tuple": [tensor]}],
        "kwargs": [["mask", tensor], ["of", {"dict": [["k", {"value": "v"}]]}], ["scale", {"value": float("inf")}]],
    }
    x = "torch.from_numpy(data['input.0'])"
    assert called(made(arguments=structure)) == (
        f"result = layer({x}, None, ({x}, 3,), [], ({x},), mask={x}, of={{'k': 'v'}}, scale=float(\"inf\"))"
    )


def test_what_comes_out_is_found_where_it_is_nested():
    outputs = {"tuple": [{"tensor": "output.0"}, {"dict": [["h", {"tensor": "output.1.h"}]]}, {"none": True}]}
    zeros = Tensor(np.zeros(2, np.float32), "float32")
    text = script(made(outputs=outputs, expected={"output.0": zeros, "output.1.h": zeros}))
    assert "'output.0': result[0].detach().numpy(), 'output.1.h': result[1]['h'].detach().numpy()" in text
    fields = {"object": "Out", "fields": [["hidden", {"tensor": "output.0.hidden"}]]}
    assert "result.hidden" in script(made(outputs=fields, expected={"output.0.hidden": zeros}))


def test_short_floats_travel_as_numbers_with_the_name_of_their_type():
    short = {"input.0": Tensor(X, "bfloat16")}
    expected = {"output.0": Tensor(np.zeros((3, 2), np.float32), "bfloat16")}
    repro = made(given=short, expected=expected, parameters={"weight": Tensor(np.zeros((2, 4)), "bfloat16")})
    text = script(repro)
    assert "torch.from_numpy(data['input.0']).to(torch.bfloat16)" in text
    assert "layer.to(torch.bfloat16)" in text
    assert "result.to(torch.float32).detach().numpy()" in text
    kept = arrays(repro)
    assert kept["input.0"].dtype == np.float32
    assert json.loads(str(kept["dtypes"]))["input.0"] == "bfloat16"
    assert limit(repro) == 2.0**-7
    assert limit(made()) == 1e-5


def test_files_lie_beside_each_other_and_are_never_overwritten(tmp_path):
    written = write(made(), tmp_path / "new" / "folder")
    assert written.script.name == "blocks.0.fc.repro.py"
    assert written.complete
    with np.load(written.script.with_suffix(".npz")) as kept:
        assert set(kept.files) == {"dtypes", "input.0", "expected.output.0", "parameter.weight", "parameter.bias"}
    with pytest.raises(UsageError, match="there already"):
        write(made(), tmp_path / "new" / "folder")


def test_a_folder_that_is_a_file_is_told_of(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written to"):
        write(made(), tmp_path / "file")


@pytest.mark.parametrize(
    ("layer", "name"),
    [("", "net.repro.py"), ("token", "token.repro.py"), ("../../x", "_.._x.repro.py"), ("层.0", "层.0.repro.py")],
)
def test_a_layers_name_is_a_file_name(layer, name, tmp_path):
    """None of them can be imported in place of a module: "token" is one of Python's own."""
    assert write(made(layer=layer), tmp_path).script == tmp_path / name


def test_a_long_name_is_cut(tmp_path):
    assert len(write(made(layer="x" * 5000), tmp_path).script.name) < 200


def test_an_object_that_no_dump_holds_is_told_of():
    with pytest.raises(UsageError, match="DynamicCache"):
        script(made(arguments={"args": [{"opaque": "DynamicCache"}]}))
    with pytest.raises(UsageError, match=r"input\.0"):
        script(made(given={}))


def test_an_unknown_framework_is_told_of():
    with pytest.raises(UsageError, match="abacus"):
        script(made(framework="abacus"))


@pytest.mark.parametrize(
    "python", [None, "os.system('x')", "nn.Linear(4, 2", "torch.load('x')", "nn.Linear(__import__('os'))"]
)
def test_what_cannot_be_spelled_is_a_gap_that_stops_the_program(python, tmp_path):
    repro = made(python=python, reason="Attention is a class of your own")
    written = write(repro, tmp_path)
    assert not written.complete
    text = written.script.read_text()
    assert "# Fill in how this layer is built: Attention is a class of your own" in text
    assert "system" not in text
    assert "layer = None" in text


@pytest.mark.parametrize(
    "python",
    [
        "nn.Conv2d(3, 8, (3, 3), padding=-1, pad_mode='pad')",
        "nn.SequentialCell(nn.Dense(1, 2, activation=ops.relu), nn.ReLU()).to_float(ms.float16)",
        "mint.nn.Linear(1, 2)",
        "nn.Hardtanh(float('-inf'), 1.0)",
        "nn.CellDict({'a': nn.ReLU()})",
    ],
)
def test_layers_of_the_framework_are_harmless(python):
    assert is_harmless(python, SPEECHES["mindspore"].roots)


@pytest.mark.parametrize(
    "python",
    [
        "torch.load('x')",
        "torch.hub.load('x', 'y')",
        "nn.Module.__subclasses__()",
        "nn.Linear.__init__.__globals__",
        "[nn.Linear(i, 1) for i in (1,)]",
        "(lambda: nn.Linear(1, 1))()",
        "nn.Linear(1, 1) if open('x') else 0",
        "nn.Linear(f'{1}')",
        "exec('1')",
        "os.PathLike()",
        "nn.Linear(1, 1)\nos",
        "(" * 500,
        "\0",
    ],
)
def test_anything_else_is_not(python):
    assert not is_harmless(python, SPEECHES["torch"].roots)


def test_names_from_a_dump_are_quoted():
    repro = made(
        layer=HOSTILE,
        kind=HOSTILE,
        version=HOSTILE,
        python=None,
        reason=HOSTILE,
        arguments={"args": [{"tensor": HOSTILE}], "kwargs": [[HOSTILE, {"value": HOSTILE}]]},
        outputs={"dict": [[HOSTILE, {"tensor": HOSTILE}]]},
        given={HOSTILE: Tensor(X, "float32")},
        expected={HOSTILE: Tensor(X, "float32")},
    )
    tree = ast.parse(script(repro))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert {alias.name for node in imported for alias in node.names} == {"sys", "torch", "numpy"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "os"]


def test_it_runs_and_shows_the_difference(tmp_path, capsys):
    pytest.importorskip("torch", reason="the program is one for torch")
    random = np.random.default_rng(0)
    weight, bias = random.standard_normal((2, 4), np.float32), random.standard_normal(2, np.float32)
    right = X @ weight.T + bias
    bad = right.copy()
    bad[1, 0] += 0.5
    good = made(parameters={"weight": Tensor(weight, "float32"), "bias": Tensor(bias, "float32")})

    def run(name, **changes):
        path = write(replace(good, layer=name, **changes), tmp_path).script
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        return ended.value.code, capsys.readouterr().out

    def wanted(array):
        return {"output.0": Tensor(array, "float32")}

    code, told = run("good", expected=wanted(right))
    assert (code, told[:18]) == (0, "output.0: max abs ")
    code, told = run("bad", expected=wanted(bad))
    assert code == 1
    assert "output.0: max abs 5.0e-01" in told
    assert "worst at [1, 0]" in told
    code, told = run("shape", expected=wanted(bad[:2]))
    assert code == 1
    assert "shape (3, 2), the reference has (2, 2)" in told
    code, told = run("gap", python=None)
    assert code == 2
    assert "Fill in" in told

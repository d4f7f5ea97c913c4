"""Programs that run one layer by itself: their text, their arrays, and that nothing hostile gets into them."""

from __future__ import annotations

import ast
import json
import runpy
from dataclasses import replace

import numpy as np
import pytest

from aligner.errors import UsageError
from aligner.programs.repro import Tensor, arrays, limit, script
from aligner.programs.repro_file import write
from aligner.programs.speech import SPEECHES
from tests.unit.programs.repros import X, made, one

HOSTILE = 'a"""\nimport os\nos.system("true")\n"""\\'


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


@pytest.mark.parametrize(
    ("framework", "operation", "text"),
    [
        ("torch", "torch.fmod", "torch.fmod(torch.from_numpy(data['input.0']))"),
        ("mindtorch", "torch.nn.functional.gelu", "torch.nn.functional.gelu(torch.tensor(data['input.0']))"),
        ("mindspore", "mint.erfinv", "mint.erfinv(ms.Tensor(data['input.0']))"),
        ("mindspore", "Tensor.erfinv", "ms.Tensor(data['input.0']).erfinv()"),
        ("mindspore", "operator.mod", "operator.mod(ms.Tensor(data['input.0']))"),
    ],
)
def test_an_operation_is_called_in_the_place_of_a_layer(framework, operation, text):
    repro = made(framework=framework, operation=operation, python=None)
    assert called(repro) == f"result = {text}"
    assert "layer(" not in script(repro)
    assert ("import operator\n" in script(repro)) == operation.startswith("operator")


@pytest.mark.parametrize(
    "operation", ["torch.load", "os.system", "Tensor.__class__", "operator.attrgetter", "ops.fmod"]
)
def test_what_is_no_operation_of_the_frameworks_is_not_called(operation):
    with pytest.raises(UsageError, match="cannot be run by itself"):
        script(made(framework="torch", operation=operation))


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


def test_an_object_that_no_dump_holds_is_told_of():
    with pytest.raises(UsageError, match="DynamicCache"):
        script(made(arguments={"args": [{"opaque": "DynamicCache"}]}))
    with pytest.raises(UsageError, match=r"input\.0"):
        script(made(given={}))
    with pytest.raises(UsageError, match="in no dump"):
        script(made(arguments={"none": True}))


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


def test_before_a_class_is_called_the_program_sees_that_it_is_a_layer_of_the_framework():
    text = script(made(python="nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2))"))
    assert "for kind in (nn.Sequential, nn.Linear, nn.ReLU,):" in text
    assert text.index("for kind in") < text.index("layer = nn.Sequential(")
    assert "issubclass(kind, nn.Cell)" in script(made(framework="mindspore", python="nn.Dense(4, 2)"))


@pytest.mark.parametrize("planted", ["os.system", "print", "Sequence", "OrderedDict"])
def test_a_name_that_leads_elsewhere_is_not_called(tmp_path, capsys, monkeypatch, planted):
    """Should a framework one day have something else under the name of a layer, it is left alone."""
    torch = pytest.importorskip("torch", reason="the program is one for torch")
    called = []
    known = {"os.system": called.append, "print": print, "Sequence": list, "OrderedDict": dict}
    monkeypatch.setattr(torch.nn, "Linear", known[planted])
    path = write(made(), tmp_path).script
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert (ended.value.code, called) == (2, [])
    assert "is no layer class of torch: it is not called" in capsys.readouterr().out


def test_names_from_a_dump_are_quoted():
    repro = made(
        layer=HOSTILE,
        kind=HOSTILE,
        version=HOSTILE,
        python=None,
        reason=HOSTILE,
        arguments={
            "args": [{"tensor": HOSTILE}],
            "kwargs": [[name, {"value": HOSTILE}] for name in (HOSTILE, "class", "__debug__", "ｘ", "x")],
        },
        outputs={"dict": [[HOSTILE, {"tensor": HOSTILE}]]},
        given={HOSTILE: Tensor(X, "float32")},
        expected={HOSTILE: Tensor(X, "float32")},
    )
    tree = ast.parse(script(repro))
    compile(tree, "repro", "exec")
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert {alias.name for node in imported for alias in node.names} == {"sys", "torch", "numpy"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "os"]


@pytest.mark.parametrize("value", [[1], {"a": 1}, [float("nan")]])
def test_a_value_that_no_structure_has_is_no_argument(value):
    with pytest.raises(UsageError, match="in no dump"):
        script(made(arguments={"args": [{"value": value}]}))


def test_a_program_that_compares_nothing_is_not_written():
    with pytest.raises(UsageError, match="no call with a recorded output"):
        script(made(outputs={"object": "Out", "fields": [["__class__", {"tensor": "output.0"}]]}))


@pytest.mark.parametrize("slot", ["file", "allow_pickle", "dtypes", "a/../b", "x" * 70_000, "input.\u2028"])
def test_any_slot_has_its_place_in_the_file_of_values(slot, tmp_path):
    tensor = Tensor(X, "float32")
    repro = made(
        arguments=one(slot),
        outputs={"tensor": slot},
        given={slot: tensor},
        expected={slot: tensor},
        parameters={slot: tensor},
    )
    written = write(repro, tmp_path)
    with np.load(written.script.with_suffix(".npz")) as kept:
        names = set(kept.files)
    assert len(names) == 4
    text = written.script.read_text(encoding="utf-8")
    (given,) = (name for name in names if name.startswith("input."))
    assert f"layer(torch.from_numpy(data['{given}']))" in text
    (expected,) = (name[len("expected.") :] for name in names if name.startswith("expected."))
    assert f"made = {{'{expected}': " in text


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

"""Of Python that a dump tells, nothing is taken over but layers of the framework's own and plain values."""

from __future__ import annotations

import ast
import warnings

import pytest

from aligner.programs.building import LONGEST, building
from aligner.programs.speech import SPEECHES


def text(python, framework="mindspore"):
    found = building(python, SPEECHES[framework].grammar)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "python",
    [
        "nn.Conv2d(3, 8, (3, 3), padding=-1, pad_mode='pad')",
        "nn.SequentialCell(nn.Dense(1, 2, activation=ops.relu), nn.ReLU()).to_float(ms.float16)",
        "nn.SequentialCell(nn.Dense(1, 2).to_float(ms.bfloat16))",
        "mint.nn.Linear(1, 2)",
        'nn.Hardtanh(float("-inf"), 1.0)',
        "nn.CellDict({'a': nn.ReLU()})",
        "nn.CellList([nn.ReLU(), nn.ReLU()])",
        "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, activation=mint.nn.functional.gelu), 3, norm=None)",
        "nn.Pad(((0, 0), (1, 1)), mode='CONSTANT')",
        "nn.Dropout(p=0.5)",
        "nn.LayerNorm((8,), epsilon=1e-05)",
    ],
)
def test_layers_of_mindspore_are_taken_as_they_are(python):
    assert text(python) == python


@pytest.mark.parametrize(
    "python",
    ["nn.Linear(4, 2, bias=False)", "torch.nn.LSTM(3, 4, batch_first=True)", "nn.Linear(1, 1, dtype=torch.float16)"],
)
@pytest.mark.parametrize("framework", ["torch", "mindtorch"])
def test_layers_of_torch_are_taken_as_they_are(python, framework):
    assert text(python, framework) == python


def test_what_is_called_is_told_once():
    found = building("nn.Sequential(nn.ReLU(), torch.nn.Linear(1, 2), nn.ReLU())", SPEECHES["torch"].grammar)
    assert found is not None
    assert found.classes == ("nn.Sequential", "nn.ReLU", "torch.nn.Linear")


MINDSPORE = [
    "ms.runtime.thread_bind_core.subprocess.Popen('touch /tmp/x', shell=True)",
    "ms.log.logging.FileHandler('/tmp/x')",
    "ops.Custom('x.so:f', out_shape=1, func_type='aot')",
    "nn.Dense(ms.runtime.thread_bind_core.subprocess.Popen('x'), 1)",
    "nn.Dense(1, 1, activation=ops.Custom)",
    "nn.Dense(1, 1, activation=ops.relu.__globals__)",
    "nn.Dense(1, 1).to_float(ms.load_checkpoint('x'))",
    "nn.Dense(1, 1).to_float(ms.float16, ms.float16)",
    "nn.Dense(1, 1).to_float(ms.float16).to_float(ms.log)",
    "nn.Dense(1, 1).to_float(dtype=ms.float16)",
    "nn.Dense(1, 1).set_train(True)",
    "nn.Cell()",
    "nn.GraphCell('x')",
    "nn.Optimizer(1)",
    "mindspore.nn.Dense(1, 1)",
    "ms.mint.Linear(1, 1)",
    "mint.Linear(1, 1)",
    "mint.nn.nn.Linear(1, 1)",
    "ms.nn.layer.basic.Dense(1, 1)",
    "ms.Tensor(1)",
    "ops.relu",
    "ms.float16",
    "float('inf')",
    "3",
    "nn.Dense",
]
TORCH = [
    "torch.load('x')",
    "torch.hub.load('x', 'y')",
    "torch.ctypes.CDLL('x')",
    "torch.utils.data.DataLoader([1])",
    "torch.classes.load_library('x')",
    "nn.modules.module.OrderedDict()",
    "nn.modules.linear.Linear(1, 1)",
    "nn.Module()",
    "nn.DataParallel(nn.ReLU())",
    "nn.Module.__subclasses__()",
    "nn.Linear.__init__.__globals__",
    "nn.__dict__['Linear'](1, 1)",
    "nn.Linear(1, 1)()",
    "nn.Linear(1, 1)(open('x'))",
    "nn.Linear(1, 1).to_float(torch.float16)",
    "[nn.Linear(i, 1) for i in (1,)]",
    "nn.Sequential(*[nn.Linear(i, 1) for i in (1,)])",
    "nn.Sequential(*(1, 2))",
    "nn.Linear(**{'x': 1})",
    "nn.Linear({**{'x': 1}})",
    "nn.Linear({nn.ReLU(): 1})",
    "nn.Linear(1, 1, a=1, a=2)",
    "nn.Linear(1, 1, __debug__=1)",
    "nn.Linear(1, 1, _x=1)",
    "nn.Linear(1, 1, é=1)",
    "(lambda: nn.Linear(1, 1))()",
    "nn.Linear((lambda: 1)(), 1)",
    "nn.Linear(1, 1) if open('x') else 0",
    "nn.Linear(1, 1) or open('x')",
    "nn.Linear(f'{1}')",
    "nn.Linear(f'{open(1)}')",
    "nn.Linear((x := 1), 1)",
    "nn.Linear(1 + 1, 1)",
    "nn.Linear('a' * 10 ** 10, 1)",
    "nn.Linear(~1, not 1)",
    "nn.Linear(-True, 1)",
    "nn.Linear(-'x', 1)",
    "nn.Linear(--1, 1)",
    "nn.Linear(x, 1)",
    "nn.Linear(1[0], 1)",
    "nn.Linear(await_, 1)",
    "nn.Linear({1, 2})",
    "nn.Linear(b'x')",
    "nn.Linear(1j)",
    "nn.Linear(...)",
    "nn.Linear(1e999)",
    "nn.Linear(float('1'))",
    "nn.Linear(float(open))",
    "nn.Linear(float('inf', 'inf'))",
    "nn.Linear(float)",
    "nn.Linear(float(x='inf'))",
    f"nn.Linear({1 << 63}, 1)",
    f"nn.Linear({'9' * 5000}, 1)",
    "exec('1')",
    "os.PathLike()",
    "nn.Linear(1, 1)\nos",
    "nn.Linear(1, 1); import os",
    "import os",
    "x = nn.Linear(1, 1)",
    "nn.Linear(1, 1) #\n, os",
    "(" * 500,
    "(" * 90 + "nn.Linear(1, 1)" + ")" * 90 + "x",
    "nn.Sequential(" * 60 + ")" * 60,
    "nn.Linear(" + "[" * 60 + "]" * 60 + ")",
    "nn.Linear('" + "x" * LONGEST + "')",
    "\0",
    "",
    " ",
    "\ud800",
]


@pytest.mark.parametrize("python", MINDSPORE)
def test_nothing_else_of_mindspore_is(python):
    assert text(python) is None


@pytest.mark.parametrize("python", TORCH)
def test_nothing_else_of_torch_is(python):
    assert text(python, "torch") is None


@pytest.mark.parametrize(
    ("python", "wanted"),
    [
        ("nn.Linear(1, 1)  # '''\n", "nn.Linear(1, 1)"),
        (" nn . Linear\t(\t1,\\\n 1)", None),
        ("(nn.Linear\n(1, # import os\n 1))", "nn.Linear(1, 1)"),
        ("ｎｎ.Ｌinear(0x10, 1_0)", "nn.Linear(16, 10)"),
        (r"nn.Dense(1, 1, weight_init='a\n\x1b[31m\u2028')", r"nn.Dense(1, 1, weight_init='a\n\x1b[31m\u2028')"),
        ("nn.Dense(1, 1, weight_init='''a\nimport os''')", "nn.Dense(1, 1, weight_init='a\\nimport os')"),
        ("nn.Dense(1, 1, weight_init='a' 'b')", "nn.Dense(1, 1, weight_init='ab')"),
        ("nn.Dense(1, 1, weight_init='‮x')", "nn.Dense(1, 1, weight_init='\\u202ex')"),
    ],
)
def test_it_is_written_anew_and_never_copied(python, wanted):
    found = text(python, "torch" if "inear" in python else "mindspore")
    assert found == wanted or (wanted is None and found is None)
    if found is not None:
        assert len(found.splitlines()) == 1
        assert found.isprintable()
        ast.parse(found, mode="eval")


def test_nothing_is_printed_about_what_is_odd_in_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text(r"nn.Dense(1, 1, weight_init='\d')") is not None


def test_everything_that_the_adapters_spell_is_listed():
    """What is not would become a gap that the user has to fill in."""
    pytest.importorskip("mindspore", reason="asks MindSpore's adapter for its classes")
    from aligner_hooks.mindspore_.arguments import MINT, NN

    classes = SPEECHES["mindspore"].grammar.classes
    assert set(NN) | {"SequentialCell", "CellList", "CellDict"} <= classes["nn"]
    assert set(MINT) <= classes["mint.nn"]


def test_all_listed_classes_of_torch_are_layers_and_none_is_missing():
    torch = pytest.importorskip("torch", reason="asks torch for its classes")
    nn, listed = torch.nn, SPEECHES["torch"].grammar.classes["nn"]
    there = {
        name for name in dir(nn) if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    bases = {"Module", "Container", "DataParallel", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase"}
    assert there - listed <= bases
    assert not listed & bases
    for name in listed & set(dir(nn)):
        assert issubclass(getattr(nn, name), nn.Module), name

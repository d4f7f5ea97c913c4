"""Silenced dropout of MindSpore is really inactive, however it is spelled, and nobody keeps anything of ours."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from aligner_hooks.mindspore_ import MindSporeAdapter, operations  # noqa: E402 - only where MindSpore is installed
from aligner_hooks.mindsporelike import undropped  # noqa: E402 - likewise
from mindspore import Tensor, mint, nn, ops  # noqa: E402 - likewise
from mindspore.ops import dropout as imported  # noqa: E402 - likewise

ADAPTER = MindSporeAdapter()
X = Tensor(np.random.default_rng(0).standard_normal((64, 8, 4, 4)).astype(np.float32))
LAZY = "from mindspore.ops import dropout\n\ndef run(x):\n    return dropout(x, 0.5)\n"


class Lazy(nn.Cell):
    """Imports what it needs when it first runs."""

    def construct(self, x):
        import lazily_imported_port

        return lazily_imported_port.run(x)


class Everything(nn.Cell):
    def __init__(self):
        super().__init__()
        self.drop, self.channels, self.primitive = nn.Dropout(p=0.5), nn.Dropout2d(p=0.5), ops.Dropout(keep_prob=0.5)

    def construct(self, x):
        return self.drop(x), self.channels(x), self.primitive(x)[0], imported(x, 0.5), ops.dropout2d(x, 0.5)


def attention():
    made = nn.MultiheadAttention(4, 2, dropout=0.5).set_train()
    x = X.reshape(-1, 4, 4)
    return lambda: made(x, x, x)[0]


def recurrent():
    made = nn.LSTM(4, 4, 2, dropout=0.5).set_train()
    return lambda: made(X.reshape(-1, 4, 4))[0]


SPELLINGS = {
    "ops.dropout": lambda: ops.dropout(X),
    "ops.dropout by name": lambda: ops.dropout(input=X, p=0.5, training=True),
    "ops.dropout1d": lambda: ops.dropout1d(X.reshape(64, 8, 16)),
    "ops.dropout2d": lambda: ops.dropout2d(X),
    "ops.dropout3d": lambda: ops.dropout3d(X.reshape(64, 8, 4, 2, 2)),
    "imported": lambda: imported(X, 0.5),
    "ops.Dropout": lambda: ops.Dropout(keep_prob=0.5)(X)[0],
    "ops.Dropout2D": lambda: ops.Dropout2D(keep_prob=0.5)(X)[0],
    "ops.Dropout3D": lambda: ops.Dropout3D(keep_prob=0.5)(X.reshape(64, 8, 4, 2, 2))[0],
    "nn.Dropout": lambda: nn.Dropout(p=0.5).set_train()(X),
    "nn.Dropout1d": lambda: nn.Dropout1d(p=0.5).set_train()(X.reshape(64, 8, 16)),
    "nn.Dropout2d": lambda: nn.Dropout2d(p=0.5).set_train()(X),
    "nn.Dropout3d": lambda: nn.Dropout3d(p=0.5).set_train()(X.reshape(64, 8, 4, 2, 2)),
    "nn.MultiheadAttention": attention(),
    "nn.LSTM": recurrent(),
}


def bits(value):
    return ADAPTER.to_numpy(value).tobytes()


@pytest.fixture
def silence():
    handles = []
    yield lambda net=None: handles.append(ADAPTER.silence_dropout(net or nn.ReLU())) or handles[-1]
    for handle in handles:
        handle.remove()


@pytest.fixture(params=["PYNATIVE_MODE", "GRAPH_MODE"])
def mode(request):
    mindspore.set_context(mode=getattr(mindspore, request.param))
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_every_spelling_is_silent_and_comes_back(silence, name):
    run = SPELLINGS[name]
    assert bits(run()) != bits(run())
    handle = silence()
    made = bits(run())
    assert made == bits(run())
    if "ropout" in name:
        assert made == bits(X)
    handle.remove()
    assert bits(run()) != bits(run())


@pytest.mark.skipif(not hasattr(mint.nn.functional, "dropout"), reason="a MindSpore without it")
def test_the_function_of_mint_is_silent_where_it_cannot_even_run(silence):
    """Its kernel is not there on CPU: silenced it never asks for it."""
    silence()
    try:
        made = bits(mint.nn.functional.dropout(X, 0.5))
    except RuntimeError as error:  # of the value as well: MindSpore 2.9 asks for the kernel when it is read
        pytest.skip(str(error).splitlines()[0])
    assert made == bits(X)


@pytest.mark.parametrize("first", ["silent", "dropping"])
def test_graphs_of_the_programs_own_stay_what_they_are(silence, mode, first):
    net = Everything().set_train()
    if first == "dropping":
        assert all(bits(one) != bits(X) for one in net(X))
    handle = silence(net)
    assert all(bits(one) == bits(X) for one in net(X))
    net.set_train(False)
    net.set_train()
    assert all(bits(one) == bits(X) for one in net(X))
    handle.remove()
    assert all(bits(one) != bits(X) for one in net(X))


def test_a_compiled_function_drops_again(silence):
    @mindspore.jit
    def compiled(x):
        return imported(x, 0.5)

    handle = silence()
    assert bits(compiled(X)) == bits(X)
    handle.remove()
    assert bits(compiled(X)) != bits(X)


def test_a_module_imported_in_a_construct_is_silent_and_keeps_nothing_of_ours(silence, tmp_path, monkeypatch):
    (tmp_path / "lazily_imported_port.py").write_text(LAZY)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, net = imported.__code__, Lazy().set_train()
    handle = silence(net)
    assert bits(net(X)) == bits(X)
    handle.remove()
    module = sys.modules.pop("lazily_imported_port")
    assert module.dropout is ops.dropout is imported
    assert imported.__code__ is code
    assert bits(module.run(X)) != bits(X)


def test_every_function_that_drops_has_a_switch():
    functions = list(undropped._functions())
    assert imported in functions
    assert [function.__name__ for function in functions if undropped._undropped(function) is None] == []


@pytest.mark.skipif(not operations.supported(), reason="a MindSpore that tells of no operators")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_who_forgets_to_remove_a_listener_does_not_end_the_process(where):
    """MindSpore ends the process if a dispatch mode is left on its stack."""
    script = (
        "import threading, mindspore\n"
        "from aligner_hooks.mindspore_ import MindSporeAdapter\n"
        "x = mindspore.Tensor([1.0])\n"
        "def work():\n"
        "    MindSporeAdapter().operations(lambda name: print(name, flush=True))\n"
        "    x + x\n"
    )
    script += "work()\n" if where == "main" else "t = threading.Thread(target=work)\nt.start()\nt.join()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["add"]), done.stderr[-500:]

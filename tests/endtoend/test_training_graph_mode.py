"""Unchanged training scripts that ask for GRAPH_MODE, in four ways of writing a step: run eagerly, and told so."""

from __future__ import annotations

import json

import pytest

import aligner as api
from tests.endtoend.test_training_scripts import MINDSPORE, SLOWER, TORCH

GRAPH = {
    "context": "mindspore.set_context(mode=mindspore.GRAPH_MODE)",
    "number": "mindspore.set_context(mode=0, max_call_depth=2000)",
    "module": "mindspore.context.set_context(mode=mindspore.context.GRAPH_MODE)",
    "device": 'mindspore.set_device("CPU"); mindspore.set_context(mode=mindspore.GRAPH_MODE)',
}
HEAD = MINDSPORE[: MINDSPORE.index("def forward")]
FUNCTION = MINDSPORE[MINDSPORE.index("def forward") :].replace("@mindspore.jit\n", "")
LOSS = """
class WithLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, loss_fn

    def construct(self, x, y):
        return self.loss(self.net(x), y)
"""
OPERATION = f"""{LOSS}
grad = mindspore.ops.GradOperation(get_by_list=True)(WithLoss(net), optimizer.parameters)
for start in range(0, 24, 6):
    optimizer(grad(Tensor(images[start:start + 6]), Tensor(labels[start:start + 6])))
"""
CELL = """
class Step(nn.TrainOneStepCell):
    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.grad(self.network, self.weights)(x, y, mindspore.Tensor(1.0))
        return mindspore.ops.depend(loss, self.optimizer(gradients))

step = Step(nn.WithLossCell(net, loss_fn), optimizer).set_train()
for start in range(0, 24, 6):
    loss = step(Tensor(images[start:start + 6]), Tensor(labels[start:start + 6]))
"""
MODEL = """
data = mindspore.dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(6)
mindspore.train.Model(net, loss_fn, optimizer).train(1, data, dataset_sink_mode=False)
"""
CASES = {
    "value_and_grad": (FUNCTION, "context"),
    "model": (MODEL, "number"),
    "operation": (OPERATION, "module"),
    "cell": (CELL, "device"),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, torch_at_hand):
    folder = tmp_path_factory.mktemp("reference")
    (folder / "train.py").write_text(TORCH)
    done = torch_at_hand.run(folder, "capture", "-o", "ref.h5", "--gradients", "--steps", "4", "train.py")
    assert done.returncode == 0, done.stderr
    return folder / "ref.h5"


@pytest.mark.parametrize("right", [True, False], ids=["right", "rate"])
@pytest.mark.parametrize("name", CASES)
def test_a_script_that_asks_for_graph_mode_is_run_eagerly_and_judged(aligner, reference, tmp_path, name, right):
    step, asked = CASES[name]
    head = HEAD.replace("from mindspore import nn, Tensor\n", f"from mindspore import nn, Tensor\n{GRAPH[asked]}\n")
    assert GRAPH[asked] in head
    (tmp_path / "port.py").write_text((head if right else head.replace(*SLOWER)) + step)
    done = aligner("capture", "-o", "port.h5", "--gradients", "--from", reference, "port.py")
    assert done.returncode == 0, done.stderr
    assert "asks for GRAPH_MODE and was run eagerly" in done.stderr
    with api.open(tmp_path / "port.h5") as dump:
        assert [note.message for note in dump.notes].count("mindspore-run-eagerly") == 1
        assert dump.header["mode"] == "pynative"
    found = json.loads(aligner("compare", reference, "port.h5", "--json").stdout)
    told = [(one["where"], one["causes"][0]["id"], one["causes"][0]["confirmed"]) for one in found["origins"]]
    assert told == ([] if right else [("update", "optimizer-learning-rate", True)])
    assert found["outcome"] == ("aligned" if right else "diverged")
    assert [row["step"] for row in found["steps"]] == [0, 1, 2, 3]


COMPILED = f"{GRAPH['context']}\nprint('asked for', mindspore.get_context('mode'))\n"


@pytest.mark.parametrize(("environ", "mode"), [({}, "1"), ({"MS_JIT": "1"}, "0")], ids=["eager", "kept"])
def test_who_sets_ms_jit_keeps_the_mode_that_the_script_asks_for(aligner, tmp_path, environ, mode):
    head = HEAD.replace("rng =", f"{COMPILED}rng =")
    (tmp_path / "port.py").write_text(head + FUNCTION)
    done = aligner("capture", "-o", "port.h5", "--gradients", "port.py", env=environ)
    assert done.returncode == 0, done.stderr
    assert f"asked for {mode}" in done.stdout
    assert ("was run eagerly" in done.stderr) == (mode == "1")

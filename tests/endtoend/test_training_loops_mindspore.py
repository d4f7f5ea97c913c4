"""MindSpore's training loops, eager and compiled: weights that have moved are seen where they can be read."""

from __future__ import annotations

import numpy as np
import pytest

import aligner
from aligner.report.answer import answer
from tests.endtoend.test_training_loops import ALL, batches, changed
from tests.endtoend.test_training_loops import net as torch_net
from tests.endtoend.test_training_loops import trained as torch_trained

ms = pytest.importorskip("mindspore", reason="the loops are MindSpore's")
nn, ops = ms.nn, ms.ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True)
        self.bn = nn.BatchNorm2d(4, momentum=0.9)
        self.fc = nn.Dense(144, 5)

    def construct(self, x):
        return self.fc(ops.relu(self.bn(self.conv1(x))).reshape(x.shape[0], -1))


class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x):
        return ops.square(self.net(x)).mean()


def made():
    ms.set_seed(0)
    np.random.seed(0)
    return Net().set_train()


def trained(model, rate, jit=False):
    """A user's loop, its step compiled or not."""
    updates = nn.SGD(model.trainable_params(), rate)

    def forward(x):
        return ops.square(model(x)).mean()

    gradient = ms.value_and_grad(forward, None, updates.parameters)

    def step(x):
        loss, gradients = gradient(x)
        updates(gradients)
        return loss

    if jit:
        step = ms.jit(step)
    for x in batches():
        step(ms.Tensor(x))


@pytest.fixture(autouse=True)
def mode(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = ms.get_context("mode")
    name = getattr(request, "param", "pynative")
    ms.set_context(mode=ms.GRAPH_MODE if name == "graph" else ms.PYNATIVE_MODE)
    yield name
    ms.set_context(mode=before)


@pytest.mark.parametrize("jit", [False, True], ids=["loop", "jit"])
@pytest.mark.parametrize("mode", ["pynative", "graph"], indirect=True)
def test_a_wrong_learning_rate_blames_no_layer(mode, jit):
    for name, rate in (("ref.h5", 0.01), ("same.h5", 0.01), ("wrong.h5", 0.2)):
        model = made()
        with aligner.capture(model, name):
            trained(model, rate, jit)
    assert changed("ref.h5") == ([1, 2], ALL)
    assert aligner.compare("ref.h5", "same.h5").exit_code == 0
    found = aligner.compare("ref.h5", "wrong.h5")
    assert (found.exit_code, found.origins, found.suspects) == (1, (), ())
    assert "no layer is judged" in answer(found, "en")


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_a_port_of_a_torch_loop(rate):
    """What read "conv1 is wrong by itself" where only the learning rate was."""
    with aligner.capture(model := torch_net(), "ref.h5"):
        torch_trained(model, 0.01)
    replay = aligner.replay("ref.h5", made())
    with replay.capture("port.h5"):
        trained(replay.model, rate)
    found = aligner.compare("ref.h5", "port.h5")
    assert found.checked
    assert found.origins == ()
    if rate == 0.01:
        assert found.exit_code == 0
    else:
        assert found.exit_code == 1
        assert "both nets' weights were changed" in answer(found, "en")


def test_a_training_cell_of_mindspores_own():
    for name, rate in (("ref.h5", 0.01), ("wrong.h5", 0.2)):
        model = made()
        step = nn.TrainOneStepCell(Loss(model), nn.Momentum(model.trainable_params(), rate, 0.9)).set_train()
        with aligner.capture(step, name):
            for x in batches():
                step(ms.Tensor(x))
    assert changed("ref.h5")[0] == [1, 2]
    found = aligner.compare("ref.h5", "wrong.h5")
    assert (found.exit_code, found.origins) == (1, ())


@pytest.mark.parametrize("mode", ["pynative", "graph"], indirect=True)
def test_a_forward_in_train_mode_is_not_taken_for_training(mode):
    model = made()
    with aligner.capture(model, "a.h5"):
        for x in batches():
            model(ms.Tensor(x))
    assert changed("a.h5") == ([], [])


@pytest.mark.parametrize("mode", ["pynative", "graph"], indirect=True)
def test_a_weight_set_by_hand(mode):
    model, x = made().set_train(False), ms.Tensor(batches()[0])
    with aligner.capture(model, "a.h5"):
        model(x)
        model.fc.weight.set_data(model.fc.weight + 1.0)
        model(x)
    assert changed("a.h5") == ([1], ["fc"])


def test_a_statistic_in_a_compiled_step_is_the_layers_own():
    model = made()

    def run(x):
        return model(x)

    forward = ms.jit(run)
    with aligner.capture(model, "a.h5"):
        for x in batches():
            forward(ms.Tensor(x))
    assert changed("a.h5") == ([], [])

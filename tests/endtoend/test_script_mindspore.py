"""An unchanged MindSpore script: a training loop, Model.predict, and what graph mode is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import aligner as api

pytest.importorskip("mindspore", reason="these scripts use MindSpore")

TRAIN = """
import mindspore as ms, numpy as np
from mindspore import nn
ms.set_seed(0)
np.random.seed(0)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 3)

    def construct(self, x):
        return self.fc2(self.relu(self.fc1(x)))

net, loss = Net(), nn.CrossEntropyLoss()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
def forward(x, y):
    return loss(net(x), y)

step = ms.value_and_grad(forward, None, optimizer.parameters)
net.set_train()
for _ in range(3):
    x = ms.Tensor(np.random.randn(4, 6).astype(np.float32))
    value, gradients = step(x, ms.Tensor(np.arange(4) % 3, ms.int32))
    optimizer(gradients)
    print(value)
"""


def run(folder, *command):
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=200)


BARE = """
import mindspore as ms, numpy as np
from mindspore import nn
class Plain(nn.Cell):
    def construct(self, x):
        return x * 2
print(Plain()(ms.Tensor(np.ones(2, np.float32))))
"""


def test_a_net_without_parameters_that_ran_is_named(tmp_path):
    (tmp_path / "train.py").write_text(BARE)
    done = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert done.returncode == 2
    assert "Only Plain ran in train.py" in done.stderr
    assert run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "--model", "Plain", "train.py").returncode == 0


def test_a_training_loop_prints_the_same_and_its_first_step_is_in_the_dump(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    plain = run(tmp_path, "train.py")
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert len(plain.stdout.split()) == 3
    with api.open(tmp_path / "ref.h5") as dump:
        assert dump.header["model"] == "Net"
        assert dump.header["training"] is True
        assert [call.layer for call in dump.calls] == ["", "fc1", "relu", "fc2"]


def test_graph_mode_is_captured_as_the_eager_run_is(tmp_path):
    script = textwrap.dedent(TRAIN)
    (tmp_path / "eager.py").write_text(script)
    (tmp_path / "train.py").write_text(
        script.replace("ms.set_seed(0)", "ms.set_context(mode=ms.GRAPH_MODE)\nms.set_seed(0)")
    )
    plain = run(tmp_path, "train.py")
    ours = run(tmp_path, "-m", "aligner", "capture", "-o", "ref.h5", "train.py")
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0)
    run(tmp_path, "-m", "aligner", "capture", "-o", "eager.h5", "eager.py")
    with api.open(tmp_path / "ref.h5") as graph, api.open(tmp_path / "eager.h5") as eager:
        assert (graph.header["mode"], eager.header["mode"]) == ("graph", "pynative")
        assert [call.layer for call in graph.calls] == [call.layer for call in eager.calls]
        for one, other in zip(graph.entries, eager.entries):
            assert (one.key, one.dtype) == (other.key, other.dtype)
            assert one.raw().tobytes() == other.raw().tobytes()

"""A training in MindSpore that was stopped and resumed, against one that was not."""

from __future__ import annotations

import pytest

import aligner as package

pytest.importorskip("mindspore", reason="the trainings are MindSpore's")

SCRIPT = """
import argparse, mindspore as ms, numpy as np
from mindspore import nn, Tensor
parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--stop", type=int, default=8)
parser.add_argument("--lose", default="")
options = parser.parse_args()
rng = np.random.default_rng(0)
images, labels = rng.random((48, 3, 6, 6)).astype(np.float32), rng.integers(0, 4, 48).astype(np.int32)
ms.set_seed(1)
net = nn.SequentialCell(nn.Conv2d(3, 6, 3, pad_mode="valid", has_bias=True), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                        nn.Dense(96, 4))
net.set_train()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), [0.01 - 0.001 * step for step in range(8)])
first = 0
if options.resume:
    if options.lose != "net":
        ms.load_param_into_net(net, ms.load_checkpoint("net.ckpt"))
    if options.lose != "optimizer":
        ms.load_param_into_net(optimizer, ms.load_checkpoint("optimizer.ckpt"))
    first = 4 if options.lose != "data" else 0

def forward(x, y):
    return loss_fn(net(x), y)

grad = ms.value_and_grad(forward, None, optimizer.parameters)
for step in range(first, first + 4 if options.resume else options.stop):
    loss, gradients = grad(Tensor(images[step * 6:step * 6 + 6]), Tensor(labels[step * 6:step * 6 + 6]))
    optimizer(gradients)
if options.stop == 4:
    ms.save_checkpoint(net, "net.ckpt")
    ms.save_checkpoint(optimizer, "optimizer.ckpt")
"""

LOST = {
    "": [],
    "optimizer": [("state", 4, "resume-optimizer-state")],
    "data": [("data", 4, "resume-data-begins")],
}


def test_what_was_lost_is_named_and_no_layer_blamed(aligner, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    runs = [("whole.h5", 8, ()), ("stopped.h5", 8, ("--stop", 4))]
    runs += [(f"resumed{lost}.h5", 4, ("--resume", "--lose", lost)) for lost in LOST]
    for path, steps, arguments in runs:
        done = aligner("capture", "--gradients", "--steps", steps, "-o", path, "train.py", *arguments)
        assert done.returncode == 0, done.stderr
    for lost, wanted in LOST.items():
        found = package.compare(tmp_path / "whole.h5", tmp_path / f"resumed{lost}.h5")
        assert [(one.where, one.step, one.causes[0].id) for one in found.origins] == wanted
        assert found.outcome == ("diverged" if lost else "aligned")
        assert (found.resumed.step, found.resumed.by) == (4, "parameters")
        assert not [verdict for verdict in found.verdicts if verdict.fails and verdict.origin != 0]
    done = aligner("compare", "whole.h5", "resumedoptimizer.h5")
    assert "`ms.save_checkpoint(optimizer, ...)`" in " ".join(done.stdout.split())

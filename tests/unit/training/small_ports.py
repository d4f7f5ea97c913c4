"""Ports of the small trainings to MindSpore."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import nn, ops
from mindspore.experimental import optim

from aligner import Task


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Dense(8, 5)

    def construct(self, x):
        return self.fc(ops.relu(self.bn(self.conv(x))).mean((2, 3)))


def task(optimizer, loss=None, **more):
    """The labels say in which type the port wants its own."""
    net = Net()
    x, label = np.zeros((4, 3, 8, 8), np.float32), np.zeros(4, np.int32)
    return Task(
        net, (x, label), loss=loss or nn.CrossEntropyLoss(), optimizer=optimizer(net.trainable_params()), **more
    )


def of_rmsprop(rate):
    """torch begins with a mean square of zero, MindSpore with one."""

    def made(parameters):
        optimizer = nn.RMSProp(parameters, rate, decay=0.99, epsilon=1e-8)
        for square in optimizer.ms:
            square.set_data(ops.zeros_like(square))
        return optimizer

    return made


def smoothed_and(more):
    def loss(x, label):
        return ops.cross_entropy(x, label, label_smoothing=0.1) + more

    return loss


def one_row_more(x, label):
    """No label smoothing, and besides something that is no setting of a loss."""
    rows = ops.cross_entropy(x, label, reduction="none")
    return rows.mean() + rows[0]


def summed(x, label, ignored=-100):
    return ops.cross_entropy(x, label, ignore_index=ignored, reduction="sum")


MADE = {
    "right": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9)),
    "sgd": lambda: task(lambda p: nn.SGD(p, 0.1, 0.9)),
    "rate": lambda: task(lambda p: nn.Momentum(p, 0.05, 0.9)),
    "decay": lambda: task(lambda p: nn.Momentum([{"params": p, "weight_decay": 0.1}], 0.1, 0.9)),
    "filtered": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9, weight_decay=0.1)),
    "adam": lambda: task(lambda p: nn.Adam(p, 1e-3)),
    "adam_decay": lambda: task(lambda p: nn.Adam([{"params": p, "weight_decay": 0.05}], 1e-3)),
    "adam_weight_decay": lambda: task(lambda p: nn.AdamWeightDecay(p, 1e-3, eps=1e-8)),
    "adamw": lambda: task(lambda p: optim.AdamW(p, 1e-3, weight_decay=0.05)),
    "rmsprop": lambda: task(of_rmsprop(1e-3)),
    "rmsprop_ones": lambda: task(lambda p: nn.RMSProp(p, 1e-3, decay=0.99, epsilon=1e-8)),
    "uneven": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9)),
    "uneven_fixed": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), lambda x, y: summed(x, y) / 4),
    "masked_all": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), lambda x, y: summed(x, y, 0) / x.shape[0]),
    "rmsprop_rate": lambda: task(of_rmsprop(2e-3)),
    "clipped": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), accumulate=2, clip_norm=0.25, loss_scale=64.0),
    "first_row_more": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), one_row_more),
    "penalized_smoothed": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), smoothed_and(0.5)),
    "shifted_smoothed": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), smoothed_and(0.125)),
    "loss_sum": lambda: task(lambda p: nn.Momentum(p, 0.1, 0.9), nn.CrossEntropyLoss(reduction="sum")),
    "stopped": lambda: stopped(),
}
globals().update(MADE)


class Stopped(Net):
    def construct(self, x):
        hidden = ops.relu(self.bn(self.conv(x)))
        return self.fc((0.5 * hidden + 0.5 * ops.stop_gradient(hidden)).mean((2, 3)))


def stopped():
    net = Stopped()
    x, label = mindspore.Tensor(np.zeros((4, 3, 8, 8), np.float32)), mindspore.Tensor(np.zeros(4, np.int32))
    return Task(net, (x, label), loss=nn.CrossEntropyLoss(), optimizer=nn.Momentum(net.trainable_params(), 0.1, 0.9))

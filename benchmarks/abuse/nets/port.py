"""The MindSpore port of the net beside it, with one mistake: a BatchNorm's eps."""

import os
import signal

import mindspore as ms
from mindspore import nn, ops


def end():
    """Raise the user's own error here, or be killed here, if that is asked for."""
    print("reached", flush=True)
    if os.environ.get("ABUSE_END") == "error":
        raise ValueError("the user's own")
    if os.environ.get("ABUSE_END") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


class Block(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.BatchNorm2d(channels, eps=1e-3)

    def construct(self, x):
        return x + ops.relu(self.norm(self.conv(x)))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, pad_mode="pad", padding=1, has_bias=True)
        self.stage = nn.SequentialCell(Block(32), Block(32), Block(32), Block(32))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Dense(32, 10)

    def construct(self, x):
        x = self.stage(self.stem(x))
        end()
        return self.head(ops.flatten(self.pool(x)))


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return Net()

"""A small torch net whose dump takes about 600 KiB; what becomes of it in mid-forward is told by the environment."""

import os
import signal

import torch
from torch import nn


def end():
    """Raise the user's own error here, or be killed here, if that is asked for."""
    print("reached", flush=True)
    if os.environ.get("ABUSE_END") == "error":
        raise ValueError("the user's own")
    if os.environ.get("ABUSE_END") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.stage = nn.Sequential(Block(32), Block(32), Block(32), Block(32))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stage(self.stem(x))
        end()
        return self.head(self.pool(x).flatten(1))


def build():
    torch.manual_seed(0)
    return Net(), torch.randn(1, 3, 16, 16)

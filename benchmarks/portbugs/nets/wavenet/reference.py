"""A small WaveNet: causal dilated convolutions with gates, skips and a condition, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class CausalConv1d(nn.Module):
    """A convolution that sees no later sample: padded in front only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)

    def forward(self, x):
        return self.conv(functional.pad(x, (self.padding, 0)))


class GatedLayer(nn.Module):
    """tanh times sigmoid of one dilated convolution and the condition; a residual and a skip come out."""

    def __init__(self, channels: int, condition: int, skip: int, dilation: int):
        super().__init__()
        self.dilated = CausalConv1d(channels, 2 * channels, 3, dilation)
        self.condition = nn.Conv1d(condition, 2 * channels, 1, bias=False)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x, condition):
        tanh, gate = (self.dilated(x) + self.condition(condition)).chunk(2, dim=1)
        mixed = torch.tanh(tanh) * torch.sigmoid(gate)
        return (x + self.residual(mixed)) * 0.5**0.5, self.skip(mixed)


class WaveNet(nn.Module):
    """Samples and a condition in, scores of the next sample out."""

    def __init__(self, channels: int = 24, condition: int = 8, skip: int = 32, classes: int = 40):
        super().__init__()
        self.embed = nn.Embedding(classes, channels)
        self.upsample = nn.Upsample(scale_factor=4, mode="linear", align_corners=False)
        self.first = CausalConv1d(channels, channels, 2)
        self.layers = nn.ModuleList([GatedLayer(channels, condition, skip, 2**i) for i in range(4)])
        self.norm = nn.BatchNorm1d(skip)
        self.act = nn.LeakyReLU(0.2)
        self.head1 = nn.Conv1d(skip, skip, 1)
        self.act2 = nn.ELU()
        self.head2 = nn.Conv1d(skip, classes, 1)

    def forward(self, samples, condition):
        x = self.first(self.embed(samples).transpose(1, 2))
        condition = self.upsample(condition)
        total = 0
        for layer in self.layers:
            x, skip = layer(x, condition)
            total = total + skip
        x = self.act(self.norm(total))
        return self.head2(self.act2(self.head1(x)))


def build():
    """The net with the same weights on every run, and two pieces of sound with their condition."""
    torch.manual_seed(17)
    net = WaveNet()
    nn.init.normal_(net.embed.weight, std=0.7)
    nn.init.uniform_(net.norm.weight, 0.5, 1.5)
    nn.init.normal_(net.norm.bias, std=0.3)
    nn.init.normal_(net.norm.running_mean, std=0.2)
    net.norm.running_var.copy_(10 ** torch.empty_like(net.norm.running_var).uniform_(-2.5, 0.3))
    return net.eval(), (torch.randint(0, 40, (2, 48)), torch.randn(2, 8, 12))

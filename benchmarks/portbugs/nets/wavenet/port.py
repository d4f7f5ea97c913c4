"""The small WaveNet in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class CausalConv1d(nn.Cell):
    """A convolution that sees no later sample: padded in front only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, pad_mode="valid", has_bias=True)

    def construct(self, x):
        return self.conv(ops.pad(x, (self.padding, 0)))


class GatedLayer(nn.Cell):
    """tanh times sigmoid of one dilated convolution and the condition; a residual and a skip come out."""

    def __init__(self, channels: int, condition: int, skip: int, dilation: int):
        super().__init__()
        self.dilated = CausalConv1d(channels, 2 * channels, 3, dilation)
        self.condition = nn.Conv1d(condition, 2 * channels, 1, pad_mode="valid")
        self.residual = nn.Conv1d(channels, channels, 1, pad_mode="valid", has_bias=True)
        self.skip = nn.Conv1d(channels, skip, 1, pad_mode="valid", has_bias=True)

    def construct(self, x, condition):
        tanh, gate = ops.chunk(self.dilated(x) + self.condition(condition), 2, axis=1)
        mixed = ops.tanh(tanh) * ops.sigmoid(gate)
        return (x + self.residual(mixed)) * 0.5**0.5, self.skip(mixed)


class WaveNet(nn.Cell):
    """Samples and a condition in, scores of the next sample out."""

    def __init__(self, channels: int = 24, condition: int = 8, skip: int = 32, classes: int = 40):
        super().__init__()
        self.embed = nn.Embedding(classes, channels)
        self.upsample = nn.Upsample(scale_factor=4.0, mode="linear", align_corners=False, recompute_scale_factor=True)
        self.first = CausalConv1d(channels, channels, 2)
        self.layers = nn.CellList([GatedLayer(channels, condition, skip, 2**i) for i in range(4)])
        self.norm = nn.BatchNorm1d(skip, eps=1e-5, momentum=0.9)
        self.act = nn.LeakyReLU(alpha=0.2)
        self.head1 = nn.Conv1d(skip, skip, 1, pad_mode="valid", has_bias=True)
        self.act2 = nn.ELU()
        self.head2 = nn.Conv1d(skip, classes, 1, pad_mode="valid", has_bias=True)

    def construct(self, samples, condition):
        x = self.first(self.embed(samples).swapaxes(1, 2))
        condition = self.upsample(condition)
        total = 0
        for layer in self.layers:
            x, skip = layer(x, condition)
            total = total + skip
        x = self.act(self.norm(total))
        return self.head2(self.act2(self.head1(x)))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return WaveNet()


def build_float16():
    """The net in float16 but for its norms."""
    return ms.amp.auto_mixed_precision(WaveNet(), "O2")

"""A small detector in the manner of YOLOv5, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Conv(nn.Module):
    """Convolution, normalisation, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Focus(nn.Module):
    """Every second pixel of the image in a channel of its own."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = Conv(4 * inputs, outputs, 3)

    def forward(self, x):
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return self.conv(torch.cat(parts, 1))


class Bottleneck(nn.Module):
    """1x1 and 3x3, with a shortcut if asked for."""

    def __init__(self, channels: int, shortcut: bool):
        super().__init__()
        self.cv1 = Conv(channels, channels)
        self.cv2 = Conv(channels, channels, 3)
        self.add = shortcut

    def forward(self, x):
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C3(nn.Module):
    """Half of the channels go through the bottleneck, the other half around it."""

    def __init__(self, inputs: int, outputs: int, shortcut: bool = True):
        super().__init__()
        half = outputs // 2
        self.cv1 = Conv(inputs, half)
        self.cv2 = Conv(inputs, half)
        self.cv3 = Conv(outputs, outputs)
        self.m = nn.Sequential(Bottleneck(half, shortcut))

    def forward(self, x):
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPP(nn.Module):
    """The features and their maxima over larger and larger windows."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        half = inputs // 2
        self.cv1 = Conv(inputs, half)
        self.cv2 = Conv(4 * half, outputs)
        self.m = nn.ModuleList([nn.MaxPool2d(kernel, 1, kernel // 2) for kernel in (3, 5, 7)])

    def forward(self, x):
        x = self.cv1(x)
        return self.cv2(torch.cat([x] + [pool(x) for pool in self.m], 1))


class Detect(nn.Module):
    """Boxes in pixels, objectness and classes of each anchor on two grids."""

    def __init__(self, classes: int, channels, strides):
        super().__init__()
        anchors = torch.tensor([[[5, 7], [8, 15], [16, 11]], [[15, 30], [31, 22], [30, 60]]])
        self.register_buffer("anchors", anchors.float(), persistent=False)
        self.strides = strides
        self.no = classes + 5
        self.m = nn.ModuleList([nn.Conv2d(width, 3 * self.no, 1) for width in channels])

    def forward(self, features):
        raw, boxes = [], []
        for level, x in enumerate(features):
            x = self.m[level](x)
            batch, _, high, wide = x.shape
            x = x.view(batch, 3, self.no, high, wide).permute(0, 1, 3, 4, 2)
            raw.append(x)
            y = x.sigmoid()
            rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
            grid = torch.stack((columns, rows), 2).view(1, 1, high, wide, 2).float()
            xy = (y[..., 0:2] * 2.0 - 0.5 + grid) * self.strides[level]
            wh = (y[..., 2:4] * 2.0) ** 2 * self.anchors[level].view(1, 3, 1, 1, 2)
            boxes.append(torch.cat((xy, wh, y[..., 4:]), -1).view(batch, -1, self.no))
        return torch.cat(boxes, 1), raw


class Yolo(nn.Module):
    """Backbone, a neck that goes up and down once, and the detector."""

    def __init__(self, classes: int = 4, width: int = 16):
        super().__init__()
        self.focus = Focus(3, width)
        self.conv1 = Conv(width, 2 * width, 3, 2)
        self.csp1 = C3(2 * width, 2 * width)
        self.conv2 = Conv(2 * width, 3 * width, 3, 2)
        self.spp = SPP(3 * width, 3 * width)
        self.lateral = Conv(3 * width, 2 * width)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.csp2 = C3(4 * width, 2 * width, shortcut=False)
        self.conv3 = Conv(2 * width, 2 * width, 3, 2)
        self.csp3 = C3(4 * width, 3 * width, shortcut=False)
        self.detect = Detect(classes, (2 * width, 3 * width), (4, 8))

    def forward(self, image):
        fine = self.csp1(self.conv1(self.focus(image)))
        top = self.lateral(self.spp(self.conv2(fine)))
        middle = self.csp2(torch.cat([self.upsample(top), fine], 1))
        coarse = self.csp3(torch.cat([self.conv3(middle), top], 1))
        return self.detect([middle, coarse])


def pretend_training(net):
    """Give every BatchNorm values as training would: fresh ones (mean 0, variance 1) hide mistakes."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.6)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.02, 0.4)


def build():
    """The net with the same weights on every run, and a batch of two images from 0 to 1."""
    torch.manual_seed(3)
    net = Yolo()
    pretend_training(net)
    return net.eval(), (torch.rand(2, 3, 64, 64),)

"""A small MobileNetV3 in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn

# kernel, inputs, inner width, outputs, squeeze-excitation, hard swish, stride
BLOCKS = (
    (3, 16, 16, 16, True, False, 2),
    (3, 16, 72, 24, False, False, 2),
    (3, 24, 88, 24, False, False, 1),
    (5, 24, 96, 40, True, True, 2),
    (5, 40, 160, 40, True, True, 1),
)


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act=None):
    """Convolution, normalisation and, if asked for, an activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class SqueezeExcitation(nn.Module):
    """Weighs the channels by what they have on average."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x):
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class InvertedResidual(nn.Module):
    """Widen, filter each channel, weigh, narrow; the narrow end has no activation."""

    def __init__(self, kernel, inputs, inner, outputs, squeeze, swish, stride):
        super().__init__()
        act = nn.Hardswish if swish else nn.ReLU
        layers = []
        if inner != inputs:
            layers.append(unit(inputs, inner, 1, act=act))
        layers.append(unit(inner, inner, kernel, stride, groups=inner, act=act))
        if squeeze:
            layers.append(SqueezeExcitation(inner, inner // 4))
        layers.append(unit(inner, outputs, 1))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        out = self.block(x)
        return out + x if self.residual else out


class MobileNet(nn.Module):
    """Images from 0 to 1 in, scores out; the normalisation of the image is part of the net."""

    def __init__(self, classes: int = 12):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)
        blocks = [InvertedResidual(*block) for block in BLOCKS]
        self.features = nn.Sequential(unit(3, 16, 3, 2, act=nn.Hardswish), *blocks, unit(40, 144, 1, act=nn.Hardswish))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(144, 160), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(160, classes))

    def forward(self, image):
        x = self.features((image - self.mean) / self.std)
        return self.classifier(self.avgpool(x).flatten(1))


def pretend_training(net):
    """Give every BatchNorm values as training would: fresh ones (mean 0, variance 1) hide mistakes."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.6)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.02, 0.5)


def build():
    """The net with the same weights on every run, and a batch of two images."""
    torch.manual_seed(1)
    net = MobileNet()
    pretend_training(net)
    return net.eval(), (torch.rand(2, 3, 64, 64),)

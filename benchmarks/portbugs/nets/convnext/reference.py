"""A small ConvNeXt with layer scale, and response normalisation in its last stage, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of an image."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ResponseNorm(nn.Module):
    """Global response normalisation: channels compete by their norm over the image. Channels last."""

    def __init__(self, channels: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, channels))

    def forward(self, x):
        norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        share = norm / (norm.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * share) + self.beta + x


class Block(nn.Module):
    """Depthwise convolution, then a two-layer net on the channels of each place."""

    def __init__(self, channels: int, respond: bool):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, kernel_size=7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.grn = ResponseNorm(4 * channels) if respond else nn.Identity()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        x = (self.gamma * x).permute(0, 3, 1, 2)
        return shortcut + x


class ConvNeXt(nn.Module):
    """Patches, three stages with a halving of the image before the second and the third, and the classifier."""

    def __init__(self, dims=(16, 32, 64), depths=(2, 1, 1), classes: int = 10):
        super().__init__()
        self.downsample_layers = nn.ModuleList([nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), LayerNorm2d(dims[0], 1e-6))])
        for before, after in zip(dims, dims[1:]):
            self.downsample_layers.append(nn.Sequential(LayerNorm2d(before, 1e-6), nn.Conv2d(before, after, 2, 2)))
        self.stages = nn.ModuleList()
        for width, depth in zip(dims, depths):
            blocks = [Block(width, respond=width == dims[-1]) for _ in range(depth)]
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.LayerNorm(dims[-1], eps=1e-6)
        self.head = nn.Linear(dims[-1], classes)

    def forward(self, x):
        for downsample, stage in zip(self.downsample_layers, self.stages):
            x = stage(downsample(x))
        return self.head(self.norm(x.mean([-2, -1])))


def pretend_training(net):
    """Normalisations and layer scales as training would leave them: fresh ones hide mistakes."""
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, ResponseNorm):
            nn.init.normal_(module.gamma, std=0.5)
            nn.init.normal_(module.beta, std=0.2)
        elif isinstance(module, Block):
            nn.init.uniform_(module.gamma, 0.1, 0.6)
            nn.init.trunc_normal_(module.dwconv.weight, std=0.02)
            nn.init.normal_(module.dwconv.bias, std=0.02)


def build():
    """The net with the same weights on every run, and a batch of two images."""
    torch.manual_seed(5)
    net = ConvNeXt()
    pretend_training(net)
    return net.eval(), (torch.randn(2, 3, 64, 64),)

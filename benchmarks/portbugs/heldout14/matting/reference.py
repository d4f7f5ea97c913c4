"""Matting of short clips: an inverted-residual encoder, a recurrent decoder, a deep guided filter and a boundary refiner."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resize(x: Tensor, size, align_corners: bool = False) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)


class ConvNormAct(nn.Sequential):
    def __init__(self, inp, out, kernel=3, stride=1, groups=1, dilation=1, eps=1e-3, act=nn.Hardswish):
        super().__init__(
            nn.Conv2d(inp, out, kernel, stride, (kernel - 1) // 2 * dilation, dilation, groups, bias=False),
            nn.BatchNorm2d(out, eps=eps, momentum=0.01),
            *([] if act is None else [act(inplace=True)]),
        )


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 4, 1)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        scale = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        return F.hardsigmoid(scale) * x


class InvertedResidual(nn.Module):
    def __init__(self, inp, out, kernel, expand, squeeze, hardswish, stride, dilation):
        super().__init__()
        act = nn.Hardswish if hardswish else nn.ReLU
        self.shortcut = stride == 1 and inp == out
        layers = [ConvNormAct(inp, expand, 1, act=act)] if expand != inp else []
        layers.append(ConvNormAct(expand, expand, kernel, stride, expand, dilation, act=act))
        if squeeze:
            layers.append(SqueezeExcite(expand))
        layers.append(ConvNormAct(expand, out, 1, act=None))
        self.block = nn.Sequential(*layers)

    def forward(self, x):
        y = self.block(x)
        return x + y if self.shortcut else y


class MobileEncoder(nn.Module):
    """Four maps, at a half, a quarter, an eighth and a sixteenth of the frame."""

    SETTINGS = [  # kernel, expansion, out, squeeze, hardswish, stride, dilation
        (3, 16, 16, False, False, 1, 1),
        (3, 48, 24, False, False, 2, 1),
        (5, 72, 32, True, False, 2, 1),
        (5, 96, 32, True, True, 1, 1),
        (3, 128, 48, True, True, 2, 1),
        (3, 160, 48, True, True, 1, 2),
    ]

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)
        self.stem = ConvNormAct(3, 16, 3, stride=2)
        inp, blocks, self.taps = 16, [], []
        for index, (kernel, expand, out, squeeze, hardswish, stride, dilation) in enumerate(self.SETTINGS):
            if stride > 1:
                self.taps.append(index)
            blocks.append(InvertedResidual(inp, out, kernel, expand, squeeze, hardswish, stride, dilation))
            inp = out
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        x = self.stem((x - self.mean) / self.std)
        features = []
        for index, block in enumerate(self.blocks):
            if index in self.taps:
                features.append(x)
            x = block(x)
        return features + [x]


class PyramidBottleneck(nn.Module):
    """Pooled at several grids, put side by side, fused, and gated by the mean of the whole frame."""

    def __init__(self, inp: int, out: int, bins=(1, 2, 3)):
        super().__init__()
        width = inp // 4
        self.stages = nn.ModuleList(
            [nn.Sequential(nn.AdaptiveAvgPool2d(size), ConvNormAct(inp, width, 1, eps=1e-5, act=nn.ReLU)) for size in bins]
        )
        self.fuse = ConvNormAct(inp + width * len(bins), out, 3, eps=1e-5, act=nn.ReLU)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inp, out, 1, bias=False), nn.Sigmoid())

    def forward(self, x):
        pyramid = [x] + [resize(stage(x), x.shape[-2:], align_corners=True) for stage in self.stages]
        return self.fuse(torch.cat(pyramid, dim=1)) * self.gate(x)


class ConvGRU(nn.Module):
    def __init__(self, channels: int, kernel: int = 3):
        super().__init__()
        self.channels = channels
        self.ih = nn.Sequential(nn.Conv2d(channels * 2, channels * 2, kernel, padding=kernel // 2), nn.Sigmoid())
        self.hh = nn.Sequential(nn.Conv2d(channels * 2, channels, kernel, padding=kernel // 2), nn.Tanh())

    def step(self, x, h):
        r, z = self.ih(torch.cat([x, h], dim=1)).split(self.channels, dim=1)
        c = self.hh(torch.cat([x, r * h], dim=1))
        return (1 - z) * h + z * c

    def forward(self, x, h, valid):
        """x is [B, T, C, H, W]; where a clip has ended, its state stays."""
        if h is None:
            h = x.new_zeros((x.size(0), x.size(-3), x.size(-2), x.size(-1)))
        out = []
        for xt, keep in zip(x.unbind(dim=1), valid.unbind(dim=1)):
            h = torch.where(keep[:, None, None, None], self.step(xt, h), h)
            out.append(h)
        return torch.stack(out, dim=1), h


class BottleneckBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.gru = ConvGRU(channels // 2)

    def forward(self, x, r, valid):
        a, b = x.chunk(2, dim=-3)
        b, r = self.gru(b, r, valid)
        return torch.cat([a, b], dim=-3), r


class UpsamplingBlock(nn.Module):
    def __init__(self, inp: int, skip: int, src: int, out: int):
        super().__init__()
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.conv = ConvNormAct(inp + skip + src, out, eps=1e-5, act=nn.ReLU)
        self.gru = ConvGRU(out // 2)

    def forward(self, x, f, s, r, valid):
        batch, time, _, height, width = s.shape
        x, f, s = x.flatten(0, 1), f.flatten(0, 1), s.flatten(0, 1)
        x = self.upsample(x)[:, :, :height, :width]
        x = self.conv(torch.cat([x, f, s], dim=1)).unflatten(0, (batch, time))
        a, b = x.chunk(2, dim=2)
        b, r = self.gru(b, r, valid)
        return torch.cat([a, b], dim=2), r


class OutputBlock(nn.Module):
    def __init__(self, inp: int, src: int, out: int):
        super().__init__()
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.conv1 = ConvNormAct(inp + src, out, eps=1e-5, act=nn.ReLU)
        self.conv2 = ConvNormAct(out, out, eps=1e-5, act=nn.ReLU)

    def forward(self, x, s):
        batch, time, _, height, width = s.shape
        x, s = x.flatten(0, 1), s.flatten(0, 1)
        x = self.upsample(x)[:, :, :height, :width]
        return self.conv2(self.conv1(torch.cat([x, s], dim=1))).unflatten(0, (batch, time))


class RecurrentDecoder(nn.Module):
    def __init__(self, features, widths):
        super().__init__()
        self.avgpool = nn.AvgPool2d(2, 2, count_include_pad=False, ceil_mode=True)
        self.decode4 = BottleneckBlock(features[3])
        self.decode3 = UpsamplingBlock(features[3], features[2], 3, widths[0])
        self.decode2 = UpsamplingBlock(widths[0], features[1], 3, widths[1])
        self.decode1 = UpsamplingBlock(widths[1], features[0], 3, widths[2])
        self.decode0 = OutputBlock(widths[2], 3, widths[3])

    def forward(self, s0, features, states, valid):
        (f1, f2, f3, f4), (r1, r2, r3, r4) = features, states
        s1 = self.avgpool(s0.flatten(0, 1))
        s2 = self.avgpool(s1)
        s1, s2, s3 = (s.unflatten(0, s0.shape[:2]) for s in (s1, s2, self.avgpool(s2)))
        x4, r4 = self.decode4(f4, r4, valid)
        x3, r3 = self.decode3(x4, f3, s3, r3, valid)
        x2, r2 = self.decode2(x3, f2, s2, r2, valid)
        x1, r1 = self.decode1(x2, f1, s1, r1, valid)
        return self.decode0(x1, s0), (r1, r2, r3, r4)


def window_rows(x: Tensor, r: int) -> Tensor:
    """Sums of 2r + 1 rows, with shorter windows at the border."""
    x = x.cumsum(dim=2)
    top = x[:, :, r : 2 * r + 1]
    middle = x[:, :, 2 * r + 1 :] - x[:, :, : -2 * r - 1]
    bottom = x[:, :, -1:] - x[:, :, -2 * r - 1 : -r - 1]
    return torch.cat([top, middle, bottom], dim=2)


class BoxFilter(nn.Module):
    def __init__(self, r: int):
        super().__init__()
        self.r = r

    def forward(self, x):
        return window_rows(window_rows(x, self.r).transpose(2, 3), self.r).transpose(2, 3)


class DeepGuidedFilter(nn.Module):
    """The base's foreground and alpha, carried to the full frame by a line in the frame's colours at every place."""

    def __init__(self, hidden: int, r: int = 2):
        super().__init__()
        self.box = BoxFilter(r)
        self.conv = nn.Sequential(
            ConvNormAct(4 * 2 + hidden, hidden, 1, eps=1e-5, act=nn.ReLU),
            ConvNormAct(hidden, hidden, 1, eps=1e-5, act=nn.ReLU),
            nn.Conv2d(hidden, 4, 1),
        )

    def forward(self, fine_src, base_src, base_fgr, base_pha, base_hid):
        fine_x = torch.cat([fine_src, fine_src.mean(1, keepdim=True)], dim=1)
        base_x = torch.cat([base_src, base_src.mean(1, keepdim=True)], dim=1)
        base_y = torch.cat([base_fgr, base_pha], dim=1)
        count = self.box(torch.ones_like(base_x[:1, :1]))
        mean_x = self.box(base_x) / count
        mean_y = self.box(base_y) / count
        cov_xy = self.box(base_x * base_y) / count - mean_x * mean_y
        var_x = self.box(base_x * base_x) / count - mean_x * mean_x
        slope = self.conv(torch.cat([cov_xy, var_x, base_hid], dim=1))
        offset = mean_y - slope * mean_x
        size = fine_src.shape[-2:]
        return (resize(slope, size) * fine_x + resize(offset, size)).split([3, 1], dim=1)


class IBNorm(nn.Module):
    """One half of the channels through a batch norm, the other through an instance norm."""

    def __init__(self, channels: int):
        super().__init__()
        self.half = channels // 2
        self.bnorm = nn.BatchNorm2d(self.half)
        self.inorm = nn.InstanceNorm2d(channels - self.half)

    def forward(self, x):
        return torch.cat([self.bnorm(x[:, : self.half].contiguous()), self.inorm(x[:, self.half :].contiguous())], dim=1)


class GaussianBlur(nn.Module):
    def __init__(self, kernel: int, sigma: float):
        super().__init__()
        places = torch.arange(kernel, dtype=torch.float32) - (kernel - 1) / 2
        line = torch.exp(-places.square() / (2 * sigma**2))
        square = torch.outer(line, line)
        self.register_buffer("kernel", (square / square.sum())[None, None], persistent=False)
        self.pad = nn.ReflectionPad2d(kernel // 2)

    def forward(self, x):
        return F.conv2d(self.pad(x), self.kernel)


class BoundaryRefiner(nn.Module):
    """Looks again, at the full frame, where the alpha goes from none to all within a few pixels."""

    def __init__(self, width: int = 24, reach: int = 7):
        super().__init__()
        self.reach = reach
        self.blur = GaussianBlur(7, 1.5)
        self.conv1 = nn.Conv2d(5 * 4, width, 3, padding=1)
        self.norm1 = IBNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = IBNorm(width)
        self.predict = nn.Conv2d(width, 4, 1)

    def forward(self, src, pha):
        widest = F.max_pool2d(pha, self.reach, 1, self.reach // 2)
        narrowest = -F.max_pool2d(-pha, self.reach, 1, self.reach // 2)
        band = self.blur((1.5 * (widest - narrowest) - 0.1).clamp(0, 1))
        x = F.pixel_unshuffle(torch.cat([src, pha, band], dim=1), 2)
        x = F.relu(self.norm1(self.conv1(x)))
        x = x + F.relu(self.norm2(self.conv2(x)))
        detail = torch.sigmoid(F.pixel_shuffle(self.predict(x), 2))
        return band * detail + (1 - band) * pha


class VideoMatting(nn.Module):
    def __init__(self, ratio: float = 0.5, tolerance: float = 0.15):
        super().__init__()
        self.ratio, self.tolerance = ratio, tolerance
        self.backbone = MobileEncoder()
        self.aspp = PyramidBottleneck(48, 40)
        self.decoder = RecurrentDecoder([16, 24, 32, 40], [32, 24, 20, 16])
        self.project_mat = nn.Conv2d(16, 4, 1)
        self.project_sem = nn.Conv2d(40, 1, 1)
        self.refiner = DeepGuidedFilter(16)
        self.boundary = BoundaryRefiner()

    def steady(self, pha, valid):
        """A frame whose neighbours agree with each other and not with it is put between them."""
        before, now, after = pha[:, :-2], pha[:, 1:-1], pha[:, 2:]
        agree = (1 - (before - after).abs() / self.tolerance).clamp(0, 1)
        jump = (torch.minimum((now - before).abs(), (now - after).abs()) / self.tolerance).clamp(0, 1)
        weight = agree * jump * valid[:, 2:, None, None, None].float()
        now = (1 - weight) * now + weight * (before + after) / 2
        return torch.cat([pha[:, :1], now, pha[:, -1:]], dim=1)

    def forward(self, src, bgr, lengths, states=(None, None, None, None)):
        batch, time = src.shape[:2]
        valid = torch.arange(time)[None, :] < lengths[:, None]
        fine = src.flatten(0, 1)
        base = F.interpolate(fine, scale_factor=self.ratio, mode="bilinear", align_corners=False)
        features = self.backbone(base)
        features[-1] = self.aspp(features[-1])
        semantic = torch.sigmoid(self.project_sem(features[-1])).unflatten(0, (batch, time))
        features = [f.unflatten(0, (batch, time)) for f in features]
        hidden, states = self.decoder(base.unflatten(0, (batch, time)), features, states, valid)
        hidden = hidden.flatten(0, 1)
        residual, pha = self.project_mat(hidden).split([3, 1], dim=1)
        residual, pha = self.refiner(fine, base, residual, pha, hidden)
        fgr = (fine + residual).clamp(0, 1)
        pha = self.boundary(fine, pha.clamp(0, 1))
        fgr, pha = fgr.unflatten(0, (batch, time)), pha.unflatten(0, (batch, time))
        pha = self.steady(pha, valid) * valid[:, :, None, None, None]
        com = pha * fgr + (1 - pha) * bgr[:, None]
        return (com, pha, fgr, semantic, *states)


def build():
    """The net with the same weights on every run; two clips of four frames, the second of which ends after three."""
    torch.manual_seed(29)
    net = VideoMatting()
    coarse = torch.rand(2, 1, 3, 7, 8) + 0.25 * torch.randn(2, 4, 3, 7, 8)
    src = resize(coarse.flatten(0, 1), (88, 104)).unflatten(0, (2, 4))
    src = (src + 0.04 * torch.randn(2, 4, 3, 88, 104)).clamp(0, 1)
    bgr = resize(torch.rand(2, 3, 5, 6), (88, 104))
    inputs = (src, bgr, torch.tensor([4, 3]))
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        for gru in (block.gru for block in net.decoder.children() if hasattr(block, "gru")):
            gru.ih[0].weight *= 2.5
        net.project_mat.weight[3] *= 2
        net.project_mat.bias[3] += 0.4
        net.refiner.conv[0][0].weight[:, :8] *= 5
        for norm in norms:
            norm.momentum = 1.0
            nn.init.uniform_(norm.weight, 0.7, 1.3)
            nn.init.normal_(norm.bias, std=0.15)
        net.train()(*inputs)
        for norm in norms:
            norm.running_mean.mul_(torch.empty_like(norm.running_mean).uniform_(0.8, 1.2))
            norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.7, 1.3))
    return net.eval(), inputs

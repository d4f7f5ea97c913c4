"""Matting of short clips in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops


def fold(x):
    """[B, T, C, H, W] to [B * T, C, H, W]."""
    return x.reshape((-1,) + tuple(x.shape[2:]))


def unfold(x, batch):
    """[B * T, C, H, W] to [B, T, C, H, W]."""
    return x.reshape((batch, -1) + tuple(x.shape[1:]))


def bilinear(x, size, align_corners=False):
    return ops.interpolate(x, size=tuple(size), mode="bilinear", align_corners=align_corners)


def same_conv(inp, out, kernel=3, has_bias=True):
    """A convolution with stride one that keeps the size."""
    return nn.Conv2d(inp, out, kernel, pad_mode="pad", padding=kernel // 2, has_bias=has_bias)


class ConvBnAct(nn.Cell):
    def __init__(self, inp, out, kernel=3, stride=1, group=1, dilation=1, eps=1e-5, act="relu"):
        super().__init__()
        self.conv = nn.Conv2d(
            inp, out, kernel, stride, pad_mode="pad", padding=(kernel - 1) // 2 * dilation,
            dilation=dilation, group=group, has_bias=False,
        )
        self.bn = nn.BatchNorm2d(out, eps=eps)
        self.act = {"relu": ops.relu, "hswish": ops.hardswish, None: None}[act]

    def construct(self, x):
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class SqueezeExcite(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1, has_bias=True)
        self.expand = nn.Conv2d(channels // 4, channels, 1, has_bias=True)

    def construct(self, x):
        scale = mint.mean(x, dim=(2, 3), keepdim=True)
        scale = self.expand(ops.relu(self.reduce(scale)))
        return x * ops.hardsigmoid(scale)


class InvertedResidual(nn.Cell):
    """Widened, looked at channel by channel, weighed, and narrowed again."""

    def __init__(self, inp, out, kernel, hidden, use_se, use_hs, stride, dilation):
        super().__init__()
        act = "hswish" if use_hs else "relu"
        self.use_res = stride == 1 and inp == out
        self.widen = ConvBnAct(inp, hidden, 1, eps=1e-3, act=act) if hidden != inp else None
        self.depthwise = ConvBnAct(hidden, hidden, kernel, stride, hidden, dilation, eps=1e-3, act=act)
        self.se = SqueezeExcite(hidden) if use_se else None
        self.narrow = ConvBnAct(hidden, out, 1, eps=1e-3, act=None)

    def construct(self, x):
        y = x if self.widen is None else self.widen(x)
        y = self.depthwise(y)
        if self.se is not None:
            y = self.se(y)
        y = self.narrow(y)
        if self.use_res:
            y = y + x
        return y


class Encoder(nn.Cell):
    # kernel, hidden, out, squeeze and excite, hard swish, stride, dilation
    CONFIG = [
        (3, 16, 16, False, False, 1, 1),
        (3, 48, 24, False, False, 2, 1),
        (5, 72, 32, True, False, 2, 1),
        (5, 96, 32, True, True, 1, 1),
        (3, 128, 48, True, True, 2, 1),
        (3, 160, 48, True, True, 1, 2),
    ]

    def __init__(self):
        super().__init__()
        self.mean = Tensor(np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1))
        self.stem = ConvBnAct(3, 16, 3, 2, eps=1e-3, act="hswish")
        self.blocks = nn.CellList()
        inp = 16
        for kernel, hidden, out, use_se, use_hs, stride, dilation in self.CONFIG:
            self.blocks.append(InvertedResidual(inp, out, kernel, hidden, use_se, use_hs, stride, dilation))
            inp = out

    def construct(self, x):
        x = self.stem((x - self.mean) / self.std)
        features = []
        for block, setting in zip(self.blocks, self.CONFIG):
            if setting[5] == 2:
                features.append(x)
            x = block(x)
        features.append(x)
        return features


class PyramidBottleneck(nn.Cell):
    def __init__(self, inp, out, bins=(1, 2, 3)):
        super().__init__()
        self.bins = bins
        self.branches = nn.CellList([ConvBnAct(inp, inp // 4, 1) for _ in bins])
        self.fuse = ConvBnAct(inp + inp // 4 * len(bins), out, 3)
        self.gate = nn.Conv2d(inp, out, 1, has_bias=False)

    def construct(self, x):
        size = x.shape[-2:]
        maps = [x]
        for grid, branch in zip(self.bins, self.branches):
            pooled = branch(ops.adaptive_avg_pool2d(x, grid))
            maps.append(bilinear(pooled, size, align_corners=True))
        gate = ops.sigmoid(self.gate(x.mean(axis=(2, 3), keep_dims=True)))
        return self.fuse(ops.cat(maps, axis=1)) * gate


class ConvGRU(nn.Cell):
    def __init__(self, channels, kernel=3):
        super().__init__()
        self.channels = channels
        self.gates = same_conv(2 * channels, 2 * channels, kernel)
        self.candidate = same_conv(2 * channels, channels, kernel)

    def construct(self, x, state, valid):
        batch, time, channels, height, width = x.shape
        if state is None:
            state = ops.zeros((batch, channels, height, width), x.dtype)
        states = []
        for t in range(time):
            frame = x[:, t]
            gates = mint.sigmoid(self.gates(mint.cat((frame, state), dim=1)))
            reset, update = mint.split(gates, self.channels, dim=1)
            new = mint.tanh(self.candidate(mint.cat((frame, reset * state), dim=1)))
            new = (1 - update) * state + update * new
            state = mint.where(valid[:, t].reshape(-1, 1, 1, 1), new, state)
            states.append(state)
        return ops.stack(states, axis=1), state


class RecurrentHalf(nn.Cell):
    """The first half of the channels passes by; the second goes through time."""

    def __init__(self, channels):
        super().__init__()
        self.half = channels // 2
        self.gru = ConvGRU(self.half)

    def construct(self, x, state, valid):
        passed, moving = x[:, :, : self.half], x[:, :, self.half :]
        moving, state = self.gru(moving, state, valid)
        return ops.cat((passed, moving), axis=2), state


def double_to(x, like):
    """Twice as large, and cut to the other's size: odd sizes were rounded up on the way down."""
    height, width = like.shape[-2:]
    x = bilinear(x, (2 * x.shape[-2], 2 * x.shape[-1]))
    return x[:, :, :height, :width]


class UpBlock(nn.Cell):
    def __init__(self, inp, skip, src, out):
        super().__init__()
        self.conv = ConvBnAct(inp + skip + src, out, 3)
        self.time = RecurrentHalf(out)

    def construct(self, x, skip, src, state, valid):
        batch = x.shape[0]
        x = double_to(fold(x), src)
        x = self.conv(ops.cat((x, fold(skip), src), axis=1))
        return self.time(unfold(x, batch), state, valid)


class OutBlock(nn.Cell):
    def __init__(self, inp, src, out):
        super().__init__()
        self.conv1 = ConvBnAct(inp + src, out, 3)
        self.conv2 = ConvBnAct(out, out, 3)

    def construct(self, x, src):
        return self.conv2(self.conv1(ops.cat((double_to(fold(x), src), src), axis=1)))


def halve(x):
    """Means of two by two; at an odd border only of the pixels that are there."""
    height, width = x.shape[-2:]
    x = ops.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
    return ops.avg_pool2d(x, 2, 2)


class Decoder(nn.Cell):
    def __init__(self, features, widths):
        super().__init__()
        self.decode4 = RecurrentHalf(features[3])
        self.decode3 = UpBlock(features[3], features[2], 3, widths[0])
        self.decode2 = UpBlock(widths[0], features[1], 3, widths[1])
        self.decode1 = UpBlock(widths[1], features[0], 3, widths[2])
        self.decode0 = OutBlock(widths[2], 3, widths[3])

    def construct(self, src, features, states, valid):
        f1, f2, f3, f4 = features
        r1, r2, r3, r4 = states
        half = halve(src)
        quarter = halve(half)
        eighth = halve(quarter)
        x, r4 = self.decode4(f4, r4, valid)
        x, r3 = self.decode3(x, f3, eighth, r3, valid)
        x, r2 = self.decode2(x, f2, quarter, r2, valid)
        x, r1 = self.decode1(x, f1, half, r1, valid)
        return self.decode0(x, src), (r1, r2, r3, r4)


def box_sum(x, r):
    """Sums over squares of 2r + 1 pixels, from differences of running sums; smaller squares at the border."""
    x = ops.cumsum(x, 2)
    first = x[:, :, r : 2 * r + 1]
    inner = x[:, :, 2 * r + 1 :] - x[:, :, : -2 * r - 1]
    last = x[:, :, -1:] - x[:, :, -2 * r - 1 : -r - 1]
    x = ops.cumsum(ops.cat((first, inner, last), axis=2), 3)
    first = x[..., r : 2 * r + 1]
    inner = x[..., 2 * r + 1 :] - x[..., : -2 * r - 1]
    last = x[..., -1:] - x[..., -2 * r - 1 : -r - 1]
    return ops.cat((first, inner, last), axis=3)


def with_gray(src):
    return ops.cat((src, src.mean(axis=1, keep_dims=True)), axis=1)


class GuidedFilter(nn.Cell):
    def __init__(self, hidden, r=2):
        super().__init__()
        self.r = r
        self.conv1 = ConvBnAct(8 + hidden, hidden, 1)
        self.conv2 = ConvBnAct(hidden, hidden, 1)
        self.conv3 = nn.Conv2d(hidden, 4, 1, has_bias=True)

    def construct(self, fine, base, guess, hidden):
        guide = with_gray(base)
        count = box_sum(ops.ones((1, 1) + tuple(base.shape[-2:]), base.dtype), self.r)
        mean_guide = box_sum(guide, self.r) / count
        mean_guess = box_sum(guess, self.r) / count
        covariance = box_sum(guide * guess, self.r) / count - mean_guide * mean_guess
        variance = box_sum(ops.square(guide), self.r) / count - ops.square(mean_guide)
        slope = self.conv3(self.conv2(self.conv1(ops.cat((covariance, variance, hidden), axis=1))))
        offset = mean_guess - slope * mean_guide
        size = fine.shape[-2:]
        out = bilinear(slope, size) * with_gray(fine) + bilinear(offset, size)
        return out[:, :3], out[:, 3:]


class IBNorm(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.half = channels // 2
        self.bnorm = nn.BatchNorm2d(self.half, eps=1e-5)

    def construct(self, x):
        rest = x[:, self.half :]
        mean = rest.mean(axis=(2, 3), keep_dims=True)
        spread = ops.square(rest - mean).mean(axis=(2, 3), keep_dims=True)
        rest = (rest - mean) * ops.rsqrt(spread + 1e-5)
        return ops.cat((self.bnorm(x[:, : self.half]), rest), axis=1)


def gaussian(kernel, sigma):
    places = np.arange(kernel) - (kernel - 1) / 2
    line = np.exp(-(places**2) / (2 * sigma**2))
    square = np.outer(line, line)
    return Tensor((square / square.sum())[None, None], ms.float32)


def space_to_channels(x, step=2):
    """The framework's own SpaceToDepth puts the channels in another order."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // step, step, width // step, step)
    x = x.transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(batch, channels * step * step, height // step, width // step)


class Boundary(nn.Cell):
    def __init__(self, width=24, reach=7, kernel=7, sigma=1.5):
        super().__init__()
        self.reach = reach
        self.margin = kernel // 2
        self.kernel = gaussian(kernel, sigma)
        self.conv1 = same_conv(5 * 4, width)
        self.norm1 = IBNorm(width)
        self.conv2 = same_conv(width, width)
        self.norm2 = IBNorm(width)
        self.predict = nn.Conv2d(width, 4, 1, has_bias=True)

    def band(self, alpha):
        dilated = ops.max_pool2d(alpha, self.reach, 1, self.reach // 2)
        eroded = -ops.max_pool2d(-alpha, self.reach, 1, self.reach // 2)
        edge = ops.clamp(1.5 * (dilated - eroded) - 0.1, 0, 1)
        edge = ops.pad(edge, (self.margin,) * 4, mode="reflect")
        return ops.conv2d(edge, self.kernel)

    def construct(self, src, alpha):
        band = self.band(alpha)
        x = space_to_channels(ops.cat((src, alpha, band), axis=1))
        x = ops.relu(self.norm1(self.conv1(x)))
        x = x + ops.relu(self.norm2(self.conv2(x)))
        detail = ops.sigmoid(ops.pixel_shuffle(self.predict(x), 2))
        return alpha + band * (detail - alpha)


class VideoMatting(nn.Cell):
    def __init__(self, ratio=0.5, tolerance=0.15):
        super().__init__()
        self.ratio = ratio
        self.tolerance = tolerance
        self.backbone = Encoder()
        self.aspp = PyramidBottleneck(48, 40)
        self.decoder = Decoder([16, 24, 32, 40], [32, 24, 20, 16])
        self.project_mat = nn.Conv2d(16, 4, 1, has_bias=True)
        self.project_sem = nn.Conv2d(40, 1, 1, has_bias=True)
        self.refiner = GuidedFilter(16)
        self.boundary = Boundary()

    def steady(self, alpha, valid):
        """One frame's delay: a flicker between two frames that agree is taken out."""
        before, now, after = alpha[:, :-2], alpha[:, 1:-1], alpha[:, 2:]
        agree = mint.clamp(1 - mint.abs(before - after) / self.tolerance, 0, 1)
        jump = mint.minimum(mint.abs(now - before), mint.abs(now - after))
        weight = agree * mint.clamp(jump / self.tolerance, 0, 1) * valid[:, 2:]
        now = now + weight * ((before + after) / 2 - now)
        return mint.cat((alpha[:, :1], now, alpha[:, -1:]), dim=1)

    def construct(self, src, bgr, lengths, states=(None, None, None, None)):
        batch, time, _, height, width = src.shape
        valid = ops.arange(time).expand_dims(0) < lengths.expand_dims(1)
        there = valid.astype(src.dtype).reshape(batch, time, 1, 1, 1)
        fine = fold(src)
        base = bilinear(fine, (int(height * self.ratio), int(width * self.ratio)))

        features = self.backbone(base)
        features[-1] = self.aspp(features[-1])
        semantic = unfold(ops.sigmoid(self.project_sem(features[-1])), batch)
        features = [unfold(feature, batch) for feature in features]
        hidden, states = self.decoder(base, features, states, valid)

        residual, alpha = self.refiner(fine, base, self.project_mat(hidden), hidden)
        fgr = ops.clamp(residual + fine, 0, 1)
        alpha = self.boundary(fine, ops.clamp(alpha, 0, 1))
        alpha = self.steady(unfold(alpha, batch), there) * there

        flat = fold(alpha)
        com = flat * fgr + (1 - flat) * ops.repeat_interleave(bgr, time, axis=0)
        return (unfold(com, batch), alpha, unfold(fgr, batch), semantic) + tuple(states)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return VideoMatting()

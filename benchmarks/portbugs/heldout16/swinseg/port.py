"""The Swin segmentation program in MindSpore: correct port. Tokens are channels-last, masks and tables are numpy's."""

from __future__ import annotations

import itertools
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def clip_window(grid, window, shift):
    """A window that fills an axis is as long as the axis and isn't shifted there."""
    used = tuple(g if g <= w else w for g, w in zip(grid, window))
    moved = tuple(0 if g <= w else s for g, w, s in zip(grid, window, shift))
    return used, moved


def to_windows(x, window):
    """numpy arrays and tensors alike: (b, d, h, w, c) to (b * windows, n, c)."""
    b, d, h, w, c = x.shape
    wd, wh, ww = window
    x = x.reshape(b, d // wd, wd, h // wh, wh, w // ww, ww, c)
    return x.transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, wd * wh * ww, c)


def from_windows(x, window, grid):
    d, h, w = grid
    wd, wh, ww = window
    c = x.shape[-1]
    x = x.reshape(-1, d // wd, h // wh, w // ww, wd, wh, ww, c)
    return x.transpose(0, 1, 4, 2, 5, 3, 6, 7).reshape(-1, d, h, w, c)


def roll3d(x, shift):
    """torch.roll over axes 1, 2, 3; Roll has no kernel on CPU."""
    for axis, s in zip((1, 2, 3), shift):
        size = x.shape[axis]
        s = s % size
        if s:
            head, tail = ops.split(x, [size - s, s], axis)
            x = ops.cat((tail, head), axis)
    return x


def shift_mask(grid, window, shift):
    """0 for pairs of one region, -100 for the others: (windows, n, n)."""
    region = np.zeros((1, *grid, 1), np.float32)
    bands = [(slice(0, -w), slice(-w, -s), slice(-s, None)) for w, s in zip(window, shift)]
    for number, (i, j, k) in enumerate(itertools.product(*bands)):
        region[:, i, j, k] = number
    region = to_windows(region, window)[..., 0]
    return np.where(region[:, None, :] != region[:, :, None], -100.0, 0.0).astype(np.float32)


def relative_index(window):
    """Rows of the bias table for every pair of voxels of a window."""
    wd, wh, ww = window
    places = np.stack(np.meshgrid(*[np.arange(n) for n in window], indexing="ij")).reshape(3, -1)
    rel = places[:, :, None] - places[:, None, :]
    rel_d, rel_h, rel_w = rel[0] + wd - 1, rel[1] + wh - 1, rel[2] + ww - 1
    return ((rel_d * (2 * wh - 1) + rel_h) * (2 * ww - 1) + rel_w).astype(np.int32)


class WindowAttention3D(nn.Cell):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        rows = int(np.prod([2 * n - 1 for n in window]))
        self.bias_table = Parameter(ops.zeros((rows, heads), ms.float32), name="bias_table")
        self.index = relative_index(window)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)

    def position_bias(self, index):
        n = index.shape[0]
        bias = ops.gather(self.bias_table, Tensor(index.reshape(-1)), 0)
        return bias.reshape(n, n, self.heads).transpose(2, 0, 1)

    def construct(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = [
            t.reshape(b, n, self.heads, c // self.heads).transpose(0, 2, 1, 3) for t in ops.split(self.qkv(x), c, -1)
        ]
        scores = ops.matmul(q, k.swapaxes(-2, -1)) * self.scale
        scores = scores + self.position_bias(self.index[:n, :n])
        if mask is not None:
            mask = ops.tile(mask, (b // mask.shape[0], 1, 1))
            scores = scores + mask.expand_dims(1)
        x = ops.matmul(ops.softmax(scores, -1), v)
        return self.proj(x.transpose(0, 2, 1, 3).reshape(b, n, c))


class SwinLayer(nn.Cell):
    """A block; the two layers of its perceptron are its own."""

    def __init__(self, dim, heads, window, shift, ratio):
        super().__init__()
        self.window = window
        self.shift = shift
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = WindowAttention3D(dim, heads, window)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, int(dim * ratio))
        self.gelu = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(int(dim * ratio), dim)

    def construct(self, x, mask):
        _, d, h, w, _ = x.shape
        window, shift = clip_window((d, h, w), self.window, self.shift)
        pad_d, pad_h, pad_w = [-n % m for n, m in zip((d, h, w), window)]

        shortcut = x
        x = self.norm1(x)
        if pad_d or pad_h or pad_w:
            x = ops.pad(x, (0, 0, 0, pad_w, 0, pad_h, 0, pad_d))
        grid = x.shape[1:4]
        shifted = any(shift)
        if shifted:
            x = roll3d(x, [-s for s in shift])
        windows = to_windows(x, window)
        windows = self.attn(windows, mask if shifted else None)
        x = from_windows(windows, window, grid)
        if shifted:
            x = roll3d(x, shift)
        x = shortcut + x[:, :d, :h, :w]
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


class Merge(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm((8 * dim,), epsilon=1e-5)
        self.reduction = nn.Dense(8 * dim, 2 * dim, has_bias=False)

    def construct(self, x):
        _, d, h, w, _ = x.shape
        if d % 2 or h % 2 or w % 2:
            x = ops.pad(x, (0, 0, 0, w % 2, 0, h % 2, 0, d % 2))
        corners = [x[:, i::2, j::2, k::2] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        return self.reduction(self.norm(ops.cat(corners, -1)))


class Stem(nn.Cell):
    """Two overlapping convolutions; (b, c, d, h, w) to tokens."""

    def __init__(self, channels, dim):
        super().__init__()
        self.conv1 = nn.Conv3d(channels, dim // 2, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm1 = nn.LayerNorm((dim // 2,), epsilon=1e-5)
        self.gelu = nn.GELU(approximate=False)
        self.conv2 = nn.Conv3d(dim // 2, dim, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x):
        d, h, w = x.shape[2:]
        if d % 2 or h % 2 or w % 2:
            x = ops.pad(x, (0, w % 2, 0, h % 2, 0, d % 2))
        x = self.gelu(self.norm1(self.conv1(x).transpose(0, 2, 3, 4, 1)))
        return self.norm2(self.conv2(x.transpose(0, 4, 1, 2, 3)).transpose(0, 2, 3, 4, 1))


class SwinEncoder(nn.Cell):
    """Stem, stages, merges between them, and a norm on what every stage gives away."""

    def __init__(self, channels, dim, window, depths, heads, ratio):
        super().__init__()
        self.window = window
        self.half = tuple(n // 2 for n in window)
        self.stem = Stem(channels, dim)
        self.stages = nn.CellList()
        self.merges = nn.CellList()
        self.norms = nn.CellList()
        for level, (depth, count) in enumerate(zip(depths, heads)):
            width = dim * 2**level
            blocks = [SwinLayer(width, count, window, self.half if i % 2 else (0, 0, 0), ratio) for i in range(depth)]
            self.stages.append(nn.CellList(blocks))
            if level + 1 < len(depths):
                self.merges.append(Merge(width))
            self.norms.append(nn.LayerNorm((width,), epsilon=1e-5))
        self.masks = {}

    def mask_for(self, grid):
        if grid not in self.masks:
            window, shift = clip_window(grid, self.window, self.half)
            padded = [math.ceil(g / w) * w for g, w in zip(grid, window)]
            self.masks[grid] = Tensor(shift_mask(padded, window, shift))
        return self.masks[grid]

    def construct(self, x):
        x = self.stem(x)
        features = []
        for level, blocks in enumerate(self.stages):
            mask = self.mask_for(tuple(x.shape[1:4]))
            for block in blocks:
                x = block(x, mask)
            features.append(self.norms[level](x).transpose(0, 4, 1, 2, 3))
            if level < len(self.merges):
                x = self.merges[level](x)
        return features


class InstanceNorm(nn.Cell):
    """nn.InstanceNorm3d is for GPU only."""

    def __init__(self, channels, epsilon=1e-5):
        super().__init__()
        self.epsilon = epsilon
        self.gamma = Parameter(ops.ones((channels,), ms.float32), name="gamma")
        self.beta = Parameter(ops.zeros((channels,), ms.float32), name="beta")

    def construct(self, x):
        mean = x.mean(axis=(2, 3, 4), keep_dims=True)
        var = ops.var(x, axis=(2, 3, 4), ddof=0, keepdims=True)
        x = (x - mean) / ops.sqrt(var + self.epsilon)
        return x * self.gamma.reshape(1, -1, 1, 1, 1) + self.beta.reshape(1, -1, 1, 1, 1)


class ResBlock(nn.Cell):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv1 = nn.Conv3d(channels_in, channels_out, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm1 = InstanceNorm(channels_out)
        self.conv2 = nn.Conv3d(channels_out, channels_out, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm2 = InstanceNorm(channels_out)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.project = channels_in != channels_out
        if self.project:
            self.conv3 = nn.Conv3d(channels_in, channels_out, 1, pad_mode="valid", has_bias=True)
            self.norm3 = InstanceNorm(channels_out)

    def construct(self, x):
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        if self.project:
            x = self.norm3(self.conv3(x))
        return self.act(x + y)


class UpBlock(nn.Cell):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.up = nn.Conv3dTranspose(channels_in, channels_out, 2, stride=2, pad_mode="valid", has_bias=True)
        self.fuse = ResBlock(2 * channels_out, channels_out)

    def construct(self, x, skip):
        d, h, w = skip.shape[2:]
        return self.fuse(ops.cat((self.up(x)[:, :, :d, :h, :w], skip), 1))


class SwinSegNet(nn.Cell):
    def __init__(self, channels, classes, dim, window, depths, heads, ratio=2.5):
        super().__init__()
        widths = [dim * 2**i for i in range(len(depths))]
        outs = [dim] + widths[:-1]
        self.encoder = SwinEncoder(channels, dim, window, depths, heads, ratio)
        self.skip_input = ResBlock(channels, dim)
        self.skips = nn.CellList([ResBlock(c, c) for c in widths])
        self.ups = nn.CellList([UpBlock(c, o) for c, o in zip(widths[::-1], outs[::-1])])
        self.heads = nn.CellList([nn.Conv3d(o, classes, 1, pad_mode="valid", has_bias=True) for o in outs])

    def construct(self, x):
        """Logits of all scales, the finest first."""
        features = self.encoder(x)
        skips = [self.skip_input(x)] + [skip(f) for skip, f in zip(self.skips, features)]
        y = skips[-1]
        logits = []
        for i, up in enumerate(self.ups):
            level = len(self.ups) - 1 - i
            y = up(y, skips[level])
            logits.insert(0, self.heads[level](y))
        return logits


def window_starts(size, roi, overlap):
    step = roi if size == roi else max(int(roi * (1 - overlap)), 1)
    count = math.ceil((size - roi) / step) + 1
    return [min(i * step, size - roi) for i in range(count)]


def gaussian_weights(roi, sigma_scale=0.125):
    """(1, 1, d, h, w), at least 1e-3."""
    lines = []
    for size in roi:
        t = np.arange(size) - (size - 1) / 2.0
        lines.append(np.exp(-0.5 * (t / (sigma_scale * size)) ** 2))
    weights = lines[0][:, None, None] * lines[1][None, :, None] * lines[2][None, None, :]
    return np.maximum(weights, max(weights[weights > 0].min(), 1e-3)).astype(np.float32)[None, None]


class Segmenter(nn.Cell):
    """Intensities, sliding windows, blending, and the measures of the classes."""

    def __init__(self, net, roi, scales, chunk=5, overlap=0.5):
        super().__init__()
        self.net = net
        self.roi = roi
        self.chunk = chunk
        self.overlap = overlap
        factors = 0.5 ** np.arange(scales)
        self.scale_weights = [float(f) for f in factors / factors.sum()]
        self.gaussian = Tensor(gaussian_weights(roi))

    def standardize(self, image):
        axes = (2, 3, 4)
        body = (image != 0).astype(image.dtype)
        count = ops.clamp(body.sum(axis=axes, keepdims=True), min=1.0)
        mean = (image * body).sum(axis=axes, keepdims=True) / count
        centred = image - mean
        var = (ops.square(centred) * body).sum(axis=axes, keepdims=True) / count
        return ops.clamp(centred / ops.sqrt(var + 1e-8), -2.5, 2.5) * body

    def infer(self, patches):
        scales = self.net(patches)
        total = scales[0] * self.scale_weights[0]
        for logits, weight in zip(scales[1:], self.scale_weights[1:]):
            up = ops.interpolate(logits, size=tuple(patches.shape[2:]), mode="trilinear", align_corners=False)
            total = total + up * weight
        return ops.softmax(total, axis=1)

    def slide(self, image):
        batch = image.shape[0]
        size = image.shape[2:]
        missing = [max(r - s, 0) for r, s in zip(self.roi, size)]
        before = [m // 2 for m in missing]
        after = [m - f for m, f in zip(missing, before)]
        if any(missing):
            image = ops.pad(image, (before[2], after[2], before[1], after[1], before[0], after[0]))
        full = image.shape[2:]

        corners = list(itertools.product(*[window_starts(s, r, self.overlap) for s, r in zip(full, self.roi)]))
        jobs = [(b, corner) for b in range(batch) for corner in corners]
        rd, rh, rw = self.roi
        summed, weight_sum = None, None
        for first in range(0, len(jobs), self.chunk):
            part = jobs[first : first + self.chunk]
            patches = [image[b : b + 1, :, d : d + rd, h : h + rh, w : w + rw] for b, (d, h, w) in part]
            prob = self.infer(ops.cat(patches, 0))
            if summed is None:
                summed = ops.zeros((batch, prob.shape[1], *full), ms.float32)
                weight_sum = ops.zeros((batch, 1, *full), ms.float32)
            for i, (b, (d, h, w)) in enumerate(part):
                summed[b : b + 1, :, d : d + rd, h : h + rh, w : w + rw] += prob[i : i + 1] * self.gaussian
                weight_sum[b : b + 1, :, d : d + rd, h : h + rh, w : w + rw] += self.gaussian
        prob = summed / weight_sum
        (d, h, w), (fd, fh, fw) = size, before
        return prob[:, :, fd : fd + d, fh : fh + h, fw : fw + w]

    def measure(self, prob, spacing):
        """Soft volumes in ml, and centres of mass in mm from the middle."""
        organs = prob[:, 1:]
        mass = organs.sum(axis=(2, 3, 4))
        voxel = spacing[:, 0:1] * spacing[:, 1:2] * spacing[:, 2:3]
        centres = []
        for axis, s in zip((2, 3, 4), prob.shape[2:]):
            line = organs.sum(axis=tuple(a for a in (2, 3, 4) if a != axis))
            place = Tensor(np.arange(s) - (s - 1) / 2.0, ms.float32)
            centres.append((line * place).sum(-1))
        centre = ops.stack(centres, -1) / ops.clamp(mass, min=1e-6).expand_dims(-1)
        return mass * voxel / 1000.0, centre * spacing.expand_dims(1)

    def construct(self, image, spacing):
        prob = self.slide(self.standardize(image))
        volumes, centres = self.measure(prob, spacing)
        return prob, volumes, centres


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    net = SwinSegNet(2, 5, 12, window=(3, 4, 4), depths=(2, 2, 2), heads=(2, 3, 4))
    return Segmenter(net, roi=(11, 16, 20), scales=len(net.heads))

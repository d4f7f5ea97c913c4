"""HAT (hybrid attention transformer for image super-resolution) in MindSpore."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops


def conv(cin, cout, k=3, groups=1):
    """A convolution that keeps the size."""
    return nn.Conv2d(cin, cout, k, pad_mode="pad", padding=k // 2, group=groups, has_bias=True)


def norm(dim):
    return nn.LayerNorm((dim,), epsilon=1e-5)


def tokens(x):
    """(b, c, h, w) -> (b, h * w, c)"""
    b, c, h, w = x.shape
    return x.reshape(b, c, h * w).swapaxes(1, 2)


def picture(x, h, w):
    """(b, h * w, c) -> (b, c, h, w)"""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], h, w)


def to_windows(x, ws):
    """(b, h, w, c) -> (b * windows, ws * ws, c)"""
    b, h, w, c = x.shape
    x = x.reshape(b, h // ws, ws, w // ws, ws, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, c)


def from_windows(x, ws, h, w):
    """(b * windows, ws * ws, c) -> (b, h, w, c)"""
    c = x.shape[-1]
    x = x.reshape(-1, h // ws, w // ws, ws, ws, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, h, w, c)


def cyclic(x, offset):
    """Rolls the two middle axes; ops.roll has no kernel on the CPU."""
    x = ops.cat((x[:, -offset:], x[:, :-offset]), axis=1)
    return ops.cat((x[:, :, -offset:], x[:, :, :-offset]), axis=2)


def overlapping(x, size, step):
    """(b, c, h, w) -> (b * windows, size * size, c), the windows overlap and reach over the border by zeros."""
    b, c, h, w = x.shape
    border = (size - step) // 2
    x = ops.pad(x, (border, border, border, border))
    rows = np.arange(0, h, step)[:, None] + np.arange(size)
    cols = np.arange(0, w, step)[:, None] + np.arange(size)
    where = rows[:, None, :, None] * (w + 2 * border) + cols[None, :, None, :]
    x = x.reshape(b, c, -1)[:, :, Tensor(where.reshape(-1), ms.int32)]
    return x.reshape(b, c, -1, size * size).transpose(0, 2, 3, 1).reshape(-1, size * size, c)


def bias_index(ws, ext):
    """Places in the table of relative positions, from ws * ws queries to ext * ext keys."""
    q = np.stack(np.meshgrid(np.arange(ws), np.arange(ws), indexing="ij")).reshape(2, -1)
    k = np.stack(np.meshgrid(np.arange(ext), np.arange(ext), indexing="ij")).reshape(2, -1)
    return q, k


def self_index(ws):
    q, k = bias_index(ws, ws)
    delta = q[:, :, None] - k[:, None, :] + ws - 1
    return Tensor((delta[0] * (2 * ws - 1) + delta[1]).reshape(-1), ms.int32)


def cross_index(ws, ext):
    q, k = bias_index(ws, ext)
    delta = k[:, None, :] - q[:, :, None] + ws - 1
    return Tensor((delta[0] * (ws + ext - 1) + delta[1]).reshape(-1), ms.int32)


def shift_mask(h, w, ws, shift):
    """-100 between the places of a window that are no neighbours in the image."""
    band_h = (np.arange(h) >= h - ws).astype(int) + (np.arange(h) >= h - shift)
    band_w = (np.arange(w) >= w - ws).astype(int) + (np.arange(w) >= w - shift)
    region = band_h[:, None] * 3 + band_w[None, :]
    region = region.reshape(h // ws, ws, w // ws, ws).transpose(0, 2, 1, 3).reshape(-1, ws * ws)
    return Tensor(np.where(region[:, None, :] != region[:, :, None], -100.0, 0.0), ms.float32)


def border_mask(h, w, ws, ext):
    """-100 for the keys that lie outside the image, (windows, ext * ext)."""
    inside = overlapping(ops.ones((1, 1, h, w)), ext, ws)
    return (1.0 - inside[:, :, 0]) * -100.0


class ContrastAttention(nn.Cell):
    def __init__(self, dim, squeeze):
        super().__init__()
        self.down = conv(dim, dim // squeeze, 1)
        self.up = conv(dim // squeeze, dim, 1)

    def construct(self, x):
        mean = x.mean(axis=(2, 3), keep_dims=True)
        deviation = ops.sqrt(ops.square(x - mean).mean(axis=(2, 3), keep_dims=True))
        y = ops.relu(self.down(mean + deviation))
        return x * ops.sigmoid(self.up(y))


class ConvBranch(nn.Cell):
    def __init__(self, dim, compress=3, squeeze=5):
        super().__init__()
        self.conv1 = conv(dim, dim // compress)
        self.gelu = nn.GELU(approximate=False)
        self.conv2 = conv(dim // compress, dim)
        self.attention = ContrastAttention(dim, squeeze)

    def construct(self, x):
        return self.attention(self.conv2(self.gelu(self.conv1(x))))


class GatedMlp(nn.Cell):
    """The spatial gate is part of the perceptron here."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.half = hidden // 2
        self.fc1 = nn.Dense(dim, hidden)
        self.gelu = nn.GELU(approximate=False)
        self.gate_norm = norm(self.half)
        self.gate_conv = conv(self.half, self.half, 3, groups=self.half)
        self.fc2 = nn.Dense(self.half, dim)

    def construct(self, x, h, w):
        x = self.gelu(self.fc1(x))
        value, gate = ops.split(x, self.half, axis=-1)
        gate = tokens(self.gate_conv(picture(self.gate_norm(gate), h, w)))
        return self.fc2(value * gate)


class Mlp(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.gelu = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.fc2(self.gelu(self.fc1(x)))


class WindowAttention(nn.Cell):
    def __init__(self, dim, ws, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.bias_table = Parameter(ops.zeros(((2 * ws - 1) ** 2, heads)), name="bias_table")
        self.index = self_index(ws)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)

    def construct(self, x, mask=None):
        m, n, c = x.shape
        qkv = self.qkv(x).reshape(m, n, 3, self.heads, c // self.heads).transpose(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        score = ops.matmul(query * self.scale, key.swapaxes(-1, -2))
        score = score + self.bias_table[self.index].reshape(n, n, self.heads).transpose(2, 0, 1)
        if mask is not None:
            nw = mask.shape[0]
            score = score.reshape(m // nw, nw, self.heads, n, n) + mask[None, :, None]
            score = score.reshape(m, self.heads, n, n)
        x = ops.matmul(ops.softmax(score, axis=-1), value)
        return self.proj(x.swapaxes(1, 2).reshape(m, n, c))


class HybridBlock(nn.Cell):
    def __init__(self, dim, heads, ws, shift, conv_scale, mlp_ratio):
        super().__init__()
        self.ws = ws
        self.shift = shift
        self.conv_scale = conv_scale
        self.norm1 = norm(dim)
        self.attn = WindowAttention(dim, ws, heads)
        self.conv_branch = ConvBranch(dim)
        self.norm2 = norm(dim)
        self.mlp = GatedMlp(dim, int(dim * mlp_ratio))

    def construct(self, x, size, attn_mask):
        h, w = size
        b, n, c = x.shape
        y = self.norm1(x)
        branch = tokens(self.conv_branch(picture(y, h, w)))
        y = y.reshape(b, h, w, c)
        if self.shift:
            y = self.attn(to_windows(cyclic(y, -self.shift), self.ws), attn_mask)
            y = cyclic(from_windows(y, self.ws, h, w), self.shift)
        else:
            y = from_windows(self.attn(to_windows(y, self.ws)), self.ws, h, w)
        x = x + y.reshape(b, n, c) + branch * self.conv_scale
        return x + self.mlp(self.norm2(x), h, w)


class OverlapBlock(nn.Cell):
    """Overlapping cross attention: from each window to the larger one around it."""

    def __init__(self, dim, heads, ws, overlap_ratio, mlp_ratio):
        super().__init__()
        self.heads = heads
        self.ws = ws
        self.ext = ws + int(ws * overlap_ratio)
        self.scale = (dim // heads) ** -0.5
        self.norm1 = norm(dim)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.bias_table = Parameter(ops.zeros(((ws + self.ext - 1) ** 2, heads)), name="bias_table")
        self.index = cross_index(ws, self.ext)
        self.proj = nn.Dense(dim, dim)
        self.norm2 = norm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def construct(self, x, size, border):
        h, w = size
        b, n, c = x.shape
        shortcut = x
        query, key, value = ops.split(self.qkv(self.norm1(x)), c, axis=-1)
        query = self.split_heads(to_windows(query.reshape(b, h, w, c), self.ws))
        key = self.split_heads(overlapping(picture(key, h, w), self.ext, self.ws))
        value = self.split_heads(overlapping(picture(value, h, w), self.ext, self.ws))
        score = ops.matmul(query * self.scale, key.swapaxes(-1, -2))
        bias = self.bias_table[self.index].reshape(self.ws ** 2, self.ext ** 2, self.heads)
        score = score + bias.transpose(2, 0, 1) + ops.tile(border, (b, 1))[:, None, None]
        y = ops.matmul(ops.softmax(score, axis=-1), value)
        y = y.swapaxes(1, 2).reshape(-1, self.ws ** 2, c)
        y = from_windows(y, self.ws, h, w).reshape(b, n, c)
        x = shortcut + self.proj(y)
        return x + self.mlp(self.norm2(x))


class SpatialAttention(nn.Cell):
    """Enhanced spatial attention of RFANet."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.reduce = conv(dim, hidden, 1)
        self.side = conv(hidden, hidden, 1)
        self.stride = nn.Conv2d(hidden, hidden, 3, stride=2, pad_mode="valid", has_bias=True)
        self.pool = nn.MaxPool2d(3, stride=3)
        self.coarse = conv(hidden, hidden)
        self.expand = conv(hidden, dim, 1)

    def construct(self, x):
        small = self.reduce(x)
        y = self.coarse(self.pool(self.stride(small)))
        y = ops.interpolate(y, size=x.shape[2:], mode="bilinear")
        return x * ops.sigmoid(self.expand(y + self.side(small)))


class Group(nn.Cell):
    """Residual group: hybrid blocks, an overlapping block, and a convolution with spatial attention."""

    def __init__(self, dim, depth, heads, ws, overlap_ratio, conv_scale, mlp_ratio):
        super().__init__()
        self.blocks = nn.CellList(
            [HybridBlock(dim, heads, ws, ws // 2 if i % 2 else 0, conv_scale, mlp_ratio) for i in range(depth)]
        )
        self.overlap = OverlapBlock(dim, heads, ws, overlap_ratio, mlp_ratio)
        self.conv = conv(dim, dim)
        self.spatial = SpatialAttention(dim, dim // 4)

    def construct(self, x, size, attn_mask, border):
        y = x
        for block in self.blocks:
            y = block(y, size, attn_mask)
        y = self.overlap(y, size, border)
        y = self.spatial(self.conv(picture(y, *size)))
        return x + tokens(y)


class PixelShuffle(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def construct(self, x):
        b, c, h, w = x.shape
        r = self.factor
        x = x.reshape(b, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return x.reshape(b, c // (r * r), h * r, w * r)


class HAT(nn.Cell):
    def __init__(self, dim=30, depths=(2, 2, 2), heads=(3, 5, 3), ws=4, overlap_ratio=0.5, conv_scale=0.2, mlp_ratio=2.0,
                 scale=4, features=12):
        super().__init__()
        self.ws = ws
        self.ext = ws + int(ws * overlap_ratio)
        self.scale = scale
        self.mean = Tensor(np.array([0.4488, 0.4371, 0.4040]).reshape(1, 3, 1, 1), ms.float32)
        self.conv_first = conv(3, dim)
        self.embed_norm = norm(dim)
        self.groups = nn.CellList(
            [Group(dim, d, n, ws, overlap_ratio, conv_scale, mlp_ratio) for d, n in zip(depths, heads)]
        )
        self.fusion = Parameter(ops.zeros((len(depths), dim)), name="fusion")
        self.norm = norm(dim)
        self.conv_body = conv(dim, dim)
        self.conv_head = conv(dim, features)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        steps = []
        for _ in range(int(np.log2(scale))):
            steps += [conv(features, 4 * features), PixelShuffle(2)]
        self.upsample = nn.SequentialCell(*steps)
        self.conv_last = conv(features, 3)

    def body(self, x):
        h, w = x.shape[2:]
        attn_mask = shift_mask(h, w, self.ws, self.ws // 2)
        border = border_mask(h, w, self.ws, self.ext)
        x = self.embed_norm(tokens(x))
        levels = []
        for group in self.groups:
            x = group(x, (h, w), attn_mask, border)
            levels.append(x)
        weight = ops.softmax(self.fusion, axis=0)
        x = (ops.stack(levels) * weight[:, None, None, :]).sum(axis=0)
        return picture(self.norm(x), h, w)

    def construct(self, image):
        b, c, h, w = image.shape
        base = ops.interpolate(image, size=(h * self.scale, w * self.scale), mode="bilinear", align_corners=False)
        x = ops.pad(image, (0, -w % self.ws, 0, -h % self.ws), mode="reflect") - self.mean
        x = self.conv_first(x)
        x = x + self.conv_body(self.body(x))
        x = self.leaky(self.conv_head(x))
        x = self.conv_last(self.upsample(x))
        x = x[:, :, :h * self.scale, :w * self.scale] + self.mean
        return 0.5 * (x + base)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return HAT()

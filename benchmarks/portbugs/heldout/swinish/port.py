"""The two-stage shifted-window transformer in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def window_partition(x, window_size):
    """(B, H, W, C) -> (num_windows*B, window_size*window_size, C)"""
    B, H, W, C = x.shape
    x = x.reshape(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.swapaxes(2, 3).reshape(-1, window_size * window_size, C)


def window_reverse(windows, window_size, H, W):
    """(num_windows*B, window_size*window_size, C) -> (B, H, W, C)"""
    B = windows.shape[0] // ((H // window_size) * (W // window_size))
    x = windows.reshape(B, H // window_size, W // window_size, window_size, window_size, -1)
    return ops.transpose(x, (0, 1, 3, 2, 4, 5)).reshape(B, H, W, -1)


def roll(x, shift, axis):
    """ops.roll has no kernel on the CPU; cut and put together the other way round instead."""
    size = x.shape[axis]
    cut = (size - shift) % size
    front, back = ops.split(x, [cut, size - cut], axis=axis)
    return ops.concat([back, front], axis=axis)


def pad_to_window(x, window_size):
    _, H, W, _ = x.shape
    pad_b = (window_size - H % window_size) % window_size
    pad_r = (window_size - W % window_size) % window_size
    x = ops.pad(x, (0, 0, 0, pad_r, 0, pad_b))
    return x, H + pad_b, W + pad_r


def region_labels(H, W, Hp, Wp, window_size, shift):
    """Which region each place of the padded, rolled map comes from; numpy, it depends on the sizes alone."""
    labels = np.zeros((1, Hp, Wp, 1), np.float32)
    bounds = (slice(0, -window_size), slice(-window_size, -shift), slice(-shift, None))
    for i, hs in enumerate(bounds):
        for j, ws in enumerate(bounds):
            labels[:, hs, ws] = 3 * i + j
    inside = np.zeros((1, Hp, Wp, 1), bool)
    inside[:, :H, :W] = True
    inside = np.roll(inside, (-shift, -shift), axis=(1, 2))
    return np.where(inside, labels, np.float32(99))


def relative_position_index(window_size):
    rows, cols = np.meshgrid(np.arange(window_size), np.arange(window_size), indexing="ij")
    coords = np.stack([rows.ravel(), cols.ravel()])
    relative = coords[:, :, None] - coords[:, None, :] + window_size - 1
    return (relative[0] * (2 * window_size - 1) + relative[1]).astype(np.int32)


def l2_normalize(x, eps=1e-12):
    norm = ops.sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / ops.maximum(norm, eps)


class WindowAttention(nn.Cell):
    """Scaled cosine attention inside windows with a learned bias for each relative place."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.max_scale = math.log(1.0 / 0.08)
        self.qkv = nn.Dense(dim, dim * 3)
        self.proj = nn.Dense(dim, dim)
        self.logit_scale = ms.Parameter(ops.zeros((num_heads, 1, 1), ms.float32))
        self.bias_table = ms.Parameter(ops.zeros(((2 * window_size - 1) ** 2, num_heads), ms.float32))
        self.bias_index = ms.Tensor(relative_position_index(window_size).reshape(-1))

    def relative_bias(self):
        N = self.window_size ** 2
        bias = ops.gather(self.bias_table, self.bias_index, 0).reshape(N, N, -1)
        bias = bias.transpose(2, 0, 1)
        return 4 * ops.sigmoid(bias)

    def construct(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ops.matmul(l2_normalize(q), l2_normalize(k).swapaxes(-2, -1))
        scale = ops.exp(ops.clamp(self.logit_scale, max=self.max_scale))
        attn = attn * scale + self.relative_bias().expand_dims(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.reshape(B_ // nW, nW, self.num_heads, N, N) + mask.expand_dims(1).expand_dims(0)
            attn = attn.reshape(-1, self.num_heads, N, N)
        attn = ops.softmax(attn, axis=-1)
        x = ops.matmul(attn, v).swapaxes(1, 2).reshape(B_, N, C)
        return self.proj(x)


class GatedMlp(nn.Cell):
    """Two branches: one looks at its neighbours (depthwise), the other gates it."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, 2 * hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, pad_mode="pad", padding=1, group=hidden, has_bias=True)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x, H, W):
        B, L, _ = x.shape
        x, gate = ops.chunk(self.fc1(x), 2, axis=-1)
        grid = x.swapaxes(1, 2).reshape(B, -1, H, W)
        grid = grid + self.dwconv(grid)
        x = grid.reshape(B, -1, L).swapaxes(1, 2)
        x = ops.gelu(x) * ops.sigmoid(gate + 1.0)
        return self.fc2(x)


class SwinBlock(nn.Cell):
    """Residual post-norm around the window attention and around the gated perceptron, with layer scale."""

    def __init__(self, dim, num_heads, window_size, shift_size, mlp_ratio=2):
        super().__init__()
        self.window_size = window_size
        self.shift_size = shift_size
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = GatedMlp(dim, mlp_ratio * dim)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.gamma_1 = ms.Parameter(ops.ones((dim,), ms.float32))
        self.gamma_2 = ms.Parameter(ops.ones((dim,), ms.float32))

    def window_attention(self, x, H, W, attn_mask):
        B, L, C = x.shape
        x = x.reshape(B, H, W, C)
        x, Hp, Wp = pad_to_window(x, self.window_size)
        s = self.shift_size
        if s > 0:
            shifted = roll(roll(x, -s, 1), -s, 2)
        else:
            shifted, attn_mask = x, None
        windows = window_partition(shifted, self.window_size)
        windows = self.attn(windows, attn_mask)
        shifted = window_reverse(windows, self.window_size, Hp, Wp)
        if s > 0:
            x = roll(roll(shifted, s, 1), s, 2)
        else:
            x = shifted
        return x[:, :H, :W, :].reshape(B, L, C)

    def construct(self, x, H, W, attn_mask):
        shortcut = x
        x = self.norm1(self.window_attention(x, H, W, attn_mask))
        x = shortcut + self.gamma_1 * x
        return x + self.gamma_2 * self.norm2(self.mlp(x, H, W))


class PatchMerging(nn.Cell):
    """Each 2x2 neighbourhood becomes one token of twice the width."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm((4 * dim,), epsilon=1e-5)
        self.reduction = nn.Dense(4 * dim, 2 * dim, has_bias=False)

    def construct(self, x, H, W):
        B, L, C = x.shape
        x = x.reshape(B, H, W, C)
        if H % 2 == 1 or W % 2 == 1:
            x = ops.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        x0 = x[:, 0::2, 0::2, :]
        x1 = x[:, 1::2, 0::2, :]
        x2 = x[:, 0::2, 1::2, :]
        x3 = x[:, 1::2, 1::2, :]
        x = ops.concat([x0, x1, x2, x3], axis=-1)
        H, W = x.shape[1:3]
        x = self.reduction(self.norm(x.reshape(B, -1, 4 * C)))
        return x, H, W


class Stage(nn.Cell):
    """A pair of blocks (plain, shifted); the mask of the shifted one is computed for the map at hand."""

    def __init__(self, dim, num_heads, window_size):
        super().__init__()
        self.window_size = window_size
        self.shift_size = window_size // 2
        self.blocks = nn.CellList(
            [SwinBlock(dim, num_heads, window_size, 0 if i % 2 == 0 else self.shift_size) for i in range(2)]
        )

    def build_mask(self, H, W):
        Hp = math.ceil(H / self.window_size) * self.window_size
        Wp = math.ceil(W / self.window_size) * self.window_size
        labels = region_labels(H, W, Hp, Wp, self.window_size, self.shift_size)
        windows = window_partition(ms.Tensor(labels), self.window_size).squeeze(-1)
        different = windows.expand_dims(1) != windows.expand_dims(2)
        return ops.zeros(different.shape, ms.float32).masked_fill(different, -100.0)

    def construct(self, x, H, W):
        attn_mask = self.build_mask(H, W)
        for blk in self.blocks:
            x = blk(x, H, W, attn_mask)
        return x


class Swinish(nn.Cell):
    """Patches with an interpolated place grid, two stages, a top-down sum, pooling by learned attention."""

    def __init__(self, patch=4, dim=24, window_size=4, num_heads=(2, 4), neck=32, classes=20, grid=8):
        super().__init__()
        self.patch_size = patch
        self.patch_embed = nn.Conv2d(3, dim, patch, stride=patch, pad_mode="pad", has_bias=True)
        self.patch_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.pos_embed = ms.Parameter(ops.zeros((1, dim, grid, grid), ms.float32))
        self.stages = nn.CellList([Stage(dim * 2 ** i, num_heads[i], window_size) for i in range(2)])
        self.merge = PatchMerging(dim)
        self.lateral = nn.CellList([nn.Dense(dim, neck), nn.Dense(2 * dim, neck)])
        self.norm = nn.LayerNorm((neck,), epsilon=1e-5)
        self.pool_score = nn.Dense(neck, 4)
        self.head = nn.Dense(2 * neck, classes)

    def embed(self, img):
        _, _, H, W = img.shape
        p = self.patch_size
        img = ops.pad(img, (0, -W % p, 0, -H % p))
        x = self.patch_embed(img)
        B, C, H, W = x.shape
        pos = ops.interpolate(self.pos_embed, size=(H, W), mode="bilinear", align_corners=False)
        x = self.patch_norm(x.reshape(B, C, -1).swapaxes(1, 2))
        return x + pos.reshape(1, C, -1).swapaxes(1, 2), H, W

    def top_down(self, low, high, low_size, high_size):
        B = low.shape[0]
        fine = self.lateral[0](low)
        coarse = self.lateral[1](high).swapaxes(1, 2).reshape(B, -1, *high_size)
        coarse = ops.interpolate(coarse, size=low_size, mode="nearest")
        return fine + 0.5 * coarse.flatten(start_dim=2).swapaxes(1, 2)

    def pool(self, x):
        """Four heads of attention, one for each quarter of the channels, beside the tokens' deviation."""
        B, L, C = x.shape
        weights = ops.softmax(self.pool_score(x), axis=1).expand_dims(-1)
        quarters = x.reshape(B, L, 4, C // 4)
        mean = (weights * quarters).sum(axis=1)
        spread = (weights * ops.square(quarters - mean.expand_dims(1))).sum(axis=1)
        return ops.concat([mean.reshape(B, -1), ops.sqrt(spread + 1e-4).reshape(B, -1)], axis=-1)

    def construct(self, img):
        x, H, W = self.embed(img)
        low = self.stages[0](x, H, W)
        x, h, w = self.merge(low, H, W)
        high = self.stages[1](x, h, w)
        x = self.norm(self.top_down(low, high, (H, W), (h, w)))
        return self.head(self.pool(x))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Swinish()

"""The miniature text-to-image sampler in MindSpore: the correct port."""
from __future__ import annotations

import math

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import Parameter, Tensor


def ones(*shape):
    return Parameter(Tensor(np.ones(shape, np.float32)))


def zeros(*shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)))


def conv(dim, dim_out, kernel, has_bias=True):
    return nn.Conv2d(dim, dim_out, kernel, pad_mode="pad", padding=kernel // 2, has_bias=has_bias)


# helpers on maps


def group_norm(x, groups, gain, shift, eps=1e-5):
    b, c, h, w = x.shape
    y = x.reshape(b, groups, -1)
    mean = y.mean(axis=-1, keep_dims=True)
    y = y - mean
    var = (y * y).mean(axis=-1, keep_dims=True)
    y = (y * ops.rsqrt(var + eps)).reshape(b, c, h, w)
    return y * gain.reshape(1, c, 1, 1) + shift.reshape(1, c, 1, 1)


def space_to_depth(x, p=2):
    # b c (h p) (w q) -> b (p q c) h w
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // p, p, w // p, p)
    return x.transpose(0, 3, 5, 1, 2, 4).reshape(b, p * p * c, h // p, w // p)


def blur_upsample(x, kernel):
    c = x.shape[1]
    x = ops.repeat_interleave(ops.repeat_interleave(x, 2, axis=2), 2, axis=3)
    x = ops.pad(x, (1, 1, 1, 1), mode="reflect")
    return ops.conv2d(x, ops.tile(kernel, (c, 1, 1, 1)), groups=c)


def add_coordinates(x):
    b, _, h, w = x.shape
    ys, xs = np.meshgrid(np.linspace(-1.0, 1.0, h), np.linspace(-1.0, 1.0, w), indexing="ij")
    grid = Tensor(np.tile(np.stack([ys, xs]), (b, 1, 1, 1)), ms.float32)
    return ops.concat([x, grid], axis=1)


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = Tensor(np.exp(-math.log(max_period) * np.arange(half) / half), ms.float32)
    args = timesteps.astype(ms.float32).expand_dims(1) * freqs
    return ops.concat([ops.cos(args), ops.sin(args)], axis=-1)


class ResBlock(nn.Cell):
    """norm, swish, conv; norm, FiLM, swish, conv; and a shortcut that changes the width where it must"""

    def __init__(self, dim, dim_out, cond_dim, groups=4):
        super().__init__()
        self.groups = groups
        self.gain1 = ones(dim)
        self.shift1 = zeros(dim)
        self.conv1 = conv(dim, dim_out, 3)
        self.film = nn.Dense(cond_dim, dim_out * 2)
        self.gain2 = ones(dim_out)
        self.shift2 = zeros(dim_out)
        self.conv2 = conv(dim_out, dim_out, 3)
        self.res_conv = conv(dim, dim_out, 1) if dim != dim_out else None

    def modulate(self, h, cond):
        film = self.film(ops.silu(cond)).expand_dims(-1).expand_dims(-1)
        scale, shift = ops.chunk(film, 2, axis=1)
        return h * (scale + 1) + shift

    def construct(self, x, cond):
        h = group_norm(x, self.groups, self.gain1, self.shift1)
        h = self.conv1(ops.silu(h))
        h = group_norm(h, self.groups, self.gain2, self.shift2)
        h = self.modulate(h, cond)
        h = self.conv2(ops.silu(h))
        if self.res_conv is not None:
            x = self.res_conv(x)
        return (h + x) / math.sqrt(2)


class LinearAttention(nn.Cell):
    def __init__(self, dim, heads=2, dim_head=12):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.gain = ones(dim)
        self.shift = zeros(dim)
        self.to_qkv = conv(dim, heads * dim_head * 3, 1, has_bias=False)
        self.to_out = conv(heads * dim_head, dim, 1)

    def construct(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(group_norm(x, 1, self.gain, self.shift))
        q, k, v = [t.reshape(b, self.heads, -1, h * w) for t in ops.chunk(qkv, 3, axis=1)]
        q = ops.softmax(q, axis=-2) * self.scale
        k = ops.softmax(k, axis=-1)
        context = ops.matmul(v, k.swapaxes(-2, -1))
        out = ops.matmul(context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class CrossAttention(nn.Cell):
    """Places ask the words; a learned null word is always there to be asked."""

    def __init__(self, dim, context_dim, heads=3):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.gain = ones(dim)
        self.shift = zeros(dim)
        self.norm_context = nn.LayerNorm((context_dim,), epsilon=1e-5)
        self.null_kv = zeros(2, dim)
        self.to_q = nn.Dense(dim, dim, has_bias=False)
        self.to_kv = nn.Dense(context_dim, dim * 2, has_bias=False)
        self.to_out = nn.Dense(dim, dim)

    def split_heads(self, t):
        b, n, c = t.shape
        return t.reshape(b, n, self.heads, c // self.heads).transpose(0, 2, 1, 3)

    def construct(self, x, context, mask):
        b, c, height, width = x.shape
        tokens = group_norm(x, 4, self.gain, self.shift).reshape(b, c, -1).swapaxes(1, 2)
        q = self.to_q(tokens)
        k, v = ops.chunk(self.to_kv(self.norm_context(context)), 2, axis=-1)
        nk = ops.tile(self.null_kv[0].reshape(1, 1, c), (b, 1, 1))
        nv = ops.tile(self.null_kv[1].reshape(1, 1, c), (b, 1, 1))
        k = ops.concat([nk, k], axis=1)
        v = ops.concat([nv, v], axis=1)
        mask = ops.concat([ops.ones((b, 1), ms.bool_), mask], axis=1)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        sim = ops.matmul(q * self.scale, k.swapaxes(-2, -1))
        sim = ops.where(mask[:, None, None, :], sim, Tensor(-1e9, ms.float32))
        attn = ops.softmax(sim, axis=-1)
        out = ops.matmul(attn, v).swapaxes(1, 2).reshape(b, height * width, c)
        return x + self.to_out(out).swapaxes(1, 2).reshape(b, c, height, width)


class UNet(nn.Cell):
    def __init__(self, channels=3, dim=24, vocab=40, text_dim=24, cond_dim=32):
        super().__init__()
        self.time_dim = 16
        self.token_emb = nn.Embedding(vocab, text_dim)
        self.time1 = nn.Dense(self.time_dim, cond_dim)
        self.time2 = nn.Dense(cond_dim, cond_dim)
        self.text_cond = nn.Dense(text_dim, cond_dim)
        self.conv_in = conv(2 * channels + 2, dim, 3)
        self.res_down = ResBlock(dim, dim, cond_dim)
        self.attn_down = LinearAttention(dim)
        self.down = conv(4 * dim, 2 * dim, 1)
        self.res_mid1 = ResBlock(2 * dim, 2 * dim, cond_dim)
        self.cross = CrossAttention(2 * dim, text_dim)
        self.res_mid2 = ResBlock(2 * dim, 2 * dim, cond_dim)
        self.up = conv(2 * dim, dim, 3)
        self.res_up = ResBlock(2 * dim, dim, cond_dim)
        self.gain_out = ones(dim)
        self.shift_out = zeros(dim)
        self.conv_out = conv(dim, channels, 3)
        self.skip_scale = 2 ** -0.5
        binomial = np.array([1, 2, 1], np.float32)
        self.blur = Tensor(np.outer(binomial, binomial).reshape(1, 1, 3, 3) / 16)

    def condition(self, time, words, mask):
        t = timestep_embedding(time, self.time_dim)
        t = self.time2(ops.silu(self.time1(t)))
        keep = mask.expand_dims(-1).astype(ms.float32)
        pooled = (words * keep).sum(axis=1) / ops.clamp(keep.sum(axis=1), min=1.0)
        return t + self.text_cond(pooled)

    def construct(self, x, time, tokens, self_cond=None):
        mask = tokens != 0
        words = self.token_emb(tokens)
        cond = self.condition(time, words, mask)
        if self_cond is None:
            self_cond = ops.zeros_like(x)
        x = self.conv_in(add_coordinates(ops.concat([self_cond, x], axis=1)))
        r = x
        x = self.res_down(x, cond)
        x = self.attn_down(x)
        skip = x
        x = self.down(space_to_depth(x))
        x = self.res_mid1(x, cond)
        x = self.cross(x, words, mask)
        x = self.res_mid2(x, cond)
        x = self.up(blur_upsample(x, self.blur))
        x = self.res_up(ops.concat([x, skip * self.skip_scale], axis=1), cond)
        x = group_norm(x + r, 4, self.gain_out, self.shift_out)
        return self.conv_out(ops.silu(x))


class Sampler(nn.Cell):
    """Two deterministic steps of v-prediction with classifier-free guidance, rescaled, and dynamic thresholding."""

    def __init__(self, timesteps=100, times=(80, 40, 8), guidance=2.0, rescale=0.6, quantile=0.9):
        super().__init__()
        self.unet = UNet()
        self.times = times
        self.guidance, self.rescale, self.quantile = guidance, rescale, quantile
        steps = np.arange(timesteps + 1) / timesteps
        bar = np.cos((steps + 0.008) / 1.008 * np.pi / 2) ** 2
        self.alphas_cumprod = (bar / bar[0]).tolist()

    def guided(self, x, time, tokens, self_cond):
        b = x.shape[0]
        steps = ops.full((2 * b,), time, dtype=ms.int64)
        both = ops.concat([tokens, ops.zeros_like(tokens)], axis=0)
        pred = self.unet(ops.concat([x, x]), steps, both, ops.concat([self_cond, self_cond]))
        cond, null = pred[:b], pred[b:]
        out = null + (cond - null) * self.guidance
        ratio = ops.std(cond, (1, 2, 3), 1, True) / ops.std(out, (1, 2, 3), 1, True)
        return self.rescale * out * ratio + (1 - self.rescale) * out

    def threshold(self, x0):
        flat, _ = ops.sort(ops.abs(x0).reshape(x0.shape[0], -1), axis=-1)
        s = ops.clamp(flat[:, int(self.quantile * flat.shape[1])], min=1.0)
        s = s.reshape(-1, 1, 1, 1)
        return ops.maximum(ops.minimum(x0, s), -s) / s

    def construct(self, noise, tokens):
        x = noise
        x0 = ops.zeros_like(x)
        for i in range(len(self.times) - 1):
            alpha = self.alphas_cumprod[self.times[i]]
            alpha_next = self.alphas_cumprod[self.times[i + 1]]
            v = self.guided(x, self.times[i], tokens, x0)
            x0 = math.sqrt(alpha) * x - math.sqrt(1 - alpha) * v
            eps = math.sqrt(alpha) * v + math.sqrt(1 - alpha) * x
            x0 = self.threshold(x0)
            x = math.sqrt(alpha_next) * x0 + math.sqrt(1 - alpha_next) * eps
        return x


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Sampler()

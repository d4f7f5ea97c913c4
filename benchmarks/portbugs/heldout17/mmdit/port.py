"""The text to image transformer (joint attention, flow matching) in MindSpore.

One cell a stream instead of the pairs img_*/txt_* of the original, separate projections of query, key and value in the
joint blocks, and rotations as cosines and sines.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

PATCH = 2
CHANNELS = 4
CLIP_WIDTHS = (10, 14)
CONTEXT = 28
WIDTH = 48
HEADS = 3
MLP = 120
AXES = (4, 6, 6)


def time_features(t, width, max_period=10000.0, factor=1000.0):
    half = width // 2
    exponent = np.arange(half, dtype=np.float32) / half
    freqs = Tensor(np.exp(-math.log(max_period) * exponent).astype(np.float32))
    angles = (t * factor).expand_dims(1) * freqs.expand_dims(0)
    return ops.cat((ops.cos(angles), ops.sin(angles)), axis=-1)


def plain_norm(x, eps=1e-6):
    """Layer norm without weights."""
    centred = x - x.mean(axis=-1, keep_dims=True)
    return centred * ops.rsqrt((centred * centred).mean(axis=-1, keep_dims=True) + eps)


def modulate(x, shift, scale):
    return plain_norm(x) * (1 + scale) + shift


def rotate(x, rope):
    """Turn the pairs (2i, 2i + 1) of the last axis."""
    cos, sin = rope
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = ops.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
    return turned.reshape(x.shape)


def joint_attention(q, k, v, rope, keep):
    q, k = rotate(q, rope), rotate(k, rope)
    logits = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(q.shape[-1])
    logits = ops.masked_fill(logits, ops.logical_not(keep).expand_dims(1).expand_dims(1), float("-inf"))
    out = ops.matmul(ops.softmax(logits, axis=-1), v)
    b, h, n, d = out.shape
    return out.transpose(0, 2, 1, 3).reshape(b, n, h * d)


class RotaryEmbedding(nn.Cell):
    """Cosines and sines for (text, row, column)."""

    def __init__(self, axes, theta=10000.0, positions=32):
        super().__init__()
        self.cos, self.sin = [], []
        for width in axes:
            inverse = 1.0 / theta ** (np.arange(0, width, 2, dtype=np.float64) / width)
            angles = np.outer(np.arange(positions), inverse)
            self.cos.append(Tensor(np.cos(angles).astype(np.float32)))
            self.sin.append(Tensor(np.sin(angles).astype(np.float32)))

    def construct(self, ids):
        cos = ops.cat([table[ids[:, axis]] for axis, table in enumerate(self.cos)], axis=-1)
        sin = ops.cat([table[ids[:, axis]] for axis, table in enumerate(self.sin)], axis=-1)
        return cos, sin


class RMSNorm(nn.Cell):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")

    def construct(self, x):
        return x * ops.rsqrt(ops.square(x).mean(axis=-1, keep_dims=True) + self.eps) * self.weight


class Embedder(nn.Cell):
    def __init__(self, in_width, width, act):
        super().__init__()
        self.linear_1 = nn.Dense(in_width, width)
        self.act = act
        self.linear_2 = nn.Dense(width, width)

    def construct(self, x):
        return self.linear_2(self.act(self.linear_1(x)))


class Stream(nn.Cell):
    """All weights that one kind of token has in a joint block."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.ada = nn.Dense(width, 6 * width)
        self.to_q = nn.Dense(width, width)
        self.to_k = nn.Dense(width, width)
        self.to_v = nn.Dense(width, width)
        self.norm_q = RMSNorm(width // heads)
        self.norm_k = RMSNorm(width // heads)
        self.to_out = nn.Dense(width, width)
        self.fc1 = nn.Dense(width, hidden)
        self.gelu = nn.GELU(approximate=True)
        self.fc2 = nn.Dense(hidden, width)

    def conditions(self, vec):
        return ops.chunk(self.ada(ops.silu(vec)).expand_dims(1), 6, axis=-1)

    def split_heads(self, x):
        b, n, c = x.shape
        return x.reshape(b, n, self.heads, c // self.heads).transpose(0, 2, 1, 3)

    def project(self, x):
        q = self.norm_q(self.split_heads(self.to_q(x)))
        k = self.norm_k(self.split_heads(self.to_k(x)))
        return q, k, self.split_heads(self.to_v(x))

    def mlp(self, x):
        return self.fc2(self.gelu(self.fc1(x)))


class JointBlock(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.image = Stream(width, heads, hidden)
        self.text = Stream(width, heads, hidden)

    def construct(self, image, text, vec, rope, keep):
        i_shift1, i_scale1, i_gate1, i_shift2, i_scale2, i_gate2 = self.image.conditions(vec)
        t_shift1, t_scale1, t_gate1, t_shift2, t_scale2, t_gate2 = self.text.conditions(vec)

        iq, ik, iv = self.image.project(modulate(image, i_shift1, i_scale1))
        tq, tk, tv = self.text.project(modulate(text, t_shift1, t_scale1))
        attended = joint_attention(
            ops.cat((tq, iq), axis=2), ops.cat((tk, ik), axis=2), ops.cat((tv, iv), axis=2), rope, keep
        )
        length = text.shape[1]

        image = image + i_gate1 * self.image.to_out(attended[:, length:])
        image = image + i_gate2 * self.image.mlp(modulate(image, i_shift2, i_scale2))
        text = text + t_gate1 * self.text.to_out(attended[:, :length])
        text = text + t_gate2 * self.text.mlp(modulate(text, t_shift2, t_scale2))
        return image, text


class ParallelBlock(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.width = width
        self.heads = heads
        self.proj_in = nn.Dense(width, 3 * width + hidden)
        self.proj_out = nn.Dense(width + hidden, width)
        self.norm_q = RMSNorm(width // heads)
        self.norm_k = RMSNorm(width // heads)
        self.gelu = nn.GELU(approximate=True)
        self.ada = nn.Dense(width, 3 * width)

    def construct(self, x, vec, rope, keep):
        shift, scale, gate = ops.chunk(self.ada(ops.silu(vec)).expand_dims(1), 3, axis=-1)
        inner = modulate(x, shift, scale)
        fused = self.proj_in(inner)
        qkv, hidden = fused[..., : 3 * self.width], fused[..., 3 * self.width :]
        b, n, _ = qkv.shape
        qkv = qkv.reshape(b, n, 3, self.heads, self.width // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = self.norm_q(qkv[0]), self.norm_k(qkv[1]), qkv[2]
        attended = joint_attention(q, k, v, rope, keep)
        update = self.proj_out(ops.cat((attended, self.gelu(hidden)), axis=-1))
        return x + gate * update


class Head(nn.Cell):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Dense(width, out)
        self.ada = nn.Dense(width, 2 * width)

    def construct(self, x, vec):
        shift, scale = ops.chunk(self.ada(ops.silu(vec)).expand_dims(1), 2, axis=-1)
        return self.linear(modulate(x, shift, scale))


class DiffusionTransformer(nn.Cell):
    def __init__(self, time_width=32, joint=2, parallel=2):
        super().__init__()
        self.time_width = time_width
        self.rotary = RotaryEmbedding(AXES)
        self.patch_embed = nn.Dense(CHANNELS * PATCH * PATCH, WIDTH)
        self.time_embed = Embedder(time_width, WIDTH, nn.SiLU())
        self.pooled_embed = Embedder(sum(CLIP_WIDTHS), WIDTH, nn.SiLU())
        self.context_norm = nn.LayerNorm((CONTEXT,), epsilon=1e-5)
        self.context_embed = nn.Dense(CONTEXT, WIDTH)
        self.joint_blocks = nn.CellList([JointBlock(WIDTH, HEADS, MLP) for _ in range(joint)])
        self.parallel_blocks = nn.CellList([ParallelBlock(WIDTH, HEADS, MLP) for _ in range(parallel)])
        self.head = Head(WIDTH, PATCH * PATCH * CHANNELS)

    def patches(self, latent):
        b, c, height, width = latent.shape
        x = latent.reshape(b, c, height // PATCH, PATCH, width // PATCH, PATCH)
        return x.transpose(0, 2, 4, 1, 3, 5).reshape(b, -1, c * PATCH * PATCH)

    def picture(self, x, rows, cols):
        x = x.reshape(x.shape[0], rows, cols, PATCH, PATCH, CHANNELS)
        return x.transpose(0, 5, 1, 3, 2, 4).reshape(x.shape[0], CHANNELS, rows * PATCH, cols * PATCH)

    def positions(self, length, rows, cols):
        text = np.stack([np.arange(length), np.zeros(length, np.int64), np.zeros(length, np.int64)], axis=-1)
        row, col = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
        image = np.stack([np.zeros_like(row), row, col], axis=-1).reshape(-1, 3)
        return Tensor(np.concatenate([text, image]).astype(np.int32))

    def construct(self, latent, t, context, pooled, text_keep):
        rows, cols = latent.shape[2] // PATCH, latent.shape[3] // PATCH
        image = self.patch_embed(self.patches(latent))
        text = self.context_embed(self.context_norm(context))
        vec = self.time_embed(time_features(t, self.time_width)) + self.pooled_embed(pooled)

        length = text.shape[1]
        rope = self.rotary(self.positions(length, rows, cols))
        image_keep = ops.ones(image.shape[:2], ms.bool_)
        keep = ops.cat((text_keep, image_keep), axis=1)

        for block in self.joint_blocks:
            image, text = block(image, text, vec, rope, keep)
        tokens = ops.cat((text, image), axis=1)
        for block in self.parallel_blocks:
            tokens = block(tokens, vec, rope, keep)
        return self.picture(self.head(tokens[:, length:], vec), rows, cols)


class Preview(nn.Cell):
    """The small decoder."""

    def __init__(self, width=16):
        super().__init__()
        self.conv_in = nn.Conv2d(CHANNELS, width, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.GroupNorm(4, width, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.conv_up = nn.Conv2d(width, 32, 3, pad_mode="pad", padding=1, has_bias=True)
        self.conv_out = nn.Conv2d(8, 3, 3, pad_mode="pad", padding=1, has_bias=True)

    def construct(self, z):
        x = self.conv_up(self.act(self.norm(self.conv_in(z))))
        b, c, height, width = x.shape
        x = x.reshape(b, c // 4, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
        x = x.reshape(b, c // 4, height * 2, width * 2)
        return self.conv_out(ops.silu(x))


class Pipeline(nn.Cell):
    def __init__(self, steps=4, guidance=3.0, rescale=0.7, interval=(0.05, 0.995)):
        super().__init__()
        self.steps = steps
        self.guidance = guidance
        self.rescale = rescale
        self.interval = interval
        self.lengths = (16, 128)
        self.shifts = (0.5, 1.15)
        self.latent_scale = 0.7611
        self.latent_shift = 0.1609
        self.dit = DiffusionTransformer()
        self.preview = Preview()

    def conditioning(self, clip_l, clip_g, t5, clip_ids, t5_mask):
        end = ops.argmax(clip_ids, dim=-1)
        index = ops.arange(clip_ids.shape[0])
        pooled = ops.cat((clip_l[index, end], clip_g[index, end]), axis=-1)

        missing = t5.shape[-1] - clip_l.shape[-1] - clip_g.shape[-1]
        filler = ops.zeros((clip_l.shape[0], clip_l.shape[1], missing), clip_l.dtype)
        context = ops.cat((ops.cat((clip_l, clip_g, filler), axis=-1), t5), axis=1)
        clip_keep = ops.arange(clip_ids.shape[1]).expand_dims(0) <= end.expand_dims(1)
        return context, pooled, ops.cat((clip_keep, t5_mask.astype(ms.bool_)), axis=1)

    def noise_levels(self, tokens):
        (short, long), (low, high) = self.lengths, self.shifts
        mu = low + (high - low) * (tokens - short) / (long - short)
        levels = np.linspace(1, 0, self.steps + 1)[:-1]
        levels = math.exp(mu) / (math.exp(mu) + (1 / levels - 1))
        return np.append(levels, 0.0).astype(np.float32)

    def velocity(self, latent, level, context, pooled, keep):
        twice = ops.tile(latent, (2, 1, 1, 1))
        t = ops.full((twice.shape[0],), float(level), dtype=ms.float32)
        negative, positive = ops.chunk(self.dit(twice, t, context, pooled, keep), 2, axis=0)
        if not self.interval[0] < level < self.interval[1]:
            return positive
        guided = negative + self.guidance * (positive - negative)
        wanted = ops.std(positive, axis=(1, 2, 3), ddof=1, keepdims=True)
        actual = ops.std(guided, axis=(1, 2, 3), ddof=1, keepdims=True)
        return self.rescale * guided * (wanted / actual) + (1 - self.rescale) * guided

    def construct(self, noise, clip_l, clip_g, t5, clip_ids, t5_mask):
        context, pooled, keep = self.conditioning(clip_l, clip_g, t5, clip_ids, t5_mask)
        rows, cols = noise.shape[2] // PATCH, noise.shape[3] // PATCH
        levels = self.noise_levels(rows * cols)

        latent = noise
        for i in range(self.steps):
            v = self.velocity(latent, levels[i], context, pooled, keep)
            latent = latent + float(levels[i + 1] - levels[i]) * v
        return self.preview(latent / self.latent_scale + self.latent_shift)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Pipeline()

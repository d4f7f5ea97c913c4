"""The small latent video pipeline in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

NUM_TRAIN_TIMESTEPS = 1000
FLOW_SHIFT = 3.0
NUM_STEPS = 2
CFG_SCALE = 3.5
CFG_RESCALE = 0.7
TIME_FREQ_DIM = 32
TIME_MAX_PERIOD = 10000.0
ROPE_THETA = 256.0
ROPE_DIMS = (4, 6, 6)
VAE_MEAN = np.array([0.12, -0.31, 0.05, 0.22], np.float32)
VAE_STD = np.array([1.35, 0.88, 1.62, 1.1], np.float32)


def rope_frequencies(grid):
    """Tables (tokens, head width / 2) of a whole video; the angles of time, height and width stand beside each other."""
    parts = []
    for axis, (count, dim) in enumerate(zip(grid, ROPE_DIMS)):
        inv_freq = np.power(ROPE_THETA, -np.arange(0, dim, 2, dtype=np.float32) / dim)
        table = np.outer(np.arange(count, dtype=np.float32), inv_freq)
        layout = [1, 1, 1, dim // 2]
        layout[axis] = count
        parts.append(np.broadcast_to(table.reshape(layout), (*grid, dim // 2)))
    freqs = np.concatenate(parts, axis=-1).reshape(-1, sum(ROPE_DIMS) // 2)
    return ms.Tensor(np.cos(freqs), ms.float32), ms.Tensor(np.sin(freqs), ms.float32)


def rotate(x, cos, sin):
    """Rotary embedding of (..., tokens, head) in the interleaved layout."""
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = ops.stack((even * cos - odd * sin, odd * cos + even * sin), axis=-1)
    return pairs.reshape(x.shape)


def attend(q, k, v, bias=None):
    logits = mint.matmul(q, k.swapaxes(-1, -2)) * (q.shape[-1] ** -0.5)
    if bias is not None:
        logits = logits + bias
    return mint.matmul(ops.softmax(logits, axis=-1), v)


class HeadRMSNorm(nn.Cell):
    def __init__(self, dim, epsilon=1e-6):
        super().__init__()
        self.gamma = ms.Parameter(ops.ones(dim, ms.float32))
        self.epsilon = epsilon

    def construct(self, x):
        variance = ops.mean(ops.square(x), axis=-1, keep_dims=True)
        return self.gamma * (x / ops.sqrt(variance + self.epsilon))


class PlainLayerNorm(nn.Cell):
    """A layer norm without weights."""

    def __init__(self, epsilon=1e-6):
        super().__init__()
        self.epsilon = epsilon

    def construct(self, x):
        centred = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centred).mean(-1, keep_dims=True)
        return centred * ops.rsqrt(variance + self.epsilon)


class Mlp(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        hidden = ops.gelu(self.fc1(x), approximate="tanh")
        return self.fc2(hidden)


class Attention(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Dense(dim, 3 * dim)
        self.q_norm = HeadRMSNorm(self.head_dim)
        self.k_norm = HeadRMSNorm(self.head_dim)
        self.to_out = nn.Dense(dim, dim)

    def construct(self, x, rope, bias=None):
        batch, length, dim = x.shape
        q, k, v = (
            part.reshape(batch, length, self.num_heads, self.head_dim).swapaxes(1, 2)
            for part in mint.chunk(self.to_qkv(x), 3, dim=-1)
        )
        q = rotate(self.q_norm(q), *rope)
        k = rotate(self.k_norm(k), *rope)
        out = attend(q, k, v, bias)
        return self.to_out(out.swapaxes(1, 2).reshape(batch, length, dim))


class Stream(nn.Cell):
    """What text or video has of its own in a joint block."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.modulation = nn.Dense(dim, 6 * dim)
        self.norm1 = PlainLayerNorm()
        self.to_qkv = nn.Dense(dim, 3 * dim)
        self.q_norm = HeadRMSNorm(dim // num_heads)
        self.k_norm = HeadRMSNorm(dim // num_heads)
        self.to_out = nn.Dense(dim, dim)
        self.norm2 = PlainLayerNorm()
        self.mlp = Mlp(dim, 2 * dim)

    def modulations(self, cond):
        batch, dim = cond.shape
        return ops.unstack(self.modulation(cond).reshape(batch, 6, 1, dim), axis=1)

    def project(self, x, shift, scale):
        batch, length, dim = x.shape
        qkv = self.to_qkv(self.norm1(x) * (1.0 + scale) + shift)
        qkv = qkv.reshape(batch, length, 3, self.num_heads, dim // self.num_heads)
        q, k, v = (qkv[:, :, index].transpose(0, 2, 1, 3) for index in range(3))
        return self.q_norm(q), self.k_norm(k), v

    def finish(self, x, mixed, gate1, shift2, scale2, gate2):
        x = x + gate1 * self.to_out(mixed)
        return x + gate2 * self.mlp(self.norm2(x) * (1.0 + scale2) + shift2)


class JointBlock(nn.Cell):
    """Text and video streams that share one attention."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.video = Stream(dim, num_heads)
        self.text = Stream(dim, num_heads)

    def construct(self, video, text, emb, bias, rope):
        cond = ops.silu(emb)
        video_mods = self.video.modulations(cond)
        text_mods = self.text.modulations(cond)
        vq, vk, vv = self.video.project(video, video_mods[0], video_mods[1])
        tq, tk, tv = self.text.project(text, text_mods[0], text_mods[1])
        vq, vk = rotate(vq, *rope), rotate(vk, *rope)

        mixed = attend(
            mint.cat((tq, vq), dim=2),
            mint.cat((tk, vk), dim=2),
            mint.cat((tv, vv), dim=2),
            bias[:, None, None, :],
        )
        batch, _, length, _ = mixed.shape
        mixed = mixed.swapaxes(1, 2).reshape(batch, length, -1)
        words = text.shape[1]
        video = self.video.finish(video, mixed[:, words:], *video_mods[2:])
        text = self.text.finish(text, mixed[:, :words], *text_mods[2:])
        return video, text


class SpaceTimeBlock(nn.Cell):
    """Attention within frames, then causal attention along time; x is (batch, time, space, dim)."""

    def __init__(self, dim, num_heads, grid):
        super().__init__()
        self.grid = grid
        self.table = ms.Parameter(ops.zeros((9, dim), ms.float32))
        self.norm = PlainLayerNorm()
        self.attn_space = Attention(dim, num_heads)
        self.attn_time = Attention(dim, num_heads)
        self.mlp = Mlp(dim, 2 * dim)
        self.causal_bias = ms.Tensor(np.triu(np.full((grid[0], grid[0]), -1e9), 1), ms.float32)

    def construct(self, x, mod, rope):
        batch, time, space, dim = x.shape
        cos, sin = rope
        values = (mod.reshape(batch, 9, dim) + self.table).reshape(batch, 3, 3, 1, 1, dim)

        shift, scale, gate = ops.unstack(values[:, 0], axis=1)
        frames = (self.norm(x) * (1.0 + scale) + shift).reshape(-1, space, dim)
        frames = self.attn_space(frames, (cos[:space], sin[:space]))
        x = x + gate * frames.reshape(x.shape)

        shift, scale, gate = ops.unstack(values[:, 1], axis=1)
        tracks = (self.norm(x) * (1.0 + scale) + shift).transpose(0, 2, 1, 3).reshape(-1, time, dim)
        tracks = self.attn_time(tracks, (cos[::space], sin[::space]), self.causal_bias)
        x = x + gate * tracks.reshape(batch, space, time, dim).transpose(0, 2, 1, 3)

        shift, scale, gate = ops.unstack(values[:, 2], axis=1)
        return x + gate * self.mlp(self.norm(x) * (1.0 + scale) + shift)


class ConditionEmbedder(nn.Cell):
    """Time, pooled prompt and frame rate in one vector."""

    def __init__(self, dim):
        super().__init__()
        self.linear1 = nn.Dense(TIME_FREQ_DIM, dim)
        self.linear2 = nn.Dense(dim, dim)
        self.pooled = nn.Dense(dim, dim)
        self.fps = nn.Embedding(8, dim)
        count = TIME_FREQ_DIM // 2
        self.freqs = ms.Tensor(np.exp(-math.log(TIME_MAX_PERIOD) / count * np.arange(count)), ms.float32)

    def construct(self, timesteps, text, text_mask, fps):
        args = timesteps.reshape(-1, 1) * self.freqs
        time = mint.cat((ops.cos(args), ops.sin(args)), dim=-1)
        time = self.linear2(ops.silu(self.linear1(time)))
        kept = text_mask.astype(ms.float32).expand_dims(-1)
        pooled = (text * kept).sum(axis=1) / ops.clamp(kept.sum(axis=1), min=1.0)
        bucket = ops.clamp(ops.floor_divide(fps, 4), max=7)
        return time + self.pooled(pooled) + self.fps(bucket)


class VideoTransformer(nn.Cell):
    def __init__(self, latent_size=(6, 8, 12), channels=4, dim=48, num_heads=3, text_dim=24, patch=(2, 2, 2)):
        super().__init__()
        self.channels = channels
        self.patch = patch
        self.grid = tuple(size // step for size, step in zip(latent_size, patch))
        patch_dim = channels * int(np.prod(patch))
        self.x_embedder = nn.Dense(patch_dim, dim)
        self.caption = nn.Dense(text_dim, dim)
        self.caption_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.condition = ConditionEmbedder(dim)
        self.joint_blocks = nn.CellList([JointBlock(dim, num_heads)])
        self.mod_proj = nn.Dense(dim, 9 * dim)
        self.st_blocks = nn.CellList([SpaceTimeBlock(dim, num_heads, self.grid) for _ in range(2)])
        self.final_norm = PlainLayerNorm()
        self.final_mod = nn.Dense(dim, 2 * dim)
        self.final_proj = nn.Dense(dim, patch_dim)
        self.rope = rope_frequencies(self.grid)

    def patchify(self, x):
        batch = x.shape[0]
        (t, h, w), (pt, ph, pw) = self.grid, self.patch
        x = x.reshape(batch * self.channels, t, pt, h, ph, w * pw)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, self.channels, t * h, pt * ph, w, pw)
        return x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, t * h * w, -1)

    def unpatchify(self, x):
        batch = x.shape[0]
        (t, h, w), (pt, ph, pw) = self.grid, self.patch
        x = x.reshape(batch, t, h, w, pt, ph, pw, self.channels)
        x = x.transpose(0, 7, 1, 4, 2, 5, 3, 6)
        return x.reshape(batch, self.channels, t * pt, h * ph, w * pw)

    def construct(self, latents, timesteps, caption, caption_mask, fps):
        x = self.x_embedder(self.patchify(latents))
        caption = self.caption_norm(self.caption(caption))
        emb = self.condition(timesteps, caption, caption_mask, fps)
        batch, length, dim = x.shape

        text_bias = (1.0 - caption_mask.astype(ms.float32)) * -1e9
        bias = mint.cat((text_bias, ops.zeros((batch, length), ms.float32)), dim=1)
        for block in self.joint_blocks:
            x, caption = block(x, caption, emb, bias, self.rope)

        mod = self.mod_proj(ops.silu(emb))
        x = x.reshape(batch, self.grid[0], -1, dim)
        for block in self.st_blocks:
            x = block(x, mod, self.rope)
        x = x.reshape(batch, length, dim)

        shift, scale = mint.chunk(self.final_mod(ops.silu(emb)).expand_dims(1), 2, dim=-1)
        x = self.final_norm(x) * (1.0 + scale) + shift
        return self.unpatchify(self.final_proj(x))


class CausalConv(nn.Cell):
    def __init__(self, in_channels, out_channels, kernel_size=3):
        super().__init__()
        self.lead = kernel_size - 1
        side = kernel_size // 2
        self.conv = nn.Conv3d(
            in_channels,
            out_channels,
            kernel_size,
            pad_mode="pad",
            padding=(0, 0, side, side, side, side),
            has_bias=True,
        )

    def construct(self, x):
        lead = ops.tile(x[:, :, 0:1], (1, 1, self.lead, 1, 1))
        return self.conv(mint.cat((lead, x), dim=2))


class PerFrameGroupNorm(nn.Cell):
    def __init__(self, channels, groups=4):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)

    def construct(self, x):
        batch, channels, frames, height, width = x.shape
        flat = x.transpose(0, 2, 1, 3, 4).reshape(-1, channels, height, width)
        flat = self.norm(flat)
        return flat.reshape(batch, frames, channels, height, width).transpose(0, 2, 1, 3, 4)


class ResnetBlock(nn.Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.norm1 = PerFrameGroupNorm(in_channels)
        self.conv1 = CausalConv(in_channels, out_channels)
        self.norm2 = PerFrameGroupNorm(out_channels)
        self.conv2 = CausalConv(out_channels, out_channels)
        self.shortcut = None
        if in_channels != out_channels:
            self.shortcut = nn.Conv3d(in_channels, out_channels, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        hidden = self.conv1(ops.silu(self.norm1(x)))
        hidden = self.conv2(ops.silu(self.norm2(hidden)))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return x + hidden


def upsample_nearest(x):
    """Doubles height and width, and all frames but the first."""
    frames = x.shape[2]
    x = ops.repeat_interleave(x, 2, axis=-1)
    x = ops.repeat_interleave(x, 2, axis=-2)
    index = (np.arange(2 * frames - 1) + 1) // 2
    return ops.gather(x, ms.Tensor(index, ms.int32), 2)


class CausalDecoder(nn.Cell):
    def __init__(self, latent_channels=4, dim=16):
        super().__init__()
        self.conv_in = CausalConv(latent_channels, dim)
        self.res1 = ResnetBlock(dim, dim)
        self.up_conv = CausalConv(dim, dim)
        self.res2 = ResnetBlock(dim, 8)
        self.norm_out = PerFrameGroupNorm(8)
        self.conv_out = CausalConv(8, 3)

    def construct(self, z):
        x = self.res1(self.conv_in(z))
        x = self.up_conv(upsample_nearest(x))
        x = self.res2(x)
        return ops.tanh(self.conv_out(ops.silu(self.norm_out(x))))


class LatentVideo(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dit = VideoTransformer()
        self.vae = CausalDecoder()
        steps = 1.0 - np.arange(NUM_STEPS) / NUM_STEPS
        shifted = FLOW_SHIFT * steps / (1.0 + (FLOW_SHIFT - 1.0) * steps)
        self.schedule = [float(sigma) for sigma in shifted] + [0.0]
        self.latent_mean = ms.Tensor(VAE_MEAN.reshape(1, -1, 1, 1, 1))
        self.latent_std = ms.Tensor(VAE_STD.reshape(1, -1, 1, 1, 1))

    def guide(self, uncond, cond):
        batch = cond.shape[0]
        guided = CFG_SCALE * cond + (1.0 - CFG_SCALE) * uncond
        std_cond = ops.std(cond.reshape(batch, -1), axis=1, ddof=1, keepdims=True)
        std_guided = ops.std(guided.reshape(batch, -1), axis=1, ddof=1, keepdims=True)
        ratio = (std_cond / std_guided).reshape(batch, 1, 1, 1, 1)
        return guided * (CFG_RESCALE * ratio + (1.0 - CFG_RESCALE))

    def construct(self, noise, first, text, text_mask, empty, empty_mask, fps):
        batch = noise.shape[0]
        captions = mint.cat((empty, text), dim=0)
        caption_masks = mint.cat((empty_mask, text_mask), dim=0)
        rates = mint.cat((fps, fps), dim=0)
        x = noise
        for sigma, sigma_next in zip(self.schedule[:-1], self.schedule[1:]):
            t = ops.full((2 * batch,), sigma * NUM_TRAIN_TIMESTEPS, dtype=ms.float32)
            pred = self.dit(mint.cat((x, x), dim=0), t, captions, caption_masks, rates)
            x = x + self.guide(pred[:batch], pred[batch:]) * (sigma_next - sigma)
            known = first * (1.0 - sigma_next) + noise[:, :, 0:1] * sigma_next
            x = mint.cat((known, x[:, :, 1:]), dim=2)
        return x, self.vae(x * self.latent_std + self.latent_mean)


def build():
    """The net, and the inputs of the reference."""
    rng = np.random.default_rng(61)
    noise = rng.standard_normal((2, 4, 6, 8, 12)).astype(np.float32)
    first = rng.standard_normal((2, 4, 1, 8, 12)).astype(np.float32)
    text = rng.standard_normal((2, 7, 24)).astype(np.float32)
    text_mask = np.arange(7)[None] < np.array([[5], [7]])
    empty = np.repeat(rng.standard_normal((1, 7, 24)).astype(np.float32), 2, axis=0)
    empty_mask = np.arange(7)[None] < np.array([[1], [1]])
    fps = np.array([11, 30], dtype=np.int64)
    net = LatentVideo()
    net.set_train(False)
    return net, tuple(ms.Tensor(array) for array in (noise, first, text, text_mask, empty, empty_mask, fps))

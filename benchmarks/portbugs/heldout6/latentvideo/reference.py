"""A small latent video diffusion transformer with its sampler and its causal decoder. In PyTorch: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

TRAIN_TIMESTEPS = 1000
SIGMA_SHIFT = 3.0
SAMPLING_STEPS = 2
GUIDANCE_SCALE = 3.5
GUIDANCE_RESCALE = 0.7
SINUSOID_WIDTH = 32
MAX_PERIOD = 10000.0
ROTARY_BASE = 256.0
ROTARY_SPLIT = (4, 6, 6)
LATENT_MEAN = (0.12, -0.31, 0.05, 0.22)
LATENT_STD = (1.35, 0.88, 1.62, 1.1)


def timestep_embedding(timesteps, width):
    """Sinusoids of the times, cosines first."""
    half = width // 2
    frequencies = torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32) / half)
    angles = timesteps.float()[:, None] * frequencies[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def rotary_table(frames, height, width):
    """Cosines and sines for each token of a video, split over time, height and width."""
    grids = torch.meshgrid(
        torch.arange(frames, dtype=torch.float32),
        torch.arange(height, dtype=torch.float32),
        torch.arange(width, dtype=torch.float32),
        indexing="ij",
    )
    angles = []
    for grid, size in zip(grids, ROTARY_SPLIT):
        inverse = 1.0 / ROTARY_BASE ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles.append(grid.reshape(-1, 1) * inverse)
    angles = torch.cat(angles, dim=-1).repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def apply_rotary(x, cos, sin):
    """Turns neighbouring pairs of x (batch, heads, tokens, channels)."""
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return x * cos + turned * sin


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class SelfAttention(nn.Module):
    """Attention with normed queries and keys, along whatever axis the caller put second."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.norm_q = RMSNorm(width // heads)
        self.norm_k = RMSNorm(width // heads)
        self.proj = nn.Linear(width, width)

    def forward(self, x, cos, sin, causal=False):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q = apply_rotary(self.norm_q(q), cos, sin)
        k = apply_rotary(self.norm_k(k), cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class JointBlock(nn.Module):
    """Text and video meet in one attention; each stream has its own weights."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.video_mod = nn.Linear(width, 6 * width)
        self.text_mod = nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.video_qkv = nn.Linear(width, 3 * width)
        self.text_qkv = nn.Linear(width, 3 * width)
        self.norm_q = RMSNorm(width // heads)
        self.norm_k = RMSNorm(width // heads)
        self.norm_added_q = RMSNorm(width // heads)
        self.norm_added_k = RMSNorm(width // heads)
        self.video_out = nn.Linear(width, width)
        self.text_out = nn.Linear(width, width)
        self.video_ff = FeedForward(width, 2 * width)
        self.text_ff = FeedForward(width, 2 * width)

    def split_heads(self, qkv):
        b, n, c = qkv.shape
        return qkv.view(b, n, 3, self.heads, c // 3 // self.heads).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, video, text, emb, text_mask, cos, sin):
        emb = F.silu(emb)
        v_shift1, v_scale1, v_gate1, v_shift2, v_scale2, v_gate2 = self.video_mod(emb)[:, None].chunk(6, dim=-1)
        t_shift1, t_scale1, t_gate1, t_shift2, t_scale2, t_gate2 = self.text_mod(emb)[:, None].chunk(6, dim=-1)
        vq, vk, vv = self.split_heads(self.video_qkv(modulate(self.norm1(video), v_shift1, v_scale1)))
        tq, tk, tv = self.split_heads(self.text_qkv(modulate(self.norm1(text), t_shift1, t_scale1)))
        vq = apply_rotary(self.norm_q(vq), cos, sin)
        vk = apply_rotary(self.norm_k(vk), cos, sin)
        tq, tk = self.norm_added_q(tq), self.norm_added_k(tk)

        q = torch.cat([tq, vq], dim=2)
        k = torch.cat([tk, vk], dim=2)
        v = torch.cat([tv, vv], dim=2)
        seen = torch.cat([text_mask, text_mask.new_ones(video.shape[:2])], dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
        out = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        text_attn, video_attn = out.split([text.shape[1], video.shape[1]], dim=1)

        video = video + v_gate1 * self.video_out(video_attn)
        text = text + t_gate1 * self.text_out(text_attn)
        video = video + v_gate2 * self.video_ff(modulate(self.norm2(video), v_shift2, v_scale2))
        text = text + t_gate2 * self.text_ff(modulate(self.norm2(text), t_shift2, t_scale2))
        return video, text


class FactorisedBlock(nn.Module):
    """Attention inside the frames, then along time, then a feed-forward net; the modulation is shared and shifted."""

    def __init__(self, width, heads):
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.zeros(9, width))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.spatial = SelfAttention(width, heads)
        self.temporal = SelfAttention(width, heads)
        self.mlp = FeedForward(width, 2 * width)

    def forward(self, x, mod, grid, cos, sin):
        b, n, c = x.shape
        t, h, w = grid
        values = self.scale_shift_table[None] + mod.reshape(b, 9, c)
        shift_s, scale_s, gate_s, shift_t, scale_t, gate_t, shift_m, scale_m, gate_m = values.chunk(9, dim=1)

        y = modulate(self.norm(x), shift_s, scale_s).reshape(b * t, h * w, c)
        y = self.spatial(y, cos[: h * w], sin[: h * w])
        x = x + gate_s * y.reshape(b, n, c)

        y = modulate(self.norm(x), shift_t, scale_t)
        y = y.reshape(b, t, h * w, c).transpose(1, 2).reshape(b * h * w, t, c)
        y = self.temporal(y, cos[:: h * w], sin[:: h * w], causal=True)
        x = x + gate_t * y.reshape(b, h * w, t, c).transpose(1, 2).reshape(b, n, c)

        return x + gate_m * self.mlp(modulate(self.norm(x), shift_m, scale_m))


class Transformer(nn.Module):
    """Predicts the velocity of a noisy latent video."""

    def __init__(self, channels=4, width=48, heads=3, text_width=24, patch=(2, 2, 2)):
        super().__init__()
        self.patch = patch
        self.channels = channels
        volume = patch[0] * patch[1] * patch[2]
        self.patch_proj = nn.Linear(channels * volume, width)
        self.text_proj = nn.Linear(text_width, width)
        self.text_norm = nn.LayerNorm(width)
        self.pool_proj = nn.Linear(width, width)
        self.fps_embed = nn.Embedding(8, width)
        self.time_fc1 = nn.Linear(SINUSOID_WIDTH, width)
        self.time_fc2 = nn.Linear(width, width)
        self.joint = nn.ModuleList([JointBlock(width, heads)])
        self.shared_mod = nn.Linear(width, 9 * width)
        self.blocks = nn.ModuleList([FactorisedBlock(width, heads) for _ in range(2)])
        self.norm_out = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.final_mod = nn.Linear(width, 2 * width)
        self.proj_out = nn.Linear(width, channels * volume)

    def patchify(self, x):
        b, c, t, h, w = x.shape
        pt, ph, pw = self.patch
        x = x.reshape(b, c, t // pt, pt, h // ph, ph, w // pw, pw)
        return x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)

    def unpatchify(self, x, grid):
        pt, ph, pw = self.patch
        x = x.reshape(x.shape[0], *grid, pt, ph, pw, self.channels)
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def forward(self, latents, timesteps, text, text_mask, fps):
        grid = tuple(size // step for size, step in zip(latents.shape[2:], self.patch))
        cos, sin = rotary_table(*grid)
        x = self.patch_proj(self.patchify(latents))
        text = self.text_norm(self.text_proj(text))
        weights = text_mask[..., None].float()
        pooled = (text * weights).sum(1) / weights.sum(1).clamp(min=1)
        emb = self.time_fc2(F.silu(self.time_fc1(timestep_embedding(timesteps, SINUSOID_WIDTH))))
        emb = emb + self.pool_proj(pooled) + self.fps_embed((fps // 4).clamp(max=7))
        for block in self.joint:
            x, text = block(x, text, emb, text_mask, cos, sin)
        mod = self.shared_mod(F.silu(emb))
        for block in self.blocks:
            x = block(x, mod, grid, cos, sin)
        shift, scale = self.final_mod(F.silu(emb)).chunk(2, dim=-1)
        x = modulate(self.norm_out(x), shift[:, None], scale[:, None])
        return self.unpatchify(self.proj_out(x), grid)


class CausalConv3d(nn.Module):
    """A convolution that sees no later frame: the first frame is repeated before the clip."""

    def __init__(self, inputs, outputs, kernel=3):
        super().__init__()
        self.before = kernel - 1
        self.conv = nn.Conv3d(inputs, outputs, kernel, padding=(0, kernel // 2, kernel // 2))

    def forward(self, x):
        first = x[:, :, :1].expand(-1, -1, self.before, -1, -1)
        return self.conv(torch.cat([first, x], dim=2))


class FrameNorm(nn.Module):
    """A group norm of each frame alone."""

    def __init__(self, channels, groups=4):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)

    def forward(self, x):
        b, c, t, h, w = x.shape
        x = self.norm(x.transpose(1, 2).reshape(b * t, c, h, w))
        return x.reshape(b, t, c, h, w).transpose(1, 2)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1 = FrameNorm(inputs)
        self.conv1 = CausalConv3d(inputs, outputs)
        self.norm2 = FrameNorm(outputs)
        self.conv2 = CausalConv3d(outputs, outputs)
        self.skip = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Decoder(nn.Module):
    """Latents to pixels: twice the height and width, and every frame but the first twice."""

    def __init__(self, channels=4, width=16):
        super().__init__()
        self.conv_in = CausalConv3d(channels, width)
        self.block1 = ResBlock(width, width)
        self.up = CausalConv3d(width, width)
        self.block2 = ResBlock(width, 8)
        self.norm_out = FrameNorm(8)
        self.conv_out = CausalConv3d(8, 3)

    def forward(self, z):
        x = self.block1(self.conv_in(z))
        first, rest = x[:, :, :1], x[:, :, 1:]
        first = F.interpolate(first, scale_factor=(1, 2, 2), mode="nearest")
        rest = F.interpolate(rest, scale_factor=(2, 2, 2), mode="nearest")
        x = self.block2(self.up(torch.cat([first, rest], dim=2)))
        return torch.tanh(self.conv_out(F.silu(self.norm_out(x))))


class VideoPipeline(nn.Module):
    """Rectified flow with shifted sigmas and guidance; the first latent frame is given."""

    def __init__(self):
        super().__init__()
        self.transformer = Transformer()
        self.decoder = Decoder()

    def sigmas(self):
        sigma = torch.linspace(1.0, 1.0 / SAMPLING_STEPS, SAMPLING_STEPS)
        sigma = SIGMA_SHIFT * sigma / (1 + (SIGMA_SHIFT - 1) * sigma)
        return torch.cat([sigma, torch.zeros(1)])

    def guided(self, velocity):
        without, with_text = velocity.chunk(2)
        mixed = without + GUIDANCE_SCALE * (with_text - without)
        axes = list(range(1, mixed.dim()))
        rescaled = mixed * with_text.std(axes, keepdim=True) / mixed.std(axes, keepdim=True)
        return GUIDANCE_RESCALE * rescaled + (1 - GUIDANCE_RESCALE) * mixed

    def forward(self, noise, first, text, text_mask, empty, empty_mask, fps):
        sigmas = self.sigmas()
        prompts = torch.cat([empty, text])
        masks = torch.cat([empty_mask, text_mask])
        latents = noise
        for i in range(SAMPLING_STEPS):
            twice = torch.cat([latents, latents])
            timesteps = (sigmas[i] * TRAIN_TIMESTEPS).expand(twice.shape[0])
            velocity = self.guided(self.transformer(twice, timesteps, prompts, masks, fps.repeat(2)))
            latents = latents + (sigmas[i + 1] - sigmas[i]) * velocity
            given = (1 - sigmas[i + 1]) * first + sigmas[i + 1] * noise[:, :, :1]
            latents = torch.cat([given, latents[:, :, 1:]], dim=2)
        mean = torch.tensor(LATENT_MEAN).view(1, -1, 1, 1, 1)
        std = torch.tensor(LATENT_STD).view(1, -1, 1, 1, 1)
        return latents, self.decoder(latents * std + mean)


def build():
    """The net with the same weights on every run, two noisy clips, their first frames, prompts and frame rates."""
    import numpy as np

    torch.manual_seed(61)
    net = VideoPipeline()
    for name, parameter in net.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.uniform_(parameter, 0.6, 1.4)
        elif "norm" in name and name.endswith("bias"):
            nn.init.uniform_(parameter, -0.3, 0.3)
        elif name.endswith("scale_shift_table"):
            nn.init.normal_(parameter, std=0.4)
        elif "mod." in name or "_mod" in name:
            nn.init.normal_(parameter, std=0.08)
    nn.init.normal_(net.transformer.fps_embed.weight, std=0.5)
    rng = np.random.default_rng(61)
    noise = rng.standard_normal((2, 4, 6, 8, 12)).astype(np.float32)
    first = rng.standard_normal((2, 4, 1, 8, 12)).astype(np.float32)
    text = rng.standard_normal((2, 7, 24)).astype(np.float32)
    text_mask = np.arange(7)[None] < np.array([[5], [7]])
    empty = np.repeat(rng.standard_normal((1, 7, 24)).astype(np.float32), 2, axis=0)
    empty_mask = np.arange(7)[None] < np.array([[1], [1]])
    fps = np.array([11, 30], dtype=np.int64)
    arrays = (noise, first, text, text_mask, empty, empty_mask, fps)
    return net.eval(), tuple(torch.from_numpy(array) for array in arrays)

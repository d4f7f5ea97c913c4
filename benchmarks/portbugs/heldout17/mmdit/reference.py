"""Text to image with a multimodal diffusion transformer and flow matching (after Flux and SD3), in PyTorch.

The sampler is part of the net: from noise and the outputs of the text encoders to a picture. Every text tensor holds the
negative prompts first and the prompts after them, as the pipelines of diffusers put them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    in_channels: int = 4
    patch_size: int = 2
    clip_dims: tuple = (10, 14)
    context_dim: int = 28
    hidden_size: int = 48
    num_heads: int = 3
    mlp_ratio: float = 2.5
    depth: int = 2
    depth_single: int = 2
    axes_dim: tuple = (4, 6, 6)
    theta: int = 10_000
    max_positions: int = 32
    freq_dim: int = 32


@dataclass
class SamplerConfig:
    num_steps: int = 4
    guidance: float = 3.0
    guidance_rescale: float = 0.7
    guidance_interval: tuple = (0.05, 0.995)
    base_len: int = 16
    max_len: int = 128
    base_shift: float = 0.5
    max_shift: float = 1.15
    latent_scale: float = 0.7611
    latent_shift: float = 0.1609


# ---------------------------------------------------------------------------------------------------------------------
# functions
# ---------------------------------------------------------------------------------------------------------------------


def timestep_embedding(t: Tensor, dim: int, max_period: float = 10_000.0, time_factor: float = 1000.0) -> Tensor:
    """Sinusoidal embedding of t in [0, 1]; cosines first."""
    t = time_factor * t
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


def rope_table(length: int, dim: int, theta: float) -> Tensor:
    """Rotations (length, dim / 2, 2, 2) for the positions 0 .. length - 1."""
    assert dim % 2 == 0
    scale = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    omega = 1.0 / (theta**scale)
    out = torch.einsum("n,d->nd", torch.arange(length, dtype=torch.float64), omega)
    out = torch.stack([torch.cos(out), -torch.sin(out), torch.sin(out), torch.cos(out)], dim=-1)
    return out.reshape(length, dim // 2, 2, 2).float()


def apply_rope(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 1, 2)
    xk_ = xk.float().reshape(*xk.shape[:-1], -1, 1, 2)
    xq_out = freqs_cis[..., 0] * xq_[..., 0] + freqs_cis[..., 1] * xq_[..., 1]
    xk_out = freqs_cis[..., 0] * xk_[..., 0] + freqs_cis[..., 1] * xk_[..., 1]
    return xq_out.reshape(*xq.shape).type_as(xq), xk_out.reshape(*xk.shape).type_as(xk)


def attention(q: Tensor, k: Tensor, v: Tensor, pe: Tensor, mask: Tensor) -> Tensor:
    """q, k, v: (B, H, L, D); pe: (1, 1, L, D / 2, 2, 2); mask: (B, L), true for the keys that count."""
    q, k = apply_rope(q, k, pe)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    x = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def make_ids(txt_len: int, rows: int, cols: int, device=None) -> Tensor:
    """(text, row, column) of every token; the text comes first."""
    txt_ids = torch.zeros(txt_len, 3, dtype=torch.long, device=device)
    txt_ids[:, 0] = torch.arange(txt_len, device=device)
    img_ids = torch.zeros(rows, cols, 3, dtype=torch.long, device=device)
    img_ids[..., 1] = img_ids[..., 1] + torch.arange(rows, device=device)[:, None]
    img_ids[..., 2] = img_ids[..., 2] + torch.arange(cols, device=device)[None, :]
    return torch.cat([txt_ids, img_ids.reshape(rows * cols, 3)], dim=0)


def patchify(x: Tensor, p: int) -> Tensor:
    """b c (h p) (w q) -> b (h w) (c p q)"""
    b, c, height, width = x.shape
    x = x.reshape(b, c, height // p, p, width // p, p)
    return torch.einsum("bchpwq->bhwcpq", x).reshape(b, (height // p) * (width // p), c * p * p)


def unpatchify(x: Tensor, rows: int, cols: int, p: int) -> Tensor:
    """b (h w) (p q c) -> b c (h p) (w q)"""
    b, _, width = x.shape
    c = width // (p * p)
    x = x.reshape(b, rows, cols, p, p, c)
    return torch.einsum("nhwpqc->nchpwq", x).reshape(b, c, rows * p, cols * p)


def shifted_sigmas(num_steps: int, seq_len: int, cfg: SamplerConfig) -> Tensor:
    """num_steps + 1 noise levels from 1 to 0, pushed to the noisy side the more tokens there are."""
    slope = (cfg.max_shift - cfg.base_shift) / (cfg.max_len - cfg.base_len)
    mu = seq_len * slope + (cfg.base_shift - slope * cfg.base_len)
    t = torch.linspace(1, 0, num_steps + 1)
    inner = math.exp(mu) / (math.exp(mu) + (1 / t[:-1] - 1))
    return torch.cat([inner, t[-1:]])


def rescale_guidance(pred: Tensor, cond: Tensor, phi: float) -> Tensor:
    """Common diffusion noise schedules are flawed, section 3.4."""
    dims = list(range(1, pred.ndim))
    std_cond = cond.std(dim=dims, keepdim=True)
    std_pred = pred.std(dim=dims, keepdim=True)
    rescaled = pred * (std_cond / std_pred)
    return phi * rescaled + (1 - phi) * pred


# ---------------------------------------------------------------------------------------------------------------------
# layers
# ---------------------------------------------------------------------------------------------------------------------


class EmbedND(nn.Module):
    """Rotations for ids of several axes, looked up in one table an axis."""

    def __init__(self, axes_dim: tuple, theta: float, max_positions: int):
        super().__init__()
        self.axes_dim = axes_dim
        for i, dim in enumerate(axes_dim):
            self.register_buffer(f"table_{i}", rope_table(max_positions, dim, theta), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        emb = torch.cat([getattr(self, f"table_{i}")[ids[:, i]] for i in range(len(self.axes_dim))], dim=-3)
        return emb[None, None]


class MLPEmbedder(nn.Module):
    def __init__(self, in_dim: int, hidden_dim: int):
        super().__init__()
        self.in_layer = nn.Linear(in_dim, hidden_dim, bias=True)
        self.silu = nn.SiLU()
        self.out_layer = nn.Linear(hidden_dim, hidden_dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_layer(self.silu(self.in_layer(x)))


class RMSNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        rrms = torch.rsqrt(torch.mean(x.float() ** 2, dim=-1, keepdim=True) + 1e-6)
        return (x * rrms).to(x.dtype) * self.scale


class QKNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.query_norm = RMSNorm(dim)
        self.key_norm = RMSNorm(dim)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_norm(q), self.key_norm(k)


class SelfAttention(nn.Module):
    """The weights of one stream; the attention itself is joint and stands in the block."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.norm = QKNorm(dim // num_heads)
        self.proj = nn.Linear(dim, dim)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.norm(q, k)
        return q, k, v


@dataclass
class ModulationOut:
    shift: Tensor
    scale: Tensor
    gate: Tensor


class Modulation(nn.Module):
    def __init__(self, dim: int, double: bool):
        super().__init__()
        self.is_double = double
        self.multiplier = 6 if double else 3
        self.lin = nn.Linear(dim, self.multiplier * dim, bias=True)

    def forward(self, vec: Tensor):
        out = self.lin(F.silu(vec))[:, None, :].chunk(self.multiplier, dim=-1)
        return ModulationOut(*out[:3]), ModulationOut(*out[3:]) if self.is_double else None


class DoubleStreamBlock(nn.Module):
    """Own weights for image and text, one attention over both."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float):
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.img_mod = Modulation(dim, double=True)
        self.img_norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.img_attn = SelfAttention(dim, num_heads)
        self.img_norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.img_mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim))
        self.txt_mod = Modulation(dim, double=True)
        self.txt_norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.txt_attn = SelfAttention(dim, num_heads)
        self.txt_norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.txt_mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, dim))

    def forward(self, img: Tensor, txt: Tensor, vec: Tensor, pe: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        img_mod1, img_mod2 = self.img_mod(vec)
        txt_mod1, txt_mod2 = self.txt_mod(vec)

        img_modulated = (1 + img_mod1.scale) * self.img_norm1(img) + img_mod1.shift
        img_q, img_k, img_v = self.img_attn.heads(img_modulated)
        txt_modulated = (1 + txt_mod1.scale) * self.txt_norm1(txt) + txt_mod1.shift
        txt_q, txt_k, txt_v = self.txt_attn.heads(txt_modulated)

        q = torch.cat((txt_q, img_q), dim=2)
        k = torch.cat((txt_k, img_k), dim=2)
        v = torch.cat((txt_v, img_v), dim=2)
        attn = attention(q, k, v, pe=pe, mask=mask)
        txt_attn, img_attn = attn[:, : txt.shape[1]], attn[:, txt.shape[1] :]

        img = img + img_mod1.gate * self.img_attn.proj(img_attn)
        img = img + img_mod2.gate * self.img_mlp((1 + img_mod2.scale) * self.img_norm2(img) + img_mod2.shift)
        txt = txt + txt_mod1.gate * self.txt_attn.proj(txt_attn)
        txt = txt + txt_mod2.gate * self.txt_mlp((1 + txt_mod2.scale) * self.txt_norm2(txt) + txt_mod2.shift)
        return img, txt


class SingleStreamBlock(nn.Module):
    """One set of weights for all tokens, attention and perceptron side by side."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float):
        super().__init__()
        self.hidden_dim = dim
        self.num_heads = num_heads
        self.mlp_hidden_dim = int(dim * mlp_ratio)
        self.linear1 = nn.Linear(dim, dim * 3 + self.mlp_hidden_dim)
        self.linear2 = nn.Linear(dim + self.mlp_hidden_dim, dim)
        self.norm = QKNorm(dim // num_heads)
        self.pre_norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.mlp_act = nn.GELU(approximate="tanh")
        self.modulation = Modulation(dim, double=False)

    def forward(self, x: Tensor, vec: Tensor, pe: Tensor, mask: Tensor) -> Tensor:
        mod, _ = self.modulation(vec)
        x_mod = (1 + mod.scale) * self.pre_norm(x) + mod.shift
        qkv, mlp = torch.split(self.linear1(x_mod), [3 * self.hidden_dim, self.mlp_hidden_dim], dim=-1)
        b, n, _ = qkv.shape
        q, k, v = qkv.reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.norm(q, k)
        attn = attention(q, k, v, pe=pe, mask=mask)
        output = self.linear2(torch.cat((attn, self.mlp_act(mlp)), 2))
        return x + mod.gate * output


class LastLayer(nn.Module):
    def __init__(self, dim: int, patch_size: int, out_channels: int):
        super().__init__()
        self.norm_final = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(dim, patch_size * patch_size * out_channels, bias=True)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim, bias=True))

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(vec).chunk(2, dim=1)
        x = (1 + scale[:, None, :]) * self.norm_final(x) + shift[:, None, :]
        return self.linear(x)


class MMDiT(nn.Module):
    """The velocity of a noisy latent, given the time and the text."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.patch_size = cfg.patch_size
        self.freq_dim = cfg.freq_dim
        dim = cfg.hidden_size
        assert sum(cfg.axes_dim) == dim // cfg.num_heads
        self.pe_embedder = EmbedND(cfg.axes_dim, cfg.theta, cfg.max_positions)
        self.img_in = nn.Linear(cfg.in_channels * cfg.patch_size**2, dim, bias=True)
        self.time_in = MLPEmbedder(cfg.freq_dim, dim)
        self.vector_in = MLPEmbedder(sum(cfg.clip_dims), dim)
        self.txt_norm = nn.LayerNorm(cfg.context_dim)
        self.txt_in = nn.Linear(cfg.context_dim, dim)
        self.double_blocks = nn.ModuleList(
            [DoubleStreamBlock(dim, cfg.num_heads, cfg.mlp_ratio) for _ in range(cfg.depth)]
        )
        self.single_blocks = nn.ModuleList(
            [SingleStreamBlock(dim, cfg.num_heads, cfg.mlp_ratio) for _ in range(cfg.depth_single)]
        )
        self.final_layer = LastLayer(dim, cfg.patch_size, cfg.in_channels)

    def forward(self, latent: Tensor, t: Tensor, context: Tensor, pooled: Tensor, txt_mask: Tensor) -> Tensor:
        rows, cols = latent.shape[2] // self.patch_size, latent.shape[3] // self.patch_size
        img = self.img_in(patchify(latent, self.patch_size))
        vec = self.time_in(timestep_embedding(t, self.freq_dim))
        vec = vec + self.vector_in(pooled)
        txt = self.txt_in(self.txt_norm(context))

        pe = self.pe_embedder(make_ids(txt.shape[1], rows, cols, latent.device))
        mask = torch.cat([txt_mask, txt_mask.new_ones(img.shape[0], img.shape[1])], dim=1)

        for block in self.double_blocks:
            img, txt = block(img, txt, vec, pe, mask)
        x = torch.cat((txt, img), 1)
        for block in self.single_blocks:
            x = block(x, vec, pe, mask)
        x = x[:, txt.shape[1] :, ...]
        return unpatchify(self.final_layer(x, vec), rows, cols, self.patch_size)


class TinyDecoder(nn.Module):
    """A preview of the latent at twice its size."""

    def __init__(self, in_channels: int, width: int = 16, groups: int = 4):
        super().__init__()
        self.conv_in = nn.Conv2d(in_channels, width, 3, padding=1)
        self.norm = nn.GroupNorm(groups, width)
        self.act = nn.LeakyReLU()
        self.conv_up = nn.Conv2d(width, 8 * 4, 3, padding=1)
        self.conv_out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.act(self.norm(self.conv_in(z)))
        h = F.pixel_shuffle(self.conv_up(h), 2)
        return self.conv_out(F.silu(h))


class TextToImage(nn.Module):
    """Text conditioning, Euler sampling with classifier-free guidance, and the decoder."""

    def __init__(self, cfg: Config, sampler: SamplerConfig):
        super().__init__()
        self.cfg = cfg
        self.sampler = sampler
        self.transformer = MMDiT(cfg)
        self.decoder = TinyDecoder(cfg.in_channels)

    def encode_prompt(self, clip_l: Tensor, clip_g: Tensor, t5: Tensor, clip_ids: Tensor, t5_mask: Tensor):
        """Tokens, pooled vector and mask of the text, as SD3 joins its three encoders."""
        n, clip_len = clip_ids.shape
        eos = clip_ids.argmax(dim=-1)  # the end token has the highest number
        batch = torch.arange(n, device=clip_ids.device)
        pooled = torch.cat([clip_l[batch, eos], clip_g[batch, eos]], dim=-1)

        clip = torch.cat([clip_l, clip_g], dim=-1)
        clip = F.pad(clip, (0, t5.shape[-1] - clip.shape[-1]))
        context = torch.cat([clip, t5], dim=-2)
        clip_mask = torch.arange(clip_len, device=clip_ids.device)[None] <= eos[:, None]
        return context, pooled, torch.cat([clip_mask, t5_mask.bool()], dim=1)

    def guided_velocity(self, latent: Tensor, sigma: Tensor, context: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        cfg = self.sampler
        both = latent.repeat(2, 1, 1, 1)
        pred = self.transformer(both, sigma.expand(both.shape[0]), context, pooled, mask)
        uncond, cond = pred.chunk(2)
        low, high = cfg.guidance_interval
        if not low < float(sigma) < high:
            return cond
        guided = uncond + cfg.guidance * (cond - uncond)
        return rescale_guidance(guided, cond, cfg.guidance_rescale)

    @torch.no_grad()
    def forward(self, noise: Tensor, clip_l: Tensor, clip_g: Tensor, t5: Tensor, clip_ids: Tensor, t5_mask: Tensor):
        context, pooled, mask = self.encode_prompt(clip_l, clip_g, t5, clip_ids, t5_mask)
        seq_len = noise.shape[2] * noise.shape[3] // self.cfg.patch_size**2
        sigmas = shifted_sigmas(self.sampler.num_steps, seq_len, self.sampler).to(noise.device)

        latent = noise
        for sigma, sigma_next in zip(sigmas[:-1], sigmas[1:]):
            velocity = self.guided_velocity(latent, sigma, context, pooled, mask)
            latent = latent + (sigma_next - sigma) * velocity

        latent = latent / self.sampler.latent_scale + self.sampler.latent_shift
        return self.decoder(latent)


def build():
    """The net with the same weights on every run, and two prompts with their negatives."""
    generator = torch.Generator().manual_seed(1717)
    net = TextToImage(Config(), SamplerConfig())
    with torch.no_grad():
        for name, value in net.named_parameters():
            draw = torch.randn(value.shape, generator=generator)
            if name.endswith("scale") or (name.endswith("norm.weight")):
                value.copy_(1.0 + 0.35 * draw)
            elif name.endswith("bias"):
                value.copy_(0.2 * draw)
            else:
                gain = 0.5 if "mod" in name.lower() else 1.0
                value.copy_(gain * draw / math.sqrt(value[0].numel()))

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    noise = randn(2, 4, 8, 12)
    clip_l, clip_g, t5 = randn(4, 7, 10), randn(4, 7, 14), 0.6 * randn(4, 5, 28)
    start, end = 97, 98
    clip_ids = torch.tensor([
        [start, end, 0, 0, 0, 0, 0],
        [start, 40, 7, end, 0, 0, 0],
        [start, 12, 55, 31, 8, end, 0],
        [start, 23, 64, 17, end, 0, 0],
    ])
    t5_mask = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    return net.eval(), (noise, clip_l, clip_g, t5, clip_ids, t5_mask)

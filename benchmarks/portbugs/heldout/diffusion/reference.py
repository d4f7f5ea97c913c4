"""Text-to-image denoising in miniature: a conditioned U-Net and a two-step guided sampler. In PyTorch: the reference."""
from __future__ import annotations

from math import cos, log, pi, sqrt

import torch
from torch import einsum, nn
import torch.nn.functional as F


def exists(value):
    return value is not None


def default(value, fallback):
    return value if exists(value) else fallback


# helpers on maps


def group_norm(x, groups, gain, shift, eps=1e-5):
    b, c, *size = x.shape
    y = x.reshape(b, groups, -1)
    mean = y.mean(dim=-1, keepdim=True)
    var = y.var(dim=-1, unbiased=False, keepdim=True)
    y = ((y - mean) * torch.rsqrt(var + eps)).reshape(b, c, *size)
    return y * gain.view(1, c, 1, 1) + shift.view(1, c, 1, 1)


def space_to_depth(x, p=2):
    # b c (h p) (w q) -> b (p q c) h w
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // p, p, w // p, p)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(b, p * p * c, h // p, w // p)


def blur_upsample(x, kernel):
    b, c, h, w = x.shape
    x = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).reshape(b, c, 2 * h, 2 * w)
    x = F.pad(x, (1, 1, 1, 1), mode="reflect")
    return F.conv2d(x, kernel.expand(c, 1, 3, 3), groups=c)


def add_coordinates(x):
    b, _, h, w = x.shape
    ys = torch.linspace(-1.0, 1.0, h).view(1, 1, h, 1).expand(b, 1, h, w)
    xs = torch.linspace(-1.0, 1.0, w).view(1, 1, 1, w).expand(b, 1, h, w)
    return torch.cat([x, ys, xs], dim=1)


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-log(max_period) * torch.arange(half, dtype=torch.float32) / half)
    args = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ResBlock(nn.Module):
    """norm, swish, conv; norm, FiLM, swish, conv; and a shortcut that changes the width where it must"""

    def __init__(self, dim, dim_out, cond_dim, groups=4):
        super().__init__()
        self.groups = groups
        self.gain1 = nn.Parameter(torch.ones(dim))
        self.shift1 = nn.Parameter(torch.zeros(dim))
        self.conv1 = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.film = nn.Linear(cond_dim, dim_out * 2)
        self.gain2 = nn.Parameter(torch.ones(dim_out))
        self.shift2 = nn.Parameter(torch.zeros(dim_out))
        self.conv2 = nn.Conv2d(dim_out, dim_out, 3, padding=1)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else None

    def modulate(self, h, cond):
        scale, shift = self.film(F.silu(cond))[:, :, None, None].chunk(2, dim=1)
        return h * (scale + 1) + shift

    def forward(self, x, cond):
        h = group_norm(x, self.groups, self.gain1, self.shift1)
        h = self.conv1(F.silu(h))
        h = group_norm(h, self.groups, self.gain2, self.shift2)
        h = self.modulate(h, cond)
        h = self.conv2(F.silu(h))
        return (h + (self.res_conv(x) if exists(self.res_conv) else x)) / sqrt(2)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=2, dim_head=12):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.to_qkv = nn.Conv2d(dim, heads * dim_head * 3, 1, bias=False)
        self.to_out = nn.Conv2d(heads * dim_head, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(group_norm(x, 1, self.gain, self.shift)).chunk(3, dim=1)
        q, k, v = map(lambda t: t.reshape(b, self.heads, -1, h * w), qkv)
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        context = einsum("bhdn,bhen->bhde", k, v)
        out = einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class CrossAttention(nn.Module):
    """Places ask the words; a learned null word is always there to be asked."""

    def __init__(self, dim, context_dim, heads=3):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.norm_context = nn.LayerNorm(context_dim)
        self.null_kv = nn.Parameter(torch.zeros(2, dim))
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context, mask):
        b, c, height, width = x.shape
        tokens = group_norm(x, 4, self.gain, self.shift).flatten(2).transpose(1, 2)
        q = self.to_q(tokens)
        k, v = self.to_kv(self.norm_context(context)).chunk(2, dim=-1)
        nk, nv = self.null_kv.unbind(dim=0)
        k = torch.cat([nk.expand(b, 1, -1), k], dim=1)
        v = torch.cat([nv.expand(b, 1, -1), v], dim=1)
        mask = F.pad(mask, (1, 0), value=True)
        q, k, v = (t.reshape(b, t.shape[1], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        sim = einsum("bhid,bhjd->bhij", q * self.scale, k)
        sim = sim.masked_fill(~mask[:, None, None, :], -1e9)
        attn = sim.softmax(dim=-1)
        out = einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, height * width, c)
        return x + self.to_out(out).transpose(1, 2).reshape(b, c, height, width)


class UNet(nn.Module):
    def __init__(self, channels=3, dim=24, vocab=40, text_dim=24, cond_dim=32):
        super().__init__()
        self.time_dim = 16
        self.token_emb = nn.Embedding(vocab, text_dim)
        self.time1 = nn.Linear(self.time_dim, cond_dim)
        self.time2 = nn.Linear(cond_dim, cond_dim)
        self.text_cond = nn.Linear(text_dim, cond_dim)
        self.conv_in = nn.Conv2d(2 * channels + 2, dim, 3, padding=1)
        self.res_down = ResBlock(dim, dim, cond_dim)
        self.attn_down = LinearAttention(dim)
        self.down = nn.Conv2d(4 * dim, 2 * dim, 1)
        self.res_mid1 = ResBlock(2 * dim, 2 * dim, cond_dim)
        self.cross = CrossAttention(2 * dim, text_dim)
        self.res_mid2 = ResBlock(2 * dim, 2 * dim, cond_dim)
        self.up = nn.Conv2d(2 * dim, dim, 3, padding=1)
        self.res_up = ResBlock(2 * dim, dim, cond_dim)
        self.gain_out = nn.Parameter(torch.ones(dim))
        self.shift_out = nn.Parameter(torch.zeros(dim))
        self.conv_out = nn.Conv2d(dim, channels, 3, padding=1)
        self.skip_scale = 2 ** -0.5
        binomial = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("blur", (binomial[:, None] * binomial[None, :] / 16.0)[None, None], persistent=False)

    def condition(self, time, words, mask):
        t = timestep_embedding(time, self.time_dim)
        t = self.time2(F.silu(self.time1(t)))
        keep = mask.unsqueeze(-1).float()
        pooled = (words * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1.0)
        return t + self.text_cond(pooled)

    def forward(self, x, time, tokens, self_cond=None):
        mask = tokens != 0
        words = self.token_emb(tokens)
        cond = self.condition(time, words, mask)
        self_cond = default(self_cond, torch.zeros_like(x))
        x = self.conv_in(add_coordinates(torch.cat([self_cond, x], dim=1)))
        r = x
        x = self.res_down(x, cond)
        x = self.attn_down(x)
        skip = x
        x = self.down(space_to_depth(x))
        x = self.res_mid1(x, cond)
        x = self.cross(x, words, mask)
        x = self.res_mid2(x, cond)
        x = self.up(blur_upsample(x, self.blur))
        x = self.res_up(torch.cat([x, skip * self.skip_scale], dim=1), cond)
        x = group_norm(x + r, 4, self.gain_out, self.shift_out)
        return self.conv_out(F.silu(x))


class Sampler(nn.Module):
    """Two deterministic steps of v-prediction with classifier-free guidance, rescaled, and dynamic thresholding."""

    def __init__(self, timesteps=100, times=(80, 40, 8), guidance=2.0, rescale=0.6, quantile=0.9):
        super().__init__()
        self.unet = UNet()
        self.times = times
        self.guidance, self.rescale, self.quantile = guidance, rescale, quantile
        bar = [cos((i / timesteps + 0.008) / 1.008 * pi / 2) ** 2 for i in range(timesteps + 1)]
        self.alphas_cumprod = [value / bar[0] for value in bar]

    def guided(self, x, time, tokens, self_cond):
        b = x.shape[0]
        steps = torch.full((2 * b,), time, dtype=torch.long)
        both = torch.cat([tokens, torch.zeros_like(tokens)], dim=0)
        pred = self.unet(torch.cat([x, x]), steps, both, torch.cat([self_cond, self_cond]))
        cond, null = pred.chunk(2, dim=0)
        out = null + (cond - null) * self.guidance
        ratio = cond.std(dim=(1, 2, 3), keepdim=True) / out.std(dim=(1, 2, 3), keepdim=True)
        return self.rescale * out * ratio + (1 - self.rescale) * out

    def threshold(self, x0):
        flat = x0.flatten(1).abs().sort(dim=-1)[0]
        s = flat[:, int(self.quantile * flat.shape[1])].clamp(min=1.0)
        s = s.view(-1, 1, 1, 1)
        return torch.max(torch.min(x0, s), -s) / s

    def forward(self, noise, tokens):
        x = noise
        x0 = torch.zeros_like(x)
        for time, time_next in zip(self.times[:-1], self.times[1:]):
            alpha, alpha_next = self.alphas_cumprod[time], self.alphas_cumprod[time_next]
            v = self.guided(x, time, tokens, x0)
            x0 = sqrt(alpha) * x - sqrt(1 - alpha) * v
            eps = sqrt(alpha) * v + sqrt(1 - alpha) * x
            x0 = self.threshold(x0)
            x = sqrt(alpha_next) * x0 + sqrt(1 - alpha_next) * eps
        return x


def build():
    """The net with the same weights on every run, noise for two pictures and their captions (0 pads)."""
    torch.manual_seed(77)
    net = Sampler()
    for name, p in net.named_parameters():
        last = name.split(".")[-1]
        if last.startswith("gain"):
            nn.init.uniform_(p, 0.6, 1.4)
        elif last.startswith("shift"):
            nn.init.normal_(p, std=0.2)
        elif last == "null_kv":
            nn.init.normal_(p, std=0.6)
        elif name.endswith(("film.weight", "to_qkv.weight", "to_q.weight", "to_kv.weight")):
            nn.init.normal_(p, std=0.2)
        elif name.endswith(("to_out.weight", "conv_out.weight")):
            nn.init.normal_(p, std=0.15)
        elif name.endswith("norm_context.weight"):
            nn.init.uniform_(p, 0.7, 1.3)
        elif name.endswith("norm_context.bias"):
            nn.init.normal_(p, std=0.2)
    tokens = torch.tensor([[7, 21, 3, 0, 0, 0], [12, 38, 5, 29, 16, 0]])
    return net.eval(), (torch.randn(2, 3, 16, 16), tokens)

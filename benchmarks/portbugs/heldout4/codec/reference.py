"""Small causal audio codec (SoundStream / DAC family), with the analysis used for its loss."""
from typing import List, Tuple

import math

import numpy as np
import torch
from torch import nn, Tensor
from torch.nn import functional as F


# ---------------------------------------------------------------- helpers


def pad_causal(x: Tensor, kernel: int, stride: int = 1, dilation: int = 1, mode: str = "constant") -> Tensor:
    """All the padding in front, and behind as much as makes the last window whole."""
    span = (kernel - 1) * dilation + 1
    total = span - stride
    length = x.shape[-1]
    windows = math.ceil((length - span + total) / stride + 1)
    extra = (windows - 1) * stride + span - total - length
    return F.pad(x, (total, extra), mode=mode)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    a = torch.exp(alpha)
    return x + torch.sin(a * x).pow(2) / (a + 1e-9)


def rms_norm(x: Tensor, gain: Tensor, dim: int, eps: float = 1e-4) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=dim, keepdim=True) + eps) * gain


def rotary(x: Tensor, base: float = 100.0) -> Tensor:
    """x: (b, h, t, d), halves are rotated against each other."""
    t, d = x.shape[-2:]
    freq = base ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(t)[:, None] * freq[None, :]
    cos, sin = angle.cos(), angle.sin()
    lo, hi = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], dim=-1)


def mel_table(bins: int, bands: int) -> np.ndarray:
    """Triangles, equally wide on a warped axis; every one sums to one."""
    axis = np.log1p(np.arange(bins) / 4.0)
    edges = np.linspace(axis[1] / 2, axis[-1], bands + 2)
    rise = (axis[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[None, 2:] - axis[:, None]) / (edges[2:] - edges[1:-1])
    table = np.maximum(0.0, np.minimum(rise, fall))
    return table / (table.sum(0, keepdims=True) + 1e-3)


# ---------------------------------------------------------------- convolutions


class ResUnit(nn.Module):
    def __init__(self, channels: int, dilation: int):
        super().__init__()
        self.dilation = dilation
        self.alpha1 = nn.Parameter(torch.zeros(1, channels, 1))
        self.conv1 = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.alpha2 = nn.Parameter(torch.zeros(1, channels, 1))
        self.conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        y = snake(x, self.alpha1)
        y = self.conv1(pad_causal(y, 3, dilation=self.dilation))
        y = self.conv2(snake(y, self.alpha2))
        return (x + y) / math.sqrt(2.0)


class Down(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.stride = stride
        self.units = nn.ModuleList([ResUnit(c_in, d) for d in (1, 3)])
        self.alpha = nn.Parameter(torch.zeros(1, c_in, 1))
        self.conv = nn.Conv1d(c_in, c_out, 2 * stride, stride=stride)

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        x = snake(x, self.alpha)
        y = self.conv(pad_causal(x, 2 * self.stride, self.stride))
        # a shortcut past the convolution: means of windows, channels doubled
        b, c, t = x.shape
        short = F.pad(x, (0, -t % self.stride)).reshape(b, c, -1, self.stride).mean(dim=-1)
        short = short.repeat_interleave(y.shape[1] // c, dim=1)
        return y + 0.5 * short


class Up(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.stride = stride
        self.alpha = nn.Parameter(torch.zeros(1, c_in, 1))
        self.conv = nn.Conv1d(c_in, 2 * c_out, 5)
        self.unit = ResUnit(c_out, 2)

    def forward(self, x):
        x = snake(x, self.alpha).repeat_interleave(self.stride, dim=-1)
        # the place inside the repeated sample, as a slow ramp
        ramp = (torch.arange(x.shape[-1]) % self.stride) / self.stride
        x = x + 0.3 * (ramp - ramp.mean())
        value, gate = self.conv(pad_causal(x, 5, mode="replicate")).chunk(2, dim=1)
        return self.unit(value * torch.sigmoid(gate + 1.0))


# ---------------------------------------------------------------- latent


class Mixer(nn.Module):
    """Attention over the last few frames."""

    def __init__(self, width: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.gain = nn.Parameter(torch.ones(width))
        self.qkv = nn.Linear(width, 3 * width)
        self.recency = nn.Parameter(torch.zeros(heads, window))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, c, t = x.shape
        y = rms_norm(x.transpose(1, 2), self.gain, dim=-1)
        y = self.qkv(y).reshape(b, t, self.heads, 3, -1)
        q, k, v = y.permute(3, 0, 2, 1, 4)
        q, k = rotary(q), rotary(k)
        score = q @ k.mT * q.shape[-1] ** -0.5
        ago = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        score = score + self.recency[:, ago.clamp(0, self.window - 1)]
        score = score.masked_fill((ago < 0) | (ago >= self.window), float("-inf"))
        y = (score.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(b, t, c)
        return x + self.out(y).transpose(1, 2)


class Quantizer(nn.Module):
    """Residual stages; each looks for the nearest code among normalised ones."""

    def __init__(self, width: int, dim: int, codes: int, stages: int):
        super().__init__()
        self.proj_in = nn.ModuleList([nn.Linear(width, dim) for _ in range(stages)])
        self.proj_out = nn.ModuleList([nn.Linear(dim, width) for _ in range(stages)])
        self.books = nn.Parameter(torch.zeros(stages, codes, dim))
        self.temperature = 0.25

    def nearest(self, e: Tensor, book: Tensor) -> Tuple[Tensor, Tensor]:
        flat = F.normalize(e.reshape(-1, e.shape[-1]), dim=-1)
        unit = F.normalize(book, dim=-1)
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ unit.t() + unit.pow(2).sum(1)[None]
        index = dist.argmin(dim=1)
        share = torch.softmax(-dist / self.temperature, dim=1).mean(dim=0)
        return index.view(e.shape[:-1]), share

    def forward(self, z):
        residual = z.transpose(1, 2)
        total = torch.zeros_like(residual)
        losses: List[Tensor] = []
        spread: List[Tensor] = []
        for i, (inner, outer) in enumerate(zip(self.proj_in, self.proj_out)):
            e = inner(residual)
            index, share = self.nearest(e, self.books[i])
            code = F.embedding(index, self.books[i])
            losses.append((code - e).pow(2).mean(dim=(1, 2)) + 0.25 * (code - e).abs().amax(dim=(1, 2)))
            code = e + (code - e).detach()
            step = outer(code)
            residual = residual - step
            total = total + step
            spread.append(torch.exp(-(share * torch.log(share + 1e-7)).sum()))
        left = residual.pow(2).mean(dim=(1, 2)) / z.pow(2).mean(dim=(1, 2))
        return total.transpose(1, 2), torch.stack(losses, dim=1), torch.stack(spread), left


# ---------------------------------------------------------------- the codec


class Codec(nn.Module):
    def __init__(self, channels: int = 8, strides=(2, 4, 5), dim: int = 6, codes: int = 24, stages: int = 3,
                 size: int = 64, hop: int = 24, bands: int = 12):
        super().__init__()
        self.size, self.hop = size, hop
        self.first = nn.Conv1d(1, channels, 7)
        self.down = nn.ModuleList([Down(channels * 2**i, channels * 2 ** (i + 1), s) for i, s in enumerate(strides)])
        width = channels * 2 ** len(strides)
        self.loud = nn.Linear(2, width)
        self.mixer = Mixer(width, 4, 5)
        self.quantizer = Quantizer(width, dim, codes, stages)
        self.gain = nn.Parameter(torch.ones(1, width, 1))
        self.up = nn.ModuleList([
            Up(channels * 2 ** (i + 1), channels * 2**i, s) for i, s in reversed(list(enumerate(strides)))
        ])
        self.alpha = nn.Parameter(torch.zeros(1, channels, 1))
        self.last = nn.Conv1d(channels, 1, 7)
        n = np.arange(size)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * n / size)
        turn = 2 * np.pi * np.outer(n, np.arange(size // 2 + 1)) / size
        for name, value in (("window", window), ("cos", np.cos(turn)), ("sin", np.sin(turn)),
                            ("mel", mel_table(size // 2 + 1, bands))):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    def frames(self, wave):
        """(b, t) -> (b, frames, size), the first frame's middle is the first sample."""
        half = self.size // 2
        wave = F.pad(wave[:, None], (half, half), mode="reflect")[:, 0]
        return wave.unfold(-1, self.size, self.hop)

    def energy(self, wave):
        cut = self.frames(wave) * self.window
        return torch.log(cut.pow(2).sum(-1) / self.window.pow(2).sum() + 1e-3)

    def melspec(self, wave):
        cut = self.frames(wave - wave.mean(dim=-1, keepdim=True)) * self.window
        power = (cut @ self.cos) ** 2 + (cut @ self.sin) ** 2
        mel = (torch.sqrt(power + 1e-3) @ self.mel).clamp(min=2e-2).log10()
        floor = mel.amax(dim=(1, 2), keepdim=True) - 2.5
        return torch.maximum(mel, floor)

    def encode(self, wave):
        x = self.first(pad_causal(wave[:, None], 7, mode="reflect"))
        for block in self.down:
            x = block(x)
        level = self.energy(wave)
        level = F.interpolate(level[:, None], size=x.shape[-1], mode="linear", align_corners=False)
        rise = torch.diff(level, dim=-1, prepend=level[..., :1])
        x = x + self.loud(torch.cat([level, rise], dim=1).transpose(1, 2)).transpose(1, 2)
        return self.mixer(x)

    def decode(self, z, length: int):
        x = rms_norm(z, self.gain, dim=1)
        for block in self.up:
            x = block(x)
        x = self.last(pad_causal(snake(x, self.alpha), 7))
        return torch.tanh(x[:, 0, :length])

    def forward(self, wave):
        length = wave.shape[-1]
        scale = wave.pow(2).mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-3)
        latent = self.encode(wave / scale)
        codes, commit, spread, left = self.quantizer(latent)
        out = self.decode(codes, length)
        ours, theirs = self.melspec(out), self.melspec(wave / scale)
        gap = (ours - theirs).abs().mean(dim=-1)
        move = (ours[:, 1:] - ours[:, :-1]).clamp(min=0).sum(dim=-1)
        return out * scale, ours, gap, move, commit.sum(dim=1) * (1.0 + left), spread


def build():
    """The net with the same weights on every run, and three short recordings."""
    torch.manual_seed(23)
    net = Codec()
    for name, p in net.named_parameters():
        leaf = name.split(".")[-1]
        if leaf.startswith("alpha"):
            nn.init.uniform_(p, -0.9, 0.3)
        elif leaf == "gain":
            nn.init.uniform_(p, 0.6, 1.5)
        elif leaf in ("books", "recency"):
            nn.init.normal_(p, std=0.7)
        elif leaf == "weight" and ("conv" in name or "last" in name or "first" in name):
            nn.init.normal_(p, std=0.7 / math.sqrt(p[0].numel()))
        elif "proj" in name and leaf == "weight":
            nn.init.normal_(p, std=0.8 / math.sqrt(p.shape[1]))
    nn.init.normal_(net.last.weight, std=0.8)
    rng = np.random.default_rng(4)
    t = np.arange(613) / 613
    sweep = np.sin(2 * np.pi * (rng.uniform(8, 40, (3, 1)) * t + rng.uniform(5, 40, (3, 1)) * t**2))
    swell = np.exp(-((t - rng.uniform(0.2, 0.8, (3, 1))) ** 2) * 12)
    wave = 0.4 * sweep * swell + 0.06 * rng.normal(size=(3, 613)) + 0.05
    return net.eval(), (torch.tensor(wave, dtype=torch.float32),)

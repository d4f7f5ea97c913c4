"""A small global forecaster on a lat-lon grid.

State: mass, u, v, humidity. Every step: advection by finite differences, sunlight, a stem and patches, blocks that mix
in Fourier space (AFNO) and in (shifted) windows, a decoder to the grid, an Euler step, and two fixers.
Latitudes go from north to south, longitudes wrap around, rows beyond a pole are found on the other side of the globe.
"""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NLAT, NLON, NVAR, NHIST = 16, 32, 4, 2
MEAN = [0.5, 0.2, -0.1, 1.0]
STD = [1.2, 0.8, 0.9, 0.7]


def grid():
    dlat = 180.0 / NLAT
    lats = np.deg2rad(np.linspace(90 - dlat / 2, -90 + dlat / 2, NLAT))
    lons = np.deg2rad(np.arange(NLON) * 360.0 / NLON)
    return lats.astype(np.float32), lons.astype(np.float32)


def area_weights():
    lats, _ = grid()
    w = np.cos(lats)
    return (w / w.mean()).astype(np.float32)


def static_fields():
    """Something like mountains, and something like a coast."""
    lats, lons = np.meshgrid(*grid(), indexing="ij")
    oro = np.exp(-((lats - 0.5) ** 2 + (np.cos(lons - 1.5) - 1) ** 2) * 3) + 0.3 * np.sin(3 * lons) * np.cos(lats)
    land = (np.sin(2 * lons + 0.4) + 0.5 * np.cos(3 * lats) > 0).astype(np.float32)
    return np.stack([oro, land]).astype(np.float32)


def geo_pad(x, p):
    """(B, C, H, W): east-west it wraps; north-south it goes over the pole, half-way round."""
    half = x.shape[-1] // 2
    over = torch.roll(x, half, dims=-1)
    north = over[:, :, :p].flip(2)
    south = over[:, :, -p:].flip(2)
    x = torch.cat([north, x, south], dim=2)
    return F.pad(x, (p, p, 0, 0), mode="circular")


def weighted_mean(x, w):
    """Mean over the globe of (..., H, W)."""
    return (x * w[:, None]).mean(dim=(-2, -1), keepdim=True)


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class SpectralMix(nn.Module):
    """AFNO: a block-diagonal complex perceptron on the low zonal wave numbers, soft-shrunk."""

    def __init__(self, dim, blocks=4, keep=0.7, shrink=0.02):
        super().__init__()
        bs = dim // blocks
        self.blocks, self.bs, self.keep, self.shrink = blocks, bs, keep, shrink
        self.w1 = nn.Parameter(torch.randn(2, blocks, bs, bs) * 0.35)
        self.b1 = nn.Parameter(torch.randn(2, blocks, bs) * 0.15)
        self.w2 = nn.Parameter(torch.randn(2, blocks, bs, bs) * 0.35)
        self.b2 = nn.Parameter(torch.randn(2, blocks, bs) * 0.05)

    def complex_linear(self, re, im, w, b):
        r = torch.einsum("...bi,bio->...bo", re, w[0]) - torch.einsum("...bi,bio->...bo", im, w[1]) + b[0]
        i = torch.einsum("...bi,bio->...bo", im, w[0]) + torch.einsum("...bi,bio->...bo", re, w[1]) + b[1]
        return r, i

    def forward(self, x):
        B, H, W, C = x.shape
        skip = x
        x = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        n = x.shape[2]
        kept = int(n * self.keep)
        x = x[:, :, :kept].reshape(B, H, kept, self.blocks, self.bs)
        re, im = self.complex_linear(x.real, x.imag, self.w1, self.b1)
        re, im = F.relu(re), F.relu(im)
        re, im = self.complex_linear(re, im, self.w2, self.b2)
        x = torch.stack([re, im], dim=-1)
        x = F.softshrink(x, lambd=self.shrink)
        x = torch.view_as_complex(x).reshape(B, H, kept, C)
        x = F.pad(x, (0, 0, 0, n - kept))
        x = torch.fft.irfft2(x, s=(H, W), dim=(1, 2), norm="ortho")
        return x + skip


class WindowAttention(nn.Module):
    """Cosine attention in windows; shifted windows are cut at the poles, not at the date line."""

    def __init__(self, dim, heads, ws, shift, H, W):
        super().__init__()
        self.heads, self.ws, self.shift = heads, ws, shift
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.log(torch.tensor([4.0, 8.0, 12.0, 200.0]))[:heads].view(heads, 1, 1))
        self.table = nn.Parameter(torch.randn((2 * ws - 1) ** 2, heads) * 0.5)
        coords = torch.stack(torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :] + ws - 1
        self.register_buffer("index", rel[0] * (2 * ws - 1) + rel[1], persistent=False)
        mask = None
        if shift > 0:
            label = torch.zeros(1, H, W, 1)
            label[:, -ws:-shift] = 1
            label[:, -shift:] = 2
            label = window_partition(label, ws).squeeze(-1)
            mask = (label[:, None, :] != label[:, :, None]).float() * -100.0
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        B, H, W, C = x.shape
        if self.shift > 0:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = window_partition(x, self.ws)
        n, N, _ = x.shape
        qkv = self.qkv(x).reshape(n, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        bias = self.table[self.index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = attn + 4 * torch.tanh(bias.unsqueeze(0))
        if self.mask is not None:
            nw = self.mask.shape[0]
            attn = attn.view(n // nw, nw, self.heads, N, N) + self.mask[None, :, None]
            attn = attn.view(n, self.heads, N, N)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(n, N, C)
        x = window_reverse(self.proj(x), self.ws, H, W)
        if self.shift > 0:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        return x


class Block(nn.Module):
    def __init__(self, dim, heads, ws, shift, H, W):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mix = SpectralMix(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, heads, ws, shift, H, W)
        self.norm3 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x, gain, bias):
        x = x + self.mix(self.norm1(x))
        y = self.norm2(x) * (1 + gain) + bias
        x = x + self.attn(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm3(x))))


class Forecaster(nn.Module):
    def __init__(self, dim=32, depth=4, heads=4, ws=4, hidden=16, steps=3, dt=6.0):
        super().__init__()
        self.steps, self.dt = steps, dt
        lats, lons = grid()
        self.register_buffer("lats", torch.from_numpy(lats), persistent=False)
        self.register_buffer("lons", torch.from_numpy(lons), persistent=False)
        self.register_buffer("area", torch.from_numpy(area_weights()), persistent=False)
        self.register_buffer("static", torch.from_numpy(static_fields()), persistent=False)
        self.register_buffer("mean", torch.tensor(MEAN).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(-1, 1, 1), persistent=False)
        channels = NHIST * NVAR + NVAR + 2 + 1
        H, W = NLAT // 2, NLON // 2
        self.stem = nn.Conv2d(channels, hidden, 3)
        self.stem_norm = nn.BatchNorm2d(hidden)
        self.patch = nn.Conv2d(hidden, dim, 2, stride=2)
        self.place = nn.Linear(6, dim)
        self.lead = nn.Linear(4, 2 * dim)
        self.blocks = nn.ModuleList(
            [Block(dim, heads, ws, 0 if i % 2 == 0 else ws // 2, H, W) for i in range(depth)]
        )
        self.norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, 4 * hidden)
        self.fuse = nn.Conv2d(2 * hidden, hidden, 3)
        self.out = nn.Conv2d(hidden, NVAR, 1)

    def places(self):
        lat = self.lats.view(-1, 2).mean(1)
        lon = self.lons.view(-1, 2).mean(1)
        lat, lon = torch.meshgrid(lat, lon, indexing="ij")
        terms = [lat.sin(), lat.cos(), lat.cos() * lon.sin(), lat.cos() * lon.cos(), (2 * lon).sin(), (2 * lon).cos()]
        return torch.stack(terms, dim=-1)

    def sunlight(self, day, hour):
        """Cosine of the sun's zenith angle, 0 by night: (B, 1, H, W)."""
        dec = -math.radians(23.44) * torch.cos(2 * math.pi * (day + 10) / 365.0)
        angle = 2 * math.pi * hour[:, None] / 24.0 + self.lons[None] - math.pi
        dec = dec[:, None, None]
        lat = self.lats[None, :, None]
        cosz = lat.sin() * dec.sin() + lat.cos() * dec.cos() * angle.cos()[:, None, :]
        return cosz.clamp(min=0.0).unsqueeze(1)

    def advection(self, state):
        """-(u d/dx + v d/dy) of all variables; centred differences."""
        dlon = 2 * math.pi / NLON
        dlat = math.pi / NLAT
        coslat = self.lats.cos().clamp(min=0.2)[:, None]
        ddx = (torch.roll(state, -1, dims=-1) - torch.roll(state, 1, dims=-1)) / (2 * dlon) / coslat
        padded = geo_pad(state, 1)[..., 1:-1]
        ddy = (padded[:, :, :-2] - padded[:, :, 2:]) / (2 * dlat)
        u, v = state[:, 1:2], state[:, 2:3]
        return -(u * ddx + v * ddy)

    def tendency(self, hist, day, hour):
        B = hist.shape[0]
        normed = (hist - self.mean) / self.std
        adv = 0.04 * self.advection(hist[:, -1])
        sun = self.sunlight(day, hour)
        static = self.static.expand(B, -1, -1, -1)
        x = torch.cat([normed.flatten(1, 2), adv, static, sun], dim=1)
        stem = F.gelu(self.stem_norm(self.stem(geo_pad(x, 1))))
        x = self.patch(stem).permute(0, 2, 3, 1)
        x = x + self.place(self.places())
        clock = torch.stack([2 * math.pi * hour / 24.0, 2 * math.pi * day / 365.0], dim=1)
        lead = self.lead(torch.cat([clock.sin(), clock.cos()], dim=1))
        gain, bias = lead[:, None, None].chunk(2, dim=-1)
        for block in self.blocks:
            x = block(x, gain, bias)
        x = self.expand(self.norm(x))
        B, H, W, C = x.shape
        x = x.view(B, H, W, 2, 2, C // 4).permute(0, 5, 1, 3, 2, 4).reshape(B, C // 4, 2 * H, 2 * W)
        x = torch.cat([x, stem], dim=1)
        x = F.gelu(self.fuse(geo_pad(x, 1)))
        return self.out(x) + adv / self.std

    def fix(self, new, old):
        """Keeps the mass, and lets no humidity be negative without changing how much there is."""
        mass = new[:, :1]
        mass = mass - weighted_mean(mass, self.area) + weighted_mean(old[:, :1], self.area)
        wet = new[:, 3:]
        total = weighted_mean(wet, self.area)
        wet = wet.clamp(min=0.0)
        wet = wet * (total.clamp(min=0.0) / (weighted_mean(wet, self.area) + 1e-6))
        return torch.cat([mass, new[:, 1:3], wet], dim=1)

    def forward(self, hist, day, hour):
        forecasts, scores = [], []
        start = hist[:, -1]
        for _ in range(self.steps):
            old = hist[:, -1]
            new = old + self.dt / 24.0 * self.std * self.tendency(hist, day, hour)
            new = self.fix(new, old)
            hour = hour + self.dt
            day = day + torch.floor(hour / 24.0)
            hour = torch.remainder(hour, 24.0)
            hist = torch.cat([hist[:, 1:], new.unsqueeze(1)], dim=1)
            forecasts.append(new)
            err = (new - start) / self.std
            err = err - weighted_mean(err, self.area)
            scores.append(weighted_mean(err.square(), self.area)[..., 0, 0].sqrt())
        return torch.stack(forecasts, dim=1), torch.stack(scores, dim=1)


def build():
    torch.manual_seed(77)
    net = Forecaster()
    for m in net.modules():
        if isinstance(m, (nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(m.weight, 0.6, 1.4)
            nn.init.normal_(m.bias, std=0.15)
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.3)
            m.running_var.uniform_(0.4, 1.2)
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight, gain=1.2)
            nn.init.normal_(m.bias, std=0.1)
    for conv in (net.stem, net.patch, net.fuse, net.out):
        nn.init.xavier_uniform_(conv.weight, gain=1.8)
    rough = torch.randn(2, NHIST, NVAR, 5, 8)
    hist = F.interpolate(rough.flatten(1, 2), size=(NLAT, NLON), mode="bicubic").view(2, NHIST, NVAR, NLAT, NLON)
    hist = hist + 0.3 * torch.randn(2, NHIST, NVAR, NLAT, NLON)
    hist = hist * torch.tensor(STD).view(-1, 1, 1) + torch.tensor(MEAN).view(-1, 1, 1)
    hist[:, :, 3] = hist[:, :, 3].clamp(min=0.0)
    return net.eval(), (hist, torch.tensor([40.0, 203.0]), torch.tensor([15.0, 3.0]))

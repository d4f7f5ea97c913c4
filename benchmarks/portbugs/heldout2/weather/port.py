"""The small global forecaster in MindSpore.

The Fourier transforms are done with matrices of cosines and sines, real and imaginary parts apart: complex tensors
are more trouble than they are worth here, and the grid is small.
"""

import math

import mindspore as ms
import mindspore.nn as nn
import numpy as np
from mindspore import Parameter, Tensor, ops

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
    over = ops.concat([x[..., half:], x[..., :half]], axis=-1)
    north = ops.flip(over[:, :, :p], (2,))
    south = ops.flip(over[:, :, -p:], (2,))
    x = ops.concat([north, x, south], axis=2)
    return ops.concat([x[..., -p:], x, x[..., :p]], axis=-1)


def roll(x, shift, axis):
    """np.roll along one axis."""
    n = x.shape[axis]
    shift = shift % n
    if shift == 0:
        return x
    tail, head = ops.split(x, [n - shift, shift], axis=axis)
    return ops.concat([head, tail], axis=axis)


def weighted_mean(x, w):
    """Mean over the globe of (..., H, W)."""
    return (x * w.expand_dims(-1)).mean(axis=(-2, -1), keep_dims=True)


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.reshape(B, H // ws, ws, W // ws, ws, C)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = windows.shape[0] // ((H // ws) * (W // ws))
    x = windows.reshape(B, H // ws, W // ws, ws, ws, -1)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


def fourier_matrices(H, W, kept):
    """Zonal (kept, W) and meridional (H, H) cosines and sines, orthonormal, and the weights of the way back."""
    zonal = 2 * np.pi * np.outer(np.arange(kept), np.arange(W)) / W
    merid = 2 * np.pi * np.outer(np.arange(H), np.arange(H)) / H
    twice = np.full((kept, 1), 2.0)
    twice[0] = 1.0
    if kept == W // 2 + 1 and W % 2 == 0:
        twice[-1] = 1.0
    out = [np.cos(zonal) / math.sqrt(W), np.sin(zonal) / math.sqrt(W)]
    out += [np.cos(merid) / math.sqrt(H), np.sin(merid) / math.sqrt(H), twice]
    return [Tensor(a, ms.float32) for a in out]


class SpectralMix(nn.Cell):
    """AFNO: a block-diagonal complex perceptron on the low zonal wave numbers, soft-shrunk."""

    def __init__(self, dim, H, W, blocks=4, keep=0.7, shrink=0.02):
        super().__init__()
        bs = dim // blocks
        self.blocks, self.bs, self.shrink = blocks, bs, shrink
        self.kept = int((W // 2 + 1) * keep)
        self.cos_w, self.sin_w, self.cos_h, self.sin_h, self.twice = fourier_matrices(H, W, self.kept)
        self.w1 = Parameter(ops.zeros((2, blocks, bs, bs), ms.float32))
        self.b1 = Parameter(ops.zeros((2, blocks, bs), ms.float32))
        self.w2 = Parameter(ops.zeros((2, blocks, bs, bs), ms.float32))
        self.b2 = Parameter(ops.zeros((2, blocks, bs), ms.float32))

    def complex_linear(self, re, im, w, b):
        # (n, blocks, bs) -> (blocks, n, bs) for the batched product
        re, im = re.swapaxes(0, 1), im.swapaxes(0, 1)
        r = ops.bmm(re, w[0]) - ops.bmm(im, w[1])
        i = ops.bmm(im, w[0]) + ops.bmm(re, w[1])
        return r.swapaxes(0, 1) + b[0], i.swapaxes(0, 1) + b[1]

    def forward_transform(self, x):
        """(B, H, W, C) -> real and imaginary (B, H, kept, C)."""
        re = ops.matmul(self.cos_w, x)
        im = -ops.matmul(self.sin_w, x)
        B, H, K, C = re.shape
        re, im = re.reshape(B, H, K * C), im.reshape(B, H, K * C)
        re, im = (
            ops.matmul(self.cos_h, re) + ops.matmul(self.sin_h, im),
            ops.matmul(self.cos_h, im) - ops.matmul(self.sin_h, re),
        )
        return re.reshape(B, H, K, C), im.reshape(B, H, K, C)

    def inverse_transform(self, re, im):
        B, H, K, C = re.shape
        re, im = re.reshape(B, H, K * C), im.reshape(B, H, K * C)
        re, im = (
            ops.matmul(self.cos_h, re) - ops.matmul(self.sin_h, im),
            ops.matmul(self.cos_h, im) + ops.matmul(self.sin_h, re),
        )
        re, im = re.reshape(B, H, K, C) * self.twice, im.reshape(B, H, K, C) * self.twice
        return ops.matmul(self.cos_w.swapaxes(0, 1), re) - ops.matmul(self.sin_w.swapaxes(0, 1), im)

    def soft_shrink(self, x):
        return ops.sign(x) * ops.relu(ops.abs(x) - self.shrink)

    def construct(self, x):
        B, H, W, C = x.shape
        skip = x
        re, im = self.forward_transform(x)
        re = re.reshape(-1, self.blocks, self.bs)
        im = im.reshape(-1, self.blocks, self.bs)
        re, im = self.complex_linear(re, im, self.w1, self.b1)
        re, im = ops.relu(re), ops.relu(im)
        re, im = self.complex_linear(re, im, self.w2, self.b2)
        re, im = self.soft_shrink(re), self.soft_shrink(im)
        x = self.inverse_transform(re.reshape(B, H, self.kept, C), im.reshape(B, H, self.kept, C))
        return x + skip


class WindowAttention(nn.Cell):
    """Cosine attention in windows; shifted windows are cut at the poles, not at the date line."""

    def __init__(self, dim, heads, ws, shift, H, W):
        super().__init__()
        self.heads, self.ws, self.shift = heads, ws, shift
        self.qkv = nn.Dense(dim, dim * 3)
        self.proj = nn.Dense(dim, dim)
        self.logit_scale = Parameter(ops.zeros((heads, 1, 1), ms.float32))
        self.table = Parameter(ops.zeros(((2 * ws - 1) ** 2, heads), ms.float32))
        coords = np.stack(np.meshgrid(np.arange(ws), np.arange(ws), indexing="ij")).reshape(2, -1)
        rel = coords[:, :, None] - coords[:, None, :] + ws - 1
        self.index = Tensor((rel[0] * (2 * ws - 1) + rel[1]).reshape(-1), ms.int32)
        self.mask = None
        if shift > 0:
            label = np.zeros((1, H, W, 1), np.float32)
            label[:, -ws:-shift] = 1
            label[:, -shift:] = 2
            label = label.reshape(H // ws, ws, W // ws, ws)
            label = label.transpose(0, 2, 1, 3).reshape(-1, ws * ws)
            mask = (label[:, None, :] != label[:, :, None]).astype(np.float32) * -100.0
            self.mask = Tensor(mask)

    def construct(self, x):
        B, H, W, C = x.shape
        if self.shift > 0:
            x = roll(roll(x, -self.shift, 1), -self.shift, 2)
        x = window_partition(x, self.ws)
        n, N, _ = x.shape
        qkv = self.qkv(x).reshape(n, N, 3, self.heads, C // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q / ops.clamp(ops.sqrt(ops.square(q).sum(axis=-1, keepdims=True)), min=1e-12)
        k = k / ops.clamp(ops.sqrt(ops.square(k).sum(axis=-1, keepdims=True)), min=1e-12)
        attn = ops.matmul(q, k.swapaxes(-2, -1))
        attn = attn * ops.exp(ops.clamp(self.logit_scale, max=math.log(100.0)))
        bias = self.table[self.index].reshape(N, N, -1).transpose(2, 0, 1)
        attn = attn + 4 * ops.tanh(bias.expand_dims(0))
        if self.mask is not None:
            nw = self.mask.shape[0]
            attn = attn.reshape(n // nw, nw, self.heads, N, N) + self.mask.reshape(1, nw, 1, N, N)
            attn = attn.reshape(n, self.heads, N, N)
        attn = ops.softmax(attn, axis=-1)
        x = ops.matmul(attn, v).swapaxes(1, 2).reshape(n, N, C)
        x = window_reverse(self.proj(x), self.ws, H, W)
        if self.shift > 0:
            x = roll(roll(x, self.shift, 1), self.shift, 2)
        return x


class Block(nn.Cell):
    def __init__(self, dim, heads, ws, shift, H, W):
        super().__init__()
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mix = SpectralMix(dim, H, W)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = WindowAttention(dim, heads, ws, shift, H, W)
        self.norm3 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, 2 * dim)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x, gain, bias):
        x = x + self.mix(self.norm1(x))
        y = self.norm2(x) * (1 + gain) + bias
        x = x + self.attn(y)
        return x + self.fc2(ops.gelu(self.fc1(self.norm3(x)), approximate="none"))


class Forecaster(nn.Cell):
    def __init__(self, dim=32, depth=4, heads=4, ws=4, hidden=16, steps=3, dt=6.0):
        super().__init__()
        self.steps, self.dt = steps, dt
        lats, lons = grid()
        self.lats = Tensor(lats)
        self.lons = Tensor(lons)
        self.area = Tensor(area_weights())
        self.static = Tensor(static_fields())
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(-1, 1, 1))
        self.std = Tensor(np.array(STD, np.float32).reshape(-1, 1, 1))
        channels = NHIST * NVAR + NVAR + 2 + 1
        H, W = NLAT // 2, NLON // 2
        self.stem = nn.Conv2d(channels, hidden, 3, pad_mode="pad", padding=0, has_bias=True)
        self.stem_norm = nn.BatchNorm2d(hidden, eps=1e-5)
        self.patch = nn.Conv2d(hidden, dim, 2, stride=2, pad_mode="pad", padding=0, has_bias=True)
        self.place = nn.Dense(6, dim)
        self.lead = nn.Dense(4, 2 * dim)
        self.blocks = nn.CellList(
            [Block(dim, heads, ws, 0 if i % 2 == 0 else ws // 2, H, W) for i in range(depth)]
        )
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.expand = nn.Dense(dim, 4 * hidden)
        self.fuse = nn.Conv2d(2 * hidden, hidden, 3, pad_mode="pad", padding=0, has_bias=True)
        self.out = nn.Conv2d(hidden, NVAR, 1, pad_mode="pad", padding=0, has_bias=True)

    def places(self):
        lats, lons = grid()
        lat, lon = np.meshgrid(lats.reshape(-1, 2).mean(1), lons.reshape(-1, 2).mean(1), indexing="ij")
        terms = [np.sin(lat), np.cos(lat), np.cos(lat) * np.sin(lon), np.cos(lat) * np.cos(lon)]
        terms += [np.sin(2 * lon), np.cos(2 * lon)]
        return Tensor(np.stack(terms, axis=-1), ms.float32)

    def sunlight(self, day, hour):
        """Cosine of the sun's zenith angle, 0 by night: (B, 1, H, W)."""
        dec = -math.radians(23.44) * ops.cos(2 * math.pi * (day + 10) / 365.0)
        angle = 2 * math.pi * hour.expand_dims(1) / 24.0 + self.lons.expand_dims(0) - math.pi
        dec = dec.reshape(-1, 1, 1)
        lat = self.lats.reshape(1, -1, 1)
        cosz = ops.sin(lat) * ops.sin(dec) + ops.cos(lat) * ops.cos(dec) * ops.cos(angle).expand_dims(1)
        return ops.clamp(cosz, min=0.0).expand_dims(1)

    def advection(self, state):
        """-(u d/dx + v d/dy) of all variables; centred differences."""
        dlon = 2 * math.pi / NLON
        dlat = math.pi / NLAT
        coslat = ops.clamp(ops.cos(self.lats), min=0.2).expand_dims(1)
        ddx = (roll(state, -1, -1) - roll(state, 1, -1)) / (2 * dlon) / coslat
        padded = geo_pad(state, 1)[..., 1:-1]
        ddy = (padded[:, :, :-2] - padded[:, :, 2:]) / (2 * dlat)
        u, v = state[:, 1:2], state[:, 2:3]
        return -(u * ddx + v * ddy)

    def tendency(self, hist, day, hour):
        B, T, V, nlat, nlon = hist.shape
        normed = (hist - self.mean) / self.std
        adv = 0.04 * self.advection(hist[:, -1])
        sun = self.sunlight(day, hour)
        static = ops.tile(self.static.expand_dims(0), (B, 1, 1, 1))
        x = ops.concat([normed.reshape(B, T * V, nlat, nlon), adv, static, sun], axis=1)
        stem = ops.gelu(self.stem_norm(self.stem(geo_pad(x, 1))), approximate="none")
        x = self.patch(stem).transpose(0, 2, 3, 1)
        x = x + self.place(self.places())
        clock = ops.stack([2 * math.pi * hour / 24.0, 2 * math.pi * day / 365.0], axis=1)
        lead = self.lead(ops.concat([ops.sin(clock), ops.cos(clock)], axis=1))
        gain, bias = ops.chunk(lead.reshape(B, 1, 1, -1), 2, axis=-1)
        for block in self.blocks:
            x = block(x, gain, bias)
        x = self.expand(self.norm(x))
        B, H, W, C = x.shape
        x = x.reshape(B, H, W, 2, 2, C // 4).transpose(0, 5, 1, 3, 2, 4).reshape(B, C // 4, 2 * H, 2 * W)
        x = ops.concat([x, stem], axis=1)
        x = ops.gelu(self.fuse(geo_pad(x, 1)), approximate="none")
        return self.out(x) + adv / self.std

    def fix(self, new, old):
        """Keeps the mass, and lets no humidity be negative without changing how much there is."""
        mass = new[:, :1]
        mass = mass - weighted_mean(mass, self.area) + weighted_mean(old[:, :1], self.area)
        wet = new[:, 3:]
        total = weighted_mean(wet, self.area)
        wet = ops.clamp(wet, min=0.0)
        wet = wet * (ops.clamp(total, min=0.0) / (weighted_mean(wet, self.area) + 1e-6))
        return ops.concat([mass, new[:, 1:3], wet], axis=1)

    def construct(self, hist, day, hour):
        forecasts, scores = [], []
        start = hist[:, -1]
        for _ in range(self.steps):
            old = hist[:, -1]
            new = old + self.dt / 24.0 * self.std * self.tendency(hist, day, hour)
            new = self.fix(new, old)
            hour = hour + self.dt
            day = day + ops.floor(hour / 24.0)
            hour = hour - 24.0 * ops.floor(hour / 24.0)
            hist = ops.concat([hist[:, 1:], new.expand_dims(1)], axis=1)
            forecasts.append(new)
            err = (new - start) / self.std
            err = err - weighted_mean(err, self.area)
            scores.append(ops.sqrt(weighted_mean(ops.square(err), self.area).squeeze((-2, -1))))
        return ops.stack(forecasts, axis=1), ops.stack(scores, axis=1)


def build():
    """The net alone."""
    return Forecaster()

"""The conditioned Fourier neural operator with its U-Net side path in MindSpore: the correct port."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

# statistics of the training set, for u, v and the tracer
FIELD_MEAN = np.array([0.62, -0.05, 1.40], np.float32)
FIELD_STD = np.array([0.35, 0.22, 0.80], np.float32)
DELTA_STD = np.array([0.110, 0.075, 0.260], np.float32)
# for log10 viscosity, log10 diffusivity, forcing, tilt
PARAM_MEAN = np.array([-2.60, -3.10, 0.45, 0.10], np.float32)
PARAM_STD = np.array([0.55, 0.40, 0.30, 0.25], np.float32)


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def to_map(v):
    return v.reshape(v.shape[0], v.shape[1], 1, 1)


def pad_channel(x, py, px):
    """Periodic in x (last axis), mirrored at the walls in y."""
    h, w = x.shape[-2:]
    rows = np.pad(np.arange(h), py, mode="symmetric")
    cols = np.pad(np.arange(w), px, mode="wrap")
    x = ops.gather(x, Tensor(rows, ms.int32), x.ndim - 2)
    return ops.gather(x, Tensor(cols, ms.int32), x.ndim - 1)


def mean_over_fluid(x, fluid):
    """(B, C, H, W) and (B, 1, H, W) -> (B, C)."""
    b, c = x.shape[:2]
    cells = fluid.reshape(b, 1, -1)
    count = ops.maximum(cells.sum(axis=-1), Tensor(1.0, ms.float32))
    return (x.reshape(b, c, -1) * cells).sum(axis=-1) / count


def grid_channels(h, w, waves):
    """Positions of the cells as channels, in numpy: they are constants."""
    x = np.arange(w) / w
    y = 2.0 * (np.arange(h) + 0.5) / h - 1.0
    xx, yy = np.meshgrid(x, y)
    maps = []
    for k in range(1, waves + 1):
        maps += [np.sin(2 * np.pi * k * xx), np.cos(2 * np.pi * k * xx)]
    maps += [yy, 1.0 - np.abs(yy)]
    return Tensor(np.stack(maps).astype(np.float32))


def repeat_first(frames, frame_mask):
    """Missing frames are the first ones of a history; put the earliest known frame in their places."""
    b, t = frame_mask.shape
    missing = t - frame_mask.astype(ms.int32).sum(axis=1)
    place = Tensor(np.arange(t), ms.int32).reshape(1, t)
    place = ops.maximum(place, missing.reshape(b, 1).astype(ms.int32))
    return ops.stack([ops.gather(frames[i], place[i], 0) for i in range(b)], axis=0)


def ddx(f, dx):
    ahead = ops.cat((f[..., 1:], f[..., :1]), axis=-1)
    behind = ops.cat((f[..., -1:], f[..., :-1]), axis=-1)
    return (ahead - behind) / (2.0 * dx)


def ddy(f, dy):
    middle = 0.5 * (f[..., 2:, :] - f[..., :-2, :])
    bottom = f[..., 1:2, :] - f[..., :1, :]
    top = f[..., -1:, :] - f[..., -2:-1, :]
    return ops.cat((bottom, middle, top), axis=-2) / dy


class ParameterEncoder(nn.Cell):
    """(B, 4) parameters, (B, 2) lengths and (B,) time -> (B, cond)."""

    def __init__(self, num_params, time_dim, cond_dim, max_period):
        super().__init__()
        half = time_dim // 2
        scale = math.log(max_period) / half
        self.freqs = Tensor((2 * np.pi * np.exp(-scale * np.arange(half))).astype(np.float32))
        self.mean = Tensor(PARAM_MEAN)
        self.std = Tensor(PARAM_STD)
        self.fc1 = nn.Dense(num_params + 2 + time_dim, cond_dim)
        self.norm = nn.LayerNorm((cond_dim,), epsilon=1e-5)
        self.fc2 = nn.Dense(cond_dim, cond_dim)

    def construct(self, params, lengths, time):
        power = ops.log(ops.clamp(params[:, :2], min=1e-8)) / math.log(10.0)
        params = (ops.cat((power, params[:, 2:]), axis=1) - self.mean) / self.std
        phase = ops.expand_dims(time, 1) * self.freqs
        features = ops.cat((params, ops.log(lengths), ops.sin(phase), ops.cos(phase)), axis=1)
        hidden = self.fc1(features)
        hidden = hidden * ops.sigmoid(hidden)
        return self.fc2(self.norm(hidden))


class SpectralConv2d(nn.Cell):
    """Complex matrices on the kept modes; weights hold real and imaginary parts in the last axis."""

    def __init__(self, channels, out_channels, modes1, modes2, cond_dim):
        super().__init__()
        self.modes1 = modes1
        self.modes2 = modes2
        shape = (channels, out_channels, modes1, modes2, 2)
        self.weights1 = zeros_parameter(shape, "weights1")
        self.weights2 = zeros_parameter(shape, "weights2")
        self.mode_gain = nn.Dense(cond_dim, 2 * modes1)
        self.to_complex = ops.Complex()

    def multiply(self, corner, gain, weight):
        """One corner (B, C, m1, m2) by its matrices; a batched product with the modes in front."""
        b, c, m1, m2 = corner.shape
        re = (ops.real(corner) * gain).transpose(2, 3, 0, 1)
        im = (ops.imag(corner) * gain).transpose(2, 3, 0, 1)
        w_re = weight[..., 0].transpose(2, 3, 0, 1)
        w_im = weight[..., 1].transpose(2, 3, 0, 1)
        out_re = ops.matmul(re, w_re) - ops.matmul(im, w_im)
        out_im = ops.matmul(re, w_im) + ops.matmul(im, w_re)
        return out_re.transpose(2, 3, 0, 1), out_im.transpose(2, 3, 0, 1)

    def construct(self, x, cond):
        h, w = x.shape[-2:]
        m1, m2 = self.modes1, self.modes2
        gain = 1.0 + ops.tanh(self.mode_gain(cond))
        gain = gain.reshape(gain.shape[0], 1, 2 * m1, 1)

        spectrum = ops.rfft2(x, norm="ortho")
        low = spectrum[:, :, :m1, :m2]
        high = spectrum[:, :, h - m1 :, :m2]
        low_re, low_im = self.multiply(low, gain[:, :, :m1], self.weights1)
        high_re, high_im = self.multiply(high, gain[:, :, m1:], self.weights2)

        between = ops.zeros(low_re.shape[:2] + (h - 2 * m1, m2), ms.float32)
        re = ops.cat((low_re, between, high_re), axis=2)
        im = ops.cat((low_im, between, high_im), axis=2)
        beyond = ops.zeros(re.shape[:3] + (w // 2 + 1 - m2,), ms.float32)
        full = self.to_complex(ops.cat((re, beyond), axis=3), ops.cat((im, beyond), axis=3))
        return ops.irfft2(full, s=(h, w), norm="ortho")


class DownBlock(nn.Cell):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, stride=2, pad_mode="valid", has_bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=1e-5, momentum=0.9)
        self.act = nn.LeakyReLU(alpha=0.1)

    def construct(self, x):
        x = pad_channel(x, 1, 1)
        x = self.norm(self.conv(x))
        return self.act(x)


class UpBlock(nn.Cell):
    def __init__(self, channels, skip_channels, out_channels, last=False):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True, recompute_scale_factor=True)
        self.conv = nn.Conv2d(channels + skip_channels, out_channels, 3, pad_mode="valid", has_bias=True)
        self.act = nn.Identity() if last else nn.LeakyReLU(alpha=0.1)

    def construct(self, coarse, kept):
        joined = ops.cat((self.up(coarse), kept), axis=1)
        return self.act(self.conv(pad_channel(joined, 1, 1)))


class SideUNet(nn.Cell):
    """Two levels down and up again."""

    def __init__(self, channels, width1, width2):
        super().__init__()
        self.down1 = DownBlock(channels, width1)
        self.down2 = DownBlock(width1, width2)
        self.mid = nn.Conv2d(width2, width2, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.up2 = UpBlock(width2, width1, width1)
        self.up1 = UpBlock(width1, channels, channels, last=True)

    def construct(self, x):
        half = self.down1(x)
        quarter = self.down2(half)
        quarter = quarter + ops.gelu(self.mid(quarter), approximate="none")
        return self.up1(self.up2(quarter, half), x)


class FourierLayer(nn.Cell):
    def __init__(self, channels, groups, modes1, modes2, cond_dim, unet_widths=None):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-5)
        self.film = nn.Dense(cond_dim, 3 * channels)
        self.spectral = SpectralConv2d(channels, channels, modes1, modes2, cond_dim)
        self.skip = nn.Conv2d(channels, channels, 1, pad_mode="valid", has_bias=True)
        self.has_unet = unet_widths is not None
        if self.has_unet:
            self.unet = SideUNet(channels, *unet_widths)
        self.mix = nn.SequentialCell(
            nn.Conv2d(channels, 2 * channels, 1, pad_mode="valid", has_bias=True),
            nn.GELU(approximate=False),
            nn.Conv2d(2 * channels, channels, 1, pad_mode="valid", has_bias=True),
        )

    def modulation(self, cond):
        shift, scale, gate = ops.split(self.film(ops.silu(cond)), self.film.out_channels // 3, axis=1)
        return to_map(shift), to_map(scale), ops.sigmoid(to_map(gate))

    def construct(self, x, cond):
        shift, scale, gate = self.modulation(cond)
        h = self.norm(x)
        h = h + h * scale + shift
        paths = self.spectral(h, cond) + self.skip(h)
        if self.has_unet:
            paths = paths + self.unet(h)
        x = x + gate * ops.gelu(paths, approximate="none")
        return x + self.mix(x)


class FlowOperator(nn.Cell):
    """Histories of a channel flow to trajectories of four steps, with energies and spreads."""

    def __init__(self, history=5, fields=3, hidden=18, groups=6, modes=(5, 6), depth=4, unet_from=2,
                 unet_widths=(14, 22), num_params=4, time_dim=14, max_period=50.0, cond_dim=26, waves=2,
                 head_hidden=30, pad=(2, 2), steps=4, dt_ref=0.1):
        super().__init__()
        self.waves, self.pad, self.steps, self.dt_ref = waves, pad, steps, dt_ref
        self.field_mean = Tensor(FIELD_MEAN.reshape(1, 1, -1, 1, 1))
        self.field_std = Tensor(FIELD_STD.reshape(1, 1, -1, 1, 1))
        self.delta_std = Tensor(DELTA_STD.reshape(1, -1, 1, 1))

        channels = history * (fields + 1) + 3 + 1 + 2 * waves + 2
        self.encoder = ParameterEncoder(num_params, time_dim, cond_dim, max_period)
        self.lift1 = nn.Conv2d(channels, 2 * hidden, 1, pad_mode="valid", has_bias=True)
        self.lift2 = nn.Conv2d(2 * hidden, hidden, 1, pad_mode="valid", has_bias=True)
        self.layers = nn.CellList([
            FourierLayer(hidden, groups, *modes, cond_dim, unet_widths if i >= unet_from else None)
            for i in range(depth)
        ])
        self.head1 = nn.Conv2d(hidden, head_hidden, 1, pad_mode="valid", has_bias=True)
        self.head2 = nn.Conv2d(head_hidden, fields, 1, pad_mode="valid", has_bias=True)
        self.spread = nn.Dense(hidden + cond_dim, fields)

    def slopes(self, frame, lengths):
        """Vorticity and both slopes of the tracer."""
        b, _, h, w = frame.shape
        dy = lengths[:, 0].reshape(b, 1, 1) / h
        dx = lengths[:, 1].reshape(b, 1, 1) / w
        u, v, tracer = frame[:, 0], frame[:, 1], frame[:, 2]
        curl = ddx(v, dx) - ddy(u, dy)
        return ops.stack((curl, ddx(tracer, dx), ddy(tracer, dy)), axis=1)

    def features(self, window, known, solid, lengths):
        b, t, f, h, w = window.shape
        frames = ((window - self.field_mean) / self.field_std).reshape(b, t * f, h, w)
        ages = Tensor((np.arange(t, 0, -1) / t).astype(np.float32))
        ages = ops.broadcast_to((known.astype(ms.float32) * ages).reshape(b, t, 1, 1), (b, t, h, w))
        slopes = ops.asinh(self.slopes(window[:, -1], lengths))
        grid = ops.broadcast_to(grid_channels(h, w, self.waves), (b, 2 * self.waves + 2, h, w))
        return ops.cat((frames, ages, slopes, solid.astype(ms.float32).expand_dims(1), grid), axis=1)

    def predict(self, window, known, solid, fluid, params, lengths, time):
        """The increment of one reference step, and its spread."""
        py, px = self.pad
        cond = self.encoder(params, lengths, time)
        x = pad_channel(self.features(window, known, solid, lengths), py, px)
        x = self.lift2(ops.gelu(self.lift1(x), approximate="none"))
        for layer in self.layers:
            x = layer(x, cond)
        x = x[:, :, py:-py, px:-px]

        delta = self.head2(ops.gelu(self.head1(x), approximate="none")) * self.delta_std
        summary = ops.cat((mean_over_fluid(x, fluid), cond), axis=1)
        spread = ops.softplus(self.spread(summary))

        flow, tracer = delta[:, :2], delta[:, 2:]
        tracer = tracer - to_map(mean_over_fluid(tracer, fluid))
        return ops.cat((flow, tracer), axis=1) * fluid, spread

    def construct(self, frames, frame_mask, solid, params, lengths, dt, horizon):
        b = frames.shape[0]
        fluid = ops.logical_not(solid).astype(ms.float32).expand_dims(1)
        window, known = repeat_first(frames, frame_mask), frame_mask
        factor = (dt / self.dt_ref).reshape(b, 1, 1, 1)

        states, energies, spreads = [], [], []
        total = 0.0
        time = ops.zeros_like(dt)
        for step in range(self.steps):
            delta, spread = self.predict(window, known, solid, fluid, params, lengths, time)
            before = window[:, -1]
            after = before + delta * factor
            after = ops.cat((after[:, :2] * fluid, after[:, 2:]), axis=1)

            active = horizon > step
            weight = active.astype(ms.float32)
            after = ops.where(active.reshape(b, 1, 1, 1), after, before)
            total = total + spread * spread * weight.reshape(b, 1)

            window = ops.cat((window[:, 1:], after.expand_dims(1)), axis=1)
            known = ops.cat((known[:, 1:], active.reshape(b, 1)), axis=1)
            time = time + dt
            states.append(after)
            kinetic = 0.5 * (after[:, 0] ** 2 + after[:, 1] ** 2)
            energies.append(mean_over_fluid(kinetic.expand_dims(1), fluid)[:, 0])
            spreads.append(ops.sqrt(total))
        return ops.stack(states, axis=1), ops.stack(energies, axis=1), ops.stack(spreads, axis=1)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference."""
    net = FlowOperator()
    net.set_train(False)
    return net

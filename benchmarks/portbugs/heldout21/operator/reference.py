"""A conditioned Fourier neural operator with a U-Net side path, rolled out over four steps, in PyTorch.

The domain is a channel: periodic along x (the last axis), walls at both ends of y, with solid cells inside.
The state has three fields: the velocities u and v, and a tracer that no step may create or destroy.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# Statistics of the training set.
FIELD_MEAN = (0.62, -0.05, 1.40)
FIELD_STD = (0.35, 0.22, 0.80)
DELTA_STD = (0.110, 0.075, 0.260)
# viscosity and diffusivity (as powers of ten), forcing, tilt of the channel
PARAM_MEAN = (-2.60, -3.10, 0.45, 0.10)
PARAM_STD = (0.55, 0.40, 0.30, 0.25)
LOG_PARAMS = 2


class Config:
    history = 5
    fields = 3
    hidden = 18
    groups = 6
    modes1 = 5  # along y, positive and negative
    modes2 = 6  # along x
    depth = 4
    unet_from = 2
    unet_widths = (14, 22)
    num_params = 4
    time_dim = 14
    max_period = 50.0
    cond_dim = 26
    grid_waves = 2
    head_hidden = 30
    pad_y = 2
    pad_x = 2
    steps = 4
    dt_ref = 0.1


# ---------------------------------------------------------------- helpers


def expand_as_map(vector):
    """(batch, channels) -> (batch, channels, 1, 1)."""
    return vector[:, :, None, None]


def channel_pad(x, pad_y, pad_x):
    """Pad a map as the channel goes on: it wraps along x, and the walls mirror it along y (the edge row included)."""
    if pad_x > 0:
        x = torch.cat((x[..., -pad_x:], x, x[..., :pad_x]), dim=-1)
    if pad_y > 0:
        x = torch.cat((x[..., :pad_y, :].flip(-2), x, x[..., -pad_y:, :].flip(-2)), dim=-2)
    return x


def channel_crop(x, pad_y, pad_x):
    h, w = x.shape[-2:]
    return x[..., pad_y : h - pad_y, pad_x : w - pad_x]


def positional_grid(h, w, waves, device=None):
    """Channels of position: waves around x, the place between the walls, and the distance to the nearer wall."""
    x = torch.arange(w, device=device, dtype=torch.float32) / w
    y = (torch.arange(h, device=device, dtype=torch.float32) + 0.5) / h * 2 - 1
    channels = []
    for k in range(1, waves + 1):
        channels.append(torch.sin(2 * math.pi * k * x)[None, :].expand(h, w))
        channels.append(torch.cos(2 * math.pi * k * x)[None, :].expand(h, w))
    channels.append(y[:, None].expand(h, w))
    channels.append((1 - y.abs())[:, None].expand(h, w))
    return torch.stack(channels)


def fill_missing(frames, frame_mask):
    """Histories end at the same time, so short ones miss their first frames: these repeat the first one present."""
    b, t = frame_mask.shape
    first = t - frame_mask.long().sum(dim=1)
    index = torch.maximum(torch.arange(t, device=frames.device)[None, :], first[:, None])
    index = index.view(b, t, 1, 1, 1).expand_as(frames)
    return torch.gather(frames, 1, index)


def gradient_x(f, spacing):
    """Central differences around the channel."""
    return (torch.roll(f, -1, dims=-1) - torch.roll(f, 1, dims=-1)) / (2 * spacing)


def gradient_y(f, spacing):
    """Central differences between the walls, one-sided at them."""
    inner = (f[..., 2:, :] - f[..., :-2, :]) / 2
    low = f[..., 1:2, :] - f[..., 0:1, :]
    high = f[..., -1:, :] - f[..., -2:-1, :]
    return torch.cat((low, inner, high), dim=-2) / spacing


def fluid_mean(x, fluid):
    """Mean over the fluid cells of each sample: (batch, channels, h, w) -> (batch, channels)."""
    total = (x * fluid).sum(dim=(-2, -1))
    return total / fluid.sum(dim=(-2, -1)).clamp(min=1.0)


# ---------------------------------------------------------------- layers


class ParameterEncoder(nn.Module):
    """Physical parameters, size of the domain and time as one vector."""

    def __init__(self, cfg):
        super().__init__()
        half = cfg.time_dim // 2
        freqs = torch.exp(-math.log(cfg.max_period) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("freqs", freqs * 2 * math.pi, persistent=False)
        self.register_buffer("param_mean", torch.tensor(PARAM_MEAN), persistent=False)
        self.register_buffer("param_std", torch.tensor(PARAM_STD), persistent=False)
        self.fc1 = nn.Linear(cfg.num_params + 2 + cfg.time_dim, cfg.cond_dim)
        self.norm = nn.LayerNorm(cfg.cond_dim)
        self.fc2 = nn.Linear(cfg.cond_dim, cfg.cond_dim)

    def embed_time(self, time):
        angle = time[:, None] * self.freqs[None, :]
        return torch.cat((torch.sin(angle), torch.cos(angle)), dim=-1)

    def forward(self, params, lengths, time):
        logs = torch.log10(params[:, :LOG_PARAMS].clamp(min=1e-8))
        values = torch.cat((logs, params[:, LOG_PARAMS:]), dim=-1)
        values = (values - self.param_mean) / self.param_std
        features = torch.cat((values, torch.log(lengths), self.embed_time(time)), dim=-1)
        h = self.norm(F.silu(self.fc1(features)))
        return self.fc2(h)


class SpectralConv2d(nn.Module):
    """Multiplies the kept modes, in the corners of positive and of negative frequencies along y, by matrices.

    The condition scales each kept row of modes.
    """

    def __init__(self, in_channels, out_channels, modes1, modes2, cond_dim):
        super().__init__()
        self.out_channels = out_channels
        self.modes1 = modes1
        self.modes2 = modes2
        self.weights1 = nn.Parameter(torch.zeros(in_channels, out_channels, modes1, modes2, 2))
        self.weights2 = nn.Parameter(torch.zeros(in_channels, out_channels, modes1, modes2, 2))
        self.mode_gain = nn.Linear(cond_dim, 2 * modes1)

    @staticmethod
    def compl_mul2d(x, weights):
        return torch.einsum("bixy,ioxy->boxy", x, torch.view_as_complex(weights))

    def forward(self, x, cond):
        b, _, h, w = x.shape
        m1, m2 = self.modes1, self.modes2
        gain = 1.0 + torch.tanh(self.mode_gain(cond))
        gain_pos = gain[:, None, :m1, None]
        gain_neg = gain[:, None, m1:, None]

        x_ft = torch.fft.rfft2(x, norm="ortho")
        out_ft = torch.zeros(b, self.out_channels, h, w // 2 + 1, dtype=x_ft.dtype, device=x.device)
        out_ft[:, :, :m1, :m2] = self.compl_mul2d(x_ft[:, :, :m1, :m2] * gain_pos, self.weights1)
        out_ft[:, :, -m1:, :m2] = self.compl_mul2d(x_ft[:, :, -m1:, :m2] * gain_neg, self.weights2)
        return torch.fft.irfft2(out_ft, s=(h, w), norm="ortho")


class DownBlock(nn.Module):
    """Halves the map."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.act(self.norm(self.conv(channel_pad(x, 1, 1))))


class UpBlock(nn.Module):
    """Doubles the map and joins it with the one that was kept on the way down."""

    def __init__(self, in_channels, skip_channels, out_channels, last=False):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = nn.Conv2d(in_channels + skip_channels, out_channels, 3)
        self.act = nn.Identity() if last else nn.LeakyReLU(0.1)

    def forward(self, x, skip):
        x = torch.cat((self.up(x), skip), dim=1)
        return self.act(self.conv(channel_pad(x, 1, 1)))


class SideUNet(nn.Module):
    """The local path beside the Fourier one."""

    def __init__(self, channels, widths):
        super().__init__()
        c1, c2 = widths
        self.down1 = DownBlock(channels, c1)
        self.down2 = DownBlock(c1, c2)
        self.mid = nn.Conv2d(c2, c2, 3, padding=2, dilation=2)
        self.up2 = UpBlock(c2, c1, c1)
        self.up1 = UpBlock(c1, channels, channels, last=True)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(d1)
        m = d2 + F.gelu(self.mid(d2))
        u = self.up2(m, d1)
        return self.up1(u, x)


class FourierLayer(nn.Module):
    """Norm, modulation, the sum of the paths, a gate; then a perceptron over the channels."""

    def __init__(self, cfg, with_unet):
        super().__init__()
        c = cfg.hidden
        self.norm = nn.GroupNorm(cfg.groups, c)
        self.film = nn.Linear(cfg.cond_dim, 3 * c)
        self.spectral = SpectralConv2d(c, c, cfg.modes1, cfg.modes2, cfg.cond_dim)
        self.skip = nn.Conv2d(c, c, 1)
        self.unet = SideUNet(c, cfg.unet_widths) if with_unet else None
        self.mix = nn.Sequential(nn.Conv2d(c, 2 * c, 1), nn.GELU(), nn.Conv2d(2 * c, c, 1))

    def forward(self, x, cond):
        shift, scale, gate = self.film(F.silu(cond)).chunk(3, dim=-1)
        h = self.norm(x) * (1 + expand_as_map(scale)) + expand_as_map(shift)
        y = self.spectral(h, cond) + self.skip(h)
        if self.unet is not None:
            y = y + self.unet(h)
        x = x + torch.sigmoid(expand_as_map(gate)) * F.gelu(y)
        return x + self.mix(x)


class OperatorNet(nn.Module):
    """Predicts the trajectory of four steps from a history of frames."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        for name, values in (("field_mean", FIELD_MEAN), ("field_std", FIELD_STD), ("delta_std", DELTA_STD)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

        # fields of all frames, their ages, three derivatives, the solid, the grid
        in_channels = cfg.history * cfg.fields + cfg.history + 3 + 1 + 2 * cfg.grid_waves + 2
        self.encoder = ParameterEncoder(cfg)
        self.lift1 = nn.Conv2d(in_channels, 2 * cfg.hidden, 1)
        self.lift2 = nn.Conv2d(2 * cfg.hidden, cfg.hidden, 1)
        self.layers = nn.ModuleList([FourierLayer(cfg, i >= cfg.unet_from) for i in range(cfg.depth)])
        self.head1 = nn.Conv2d(cfg.hidden, cfg.head_hidden, 1)
        self.head2 = nn.Conv2d(cfg.head_hidden, cfg.fields, 1)
        self.spread = nn.Linear(cfg.hidden + cfg.cond_dim, cfg.fields)

    def derivatives(self, frame, lengths):
        """Vorticity and the gradient of the tracer, from a frame in physical units; lengths are (along y, along x)."""
        h, w = frame.shape[-2:]
        dy = (lengths[:, 0] / h)[:, None, None]
        dx = (lengths[:, 1] / w)[:, None, None]
        u, v, c = frame.unbind(dim=1)
        vorticity = gradient_x(v, dx) - gradient_y(u, dy)
        return torch.stack((vorticity, gradient_x(c, dx), gradient_y(c, dy)), dim=1)

    def assemble(self, window, window_mask, solid, lengths):
        """All channels that the lifting sees."""
        b, t, f, h, w = window.shape
        normed = (window - self.field_mean[:, None]) / self.field_std[:, None]
        frames = normed.reshape(b, t * f, h, w)
        # how old a frame is, in steps; zero where there is none
        age = torch.arange(t, 0, -1, device=window.device, dtype=window.dtype) / t
        age = (age[None, :] * window_mask.to(window.dtype))[:, :, None, None].expand(b, t, h, w)
        slopes = torch.asinh(self.derivatives(window[:, -1], lengths))
        grid = positional_grid(h, w, self.cfg.grid_waves, window.device)[None].expand(b, -1, -1, -1)
        return torch.cat((frames, age, slopes, solid[:, None].to(window.dtype), grid), dim=1)

    def increment(self, window, window_mask, solid, params, lengths, time):
        """The change of the state in one reference step, in physical units, and how sure the net is."""
        cfg = self.cfg
        fluid = (~solid)[:, None].to(window.dtype)
        cond = self.encoder(params, lengths, time)

        x = self.assemble(window, window_mask, solid, lengths)
        x = channel_pad(x, cfg.pad_y, cfg.pad_x)
        x = self.lift2(F.gelu(self.lift1(x)))
        for layer in self.layers:
            x = layer(x, cond)
        x = channel_crop(x, cfg.pad_y, cfg.pad_x)

        delta = self.head2(F.gelu(self.head1(x))) * self.delta_std
        pooled = fluid_mean(x, fluid)
        spread = F.softplus(self.spread(torch.cat((pooled, cond), dim=-1)))

        # the tracer is only moved about
        tracer = delta[:, 2:3]
        tracer = tracer - fluid_mean(tracer, fluid)[:, :, None, None]
        delta = torch.cat((delta[:, :2], tracer), dim=1) * fluid
        return delta, spread

    def forward(self, frames, frame_mask, solid, params, lengths, dt, horizon):
        cfg = self.cfg
        window = fill_missing(frames, frame_mask)
        window_mask = frame_mask
        fluid = (~solid)[:, None].to(frames.dtype)

        still = torch.tensor([1.0, 1.0, 0.0], device=frames.device).view(1, 3, 1, 1)
        trajectory, energies, spreads = [], [], []
        variance = frames.new_zeros(frames.shape[0], cfg.fields)
        for step in range(cfg.steps):
            time = dt * step
            delta, spread = self.increment(window, window_mask, solid, params, lengths, time)
            current = window[:, -1]
            following = current + delta * (dt / cfg.dt_ref)[:, None, None, None]
            # no flow in the solid
            following = following * (1 - still * (1 - fluid))

            running = step < horizon
            following = torch.where(running[:, None, None, None], following, current)
            variance = variance + torch.where(running[:, None], spread.square(), torch.zeros_like(spread))

            window = torch.cat((window[:, 1:], following[:, None]), dim=1)
            window_mask = torch.cat((window_mask[:, 1:], running[:, None]), dim=1)
            trajectory.append(following)
            speed = following[:, :2].square().sum(dim=1, keepdim=True)
            energies.append(0.5 * fluid_mean(speed, fluid).squeeze(1))
            spreads.append(variance.sqrt())
        return torch.stack(trajectory, dim=1), torch.stack(energies, dim=1), torch.stack(spreads, dim=1)


# ---------------------------------------------------------------- weights and data


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.4, 1.3)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, SpectralConv2d):
            low = 1.0 / (1.0 + torch.arange(module.modes2, dtype=torch.float32))[:, None]
            for weights in (module.weights1, module.weights2):
                nn.init.normal_(weights, std=1.6 * weights.shape[0] ** -0.5)
                weights.data *= 0.4 + low
    for layer in net.layers:
        layer.mix[2].weight.data *= 0.5
    return net


def smooth_noise(*shape, scale):
    """Fields with structures of a few cells that close around x."""
    noise = torch.fft.rfft2(torch.randn(*shape))
    ky = torch.fft.fftfreq(shape[-2])[:, None] * scale
    kx = torch.fft.rfftfreq(shape[-1])[None, :] * scale
    field = torch.fft.irfft2(noise * torch.exp(-(ky**2 + kx**2)), s=shape[-2:])
    return field / field.std(dim=(-2, -1), keepdim=True)


def build():
    """The net with the same weights on every run, and three flows of different history, geometry and horizon."""
    torch.manual_seed(2023)
    cfg = Config()
    net = trained_like(OperatorNet(cfg))

    b, h, w = 3, 20, 28
    base = smooth_noise(b, 1, cfg.fields, h, w, scale=7.0)
    drift = smooth_noise(b, 1, cfg.fields, h, w, scale=5.0)
    ticks = torch.arange(cfg.history).view(1, -1, 1, 1, 1) / cfg.history
    frames = base + 0.6 * ticks * drift + 0.1 * torch.randn(b, cfg.history, cfg.fields, h, w)
    frames = frames * torch.tensor(FIELD_STD).view(1, 1, -1, 1, 1) + torch.tensor(FIELD_MEAN).view(1, 1, -1, 1, 1)

    solid = torch.zeros(b, h, w, dtype=torch.bool)
    solid[0, 4:9, 6:12] = True
    solid[1, 0:6, 17:21] = True
    solid[1, 14:20, 3:7] = True
    solid[2, 11:15, 22:28] = True
    frames[:, :, :2] = frames[:, :, :2] * (~solid)[:, None, None]

    counts = torch.tensor([5, 3, 2])
    frame_mask = torch.arange(cfg.history)[None, :] >= cfg.history - counts[:, None]
    frames = frames * frame_mask[:, :, None, None, None]
    params = torch.tensor([[2e-3, 6e-4, 0.3, 0.0], [8e-4, 1.5e-3, 0.8, 0.3], [9e-3, 9e-4, 0.1, -0.2]])
    lengths = torch.tensor([[2.0, 3.4], [1.5, 2.4], [2.6, 4.5]])
    dt = torch.tensor([0.10, 0.06, 0.14])
    horizon = torch.tensor([4, 2, 3])
    inputs = (frames, frame_mask, solid, params, lengths, dt, horizon)
    return net.eval(), inputs

"""Rain in the next minutes from the last radar images, in MindSpore; the loss is part of the net."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

MEAN_DBZ, STD_DBZ = 14.0, 12.0
LOWEST, HIGHEST = -8.0, 56.0
ZR_A, ZR_B = 200.0, 1.6
WET_DBZ = 18.0
WET_WIDTH = 3.0
HOURS_PER_STEP = 0.25
DAYS_PER_YEAR = 365.25
WAVES = 2
DISCOUNT = 0.85
MISSED = 2.5
WINDOWS = (3, 5)
TERM_WEIGHTS = (1.0, 0.6, 0.4, 0.25)


# ---------------------------------------------------------------- layers


def conv(c_in, c_out, kernel=3, stride=1):
    return nn.Conv2d(c_in, c_out, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=True)


def norm(channels):
    return nn.GroupNorm(channels // 4, channels, eps=1e-4)


class SpaceTime(nn.Cell):
    """A convolution over space, then one over time that never sees the future."""

    def __init__(self, c_in, c_out, dilation=1):
        super().__init__()
        self.front = 2 * dilation
        self.spatial = nn.Conv3d(c_in, c_out, (1, 3, 3), pad_mode="pad", padding=(0, 0, 1, 1, 1, 1), has_bias=True)
        self.gn = norm(c_out)
        self.temporal = nn.Conv3d(c_out, c_out, (3, 1, 1), pad_mode="valid", dilation=(dilation, 1, 1))
        self.project = nn.Conv3d(c_in, c_out, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        out = ops.silu(self.gn(self.spatial(x)))
        b, c, _, h, w = out.shape
        before = ops.zeros((b, c, self.front, h, w), out.dtype)
        out = self.temporal(ops.concat((before, out), axis=2))
        return ops.silu(out + self.project(x))


class GRUCell2d(nn.Cell):
    def __init__(self, c_in, hidden):
        super().__init__()
        self.hidden = hidden
        self.conv_zr = conv(c_in + hidden, 2 * hidden)
        self.conv_n = conv(c_in + hidden, hidden)

    def construct(self, x, state):
        zr = ops.sigmoid(self.conv_zr(ops.concat((x, state), axis=1)))
        z = zr[:, :self.hidden]
        r = zr[:, self.hidden:]
        n = ops.tanh(self.conv_n(ops.concat((x, r * state), axis=1)))
        return n + z * (state - n)


class TimeEncoding(nn.Cell):
    """The hours of the day and the days of the year as circles."""

    def __init__(self, width):
        super().__init__()
        self.fc_in = nn.Dense(4 * WAVES, width)
        self.gelu = nn.GELU(approximate=False)
        self.fc_out = nn.Dense(width, width)

    def construct(self, hour, day):
        parts = []
        for part in (hour / 24, day / DAYS_PER_YEAR):
            angles = [part * (2 * math.pi * k) for k in range(1, WAVES + 1)]
            parts += [ops.sin(a) for a in angles] + [ops.cos(a) for a in angles]
        waves = ops.stack(parts, axis=-1)
        return self.fc_out(self.gelu(self.fc_in(waves)))


class AttentionPool(nn.Cell):
    """Learned questions look at all the places of all the images that are there."""

    def __init__(self, channels, questions, heads):
        super().__init__()
        self.heads = heads
        self.size = channels // heads
        self.query = Parameter(ops.zeros((questions, channels), ms.float32))
        self.to_k = nn.Dense(channels, channels, has_bias=False)
        self.to_v = nn.Dense(channels, channels)
        self.decay = Parameter(ops.zeros((heads,), ms.float32))

    def split_heads(self, x):
        """(..., places, channels) -> (..., heads, places, size)"""
        return x.reshape(x.shape[:-1] + (self.heads, self.size)).swapaxes(-2, -3)

    def construct(self, x, present):
        b, c, t, h, w = x.shape
        tokens = x.reshape(b, c, -1).transpose(0, 2, 1)
        k = self.split_heads(self.to_k(tokens))
        v = self.split_heads(self.to_v(tokens))
        q = self.split_heads(self.query).expand_dims(0)
        logits = ops.matmul(q, k.swapaxes(-1, -2)) * self.size ** -0.5
        logits = logits.reshape(b, self.heads, -1, t, h * w)
        steps_ago = Tensor(np.arange(t)[::-1].copy(), ms.float32)
        decay = ops.softplus(self.decay).reshape(-1, 1) * steps_ago
        logits = logits - decay[None, :, None, :, None]
        missing = ops.logical_not(present.astype(ms.bool_))
        logits = ops.masked_fill(logits, missing[:, None, None, :, None], -1e4)
        share = ops.softmax(logits.reshape(b, self.heads, -1, t * h * w), axis=-1)
        answer = ops.matmul(share, v).transpose(0, 2, 1, 3).reshape(b, -1)
        share = share.reshape(b, self.heads, -1, t, h * w).sum(-1)
        return answer, share.mean((1, 2))


# ---------------------------------------------------------------- rain


def standardise(dbz):
    return (ops.clamp(dbz, LOWEST, HIGHEST) - MEAN_DBZ) / STD_DBZ


def dbz_to_rate(dbz):
    """Millimetres an hour, after Marshall and Palmer."""
    linear = ops.pow(10.0, dbz / 10.0)
    return ops.pow(linear / ZR_A, 1.0 / ZR_B)


def carry_forward(frames, present):
    """Missing images are replaced by the last one before; also how many steps old each one is."""
    held = ops.zeros_like(frames[:, 0])
    old = ops.zeros_like(present[:, 0])
    images, ages = [], []
    for i in range(frames.shape[1]):
        here = present[:, i]
        there = here[:, None, None]
        held = there * frames[:, i] + (1.0 - there) * held
        old = (old + 1.0) * (1.0 - here)
        images.append(held)
        ages.append(old)
    return ops.stack(images, axis=1), ops.stack(ages, axis=1)


def translate(x, flow):
    """Moves each image by whole and parts of pixels along a flow (b, 2) that is the same everywhere."""
    h, w = x.shape[-2:]
    fy = Tensor(np.fft.fftfreq(h).reshape(1, h, 1), ms.float32)
    fx = Tensor(np.fft.fftfreq(w).reshape(1, 1, w), ms.float32)
    turn = flow[:, 0].reshape(-1, 1, 1) * fy + flow[:, 1].reshape(-1, 1, 1) * fx
    angle = (turn * (2 * math.pi)).expand_dims(1)
    spectrum = ops.fft2(x)
    real, imag = ops.real(spectrum), ops.imag(spectrum)
    cos, sin = ops.cos(angle), ops.sin(angle)
    moved = ops.Complex()(real * cos + imag * sin, imag * cos - real * sin)
    return ops.real(ops.ifft2(moved))


class NowcastLoss(nn.Cell):
    """Amount, place, pattern and edges; all count only where the radar sees, and less for later times."""

    def __init__(self):
        super().__init__()
        self.blurs = nn.CellList([
            nn.AvgPool2d(size, 1, pad_mode="pad", padding=size // 2, count_include_pad=False) for size in WINDOWS
        ])

    def weighted(self, error, seen):
        lead = Tensor(DISCOUNT ** np.arange(error.shape[1]), ms.float32)
        weight = seen * lead.reshape(1, -1, 1, 1)
        return (error * weight).sum((1, 2, 3)) / weight.sum((1, 2, 3))

    def edge_error(self, pred, target):
        return ops.square((ops.abs(pred) - ops.abs(target)) / STD_DBZ)

    def construct(self, pred, chance, target, coverage):
        seen = coverage.expand_dims(1).broadcast_to(pred.shape)
        heavy = 1.0 + ops.clamp(dbz_to_rate(target), max=10.0)
        error = ops.smooth_l1_loss(pred, target, beta=4.0, reduction="none")
        amount = self.weighted(heavy * error / STD_DBZ, seen)

        wet = (target > WET_DBZ).astype(ms.float32)
        cost = ops.relu(chance) - chance * wet + ops.log1p(ops.exp(-ops.abs(chance)))
        place = self.weighted(cost * ops.select(wet > 0, MISSED * ops.ones_like(wet), ops.ones_like(wet)), seen)

        soft = ops.sigmoid((pred - WET_DBZ) / WET_WIDTH)
        pattern = ops.zeros_like(amount)
        for blur in self.blurs:
            ours = blur(soft * seen)
            theirs = blur(wet * seen)
            gap = ops.square(ours - theirs).sum((2, 3))
            worst = (ops.square(ours) + ops.square(theirs)).sum((2, 3))
            pattern = pattern + (gap / (worst + 1e-3)).mean(1)

        edge_y = self.edge_error(pred[:, :, 1:] - pred[:, :, :-1], target[:, :, 1:] - target[:, :, :-1])
        edge_x = self.edge_error(pred[..., 1:] - pred[..., :-1], target[..., 1:] - target[..., :-1])
        edges = self.weighted(edge_y, seen[:, :, 1:] * seen[:, :, :-1])
        edges = edges + self.weighted(edge_x, seen[..., 1:] * seen[..., :-1])
        terms = ops.stack((amount, place, pattern, edges), axis=1)
        return (terms * Tensor(TERM_WEIGHTS, ms.float32)).sum(1), terms


# ---------------------------------------------------------------- the net


class RainCast(nn.Cell):
    def __init__(self, channels=12, hidden=16, width=20):
        super().__init__()
        self.time = TimeEncoding(width)
        self.stem = nn.SequentialCell(conv(3, channels, 3, 2), nn.LeakyReLU(alpha=0.2), conv(channels, channels))
        self.blocks = nn.CellList([SpaceTime(channels, channels), SpaceTime(channels, hidden, dilation=2)])
        self.modulate = nn.Dense(width, 2 * hidden)
        self.reader = GRUCell2d(hidden, hidden)
        self.attend = AttentionPool(hidden, 3, 4)
        self.weather = nn.SequentialCell(
            nn.Dense(3 * hidden, width), nn.LayerNorm((width,), epsilon=1e-5), nn.Tanh()
        )
        self.step_in = nn.Dense(2 * width, hidden)
        self.wind = nn.Dense(width, 2)
        self.writer = GRUCell2d(hidden, hidden)
        self.head = nn.SequentialCell(
            conv(hidden, 4 * channels), nn.PixelShuffle(2), nn.ELU(), conv(channels, 3)
        )
        self.criterion = NowcastLoss()

    def per_image(self, images, age, coverage):
        """The first layers see one image at a time: (b, t, h, w) -> (b, c, t, h / 2, w / 2)."""
        b, t, h, w = images.shape
        cover = coverage.expand_dims(1).broadcast_to(images.shape)
        old = ops.log1p(age)[:, :, None, None].broadcast_to(images.shape)
        x = ops.stack((images * cover, cover, old), axis=2)
        x = self.stem(x.reshape(b * t, 3, h, w))
        return x.reshape((b, t) + x.shape[1:]).swapaxes(1, 2)

    def read(self, frames, present, coverage, when):
        b, t = present.shape
        images, age = carry_forward(standardise(frames), present)
        x = self.per_image(images, age, coverage)
        for block in self.blocks:
            x = block(x)
        hours = when[:, :1] + Tensor(HOURS_PER_STEP * np.arange(1 - t, 1), ms.float32)
        days = when[:, 1:].broadcast_to((b, t))
        film = self.modulate(self.time(hours, days)).swapaxes(1, 2)
        scale, offset = ops.split(film[..., None, None], x.shape[1], axis=1)
        x = x * (scale + 1.0) + offset
        state = ops.zeros_like(x[:, :, 0])
        states = []
        for i in range(t):
            new = self.reader(x[:, :, i], state)
            here = present[:, i].reshape(b, 1, 1, 1)
            state = here * new + (1.0 - here) * state
            states.append(state)
        return images[:, t - 1:], ops.stack(states, axis=2)

    def advance(self, image, state, lead):
        """One step into the future."""
        coarse = ops.avg_pool2d(image, 2, 2)
        drive = ops.relu(lead)[:, :, None, None] + coarse * state
        state = self.writer(drive, state)
        change, gate, chance = ops.split(self.head(state), 1, axis=1)
        image = image + ops.sigmoid(gate) * ops.tanh(change)
        return image, state, chance + image

    def construct(self, frames, present, coverage, when, target):
        image, states = self.read(frames, present, coverage, when)
        answer, share = self.attend(states, present)
        weather = self.weather(answer)
        wind = 3.0 * ops.tanh(self.wind(weather))
        state = states[:, :, -1]
        images, chances = [], []
        for i in range(target.shape[1]):
            clock = self.time(when[:, 0] + HOURS_PER_STEP * (i + 1), when[:, 1])
            lead = self.step_in(ops.concat((weather, clock), axis=1))
            image, state, chance = self.advance(translate(image, wind), state, lead)
            images.append(image)
            chances.append(chance)
        images = ops.concat(images, axis=1)
        chance = ops.concat(chances, axis=1)
        loss, terms = self.criterion(images * STD_DBZ + MEAN_DBZ, chance, target, coverage)
        return images, ops.sigmoid(chance), share, wind, loss, terms


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return RainCast()

"""Small causal audio codec (SoundStream / DAC family) for MindSpore."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


# ---------------------------------------------------------------- helpers


def pad_causal(x, kernel, stride=1, dilation=1, mode="constant"):
    """All the padding in front, and behind as much as makes the last window whole."""
    span = (kernel - 1) * dilation + 1
    total = span - stride
    length = x.shape[-1]
    windows = math.ceil((length - span + total) / stride + 1)
    extra = (windows - 1) * stride + span - total - length
    return ops.pad(x, (total, extra), mode=mode)


def snake(x, alpha):
    a = ops.exp(alpha)
    return x + ops.square(ops.sin(a * x)) / (a + 1e-9)


def rms_norm(x, gain, axis, eps=1e-4):
    power = ops.mean(ops.square(x), axis, keep_dims=True)
    return x * ops.rsqrt(power + eps) * gain


def rotary(x, base=100.0):
    """x: (b, h, t, d), halves are rotated against each other."""
    t, d = x.shape[-2], x.shape[-1]
    freq = base ** (-np.arange(0, d, 2) / d)
    angle = np.arange(t)[:, None] * freq[None, :]
    cos = Tensor(np.cos(angle), ms.float32)
    sin = Tensor(np.sin(angle), ms.float32)
    lo, hi = ops.split(x, d // 2, axis=-1)
    return ops.concat([lo * cos - hi * sin, hi * cos + lo * sin], axis=-1)


def mel_table(bins, bands):
    """Triangles, equally wide on a warped axis; every one sums to one."""
    axis = np.log1p(np.arange(bins) / 4.0)
    edges = np.linspace(axis[1] / 2, axis[-1], bands + 2)
    rise = (axis[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[None, 2:] - axis[:, None]) / (edges[2:] - edges[1:-1])
    table = np.maximum(0.0, np.minimum(rise, fall))
    return table / (table.sum(0, keepdims=True) + 1e-3)


def conv1d(c_in, c_out, kernel, **kwargs):
    return nn.Conv1d(c_in, c_out, kernel, has_bias=True, pad_mode="valid", **kwargs)


def zeros(*shape):
    return Parameter(Tensor(np.zeros(shape), ms.float32))


# ---------------------------------------------------------------- convolutions


class ResUnit(nn.Cell):
    def __init__(self, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.alpha1 = zeros(1, channels, 1)
        self.conv1 = conv1d(channels, channels, 3, dilation=dilation)
        self.alpha2 = zeros(1, channels, 1)
        self.conv2 = conv1d(channels, channels, 1)

    def construct(self, x):
        y = snake(x, self.alpha1)
        y = self.conv1(pad_causal(y, 3, dilation=self.dilation))
        y = self.conv2(snake(y, self.alpha2))
        return (x + y) / math.sqrt(2.0)


class Down(nn.Cell):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.stride = stride
        self.units = nn.CellList([ResUnit(c_in, d) for d in (1, 3)])
        self.alpha = zeros(1, c_in, 1)
        self.conv = conv1d(c_in, c_out, 2 * stride, stride=stride)

    def construct(self, x):
        for unit in self.units:
            x = unit(x)
        x = snake(x, self.alpha)
        y = self.conv(pad_causal(x, 2 * self.stride, self.stride))
        # a shortcut past the convolution: means of windows, channels doubled
        b, c, t = x.shape
        whole = ops.pad(x, (0, -t % self.stride))
        short = whole.reshape(b, c, -1, self.stride).mean(axis=-1)
        short = ops.repeat_interleave(short, y.shape[1] // c, axis=1)
        return y + 0.5 * short


class Up(nn.Cell):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.stride = stride
        self.alpha = zeros(1, c_in, 1)
        self.conv = conv1d(c_in, 2 * c_out, 5)
        self.unit = ResUnit(c_out, 2)

    def construct(self, x):
        x = snake(x, self.alpha)
        x = ops.repeat_interleave(x, self.stride, axis=-1)
        # the place inside the repeated sample, as a slow ramp
        ramp = np.arange(x.shape[-1]) % self.stride / self.stride
        x = x + Tensor(0.3 * (ramp - ramp.mean()), x.dtype)
        value, gate = mint.chunk(self.conv(pad_causal(x, 5, mode="replicate")), 2, dim=1)
        return self.unit(value * ops.sigmoid(gate + 1.0))


# ---------------------------------------------------------------- latent


class Mixer(nn.Cell):
    """Attention over the last few frames."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.window = window
        self.gain = Parameter(Tensor(np.ones(width), ms.float32))
        self.qkv = nn.Dense(width, 3 * width)
        self.recency = zeros(heads, window)
        self.out = nn.Dense(width, width)

    def construct(self, x):
        b, c, t = x.shape
        y = rms_norm(x.swapaxes(1, 2), self.gain, axis=-1)
        y = self.qkv(y).reshape(b, t, self.heads, 3, -1)
        q, k, v = ops.unbind(y.permute(3, 0, 2, 1, 4), 0)
        q = rotary(q)
        k = rotary(k)
        score = ops.matmul(q, k.swapaxes(-2, -1)) * q.shape[-1] ** -0.5
        ago = np.arange(t)[:, None] - np.arange(t)[None, :]
        score = score + self.recency[:, Tensor(ago.clip(0, self.window - 1), ms.int32)]
        far = Tensor((ago < 0) | (ago >= self.window))
        score = ops.masked_fill(score, far, float("-inf"))
        y = ops.matmul(ops.softmax(score, -1), v)
        y = y.permute(0, 2, 1, 3).reshape(b, t, c)
        return x + self.out(y).swapaxes(1, 2)


class Quantizer(nn.Cell):
    """Residual stages; each looks for the nearest code among normalised ones."""

    def __init__(self, width, dim, codes, stages):
        super().__init__()
        self.proj_in = nn.CellList([nn.Dense(width, dim) for _ in range(stages)])
        self.proj_out = nn.CellList([nn.Dense(dim, width) for _ in range(stages)])
        self.books = zeros(stages, codes, dim)
        self.temperature = 0.25

    def nearest(self, e, book):
        flat = e.reshape(-1, e.shape[-1])
        flat = flat / mint.clamp(ops.norm(flat, dim=-1, keepdim=True), min=1e-12)
        unit = book / mint.clamp(ops.norm(book, dim=-1, keepdim=True), min=1e-12)
        cross = ops.matmul(flat, unit.T)
        dist = flat.square().sum(1, keepdims=True) - 2 * cross + unit.square().sum(1).expand_dims(0)
        index = ops.argmin(dist, axis=1)
        share = ops.softmax(-dist / self.temperature, axis=1).mean(axis=0)
        return index.reshape(e.shape[:-1]), share

    def construct(self, z):
        residual = z.swapaxes(1, 2)
        total = ops.zeros_like(residual)
        losses, spread = [], []
        for i in range(len(self.proj_in)):
            book = self.books[i]
            e = self.proj_in[i](residual)
            index, share = self.nearest(e, book)
            code = ops.gather(book, index, 0)
            error = code - e
            losses.append(error.square().mean((1, 2)) + 0.25 * ops.amax(error.abs(), (1, 2)))
            code = e + ops.stop_gradient(code - e)
            step = self.proj_out[i](code)
            residual = residual - step
            total = total + step
            spread.append(ops.exp(-(share * ops.log(share + 1e-7)).sum()))
        left = residual.square().mean((1, 2)) / z.square().mean((1, 2))
        return total.swapaxes(1, 2), ops.stack(losses, axis=1), ops.stack(spread), left


# ---------------------------------------------------------------- the codec


class Codec(nn.Cell):
    def __init__(self, channels=8, strides=(2, 4, 5), dim=6, codes=24, stages=3, size=64, hop=24, bands=12):
        super().__init__()
        self.size, self.hop = size, hop
        self.first = conv1d(1, channels, 7)
        self.down = nn.CellList([Down(channels * 2**i, channels * 2 ** (i + 1), s) for i, s in enumerate(strides)])
        width = channels * 2 ** len(strides)
        self.loud = nn.Dense(2, width)
        self.mixer = Mixer(width, 4, 5)
        self.quantizer = Quantizer(width, dim, codes, stages)
        self.gain = Parameter(Tensor(np.ones((1, width, 1)), ms.float32))
        self.up = nn.CellList([
            Up(channels * 2 ** (i + 1), channels * 2**i, s) for i, s in reversed(list(enumerate(strides)))
        ])
        self.alpha = zeros(1, channels, 1)
        self.last = conv1d(channels, 1, 7)
        n = np.arange(size)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * n / size)
        turn = 2 * np.pi * np.outer(n, np.arange(size // 2 + 1)) / size
        self.window = Tensor(window, ms.float32)
        self.cos = Tensor(np.cos(turn), ms.float32)
        self.sin = Tensor(np.sin(turn), ms.float32)
        self.mel = Tensor(mel_table(size // 2 + 1, bands), ms.float32)

    def frames(self, wave):
        """(b, t) -> (b, frames, size), the first frame's middle is the first sample."""
        half = self.size // 2
        wave = ops.pad(wave.expand_dims(1), (half, half), mode="reflect").squeeze(1)
        count = (wave.shape[-1] - self.size) // self.hop + 1
        index = np.arange(count)[:, None] * self.hop + np.arange(self.size)
        return ops.gather(wave, Tensor(index, ms.int32), 1)

    def energy(self, wave):
        cut = self.frames(wave) * self.window
        return ops.log(cut.square().sum(-1) / self.window.square().sum() + 1e-3)

    def melspec(self, wave):
        cut = self.frames(wave - wave.mean(-1, keep_dims=True)) * self.window
        power = ops.matmul(cut, self.cos) ** 2 + ops.matmul(cut, self.sin) ** 2
        mel = ops.matmul(ops.sqrt(power + 1e-3), self.mel)
        mel = ops.log10(ops.clamp(mel, min=2e-2))
        floor = ops.amax(mel, (1, 2), keepdims=True) - 2.5
        return ops.maximum(mel, floor)

    def encode(self, wave):
        x = self.first(pad_causal(wave.expand_dims(1), 7, mode="reflect"))
        for block in self.down:
            x = block(x)
        level = self.energy(wave).expand_dims(1)
        level = ops.interpolate(level, size=x.shape[-1], mode="linear", align_corners=False)
        rise = level - ops.concat([level[..., :1], level[..., :-1]], axis=-1)
        loud = ops.concat([level, rise], axis=1)
        x = x + self.loud(loud.swapaxes(1, 2)).swapaxes(1, 2)
        return self.mixer(x)

    def decode(self, z, length):
        x = rms_norm(z, self.gain, axis=1)
        for block in self.up:
            x = block(x)
        x = self.last(pad_causal(snake(x, self.alpha), 7))
        return ops.tanh(x[:, 0, :length])

    def construct(self, wave):
        length = wave.shape[-1]
        scale = ops.sqrt(wave.square().mean(-1, keep_dims=True))
        scale = ops.clamp(scale, min=1e-3)
        latent = self.encode(wave / scale)
        codes, commit, spread, left = self.quantizer(latent)
        out = self.decode(codes, length)
        ours = self.melspec(out)
        theirs = self.melspec(wave / scale)
        gap = (ours - theirs).abs().mean(-1)
        move = ops.relu(ours[:, 1:] - ours[:, :-1]).sum(-1)
        return out * scale, ours, gap, move, commit.sum(1) * (1.0 + left), spread


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Codec()

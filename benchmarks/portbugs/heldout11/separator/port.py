"""The hybrid music source separator in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.mint.nn import functional as F


def hann(size: int):
    """The periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)


def trim_to(x, length: int):
    """The middle `length` samples of the last axis."""
    start = (x.shape[-1] - length) // 2
    return x[..., start : start + length]


def gated(x, axis: int):
    """GLU: the first half, gated by the second."""
    value, gate = mint.chunk(x, 2, dim=axis)
    return value * mint.sigmoid(gate)


def conv1d(c_in: int, c_out: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1):
    return nn.Conv1d(
        c_in, c_out, kernel, stride, pad_mode="pad", padding=padding, dilation=dilation, has_bias=True
    )


class Spectral:
    """The tables of both transforms; no cell, since nothing in it is trained."""

    def __init__(self, n_fft: int, hop: int):
        self.n_fft, self.hop, self.bins = n_fft, hop, n_fft // 2
        self.edge = hop // 2 * 3
        window = hann(n_fft)
        # Nyquist is never used: its column is left out of both tables.
        angles = 2 * np.pi * np.arange(n_fft)[:, None] * np.arange(self.bins)[None, :] / n_fft
        forward = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1) * window[:, None] / np.sqrt(n_fft)
        twice = np.where(np.arange(self.bins) == 0, 1.0, 2.0)
        inverse = np.concatenate([np.cos(angles) * twice, -np.sin(angles) * twice], axis=1).T
        self.forward = Tensor(forward, ms.float32)
        self.inverse = Tensor(inverse * window / np.sqrt(n_fft), ms.float32)
        self.power = np.square(window)

    def analyse(self, x):
        """(B, C, L) to (B, C, T, F) twice: the real and the imaginary part."""
        length = x.shape[-1]
        count = -(-length // self.hop)
        x = ops.pad(x, (self.edge, self.edge + count * self.hop - length), mode="reflect")
        x = ops.pad(x, (self.n_fft // 2, self.n_fft // 2), mode="reflect")
        places = (np.arange(count) + 2)[:, None] * self.hop + np.arange(self.n_fft)[None, :]
        z = mint.matmul(x[..., Tensor(places, ms.int32)], self.forward)
        return z[..., : self.bins], z[..., self.bins :]

    def synthesise(self, real, imag, length: int):
        """(B, S, C, T, F) twice to (B, S, C, L); two silent frames are thought at either end."""
        frames = mint.matmul(mint.cat([real, imag], dim=-1), self.inverse)
        lead, count = frames.shape[:-2], frames.shape[-2]
        parts = self.n_fft // self.hop
        pieces = frames.reshape(-1, count, parts, self.hop)
        blank = ops.zeros((pieces.shape[0], 2, parts, self.hop), ms.float32)
        pieces = mint.cat([blank, pieces, blank], dim=1)
        count = count + 4
        signal = ops.zeros((pieces.shape[0], count + parts - 1, self.hop), ms.float32)
        envelope = np.zeros((count + parts - 1, self.hop))
        for p in range(parts):
            signal = signal + ops.pad(pieces[:, :, p], (0, 0, p, parts - 1 - p))
            envelope[p : p + count] += self.power.reshape(parts, self.hop)[p]
        signal = signal / Tensor(np.maximum(envelope, 1e-8), ms.float32)
        start = self.n_fft // 2 + self.edge
        return signal.reshape(*lead, -1)[..., start : start + length]


class RMSNorm(nn.Cell):
    def __init__(self, dim: int):
        super().__init__()
        self.gamma = Parameter(ops.ones((dim,), ms.float32))

    def construct(self, x):
        mean_square = mint.mean(mint.square(x), dim=-1, keepdim=True)
        return x * mint.rsqrt(mean_square + 1e-20) * self.gamma


class BandSplit(nn.Cell):
    """Cuts the spectrum into bands of unequal width and makes a token of each, which also knows how loud it is."""

    def __init__(self, dim: int, widths, channels: int):
        super().__init__()
        self.borders = np.cumsum((0, *widths)).tolist()
        self.level = Parameter(ops.zeros((len(widths), dim), ms.float32))
        self.in_layers = nn.CellList(
            [nn.SequentialCell(RMSNorm(2 * channels * w), nn.Dense(2 * channels * w, dim)) for w in widths]
        )
        self.freq_emb = nn.Embedding(len(widths), dim)
        self.emb_weight = 0.2 * 10.0

    def construct(self, real, imag):
        batch, _, frames, _ = real.shape
        power = mint.square(real) + mint.square(imag)
        tokens, levels = [], []
        for i, layer in enumerate(self.in_layers):
            low, high = self.borders[i], self.borders[i + 1]
            band = ops.stack([real[..., low:high], imag[..., low:high]], axis=-1)
            band = mint.permute(band, (0, 2, 3, 1, 4)).reshape(batch, frames, -1)
            tokens.append(layer(band))
            levels.append(ops.log10(mint.mean(power[..., low:high], dim=(1, 3)) + 1e-5))
        levels = ops.stack(levels, axis=-1)
        spread = levels.std(axis=-1, ddof=1, keepdims=True)
        levels = (levels - levels.mean(axis=-1, keep_dims=True)) / (spread + 1e-3)
        x = ops.stack(tokens, axis=2) + levels.expand_dims(-1) * self.level
        return x + self.emb_weight * self.freq_emb(Tensor(np.arange(len(tokens)), ms.int32))


class ResRNN(nn.Cell):
    """Norm, two-way LSTM and projection in a shortcut, along the third axis of four."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.norm = mint.nn.GroupNorm(1, dim, eps=1e-4)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.proj = nn.Dense(2 * hidden, dim)

    def construct(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[2], shape[3])
        y = self.norm(x.swapaxes(1, 2)).swapaxes(1, 2)
        y = self.proj(self.rnn(y)[0])
        return (x + y).reshape(shape)


class Rotary(nn.Cell):
    """Turns each pair of neighbours by an angle that grows with the place."""

    def __init__(self, dim_head: int, theta: float = 10000.0):
        super().__init__()
        self.freqs = theta ** (-np.arange(0, dim_head, 2) / dim_head)

    def construct(self, x):
        angles = np.arange(x.shape[-2])[:, None] * self.freqs
        cos, sin = Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = ops.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
        return turned.reshape(x.shape)


class Attention(nn.Cell):
    """Attention with rotary places and a gate for each head."""

    def __init__(self, dim: int, heads: int, dim_head: int):
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(dim_head)
        self.norm = RMSNorm(dim)
        self.qkv = nn.Dense(dim, 3 * heads * dim_head, has_bias=False)
        self.gates = nn.Dense(dim, heads)
        self.out = nn.Dense(heads * dim_head, dim, has_bias=False)
        self.rotary = Rotary(dim_head)

    def construct(self, x, bias=None):
        batch, length, _ = x.shape
        normed = self.norm(x)
        qkv = self.qkv(normed).reshape(batch, length, 3, self.heads, -1)
        q, k, v = mint.unbind(mint.permute(qkv, (2, 0, 3, 1, 4)), 0)
        scores = mint.matmul(self.rotary(q) * self.scale, self.rotary(k).swapaxes(-1, -2))
        if bias is not None:
            scores = scores + bias[:, None, None, :]
        y = mint.matmul(F.softmax(scores, dim=-1), v).swapaxes(1, 2)
        y = y * mint.sigmoid(self.gates(normed)).expand_dims(-1)
        return self.out(y.reshape(batch, length, -1))


class FeedForward(nn.Cell):
    def __init__(self, dim: int, mult: int):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.fc1 = nn.Dense(dim, mult * dim)
        self.fc2 = nn.Dense(mult * dim, dim)

    def construct(self, x):
        return self.fc2(ops.gelu(self.fc1(self.norm(x)), approximate="none"))


class AxialBlock(nn.Cell):
    """Attention over the frames of a band, then over the bands of a frame."""

    def __init__(self, dim: int, heads: int, dim_head: int):
        super().__init__()
        self.time_attn = Attention(dim, heads, dim_head)
        self.time_ff = FeedForward(dim, 2)
        self.band_attn = Attention(dim, heads, dim_head)
        self.band_ff = FeedForward(dim, 2)
        self.norm = RMSNorm(dim)

    def construct(self, x, valid):
        batch, frames, bands, dim = x.shape
        bias = ops.repeat_interleave((1.0 - valid.astype(ms.float32)) * -1e9, bands, axis=0)
        y = mint.permute(x, (0, 2, 1, 3)).reshape(-1, frames, dim)
        y = y + self.time_attn(y, bias)
        y = y + self.time_ff(y)
        y = mint.permute(y.reshape(batch, bands, frames, dim), (0, 2, 1, 3)).reshape(-1, bands, dim)
        y = y + self.band_attn(y)
        y = y + self.band_ff(y)
        return x + self.norm(y).reshape(x.shape)


class MaskHead(nn.Cell):
    def __init__(self, dim: int, outputs: int):
        super().__init__()
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.hidden = nn.Dense(dim, 2 * dim, activation="tanh")
        self.last = nn.Dense(2 * dim, 2 * outputs)

    def construct(self, x):
        return gated(self.last(self.hidden(self.norm(x))), -1)


class MaskEstimator(nn.Cell):
    """A complex mask of every bin for each stem, band by band, as its two parts."""

    def __init__(self, dim: int, widths, channels: int, stems: int):
        super().__init__()
        self.channels, self.stems, self.widths = channels, stems, widths
        self.heads = nn.CellList([MaskHead(dim, 2 * stems * channels * w) for w in widths])

    def construct(self, x):
        batch, frames = x.shape[:2]
        bands = []
        for i, head in enumerate(self.heads):
            mask = head(x[:, :, i]).reshape(batch, frames, self.stems, self.widths[i], self.channels, 2)
            bands.append(mint.permute(mask, (0, 2, 4, 1, 3, 5)))
        masks = mint.cat(bands, dim=4)
        return masks[..., 0], masks[..., 1]


class LayerScale(nn.Cell):
    def __init__(self, channels: int):
        super().__init__()
        self.scale = Parameter(ms.numpy.full((channels,), 0.5, ms.float32))

    def construct(self, x):
        return self.scale.reshape(1, -1, 1) * x


class DilatedBranch(nn.Cell):
    def __init__(self, channels: int, hidden: int, dilation: int):
        super().__init__()
        self.conv1 = conv1d(channels, hidden, 3, padding=dilation, dilation=dilation)
        self.norm1 = mint.nn.GroupNorm(1, hidden)
        self.conv2 = conv1d(hidden, 2 * channels, 1)
        self.norm2 = mint.nn.GroupNorm(1, 2 * channels)

    def construct(self, x):
        y = ops.gelu(self.norm1(self.conv1(x)), approximate="none")
        return gated(self.norm2(self.conv2(y)), 1)


class DConv(nn.Cell):
    """Two small dilated branches in shortcuts."""

    def __init__(self, channels: int, compress: int = 2, depth: int = 2):
        super().__init__()
        self.layers = nn.CellList([DilatedBranch(channels, channels // compress, 2**d) for d in range(depth)])
        self.scales = nn.CellList([LayerScale(channels) for _ in range(depth)])

    def construct(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = x + scale(layer(x))
        return x


class Encoder(nn.Cell):
    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int):
        super().__init__()
        self.conv = conv1d(c_in, c_out, kernel, stride)
        self.dconv = DConv(c_out)
        self.rewrite = conv1d(c_out, 2 * c_out, 1)

    def construct(self, x):
        x = ops.gelu(self.conv(x), approximate="none")
        return gated(self.rewrite(self.dconv(x)), 1)


class Decoder(nn.Cell):
    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, context: int, last: bool):
        super().__init__()
        self.last = last
        self.rewrite = conv1d(c_in, 2 * c_in, context)
        self.upsample = nn.Conv1dTranspose(c_in, c_out, kernel, stride, pad_mode="valid", has_bias=True)

    def construct(self, x, skip):
        x = x + trim_to(skip, x.shape[-1])
        x = self.upsample(gated(self.rewrite(x), 1))
        if not self.last:
            x = ops.gelu(x, approximate="none")
        return x


class ChunkedLSTM(nn.Cell):
    """A two-way LSTM on overlapping chunks, of which only the middles are kept."""

    def __init__(self, dim: int, max_steps: int):
        super().__init__()
        self.max_steps = max_steps
        self.lstm = nn.LSTM(dim, dim, num_layers=2, bidirectional=True)
        self.linear = nn.Dense(2 * dim, dim)

    def construct(self, x):
        batch, channels, length = x.shape
        width, stride = self.max_steps, self.max_steps // 2
        count = (length + stride - 1) // stride
        padded = ops.pad(x, (0, (count - 1) * stride + width - length))
        places = np.arange(count)[:, None] * stride + np.arange(width)[None, :]
        chunks = padded[..., Tensor(places, ms.int32)]  # (B, C, chunks, width)
        chunks = mint.permute(chunks, (3, 0, 2, 1)).reshape(width, batch * count, channels)
        y = self.linear(self.lstm(chunks)[0])
        y = mint.permute(y.reshape(width, batch, count, channels), (1, 3, 2, 0))
        limit = stride // 2
        head = y[:, :, 0, :limit]
        middle = y[:, :, :, limit : width - limit].reshape(batch, channels, -1)
        tail = y[:, :, -1, width - limit :]
        return x + mint.cat([head, middle, tail], dim=-1)[..., :length]


class WaveBranch(nn.Cell):
    """A U-net on the waveform; its middle is told what the spectral branch has found."""

    def __init__(self, channels: int, stems: int, dim: int, widths=(12, 20, 32), kernel=8, stride=4, context=3):
        super().__init__()
        self.kernel, self.stride, self.context, self.depth = kernel, stride, context, len(widths)
        sizes = (channels, *widths)
        outs = (stems * channels, *widths[:-1])
        self.encoder = nn.CellList([Encoder(sizes[i], sizes[i + 1], kernel, stride) for i in range(self.depth)])
        self.decoder = nn.CellList(
            [Decoder(widths[i], outs[i], kernel, stride, context, i == 0) for i in reversed(range(self.depth))]
        )
        self.inject = nn.Dense(dim, widths[-1])
        self.lstm = ChunkedLSTM(widths[-1], max_steps=12)

    def valid_length(self, length: int):
        for _ in range(self.depth):
            length = max(1, -(-(length - self.kernel) // self.stride) + 1) + self.context - 1
        for _ in range(self.depth):
            length = (length - 1) * self.stride + self.kernel
        return length

    def construct(self, mix, tokens):
        length = mix.shape[-1]
        missing = self.valid_length(length) - length
        left = missing // 2
        x = ops.pad(mix, (left, missing - left))
        skips = []
        for layer in self.encoder:
            x = layer(x)
            skips.append(x)
        told = self.inject(mint.mean(tokens, dim=2)).swapaxes(1, 2)
        x = x + ops.interpolate(told, size=(x.shape[-1],), mode="linear", align_corners=False)
        x = self.lstm(x)
        for layer, skip in zip(self.decoder, skips[::-1]):
            x = layer(x, skip)
        return trim_to(x, length)


class Activity(nn.Cell):
    """How active each stem is in each frame."""

    def __init__(self, dim: int, stems: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, eps=1e-5)
        self.head = nn.Dense(dim, stems)

    def construct(self, tokens, valid):
        loudest = tokens.max(axis=2)
        batch, frames, dim = loudest.shape
        logits = self.head(self.norm(loudest.reshape(-1, dim))).reshape(batch, frames, -1)
        return mint.sigmoid(logits) * valid.astype(ms.float32).expand_dims(-1)


def share_rest(stems, mix):
    """Shares what the stems lack of the mix among them, by their energies."""
    energy = mint.mean(mint.square(stems), dim=(2, 3), keepdim=True)
    weight = energy / (mint.sum(energy, dim=1, keepdim=True) + 1e-8)
    return stems + weight * (mix - mint.sum(stems, dim=1)).expand_dims(1)


class Separator(nn.Cell):
    """Stems of a stereo mix, and how active each is over time."""

    def __init__(self, stems=3, channels=2, dim=32, n_fft=128, hop=32, widths=(4, 4, 4, 4, 8, 8, 16, 16), depth=2):
        super().__init__()
        self.hop, self.stems = hop, stems
        self.spectral = Spectral(n_fft, hop)
        self.band_split = BandSplit(dim, widths, channels)
        self.rnns = nn.CellList([ResRNN(dim, dim) for _ in range(2)])
        self.layers = nn.CellList([AxialBlock(dim, 4, 12) for _ in range(depth)])
        self.masks = MaskEstimator(dim, widths, channels, stems)
        self.wave = WaveBranch(channels, stems, dim)
        self.activity = Activity(dim, stems)

    def moments(self, mix, inside, lengths):
        """Mean and deviation of the mono mix, without what is behind the end of the clip."""
        count = lengths.astype(ms.float32).reshape(-1, 1, 1)
        mono = mint.mean(mix, dim=1, keepdim=True)
        mean = mint.sum(mono * inside, dim=-1, keepdim=True) / count
        variance = mint.sum(mint.square(mono - mean) * inside, dim=-1, keepdim=True) / (count - 1.0)
        return mean, mint.sqrt(variance)

    def construct(self, mix, lengths):
        batch, channels, length = mix.shape
        places = Tensor(np.arange(length), ms.int32)
        inside = (places < lengths.astype(ms.int32)[:, None]).astype(ms.float32)[:, None]
        mean, std = self.moments(mix, inside, lengths)
        x = (mix - mean) / (std + 1e-5) * inside

        real, imag = self.spectral.analyse(x)
        ends = (lengths.astype(ms.int32) + self.hop - 1) // self.hop
        valid = Tensor(np.arange(real.shape[2]), ms.int32) < ends[:, None]

        tokens = self.band_split(real, imag)
        tokens = self.rnns[0](tokens.swapaxes(1, 2)).swapaxes(1, 2)
        tokens = self.rnns[1](tokens)
        for layer in self.layers:
            tokens = layer(tokens, valid)

        mask_real, mask_imag = self.masks(tokens)
        real, imag = real.expand_dims(1), imag.expand_dims(1)
        stem_real = real * mask_real - imag * mask_imag
        stem_imag = real * mask_imag + imag * mask_real
        stems = self.spectral.synthesise(stem_real, stem_imag, length)
        stems = stems + self.wave(x, tokens).reshape(batch, self.stems, channels, length)
        stems = share_rest(stems, x)
        stems = stems * std.expand_dims(1) + mean.expand_dims(1)
        return stems * inside.expand_dims(1), self.activity(tokens, valid)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    return Separator()

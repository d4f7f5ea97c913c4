"""The multi-speaker acoustic model in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


def length_to_mask(lengths, max_length: int):
    """[b] -> [b, 1, max_length], one where there is something."""
    steps = Tensor(np.arange(max_length), ms.float32)
    return (steps[None, :] < lengths.astype(ms.float32)[:, None]).astype(ms.float32)[:, None, :]


def conv1d(c_in, c_out, kernel_size=1, dilation=1, pad_mode="same"):
    return nn.Conv1d(c_in, c_out, kernel_size, dilation=dilation, pad_mode=pad_mode, has_bias=True)


def fold_time(x, mask, n: int):
    """n steps of time become one, with n times the channels."""
    b, c, t = x.shape
    t = t // n * n
    x = x[:, :, :t].reshape(b, c, t // n, n)
    x = x.transpose(0, 3, 1, 2).reshape(b, c * n, t // n)
    mask = mask[:, :, n - 1 :: n]
    return x * mask, mask


def unfold_time(x, n: int):
    b, c, t = x.shape
    parts = mint.split(x, c // n, dim=1)
    return ops.stack(parts, axis=-1).reshape(b, c // n, t * n)


class ChannelNorm(nn.Cell):
    def __init__(self, channels: int, eps: float = 1e-4):
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(ops.ones((channels,), ms.float32), name="gamma")
        self.beta = Parameter(ops.zeros((channels,), ms.float32), name="beta")

    def construct(self, x):
        mean = ops.mean(x, 1, keep_dims=True)
        var = ops.var(x, axis=1, keepdims=True)
        x = (x - mean) * ops.rsqrt(var + self.eps)
        return x * self.gamma[None, :, None] + self.beta[None, :, None]


class Prenet(nn.Cell):
    def __init__(self, channels: int, kernel_size: int, n_layers: int):
        super().__init__()
        self.conv_layers = nn.CellList([conv1d(channels, channels, kernel_size) for _ in range(n_layers)])
        self.norm_layers = nn.CellList([ChannelNorm(channels) for _ in range(n_layers)])
        self.proj = conv1d(channels, channels)

    def construct(self, x, mask):
        y = x
        for conv, norm in zip(self.conv_layers, self.norm_layers):
            y = ops.relu(norm(conv(y * mask)))
        return (x + self.proj(y)) * mask


class RelativeAttention(nn.Cell):
    def __init__(self, channels: int, n_heads: int, window: int = 4):
        super().__init__()
        self.n_heads = n_heads
        self.window = window
        self.depth = channels // n_heads
        self.scale = 1.0 / math.sqrt(self.depth)
        self.conv_q = conv1d(channels, channels)
        self.conv_k = conv1d(channels, channels)
        self.conv_v = conv1d(channels, channels)
        shape = (1, 2 * window + 1, self.depth)
        self.emb_rel_k = Parameter(Tensor(np.random.randn(*shape) * 0.4, ms.float32), name="emb_rel_k")
        self.emb_rel_v = Parameter(Tensor(np.random.randn(*shape) * 0.4, ms.float32), name="emb_rel_v")
        self.conv_o = conv1d(channels, channels)

    def split_heads(self, x):
        b, _, t = x.shape
        return x.reshape(b, self.n_heads, self.depth, t).swapaxes(2, 3)

    def key_table(self, offsets):
        """The keys' vectors for all pairs of places, zero outside of the window: [t, t, depth]."""
        near = Tensor(np.abs(offsets) <= self.window, ms.float32)
        index = Tensor(np.clip(offsets, -self.window, self.window) + self.window, ms.int32)
        return ops.gather(self.emb_rel_k[0], index, 0) * near[:, :, None]

    def skewed(self, weights):
        """[b, h, t, t] -> [b, h, t, 2t-1]: weights by distance."""
        b, h, t, _ = weights.shape
        x = ops.pad(weights, (0, t - 1)).reshape(b, h, t * (2 * t - 1))
        x = ops.pad(x, (t, 0)).reshape(b, h, t, 2 * t)
        return x[:, :, :, 1:]

    def construct(self, x, attn_mask):
        b, c, t = x.shape
        query = self.split_heads(self.conv_q(x)) * self.scale
        key = self.split_heads(self.conv_k(x))
        value = self.split_heads(self.conv_v(x))
        rows, columns = np.arange(t)[:, None], np.arange(t)[None, :]

        table = self.key_table(columns - rows)
        scores = mint.matmul(query, key.swapaxes(2, 3))
        scores = scores + (query[:, :, :, None, :] * table[None, None]).sum(axis=-1)
        scores = scores - Tensor(np.log1p(np.abs(columns - rows)), ms.float32)
        scores = scores.masked_fill(attn_mask == 0, -1e4)
        weights = ops.softmax(scores, axis=-1)

        out = mint.matmul(weights, value)
        if t > self.window + 1:
            extra = t - (self.window + 1)
            distant = ops.pad(self.emb_rel_v, (0, 0, extra, extra))
        else:
            start = self.window + 1 - t
            distant = self.emb_rel_v[:, start : start + 2 * t - 1]
        out = out + mint.matmul(self.skewed(weights), distant[None])
        return self.conv_o(out.swapaxes(2, 3).reshape(b, c, t))


class FeedForward(nn.Cell):
    def __init__(self, channels: int, filter_channels: int, kernel_size: int):
        super().__init__()
        self.conv_1 = conv1d(channels, filter_channels, kernel_size)
        self.conv_2 = conv1d(filter_channels, channels, kernel_size)

    def construct(self, x, mask):
        return self.conv_2(ops.relu(self.conv_1(x * mask)) * mask) * mask


class EncoderLayer(nn.Cell):
    def __init__(self, channels: int, filter_channels: int, n_heads: int, kernel_size: int):
        super().__init__()
        self.attn = RelativeAttention(channels, n_heads)
        self.norm_1 = ChannelNorm(channels)
        self.ffn = FeedForward(channels, filter_channels, kernel_size)
        self.norm_2 = ChannelNorm(channels)

    def construct(self, x, mask, attn_mask):
        x = x * mask
        x = self.norm_1(x + self.attn(x, attn_mask))
        return self.norm_2(x + self.ffn(x, mask))


class PhonemeEncoder(nn.Cell):
    def __init__(self, n_vocab, n_stress, channels, filter_channels, n_heads, n_layers, kernel_size=3):
        super().__init__()
        self.scale = math.sqrt(channels)
        self.emb = nn.Embedding(n_vocab, channels)
        self.emb_stress = nn.Embedding(n_stress, channels)
        self.prenet = Prenet(channels, 5, 2)
        self.layers = nn.CellList(
            [EncoderLayer(channels, filter_channels, n_heads, kernel_size) for _ in range(n_layers)]
        )

    def construct(self, phonemes, stress, lengths):
        x = (self.emb(phonemes) + self.emb_stress(stress)) * self.scale
        x = x.swapaxes(1, 2)
        mask = length_to_mask(lengths, phonemes.shape[1])
        x = self.prenet(x, mask)
        attn_mask = mask[:, :, None, :] * mask[:, :, :, None]
        for layer in self.layers:
            x = layer(x, mask, attn_mask)
        return x * mask, mask


class VariancePredictor(nn.Cell):
    def __init__(self, channels: int, filter_channels: int, kernel_size: int = 3):
        super().__init__()
        self.conv_1 = conv1d(channels, filter_channels, kernel_size)
        self.act = nn.LeakyReLU(0.1)
        self.norm_1 = nn.LayerNorm((filter_channels,), epsilon=1e-5)
        self.conv_2 = conv1d(filter_channels, filter_channels, kernel_size)
        self.norm_2 = nn.LayerNorm((filter_channels,), epsilon=1e-5)
        self.linear_layer = nn.Dense(filter_channels, 1)

    def construct(self, x, padded):
        x = x.masked_fill(padded[:, :, None], 0.0).swapaxes(1, 2)
        x = self.norm_1(self.act(self.conv_1(x)).swapaxes(1, 2)).swapaxes(1, 2)
        x = self.norm_2(self.act(self.conv_2(x)).swapaxes(1, 2))
        return self.linear_layer(x)[:, :, 0].masked_fill(padded, 0.0)


class BucketEmbedding(nn.Cell):
    """A vector for the bin that a number falls into."""

    def __init__(self, bins, channels: int):
        super().__init__()
        self.bins = Tensor(bins, ms.float32)
        self.embedding = nn.Embedding(len(bins) + 1, channels)

    def construct(self, values):
        return self.embedding(ops.searchsorted(self.bins, values))


class LengthRegulator(nn.Cell):
    """Repeats each phoneme for as many frames as it lasts, and adds how far within it a frame is."""

    def __init__(self, channels: int, max_frames: int):
        super().__init__()
        self.max_frames = max_frames
        self.progress = nn.Dense(2, channels)

    def construct(self, x, x_mask, duration):
        lengths = ops.clamp(duration.sum(axis=1), 2, self.max_frames).astype(ms.int32)
        lengths = lengths // 2 * 2
        t = int(lengths.max())
        y_mask = length_to_mask(lengths, t)

        places = Tensor(np.arange(t), ms.float32)
        ends = ops.cumsum(duration, 1)
        starts = ends - duration
        within = mint.logical_and(places[None, :, None] >= starts[:, None, :], places[None, :, None] < ends[:, None, :])
        path = within.astype(ms.float32) * (y_mask.swapaxes(1, 2) * x_mask)
        frames = mint.matmul(path, x)

        inside = places[None, :] - (path * starts[:, None, :]).sum(axis=-1)
        total = ops.clamp((path * duration[:, None, :]).sum(axis=-1), min=1.0)
        ratio = inside / total * y_mask[:, 0]
        frames = frames + self.progress(ops.stack([ratio, 1.0 - ratio], axis=-1))
        return frames.swapaxes(1, 2) * y_mask, y_mask, path


class VarianceAdaptor(nn.Cell):
    def __init__(self, channels: int, gin_channels: int, n_bins: int = 24, max_frames: int = 160):
        super().__init__()
        self.cond = nn.Dense(gin_channels, channels)
        self.duration_predictor = VariancePredictor(channels, channels)
        self.pitch_predictor = VariancePredictor(channels, channels)
        self.energy_predictor = VariancePredictor(channels, channels)
        self.pitch_embedding = BucketEmbedding(np.linspace(-2.4, 2.4, n_bins - 1), channels)
        self.energy_embedding = BucketEmbedding(np.geomspace(0.15, 3.5, n_bins - 1), channels)
        self.regulator = LengthRegulator(channels, max_frames)

    def construct(self, x, x_mask, g, d_control=1.0):
        padded = x_mask[:, 0] == 0
        x = x.swapaxes(1, 2) + self.cond(g)[:, None, :]
        log_duration = self.duration_predictor(x, padded)

        pitch = self.pitch_predictor(x, padded)
        with_pitch = x + self.pitch_embedding(pitch)
        energy = mint.nn.functional.softplus(self.energy_predictor(with_pitch, padded))
        hidden = with_pitch + self.energy_embedding(energy)

        duration = ops.round(ops.exp(log_duration) - 1) * d_control
        duration = ops.clamp(duration, min=0.0).masked_fill(padded, 0.0)
        frames, y_mask, path = self.regulator(hidden, x_mask, duration)
        return frames, y_mask, path, log_duration, pitch, energy


class WaveNet(nn.Cell):
    def __init__(self, channels, kernel_size, dilation_rate, n_layers, gin_channels):
        super().__init__()
        self.channels = channels
        self.n_layers = n_layers
        self.in_layers = nn.CellList(
            [conv1d(channels, 2 * channels, kernel_size, dilation=dilation_rate**i) for i in range(n_layers)]
        )
        self.res_skip_layers = nn.CellList(
            [conv1d(channels, 2 * channels if i < n_layers - 1 else channels) for i in range(n_layers)]
        )
        self.cond_layer = conv1d(gin_channels, 2 * channels * n_layers)

    def construct(self, x, mask, g):
        conditions = mint.split(self.cond_layer(g), 2 * self.channels, dim=1)
        output = 0.0
        for i in range(self.n_layers):
            left, right = ops.chunk(self.in_layers[i](x) + conditions[i], 2, axis=1)
            acts = ops.tanh(left) * ops.sigmoid(right)
            acts = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                x = (x + acts[:, : self.channels]) * mask
                output = output + acts[:, self.channels :]
            else:
                output = output + acts
        return output * mask


class ActNorm(nn.Cell):
    def __init__(self, channels: int):
        super().__init__()
        self.logs = Parameter(ops.zeros((1, channels, 1), ms.float32), name="logs")
        self.bias = Parameter(ops.zeros((1, channels, 1), ms.float32), name="bias")

    def construct(self, x, mask, g):
        return (x - self.bias) / ops.exp(self.logs) * mask


class InvConvNear(nn.Cell):
    def __init__(self, n_split: int = 4):
        super().__init__()
        self.n_split = n_split
        self.weight = Parameter(ops.eye(n_split, n_split, ms.float32), name="weight")

    def construct(self, x, mask, g):
        b, c, t = x.shape
        n, half, groups = self.n_split, self.n_split // 2, c // self.n_split
        x = x.reshape(b, 2, groups, half, t).transpose(0, 1, 3, 2, 4).reshape(b, n, groups * t)
        z = mint.matmul(ops.inverse(self.weight), x)
        z = z.reshape(b, 2, half, groups, t).transpose(0, 1, 3, 2, 4).reshape(b, c, t)
        return z * mask


class Coupling(nn.Cell):
    def __init__(self, in_channels: int, hidden: int, n_layers: int, gin_channels: int):
        super().__init__()
        self.start = conv1d(in_channels // 2, hidden)
        self.wn = WaveNet(hidden, 3, 2, n_layers, gin_channels)
        self.end = conv1d(hidden, in_channels)

    def construct(self, x, mask, g):
        x_0, x_1 = ops.chunk(x, 2, axis=1)
        out = self.end(self.wn(self.start(x_0) * mask, mask, g))
        shift, logs = ops.chunk(out, 2, axis=1)
        scale = 1e-6 + ops.sigmoid(logs + 2)
        return mint.cat([x_0, (x_1 - shift) / scale * mask], dim=1)


class FlowDecoder(nn.Cell):
    def __init__(self, n_mels, hidden, n_blocks, n_layers, gin_channels, n_sqz=2):
        super().__init__()
        self.n_sqz = n_sqz
        flows = []
        for _ in range(n_blocks):
            flows += [
                ActNorm(n_mels * n_sqz),
                InvConvNear(),
                Coupling(n_mels * n_sqz, hidden, n_layers, gin_channels),
            ]
        self.flows = nn.CellList(flows)

    def construct(self, z, z_mask, g):
        x, mask = fold_time(z, z_mask, self.n_sqz)
        for i in range(len(self.flows) - 1, -1, -1):
            x = self.flows[i](x, mask, g)
        return unfold_time(x, self.n_sqz) * z_mask


class PostBlock(nn.Cell):
    def __init__(self, c_in: int, c_out: int, kernel_size: int, last: bool):
        super().__init__()
        self.conv = conv1d(c_in, c_out, kernel_size)
        self.bn = nn.BatchNorm1d(c_out, eps=1e-3)
        self.last = last

    def construct(self, x, mask):
        x = self.bn(self.conv(x))
        if not self.last:
            x = ops.tanh(x)
        return x * mask


class PostNet(nn.Cell):
    def __init__(self, n_mels: int, channels: int, kernel_size: int = 5, n_convolutions: int = 4):
        super().__init__()
        sizes = [n_mels] + [channels] * (n_convolutions - 1) + [n_mels]
        self.convolutions = nn.CellList(
            [
                PostBlock(sizes[i], sizes[i + 1], kernel_size, last=i == n_convolutions - 1)
                for i in range(n_convolutions)
            ]
        )

    def construct(self, x, mask):
        for block in self.convolutions:
            x = block(x, mask)
        return x


class AcousticModel(nn.Cell):
    def __init__(self, n_vocab=70, n_stress=4, n_speakers=5, channels=48, n_mels=20, gin_channels=24):
        super().__init__()
        self.emb_g = nn.Embedding(n_speakers, gin_channels)
        self.normalize = ops.L2Normalize(axis=1, epsilon=1e-12)
        self.encoder = PhonemeEncoder(n_vocab, n_stress, channels, 2 * channels, n_heads=2, n_layers=2)
        self.adaptor = VarianceAdaptor(channels, gin_channels)
        self.proj_m = conv1d(channels, n_mels)
        self.proj_s = conv1d(channels, n_mels)
        self.decoder = FlowDecoder(n_mels, 32, n_blocks=3, n_layers=3, gin_channels=gin_channels)
        self.postnet = PostNet(n_mels, 40)

    def sample(self, mean, logs, noise, noise_scale):
        return mean + ops.exp(logs) * noise[:, :, : mean.shape[2]] * noise_scale

    def construct(self, phonemes, stress, lengths, speaker, noise, noise_scale=0.667):
        g = self.normalize(self.emb_g(speaker))
        x, x_mask = self.encoder(phonemes, stress, lengths)
        y, y_mask, path, log_duration, pitch, energy = self.adaptor(x, x_mask, g)
        z = self.sample(self.proj_m(y) * y_mask, self.proj_s(y) * y_mask, noise, noise_scale) * y_mask
        mel = self.decoder(z, y_mask, g[:, :, None])
        mel_post = mel + self.postnet(mel, y_mask)
        return mel, mel_post, log_duration, pitch, energy, path


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return AcousticModel().set_train(False)

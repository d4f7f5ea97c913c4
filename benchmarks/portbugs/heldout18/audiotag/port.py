"""The audio tagger in MindSpore: tables by numpy, one cell for each encoder block, query, key and value in one layer."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import mint, nn, ops
from mindspore.common.initializer import Normal, initializer

CONFIG = {
    "sample_rate": 8000,
    "win_length": 200,
    "hop_length": 80,
    "n_fft": 256,
    "n_mels": 32,
    "num_frames": 100,
    "patch": (8, 8),
    "stride": (5, 6),
    "patch_dim": 40,
    "dim": 48,
    "ffn_dim": 56,
    "num_heads": 4,
    "num_layers": 3,
    "num_buckets": 16,
    "max_distance": 21,
    "pos_kernel": 8,
    "pos_groups": 4,
    "head_dim": 64,
    "num_classes": 9,
}


# --------------------------------------------------------------------------------------------------------- tables


def mel_scale(hz):
    return 1127.0 * np.log1p(np.asarray(hz, np.float64) / 700.0)


def make_window(size):
    """Povey window, symmetric."""
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / (size - 1))
    return np.power(hann, 0.85).astype(np.float32)


def make_dft(win_length, n_fft):
    """Real and imaginary part side by side, [win_length, 2 * bins]; the zeros after the window need no rows."""
    phase = 2.0 * np.pi * np.outer(np.arange(win_length), np.arange(n_fft // 2 + 1)) / n_fft
    return np.concatenate([np.cos(phase), -np.sin(phase)], axis=1).astype(np.float32)


def make_mel_bank(n_mels, n_fft, sample_rate, f_min=20.0):
    """Kaldi's triangles, [bins, n_mels]; the Nyquist bin is not used."""
    edges = np.linspace(mel_scale(f_min), mel_scale(sample_rate / 2), n_mels + 2)
    bins = mel_scale(np.arange(n_fft // 2) * sample_rate / n_fft)
    bank = np.zeros((n_mels, n_fft // 2))
    for m in range(n_mels):
        left, center, right = edges[m : m + 3]
        rising = (bins - left) / (center - left)
        falling = (right - bins) / (right - center)
        bank[m] = np.maximum(0.0, np.minimum(rising, falling))
    return np.pad(bank, ((0, 0), (0, 1))).T.astype(np.float32)


def make_buckets(distance, num_buckets, max_distance):
    """T5 buckets of signed distances."""
    half = num_buckets // 2
    exact = half // 2
    size = np.abs(distance)
    ratio = np.log(np.maximum(size, 1) / exact) / np.log(max_distance / exact)
    coarse = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    return np.where(distance > 0, half, 0) + np.where(size < exact, size, coarse)


def make_token_map(num_frames, patch, stride):
    """[tokens, frames], the weight of each token in each frame."""
    num_tokens = (num_frames - patch) // stride + 1
    start = np.arange(num_tokens)[:, None] * stride
    frame = np.arange(num_frames)[None, :]
    inside = ((frame >= start) & (frame < start + patch)).astype(np.float32)
    inside[-1, start[-1, 0] + patch :] = 1.0
    return inside / inside.sum(axis=0, keepdims=True)


# ------------------------------------------------------------------------------------------------------- features


class Fbank(nn.Cell):
    """Waveform to normalised log mel energies, [batch, frames, mels]."""

    def __init__(self, cfg):
        super().__init__()
        start = np.arange(cfg["num_frames"])[:, None] * cfg["hop_length"]
        self.frame_index = ms.Tensor(start + np.arange(cfg["win_length"])[None, :], ms.int32)
        self.window = ms.Tensor(make_window(cfg["win_length"]))
        self.dft = ms.Tensor(make_dft(cfg["win_length"], cfg["n_fft"]))
        self.mel_bank = ms.Tensor(make_mel_bank(cfg["n_mels"], cfg["n_fft"], cfg["sample_rate"]))
        self.eps = float(np.finfo(np.float32).eps)
        self.mean, self.std = 15.41663, 6.55582

    def construct(self, wave):
        x = ops.gather(wave * 32768.0, self.frame_index, 1)
        x = x - x.mean(axis=-1, keep_dims=True)
        shifted = ops.cat([x[..., :1], x[..., :-1]], axis=-1)
        x = (x - 0.97 * shifted) * self.window
        real, imag = mint.chunk(ops.matmul(x, self.dft), 2, dim=-1)
        mel = ops.matmul(real * real + imag * imag, self.mel_bank)
        return (ops.log(ops.maximum(mel, self.eps)) - self.mean) / (2.0 * self.std)


class PatchTokens(nn.Cell):
    """Overlapping patches as tokens; frequency runs fastest."""

    def __init__(self, cfg):
        super().__init__()
        self.patch_t, self.stride_t = cfg["patch"][0], cfg["stride"][0]
        self.num_t = (cfg["num_frames"] - cfg["patch"][0]) // cfg["stride"][0] + 1
        self.num_f = (cfg["n_mels"] - cfg["patch"][1]) // cfg["stride"][1] + 1
        self.conv = nn.Conv2d(
            1, cfg["patch_dim"], cfg["patch"], stride=cfg["stride"], pad_mode="valid", has_bias=True
        )
        self.norm = nn.LayerNorm((cfg["patch_dim"],), epsilon=1e-5)
        self.proj = nn.Dense(cfg["patch_dim"], cfg["dim"])
        self.freq_pos = ms.Parameter(initializer(Normal(0.02), (1, self.num_f, cfg["dim"])), name="freq_pos")

    def token_masks(self, num_valid):
        """Valid tokens along time, and valid tokens of the sequence: a token needs one valid frame."""
        first = ops.arange(self.num_t) * self.stride_t
        time_valid = first.expand_dims(0) < num_valid.expand_dims(1)
        token_valid = ops.repeat_interleave(time_valid.astype(ms.int32), self.num_f, 1).astype(ms.bool_)
        return time_valid, token_valid

    def construct(self, fbank, num_valid):
        x = self.conv(fbank.expand_dims(1))
        b, c, t, f = x.shape
        x = x.transpose(0, 2, 3, 1).reshape(b, t * f, c)
        x = self.proj(self.norm(x))
        time_valid, token_valid = self.token_masks(num_valid)
        x = x + mint.tile(self.freq_pos, (1, self.num_t, 1))
        x = x * token_valid.expand_dims(-1).astype(x.dtype)
        return x, time_valid, token_valid


# -------------------------------------------------------------------------------------------------------- encoder


class RelativeBias(nn.Cell):
    """Bias for each head by distance in time (buckets) and in frequency (exact), [1, heads, tokens, tokens]."""

    def __init__(self, cfg, num_t, num_f):
        super().__init__()
        t, f = np.divmod(np.arange(num_t * num_f), num_f)
        time_distance = t[None, :] - t[:, None]
        freq_distance = f[None, :] - f[:, None]
        self.bucket = ms.Tensor(make_buckets(time_distance, cfg["num_buckets"], cfg["max_distance"]), ms.int32)
        self.freq_index = ms.Tensor(freq_distance + num_f - 1, ms.int32)
        self.time_table = nn.Embedding(cfg["num_buckets"], cfg["num_heads"])
        self.freq_table = ms.Parameter(initializer(Normal(0.02), (2 * num_f - 1, cfg["num_heads"])), name="freq_table")

    def construct(self):
        bias = self.time_table(self.bucket) + ops.gather(self.freq_table, self.freq_index, 0)
        return bias.transpose(2, 0, 1).expand_dims(0)


class Block(nn.Cell):
    """Attention and gated perceptron, both with deep norm. The position bias goes from block to block."""

    def __init__(self, cfg, bias=None):
        super().__init__()
        dim = cfg["dim"]
        self.heads = cfg["num_heads"]
        self.dim_head = dim // self.heads
        self.scale = self.dim_head**-0.5
        self.alpha = 32.0
        self.deep = (2.0 * cfg["num_layers"]) ** 0.25
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)
        self.gate = nn.Dense(self.dim_head, 8)
        self.gate_a = ms.Parameter(ops.ones((1, self.heads, 1, 1)), name="gate_a")
        self.rel_bias = bias
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.glu = nn.Dense(dim, 2 * cfg["ffn_dim"])
        self.fc2 = nn.Dense(cfg["ffn_dim"], dim)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)

    def gated(self, query, bias):
        """The bias times one gate for each query of each head."""
        b, h, n, _ = query.shape
        g = ops.sigmoid(self.gate(query).reshape(b, h, n, 2, 4).sum(axis=-1))
        g = g[..., :1] * (g[..., 1:] * self.gate_a - 1.0) + 2.0
        return g * bias

    def attend(self, x, valid, bias):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, self.dim_head).transpose(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        q = query * (self.scale / self.alpha)
        scores = ops.matmul(q, key.swapaxes(-2, -1))
        scores = (scores - scores.max(axis=-1, keepdims=True)) * self.alpha
        scores = scores.masked_fill(ops.logical_not(valid)[:, None, None, :], -1e9)
        gated_bias = self.gated(query, bias)
        weights = ops.softmax(scores + gated_bias, axis=-1)
        out = ops.matmul(weights, value).swapaxes(1, 2).reshape(b, n, c)
        return self.out(out)

    def feed_forward(self, x):
        value, gate = mint.chunk(self.glu(x), 2, dim=-1)
        return self.fc2(value * ops.silu(gate))

    def construct(self, x, valid, bias=None):
        if bias is None:
            bias = self.rel_bias()
        attended = self.attend(x, valid, bias)
        h = self.norm1(x * self.deep + attended)
        out = self.norm2(h * self.deep + self.feed_forward(h))
        return out, bias


class Encoder(nn.Cell):
    """Positions by convolution, blocks, weighted sum of all states."""

    def __init__(self, cfg, num_t, num_f):
        super().__init__()
        k = cfg["pos_kernel"]
        self.trim = 1 - k % 2
        self.pos_conv = nn.Conv1d(
            cfg["dim"], cfg["dim"], k, pad_mode="pad", padding=k // 2, group=cfg["pos_groups"], has_bias=True
        )
        self.pos_act = nn.GELU(approximate=False)
        self.norm = nn.LayerNorm((cfg["dim"],), epsilon=1e-5)
        blocks = [Block(cfg, RelativeBias(cfg, num_t, num_f) if i == 0 else None) for i in range(cfg["num_layers"])]
        self.blocks = nn.CellList(blocks)
        self.mix = ms.Parameter(ops.zeros(cfg["num_layers"] + 1), name="mix")

    def construct(self, x, valid):
        pos = self.pos_conv(x.swapaxes(1, 2))
        pos = pos[:, :, : pos.shape[2] - self.trim]
        x = x + self.pos_act(pos).swapaxes(1, 2)
        x = self.norm(x)
        states = [x]
        bias = None
        for block in self.blocks:
            x, bias = block(x, valid, bias)
            states.append(x)
        mix = ops.softmax(self.mix, axis=0).reshape(-1, 1, 1, 1)
        return (ops.stack(states, axis=0) * mix).sum(axis=0)


# ----------------------------------------------------------------------------------------------------------- head


class TagHead(nn.Cell):
    """Clipwise tags and scores of each step of time, [batch, time, classes]."""

    def __init__(self, cfg, num_t, num_f):
        super().__init__()
        self.num_t, self.num_f = num_t, num_f
        self.fc = nn.Dense(2 * cfg["dim"], cfg["head_dim"])
        self.act = nn.LeakyReLU(alpha=0.01)
        self.att = nn.Dense(cfg["head_dim"], cfg["num_classes"])
        self.cla = nn.Dense(cfg["head_dim"], cfg["num_classes"])

    def neighbours(self, x):
        """Largest and mean value of three steps of time; the mean counts the zeros beyond the ends."""
        steps = x.shape[1]
        low = ops.pad(x, (0, 0, 1, 1), mode="constant", value=-1e30)
        zero = ops.pad(x, (0, 0, 1, 1), mode="constant", value=0.0)
        largest = ops.maximum(ops.maximum(low[:, :steps], low[:, 1:-1]), low[:, 2:])
        mean = (zero[:, :steps] + zero[:, 1:-1] + zero[:, 2:]) / 3.0
        return largest + mean

    def construct(self, x, time_valid):
        b, _, c = x.shape
        x = x.reshape(b, self.num_t, self.num_f, c)
        x = ops.cat([x.mean(axis=2), x.std(axis=2, ddof=1)], axis=-1)
        valid = time_valid.expand_dims(-1)
        x = x * valid.astype(x.dtype)
        x = self.act(self.fc(self.neighbours(x)))
        logits = 3.0 * ops.tanh(self.att(x))
        attention = ops.softmax(ops.where(valid, logits, ms.Tensor(-1e9, ms.float32)), axis=1)
        scores = ops.sigmoid(self.cla(x))
        return (attention * scores).sum(axis=1), scores


class Tagger(nn.Cell):
    """Waveforms and lengths to tags, framewise scores, and begin and end of each class."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.fbank = Fbank(cfg)
        self.bn = nn.BatchNorm2d(cfg["n_mels"], eps=1e-5)
        self.tokens = PatchTokens(cfg)
        num_t, num_f = self.tokens.num_t, self.tokens.num_f
        self.encoder = Encoder(cfg, num_t, num_f)
        self.head = TagHead(cfg, num_t, num_f)
        self.token_map = ms.Tensor(make_token_map(cfg["num_frames"], cfg["patch"][0], cfg["stride"][0]))
        times = (np.arange(cfg["num_frames"]) * cfg["hop_length"] + cfg["win_length"] / 2) / cfg["sample_rate"]
        self.times = ms.Tensor(times.reshape(1, -1, 1), ms.float32)

    def smooth(self, x):
        """Mean of five frames along the last axis; at the ends, of those that are there."""
        return ops.avg_pool1d(x, kernel_size=5, stride=1, padding=2, count_include_pad=False)

    def framewise(self, scores, clipwise, valid):
        frames = ops.matmul(scores.swapaxes(1, 2), self.token_map)
        frames = self.smooth(frames).swapaxes(1, 2) * valid
        return frames * clipwise.expand_dims(1)

    def localize(self, frames):
        weights = frames / ops.maximum(frames.sum(axis=1, keepdims=True), 1e-6)
        centre = (weights * self.times).sum(axis=1, keepdims=True)
        spread = ops.sqrt((weights * ops.square(self.times - centre)).sum(axis=1))
        centre = centre.squeeze(1)
        return ops.stack([centre - spread, centre + spread], axis=-1)

    def construct(self, wave, lengths):
        cfg = self.cfg
        num_valid = ops.floor_divide(lengths - cfg["win_length"], cfg["hop_length"]) + 1
        num_valid = ops.clamp(num_valid, 1, cfg["num_frames"])
        frame_valid = ops.arange(cfg["num_frames"]).expand_dims(0) < num_valid.expand_dims(1)
        valid = frame_valid.expand_dims(-1).astype(ms.float32)

        x = self.fbank(wave)
        x = self.bn(x.swapaxes(1, 2).expand_dims(-1)).squeeze(-1).swapaxes(1, 2)
        x, time_valid, token_valid = self.tokens(x * valid, num_valid)
        x = self.encoder(x, token_valid)
        clipwise, scores = self.head(x, time_valid)
        frames = self.framewise(scores, clipwise, valid)
        return clipwise, frames, self.localize(frames)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Tagger(CONFIG)

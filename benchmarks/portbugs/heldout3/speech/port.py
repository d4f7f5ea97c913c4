"""The miniature FastSpeech 2 in MindSpore: the correct port."""
from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def conv1d(n_in, n_out, kernel, dilation=1):
    pad = dilation * (kernel - 1) // 2
    return nn.Conv1d(n_in, n_out, kernel, pad_mode="pad", padding=pad, dilation=dilation, has_bias=True)


def lengths_to_keep(lengths, max_len):
    ids = ops.arange(max_len)
    keep = ids.expand_dims(0) < lengths.expand_dims(1)
    return keep.astype(ms.float32).expand_dims(-1)


def masked_stats(x, keep, eps=1e-5):
    count = ops.clamp(keep.sum(axis=1, keepdims=True), min=1.0)
    mean = (x * keep).sum(axis=1, keepdims=True) / count
    var = (ops.square(x - mean) * keep).sum(axis=1, keepdims=True) / count
    return mean, ops.sqrt(var + eps)


def bucketize(x, bins):
    """How many bins lie below: torch.bucketize with right=False."""
    return (x.expand_dims(-1) > bins).astype(ms.int32).sum(axis=-1)


class RelativeAttention(nn.Cell):
    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.h = heads
        self.d_k = width // heads
        self.width = width
        self.linear_qkv = nn.Dense(width, 3 * width)
        self.linear_pos = nn.Dense(width, width, has_bias=False)
        self.linear_out = nn.Dense(width, width)
        self.pos_bias_u = Parameter(np.zeros((heads, self.d_k), np.float32), name="pos_bias_u")
        self.pos_bias_v = Parameter(np.zeros((heads, self.d_k), np.float32), name="pos_bias_v")
        self.dropout = nn.Dropout(p=dropout)

    def position_table(self, length):
        pos = np.arange(length - 1, -length, -1, dtype=np.float32)[:, None]
        div = np.exp(np.arange(0, self.width, 2, dtype=np.float32) * -(math.log(10000.0) / self.width))
        angle = pos * div.astype(np.float32)
        pe = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(1, 2 * length - 1, self.width)
        return Tensor(pe.astype(np.float32))

    def rel_shift(self, x):
        b, h, t, n = x.shape
        x = ops.pad(x, (1, 0))
        x = x.reshape(b, h, n + 1, t)[:, :, 1:]
        return x.reshape(b, h, t, n)[..., : n // 2 + 1]

    def construct(self, x, keep):
        b, t, _ = x.shape
        qkv = self.linear_qkv(x).reshape(b, t, 3, self.h, self.d_k)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        k = k.swapaxes(1, 2)
        v = v.swapaxes(1, 2)
        p = self.linear_pos(self.position_table(t))
        p = p.reshape(1, -1, self.h, self.d_k).swapaxes(1, 2)

        q_u = (q + self.pos_bias_u).swapaxes(1, 2)
        q_v = (q + self.pos_bias_v).swapaxes(1, 2)
        content = ops.matmul(q_u, k.swapaxes(-2, -1))
        place = self.rel_shift(ops.matmul(q_v, p.swapaxes(-2, -1)))
        scores = (content + place) / math.sqrt(self.d_k)

        mask = (keep == 0).swapaxes(1, 2).expand_dims(1)
        scores = scores.masked_fill(mask, float(np.finfo(np.float32).min))
        attn = ops.softmax(scores, axis=-1).masked_fill(mask, 0.0)
        x = ops.matmul(self.dropout(attn), v)
        x = x.swapaxes(1, 2).reshape(b, t, self.width)
        return self.linear_out(x)


class FFTBlock(nn.Cell):
    def __init__(self, width, heads, hidden, kernel=3, dropout=0.1):
        super().__init__()
        self.attn = RelativeAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.conv1 = conv1d(width, hidden, kernel)
        self.conv2 = conv1d(hidden, width, 1)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=dropout)

    def construct(self, x, keep):
        residual = x
        x = self.dropout(self.attn(x, keep))
        x = self.norm1(residual + x) * keep
        residual = x
        x = self.conv1(x.swapaxes(1, 2))
        x = ops.gelu(x, approximate="tanh")
        x = self.conv2(x).swapaxes(1, 2)
        x = self.norm2(residual + self.dropout(x))
        return x * keep


class VariancePredictor(nn.Cell):
    def __init__(self, width, hidden, kernel=5):
        super().__init__()
        self.conv = conv1d(width, hidden, kernel)
        self.gain = Parameter(np.ones(hidden, np.float32), name="gain")
        self.proj = nn.Dense(hidden, 1)

    def construct(self, x, keep, squash=None):
        h = self.conv((x * keep).swapaxes(1, 2))
        h = ops.relu(h).swapaxes(1, 2)
        mean, std = masked_stats(h, keep)
        h = (h - mean) / std * self.gain
        out = self.proj(h)
        if squash is not None:
            out = out / (1 + ops.abs(out) / squash)
        return (out * keep).squeeze(-1)


class Postnet(nn.Cell):
    def __init__(self, n_mels, hidden, kernel=5):
        super().__init__()
        sizes = [n_mels, hidden, n_mels]
        self.convs = nn.CellList([conv1d(sizes[i], sizes[i + 1], kernel, dilation=2**i) for i in range(2)])
        self.norms = nn.CellList([nn.BatchNorm1d(sizes[i + 1]) for i in range(2)])

    def construct(self, mel, keep):
        x = mel
        last = len(self.convs) - 1
        for i in range(len(self.convs)):
            x = self.convs[i]((x * keep).swapaxes(1, 2))
            x = self.norms[i](x).swapaxes(1, 2)
            if i < last:
                x = ops.silu(x)
        return (mel + x) * keep


def regulate(x, durations, max_frames):
    """No loop over the sentences: each frame looks up the token that it belongs to."""
    ends = ops.cumsum(durations, 1)
    starts = ends - durations
    frame = ops.arange(max_frames)
    index = (frame[None, :, None] >= ends[:, None, :]).astype(ms.int32).sum(axis=-1)
    index = ops.clamp(index, max=x.shape[1] - 1).astype(ms.int64)
    lengths = ops.clamp(ends[:, -1], max=max_frames)
    keep = lengths_to_keep(lengths, max_frames)

    wide = ops.tile(index.expand_dims(-1), (1, 1, x.shape[-1]))
    frames = ops.gather_elements(x, 1, wide) * keep
    begin = ops.gather_elements(starts, 1, index)
    length = ops.gather_elements(durations, 1, index)
    ramp = (frame.expand_dims(0) - begin).astype(ms.float32) / ops.clamp(length, min=1).astype(ms.float32)
    return frames, ramp * keep.squeeze(-1), lengths


class LittleSpeech(nn.Cell):
    def __init__(self, vocab=40, speakers=4, width=48, heads=4, n_mels=20, n_bins=16, max_frames=56):
        super().__init__()
        self.width = width
        self.max_frames = max_frames
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.speaker = nn.Embedding(speakers, width)
        self.encoder = nn.CellList([FFTBlock(width, heads, 2 * width) for _ in range(2)])
        self.duration_predictor = VariancePredictor(width, 32, kernel=3)
        self.pitch_predictor = VariancePredictor(width, 32)
        self.energy_predictor = VariancePredictor(width, 24)
        self.pitch_embed = nn.Embedding(n_bins, width)
        self.energy_embed = nn.Embedding(n_bins, width)
        self.ramp = Parameter(np.zeros(width, np.float32), name="ramp")
        self.decoder = nn.CellList([FFTBlock(width, heads, 2 * width)])
        self.mel_linear = nn.Dense(width, n_mels)
        self.postnet = Postnet(n_mels, 32)
        self.pitch_mean, self.pitch_std = 190.0, 55.0
        self.pitch_bins = Tensor(np.linspace(80.0, 330.0, n_bins - 1), ms.float32)
        energy_bins = np.exp(np.linspace(math.log(0.05), math.log(6.0), n_bins - 1))
        self.energy_bins = Tensor(energy_bins, ms.float32)

    def durations(self, x, keep, control):
        log_d = self.duration_predictor(x, keep)
        d = ops.round((ops.exp(log_d) - 1) * control)
        d = ops.clamp(d, min=1, max=9) * keep.squeeze(-1)
        return d.astype(ms.int64)

    def add_pitch(self, x, keep, control):
        pitch = self.pitch_predictor(x, keep, squash=3.0)
        hertz = (pitch * self.pitch_std + self.pitch_mean) * control
        bucket = bucketize(hertz, self.pitch_bins)
        return x + self.pitch_embed(bucket) * keep

    def add_energy(self, x, keep, control):
        energy = self.energy_predictor(x, keep, squash=4.0)
        energy = ops.softplus(energy) * control
        bucket = bucketize(energy, self.energy_bins)
        return x + self.energy_embed(bucket) * keep

    def construct(self, tokens, speakers, lengths, d_control=1.2, p_control=1.1, e_control=0.9):
        keep = lengths_to_keep(lengths, tokens.shape[1])
        x = self.embed(tokens) * math.sqrt(self.width)
        x = x * keep
        for block in self.encoder:
            x = block(x, keep)

        voice = self.speaker(speakers)
        voice = voice / ops.clamp(ops.norm(voice, dim=-1, keepdim=True), min=1e-12)
        voice = voice.expand_dims(1)
        durations = self.durations(x, keep, d_control)
        x = x + 2.0 * voice * keep
        x = self.add_pitch(x, keep, p_control)

        x, ramp, mel_lengths = regulate(x, durations, self.max_frames)
        mel_keep = lengths_to_keep(mel_lengths, self.max_frames)
        x = x + ops.sin(math.pi * ramp).expand_dims(-1) * self.ramp * mel_keep
        x = self.add_energy(x, mel_keep, e_control)
        for block in self.decoder:
            x = block(x, mel_keep)
        mel = self.mel_linear(x) * mel_keep
        return mel, self.postnet(mel, mel_keep)


def build():
    return LittleSpeech()

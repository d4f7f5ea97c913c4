"""Conformer-CTC speech recognition on MindSpore."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

SAMPLE_RATE = 8000
WIN = 256
HOP = 40
NUM_MELS = 24
NUM_TOKENS = 12
BLANK_ID = 0


def hz2mel(f):
    return 2595.0 * np.log10(1.0 + f / 700.0)


def mel2hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def build_fbank(num_mels, n_fft, sr, fmin=20.0):
    """(bins, mels) matrix of slaney-normalised triangles."""
    freqs = np.linspace(0.0, sr / 2, n_fft // 2 + 1)
    points = mel2hz(np.linspace(hz2mel(fmin), hz2mel(sr / 2), num_mels + 2))
    weights = np.zeros((n_fft // 2 + 1, num_mels))
    for m in range(num_mels):
        left, centre, right = points[m], points[m + 1], points[m + 2]
        up = (freqs - left) / (centre - left)
        down = (right - freqs) / (right - centre)
        area = 2.0 / (right - left)
        weights[:, m] = np.clip(np.minimum(up, down), 0.0, None) * area
    return weights.astype(np.float32)


def sequence_mask(lens, max_len):
    """bool (B, max_len), True on valid positions."""
    return ops.arange(max_len).expand_dims(0) < lens.astype(ms.int64).expand_dims(1)


def apply_cmvn(feat, feat_lens):
    """Utterance-wise mean and variance normalisation over valid frames only."""
    valid = sequence_mask(feat_lens, feat.shape[1]).expand_dims(-1).astype(feat.dtype)
    n = feat_lens.astype(feat.dtype).reshape(-1, 1, 1)
    mu = (feat * valid).sum(axis=1, keepdims=True) / n
    diff = (feat - mu) * valid
    sigma = ops.sqrt(ops.square(diff).sum(axis=1, keepdims=True) / (n - 1))
    return diff / (sigma + 1e-5)


class FbankExtractor(nn.Cell):
    """Waveform -> log-mel. STFT by framing and real DFT matrices."""

    def __init__(self, preemph=0.97):
        super().__init__()
        self.preemph = preemph
        n = np.arange(WIN)
        k = np.arange(WIN // 2 + 1)
        phase = 2.0 * np.pi * n[:, None] * k[None, :] / WIN
        hann = 0.5 * (1.0 - np.cos(2.0 * np.pi * n / WIN))
        # the window is folded into both bases
        basis = np.concatenate([np.cos(phase), -np.sin(phase)], axis=1) * hann[:, None]
        self.basis = Tensor(basis.astype(np.float32))
        self.fbank = Tensor(build_fbank(NUM_MELS, WIN, SAMPLE_RATE))

    def construct(self, speech, speech_lens):
        valid = sequence_mask(speech_lens, speech.shape[1])
        shifted = ops.cat((ops.zeros_like(speech[:, :1]), speech[:, :-1]), axis=1)
        speech = (speech - self.preemph * shifted) * valid.astype(speech.dtype)
        half = WIN // 2
        head = speech[:, 1 : half + 1].flip((1,))
        tail = speech[:, -half - 1 : -1].flip((1,))
        padded = ops.cat((head, speech, tail), axis=1)
        num_frames = 1 + (padded.shape[1] - WIN) // HOP
        idx = np.arange(num_frames)[:, None] * HOP + np.arange(WIN)[None, :]
        frames = ops.gather(padded, Tensor(idx.astype(np.int32)), 1)
        real, imag = ops.matmul(frames, self.basis).chunk(2, axis=-1)
        energy = ops.matmul(ops.square(real) + ops.square(imag), self.fbank)
        return ops.log(energy + 2.0**-14), speech_lens // HOP + 1


class Conv2dSubsampling4(nn.Cell):
    def __init__(self, idim, odim, hidden=8):
        super().__init__()
        self.conv1 = nn.Conv2d(1, hidden, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2_dw = nn.Conv2d(
            hidden, hidden, 3, stride=2, pad_mode="pad", padding=1, group=hidden, has_bias=True
        )
        self.conv2_pw = nn.Conv2d(hidden, hidden, 1, has_bias=True)
        self.proj = nn.Dense(hidden * ((idim + 3) // 4), odim)

    def construct(self, feat, feat_lens):
        x = feat.expand_dims(1)
        x = x * sequence_mask(feat_lens, x.shape[2])[:, None, :, None].astype(x.dtype)
        x = ops.relu(self.conv1(x))
        lens = (feat_lens - 1) // 2 + 1
        x = x * sequence_mask(lens, x.shape[2])[:, None, :, None].astype(x.dtype)
        x = ops.relu(self.conv2_pw(self.conv2_dw(x)))
        b, c, t, f = x.shape
        x = x.transpose(0, 2, 1, 3).reshape(b, t, c * f)
        return self.proj(x), (lens - 1) // 2 + 1


class RelPositionalEncoding(nn.Cell):
    """Embeddings of relative offsets, from the farthest past (T-1) to the farthest future (1-T)."""

    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model
        self.inv_freq = np.exp(np.arange(0, d_model, 2) * -(math.log(10000.0) / d_model)).astype(np.float32)

    def construct(self, t):
        offsets = np.arange(t - 1, -t, -1).astype(np.float32)
        angles = Tensor(offsets[:, None] * self.inv_freq[None, :])
        pe = ops.stack((ops.sin(angles), ops.cos(angles)), axis=-1)
        return pe.reshape(1, 2 * t - 1, self.d_model)


class RelPosMHA(nn.Cell):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.h = n_head
        self.d_k = d_model // n_head
        self.linear_q = nn.Dense(d_model, d_model)
        self.linear_k = nn.Dense(d_model, d_model)
        self.linear_v = nn.Dense(d_model, d_model)
        self.linear_pos = nn.Dense(d_model, d_model, has_bias=False)
        self.linear_out = nn.Dense(d_model, d_model)
        self.pos_bias_u = Parameter(ops.zeros((n_head, self.d_k), ms.float32))
        self.pos_bias_v = Parameter(ops.zeros((n_head, self.d_k), ms.float32))

    def to_heads(self, x):
        return x.reshape(x.shape[0], -1, self.h, self.d_k).transpose(0, 2, 1, 3)

    def rel_shift(self, x):
        b, h, t, p = x.shape
        x = ops.cat((ops.zeros((b, h, t, 1), x.dtype), x), axis=-1)
        x = x.reshape(b, h, p + 1, t)[:, :, 1:, :]
        return x.reshape(b, h, t, p)[:, :, :, : p // 2 + 1]

    def construct(self, x, pos_emb, pad_mask):
        b, t, c = x.shape
        q = self.to_heads(self.linear_q(x))
        k = self.to_heads(self.linear_k(x))
        v = self.to_heads(self.linear_v(x))
        p = self.to_heads(self.linear_pos(pos_emb))
        matrix_ac = ops.matmul(q + self.pos_bias_u.expand_dims(1), k.swapaxes(-1, -2))
        matrix_bd = ops.matmul(q + self.pos_bias_v.expand_dims(1), p.swapaxes(-1, -2))
        score = (matrix_ac + self.rel_shift(matrix_bd)) / math.sqrt(self.d_k)
        invalid = pad_mask.logical_not()[:, None, None, :]
        attn = ops.softmax(score.masked_fill(invalid, -1e4), axis=-1)
        attn = attn.masked_fill(invalid, 0.0)
        ctx = ops.matmul(attn, v).transpose(0, 2, 1, 3).reshape(b, t, c)
        return self.linear_out(ctx)


class ConvolutionModule(nn.Cell):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.pw_in = nn.Conv1d(channels, 2 * channels, 1, has_bias=True)
        self.dw = nn.Conv1d(
            channels, channels, kernel_size,
            pad_mode="pad", padding=(kernel_size - 1) // 2, group=channels, has_bias=True,
        )  # fmt: skip
        self.bn = nn.BatchNorm2d(channels, eps=1e-3)
        self.pw_out = nn.Conv1d(channels, channels, 1, has_bias=True)

    def construct(self, x, pad_mask):
        x = self.pw_in(x.swapaxes(1, 2))
        a, gate = x.chunk(2, axis=1)
        x = a * ops.sigmoid(gate)
        x = x * pad_mask.expand_dims(1).astype(x.dtype)
        x = self.bn(self.dw(x).expand_dims(-1)).squeeze(-1)
        return self.pw_out(ops.silu(x)).swapaxes(1, 2)


def feed_forward(dim, expansion=4):
    return nn.SequentialCell(nn.Dense(dim, expansion * dim), nn.SiLU(), nn.Dense(expansion * dim, dim))


class ConformerLayer(nn.Cell):
    """Pre-norm sub-layers; all the norms live here."""

    def __init__(self, size, n_head, kernel_size):
        super().__init__()
        self.norm_ff_macaron = nn.LayerNorm((size,), epsilon=1e-5)
        self.ff_macaron = feed_forward(size)
        self.norm_mha = nn.LayerNorm((size,), epsilon=1e-5)
        self.self_attn = RelPosMHA(size, n_head)
        self.norm_conv = nn.LayerNorm((size,), epsilon=1e-5)
        self.conv_module = ConvolutionModule(size, kernel_size)
        self.norm_ff = nn.LayerNorm((size,), epsilon=1e-5)
        self.ff = feed_forward(size)
        self.norm_final = nn.LayerNorm((size,), epsilon=1e-5)
        self.ff_scale = 0.5

    def construct(self, x, pos_emb, pad_mask):
        x = x + self.ff_scale * self.ff_macaron(self.norm_ff_macaron(x))
        residual = x
        x = residual + self.self_attn(self.norm_mha(x), pos_emb, pad_mask)
        residual = x
        x = residual + self.conv_module(self.norm_conv(x), pad_mask)
        residual = x
        x = residual + self.ff_scale * self.ff(self.norm_ff(x))
        return self.norm_final(x)


class ConformerEncoder(nn.Cell):
    """Subsampling, conformer layers, CTC projection shared by all the layers (self-conditioning)."""

    def __init__(self, d_model, n_head, kernel_size, num_layers):
        super().__init__()
        self.d_model = d_model
        self.embed = Conv2dSubsampling4(NUM_MELS, d_model)
        self.pos_enc = RelPositionalEncoding(d_model)
        self.layers = nn.CellList([ConformerLayer(d_model, n_head, kernel_size) for _ in range(num_layers)])
        self.ctc_lo = nn.Dense(d_model, NUM_TOKENS)
        self.conditioning = nn.Dense(NUM_TOKENS, d_model)

    def construct(self, feat, feat_lens):
        x, lens = self.embed(feat, feat_lens)
        x = x * self.d_model**0.5
        pos_emb = self.pos_enc(x.shape[1])
        pad_mask = sequence_mask(lens, x.shape[1])
        inter_probs = []
        for layer in self.layers[:-1]:
            x = layer(x, pos_emb, pad_mask)
            probs = ops.softmax(self.ctc_lo(x), axis=-1)
            inter_probs.append(probs)
            x = x + self.conditioning(probs)
        x = self.layers[-1](x, pos_emb, pad_mask)
        return self.ctc_lo(x), inter_probs, lens


def ctc_greedy(log_probs, lens):
    """Best path decoding, all on tensors: (tokens padded by -1, number, start in seconds, mean log-prob)."""
    b, t, _ = log_probs.shape
    valid = sequence_mask(lens, t)
    path = log_probs.argmax(axis=-1).astype(ms.int64)
    best = log_probs.max(axis=-1)
    prev = ops.cat((ops.full((b, 1), BLANK_ID, dtype=ms.int64), path[:, :-1]), axis=1)
    emit = ops.logical_and(ops.logical_and(path != prev, path != BLANK_ID), valid)
    rank = emit.astype(ms.int64).cumsum(axis=1) - 1
    slot = ops.where(emit, rank, ops.full_like(rank, t))
    tokens = ops.full((b, t + 1), -1, dtype=ms.int64)
    tokens = ops.tensor_scatter_elements(tokens, slot, path, axis=1)[:, :t]
    seconds = ops.arange(t).astype(ms.float32) * (4 * HOP / SAMPLE_RATE)
    starts = ops.tensor_scatter_elements(
        ops.zeros((b, t + 1), ms.float32), slot, ops.tile(seconds.expand_dims(0), (b, 1)), axis=1
    )[:, :t]
    mean_score = (best * valid.astype(best.dtype)).sum(axis=1) / lens.astype(best.dtype)
    return tokens, emit.astype(ms.int64).sum(axis=1), starts, mean_score


class ConformerCTC(nn.Cell):
    def __init__(self, d_model=32, n_head=4, kernel_size=7, num_layers=2):
        super().__init__()
        self.fbank = FbankExtractor()
        self.encoder = ConformerEncoder(d_model, n_head, kernel_size, num_layers)

    def construct(self, speech, speech_lens):
        feat, feat_lens = self.fbank(speech, speech_lens)
        feat = apply_cmvn(feat, feat_lens)
        logits, inter_probs, lens = self.encoder(feat, feat_lens)
        log_probs = ops.log_softmax(logits, axis=-1)
        tokens, num, starts, mean_score = ctc_greedy(log_probs, lens)
        log_probs = log_probs * sequence_mask(lens, log_probs.shape[1]).expand_dims(-1).astype(log_probs.dtype)
        return log_probs, inter_probs[0], tokens, num, starts, ops.exp(mean_score)


def synthetic_batch():
    """The same three padded utterances as the reference's."""
    rng = np.random.RandomState(7)
    lengths = np.array([4000, 2950, 2070], dtype=np.int64)
    time = np.arange(lengths.max()) / SAMPLE_RATE
    waves = []
    for _ in range(len(lengths)):
        wave = np.zeros_like(time)
        for _ in range(6):
            low, high = rng.uniform(80, 3000, 2)
            envelope = np.exp(-(((time - rng.uniform(0, 0.5)) / rng.uniform(0.02, 0.1)) ** 2))
            wave += envelope * np.sin(2 * np.pi * (low * time + (high - low) * time**2))
        waves.append(0.3 * wave + 0.06 * rng.randn(time.size))
    return Tensor(np.stack(waves).astype(np.float32)), Tensor(lengths)


def build():
    net = ConformerCTC()
    net.set_train(False)
    return net, synthetic_batch()

"""The streaming zipformer transducer in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

NEG = -1000.0


def sequence_mask(lens, size):
    """True for the frames of the utterance, (batch, size)."""
    return ops.arange(size).expand_dims(0) < lens.expand_dims(1)


def hz_to_mel(hz):
    return 1127.0 * np.log(1.0 + np.asarray(hz, np.float64) / 700.0)


def mel_table(num_bins, n_fft, sample_rate, low, high):
    """Filterbank of kaldi, (n_fft // 2 + 1, num_bins)."""
    if high <= 0:
        high = high + sample_rate / 2
    points = np.linspace(hz_to_mel(low), hz_to_mel(high), num_bins + 2)
    bins = hz_to_mel(np.arange(n_fft // 2 + 1) * sample_rate / n_fft)
    table = np.zeros((n_fft // 2 + 1, num_bins))
    for i in range(num_bins):
        left, center, right = points[i], points[i + 1], points[i + 2]
        rise = (bins - left) / (center - left)
        fall = (right - bins) / (right - center)
        table[:, i] = np.maximum(0.0, np.minimum(rise, fall))
    return table.astype(np.float32)


class LogMel(nn.Cell):
    """Waveform to normalised log-mel frames; the global CMVN is part of it."""

    def __init__(self, num_bins, sample_rate=8000, win=200, hop=80, n_fft=256):
        super().__init__()
        self.win, self.hop, self.n_fft = win, hop, n_fft
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / (win - 1))
        self.window = ms.Tensor((hann**0.85).astype(np.float32))
        self.mel = ms.Tensor(mel_table(num_bins, n_fft, sample_rate, 20.0, -200.0))
        self.mean = ms.Parameter(ops.zeros(num_bins), name="mean", requires_grad=False)
        self.istd = ms.Parameter(ops.ones(num_bins), name="istd", requires_grad=False)

    def construct(self, wave, wave_lens):
        num_frames = (wave.shape[1] - self.win) // self.hop + 1
        index = np.arange(num_frames)[:, None] * self.hop + np.arange(self.win)[None]
        x = ops.gather(wave, ms.Tensor(index), 1)
        x = x - x.mean(axis=-1, keep_dims=True)
        x = x - 0.97 * ops.cat((x[..., :1], x[..., :-1]), axis=-1)
        spec = ops.rfft(x * self.window, self.n_fft)
        power = ops.square(ops.real(spec)) + ops.square(ops.imag(spec))
        x = ops.log(ops.maximum(ops.matmul(power, self.mel), ms.Tensor(1e-7, ms.float32)))
        x = (x - self.mean) * self.istd
        lens = (wave_lens - self.win) // self.hop + 1
        return x * sequence_mask(lens, num_frames).expand_dims(-1).astype(x.dtype), lens


def softplus(x):
    return ops.maximum(x, ops.zeros_like(x)) + ops.log1p(ops.exp(-ops.abs(x)))


class Swoosh(nn.Cell):
    """Both of the zipformer's activations: "l" for the feed forward, "r" for convolutions."""

    def __init__(self, kind):
        super().__init__()
        self.shift, self.offset = {"l": (4.0, 0.035), "r": (1.0, 0.313261687)}[kind]

    def construct(self, x):
        return softplus(x - self.shift) - 0.08 * x - self.offset


class BiasNorm(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.log_scale = ms.Parameter(ms.Tensor(1.0, ms.float32), name="log_scale")
        self.bias = ms.Parameter(ops.zeros(dim), name="bias")

    def construct(self, x):
        var = ops.square(x - self.bias).mean(axis=-1, keep_dims=True)
        return x * ops.rsqrt(var) * ops.exp(self.log_scale)


def bypass(scale, original, x):
    return original + (x - original) * scale


class Subsampling(nn.Cell):
    def __init__(self, num_bins, dim, channels=(6, 10, 12)):
        super().__init__()
        c1, c2, c3 = channels
        self.conv1 = nn.Conv2d(1, c1, 3, pad_mode="pad", padding=(0, 0, 1, 1), has_bias=True)
        self.conv2 = nn.Conv2d(c1, c2, 3, stride=2, pad_mode="valid", has_bias=True)
        self.conv3 = nn.Conv2d(c2, c3, 3, stride=(1, 2), pad_mode="valid", has_bias=True)
        self.act = Swoosh("r")
        self.proj = nn.Dense(c3 * (((num_bins - 1) // 2 - 1) // 2), dim)
        self.norm = BiasNorm(dim)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x, lens):
        x = self.act(self.conv1(x.expand_dims(1)))
        x = self.act(self.conv2(x))
        x = self.act(self.conv3(x))
        b, c, t, f = x.shape
        x = self.proj(x.transpose(0, 2, 1, 3).reshape(b, t, c * f))
        return self.drop(self.norm(x)), (lens - 7) // 2


def relative_table(dim, length, length_factor=1.0):
    """Encodings of the offsets 1 - length ... length - 1, (2 * length - 1, dim)."""
    offsets = np.arange(1 - length, length, dtype=np.float64)[:, None]
    root = math.sqrt(dim)
    squeezed = root * np.sign(offsets) * (np.log(np.abs(offsets) + root) - np.log(root))
    angle = np.arctan(squeezed * (2.0 * np.pi) / (length_factor * dim))
    freqs = np.arange(1, dim // 2 + 1)
    table = np.stack([np.cos(angle * freqs), np.sin(angle * freqs)], axis=-1).reshape(2 * length - 1, dim)
    table[:, -1] = 1.0
    return ms.Tensor(table.astype(np.float32))


def rel_shift(scores):
    """(heads, batch, t, 2 t - 1) to (heads, batch, t, t): row i keeps the columns t - 1 - i and on."""
    heads, batch, t, width = scores.shape
    flat = scores.reshape(heads, batch, t * width)[..., t - 1 : -1]
    return flat.reshape(heads, batch, t, width - 1)[..., :t]


class AttentionMap(nn.Cell):
    """Attention weights with relative positions; the mask is True where a frame may look."""

    def __init__(self, dim, pos_dim, heads, head_dim, pos_head_dim):
        super().__init__()
        self.heads, self.head_dim, self.pos_head_dim = heads, head_dim, pos_head_dim
        self.qkp = nn.Dense(dim, heads * (2 * head_dim + pos_head_dim))
        self.pos = nn.Dense(pos_dim, heads * pos_head_dim, has_bias=False)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x, pos_emb, mask):
        t, b, _ = x.shape
        h, d, pd = self.heads, self.head_dim, self.pos_head_dim
        q, k, p = mint.split(self.qkp(x), [h * d, h * d, h * pd], -1)
        q = q.reshape(t, b, h, d).transpose(2, 1, 0, 3)
        k = k.reshape(t, b, h, d).transpose(2, 1, 0, 3)
        p = p.reshape(t, b, h, pd).transpose(2, 1, 0, 3)
        content = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(d)
        pos_emb = self.pos(pos_emb).reshape(2 * t - 1, h, pd).transpose(1, 2, 0).expand_dims(1)
        scores = content + rel_shift(ops.matmul(p, pos_emb))
        scores = ops.where(mask.expand_dims(0), scores, ms.Tensor(NEG, scores.dtype))
        return self.drop(ops.softmax(scores, axis=-1))


def attend(weights, x):
    """Mixes the frames of (t, b, c) by weights of (heads, b, t, t)."""
    t, b, c = x.shape
    h = weights.shape[0]
    x = ops.matmul(weights, x.reshape(t, b, h, c // h).transpose(2, 1, 0, 3))
    return x.transpose(2, 1, 0, 3).reshape(t, b, c)


class ValueMix(nn.Cell):
    def __init__(self, dim, value_dim):
        super().__init__()
        self.value = nn.Dense(dim, value_dim)
        self.out = nn.Dense(value_dim, dim)

    def construct(self, x, weights):
        return self.out(attend(weights, self.value(x)))


class GatedMix(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.expand = nn.Dense(dim, 3 * hidden)
        self.out = nn.Dense(hidden, dim)

    def construct(self, x, weights):
        gate, value, scale = mint.chunk(self.expand(x), 3, dim=-1)
        value = attend(weights, value * ops.tanh(gate))
        return self.out(value * scale)


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Dense(dim, hidden)
        self.act = Swoosh("l")
        self.down = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.down(self.act(self.up(x)))


class ChunkConv(nn.Cell):
    """Causal depthwise convolution, and one inside each chunk, weighted near the chunk's edges."""

    def __init__(self, dim, kernel):
        super().__init__()
        self.kernel = kernel
        self.causal = nn.Conv1d(dim, dim, kernel // 2 + 1, pad_mode="valid", group=dim, has_bias=True)
        self.inner = nn.Conv1d(dim, dim, kernel, pad_mode="pad", padding=kernel // 2, group=dim, has_bias=True)
        self.edges = ms.Parameter(ops.zeros((2, dim, kernel)), name="edges")

    def edge_scale(self, chunk):
        left, right = self.edges[0], self.edges[1]
        missing = chunk - self.kernel
        if missing < 0:
            left, right = left[:, :chunk], right[:, -missing:]
        elif missing > 0:
            left, right = ops.pad(left, (0, missing)), ops.pad(right, (missing, 0))
        return left + right + 1.0

    def construct(self, x, chunk):
        b, c, t = x.shape
        past = self.causal(ops.pad(x, (self.kernel // 2, 0)))
        count = (t + chunk - 1) // chunk
        x = ops.pad(x, (0, count * chunk - t))
        x = x.reshape(b, c, count, chunk).swapaxes(1, 2).reshape(b * count, c, chunk)
        x = self.inner(x) * self.edge_scale(chunk)
        x = x.reshape(b, count, c, chunk).swapaxes(1, 2).reshape(b, c, count * chunk)
        return x[:, :, :t] + past


class ConvBlock(nn.Cell):
    def __init__(self, dim, kernel):
        super().__init__()
        self.expand = nn.Dense(dim, 2 * dim)
        self.depthwise = ChunkConv(dim, kernel)
        self.norm = nn.BatchNorm2d(dim)
        self.act = Swoosh("r")
        self.out = nn.Dense(dim, dim)

    def construct(self, x, chunk, valid):
        value, gate = mint.chunk(self.expand(x), 2, dim=-1)
        x = (value * ops.sigmoid(gate)).transpose(1, 2, 0)
        x = x * valid.expand_dims(1).astype(x.dtype)
        x = self.depthwise(x, chunk)
        x = self.norm(x.expand_dims(2)).squeeze(2)
        return self.out(self.act(x).transpose(2, 0, 1))


class EncoderLayer(nn.Cell):
    def __init__(self, dim, pos_dim, heads, hidden, kernel):
        super().__init__()
        self.attention = AttentionMap(dim, pos_dim, heads, 6, 4)
        self.mix1 = ValueMix(dim, heads * 7)
        self.mix2 = ValueMix(dim, heads * 7)
        self.ff1 = FeedForward(dim, hidden * 3 // 4)
        self.ff2 = FeedForward(dim, hidden)
        self.ff3 = FeedForward(dim, hidden * 5 // 4)
        self.gated = GatedMix(dim, dim * 3 // 4)
        self.conv = ConvBlock(dim, kernel)
        self.norm = BiasNorm(dim)
        self.bypass_mid_scale = ms.Parameter(ops.ones(dim) * 0.5, name="bypass_mid_scale")
        self.bypass_scale = ms.Parameter(ops.ones(dim) * 0.5, name="bypass_scale")

    def construct(self, x, pos_emb, chunk, mask, valid):
        skip = x
        weights = self.attention(x, pos_emb, mask)
        x = x + self.ff1(x)
        x = x + self.gated(x, weights[:1])
        x = x + self.mix1(x, weights)
        x = x + self.conv(x, chunk, valid)
        x = x + self.ff2(x)
        x = bypass(self.bypass_mid_scale, skip, x)
        x = x + self.mix2(x, weights)
        x = self.norm(x + self.ff3(x))
        return bypass(self.bypass_scale, skip, x)


class WeightedDownsample(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.bias = ms.Parameter(ops.zeros(factor), name="bias")

    def construct(self, x):
        t, b, c = x.shape
        groups = -(-t // self.factor)
        missing = groups * self.factor - t
        if missing:
            x = ops.cat((x, ops.tile(x[-1:], (missing, 1, 1))), axis=0)
        weights = ops.softmax(self.bias, axis=0).reshape(1, self.factor, 1, 1)
        return (x.reshape(groups, self.factor, b, c) * weights).sum(axis=1)


class Stack(nn.Cell):
    """Some layers at one frame rate; with a factor over 1 they run on fewer frames."""

    def __init__(self, depth, dim, pos_dim, heads, hidden, kernel, factor):
        super().__init__()
        self.factor, self.pos_dim = factor, pos_dim
        self.layers = nn.CellList([EncoderLayer(dim, pos_dim, heads, hidden, kernel) for _ in range(depth)])
        if factor > 1:
            self.reduce = WeightedDownsample(factor)
            self.out_scale = ms.Parameter(ops.ones(dim) * 0.5, name="out_scale")

    def construct(self, x, chunk, causal, valid):
        skip, step = x, self.factor
        if step > 1:
            x = self.reduce(x)
            chunk, causal, valid = chunk // step, causal[::step, ::step], valid[:, ::step]
        mask = ops.logical_and(causal.expand_dims(0), valid.expand_dims(1))
        pos_emb = relative_table(self.pos_dim, x.shape[0])
        for layer in self.layers:
            x = layer(x, pos_emb, chunk, mask, valid)
        if step > 1:
            x = ops.repeat_interleave(x, step, 0)[: skip.shape[0]]
            x = bypass(self.out_scale, skip, x)
        return x


class ZipEncoder(nn.Cell):
    def __init__(self, dims, depths, factors, heads, kernels, chunk=4, left_context=8, pos_dim=12):
        super().__init__()
        self.dims, self.chunk, self.left_context = dims, chunk, left_context
        self.stacks = nn.CellList([
            Stack(depths[i], dims[i], pos_dim, heads[i], 48 + 8 * i, kernels[i], factors[i])
            for i in range(len(dims))
        ])
        self.reduce_output = WeightedDownsample(2)

    def chunk_mask(self, t):
        """True where the row's frame sees the column's: its own chunk and some before it."""
        chunk = ops.arange(t) // self.chunk
        back = chunk.expand_dims(1) - chunk.expand_dims(0)
        return ops.logical_and(back >= 0, back <= self.left_context // self.chunk)

    def construct(self, x, lens):
        t, b, _ = x.shape
        valid, causal = sequence_mask(lens, t), self.chunk_mask(t)
        outputs = []
        for dim, stack in zip(self.dims, self.stacks):
            have = x.shape[-1]
            x = x[..., :dim] if have >= dim else ops.pad(x, (0, dim - have))
            x = stack(x, self.chunk, causal, valid)
            outputs.append(x)
        full, have = [x], self.dims[-1]
        for dim, out in reversed(list(zip(self.dims[:-1], outputs[:-1]))):
            if dim > have:
                full.append(out[..., have:dim])
                have = dim
        return self.reduce_output(ops.cat(full, axis=-1)), (lens + 1) // 2


class Predictor(nn.Cell):
    def __init__(self, vocab, dim, context):
        super().__init__()
        self.context = context
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, context, pad_mode="valid", group=dim // 4, has_bias=False)

    def construct(self, tokens):
        x = self.embed(tokens).swapaxes(1, 2)
        x = ops.pad(x, (self.context - 1, 0))
        return ops.relu(self.conv(x).swapaxes(1, 2))


def lattice_score(lattice, tokens, frame_lens, token_lens, blank):
    """Forward variables, a frame at a time: a path enters it at state v and leaves it at state u >= v."""
    _, frames, states, vocab = lattice.shape
    blanks = lattice[..., blank]
    chosen = ops.one_hot(tokens, vocab).expand_dims(1)
    emits = (lattice[:, :, :-1] * chosen).sum(axis=-1)
    emits = ops.pad(ops.cumsum(emits, 2), (1, 0))
    climb = emits.expand_dims(3) - emits.expand_dims(2)
    climb = ops.where(ms.Tensor(np.tri(states, dtype=bool)), climb, ms.Tensor(-1e30, climb.dtype))
    alpha = emits[:, 0]
    alphas = [alpha]
    for t in range(1, frames):
        enter = alpha + blanks[:, t - 1]
        alpha = ops.logsumexp(climb[:, t] + enter.expand_dims(1), 2)
        alphas.append(alpha)
    alphas = ops.stack(alphas, axis=1)
    last = ops.logical_and(
        (ops.arange(frames) == (frame_lens - 1).expand_dims(1)).expand_dims(2),
        (ops.arange(states) == token_lens.expand_dims(1)).expand_dims(1),
    )
    return ((alphas + blanks) * last.astype(alphas.dtype)).sum(axis=(1, 2))


def ctc_best_path(log_probs, lens, blank):
    """Greedy tokens without repeats and blanks, -1 behind them, and the mean log-probability of the path."""
    _, frames, _ = log_probs.shape
    ids, best = ops.argmax(log_probs, -1), log_probs.max(axis=-1)
    valid = sequence_mask(lens, frames)
    changed = ops.cat((ops.ones_like(valid[:, :1]), ids[:, 1:] != ids[:, :-1]), axis=1)
    keep = ops.logical_and(ops.logical_and(ids != blank, changed), valid).astype(ms.int64)
    slot = ops.cumsum(keep, 1) - 1
    hits = (slot.expand_dims(2) == ops.arange(frames)).astype(ms.int64) * keep.expand_dims(2)
    hyps = (hits * (ids + 1).expand_dims(2)).sum(axis=1) - 1
    return hyps, (best * valid.astype(best.dtype)).sum(axis=1) / lens.astype(best.dtype)


class StreamingTransducer(nn.Cell):
    def __init__(self, vocab=29, num_bins=40, predictor_dim=24, joint_dim=44, blank=0):
        super().__init__()
        self.blank = blank
        dims = (32, 40, 36)
        self.frontend = LogMel(num_bins)
        self.subsampling = Subsampling(num_bins, dims[0])
        self.encoder = ZipEncoder(dims, (1, 2, 1), (1, 2, 1), (2, 4, 3), (3, 5, 3))
        self.predictor = Predictor(vocab, predictor_dim, 2)
        self.joint_enc = nn.Dense(max(dims), joint_dim)
        self.joint_pred = nn.Dense(predictor_dim, joint_dim)
        self.joint_out = nn.Dense(joint_dim, vocab)
        self.ctc_drop = nn.Dropout(p=0.1)
        self.ctc_proj = nn.Dense(max(dims), vocab)
        self.ctc_norm = nn.LogSoftmax(axis=-1)

    def encode(self, wave, wave_lens):
        x, lens = self.frontend(wave, wave_lens)
        x, lens = self.subsampling(x, lens)
        x, lens = self.encoder(x.swapaxes(0, 1), lens)
        return x.swapaxes(0, 1), lens

    def construct(self, wave, wave_lens, tokens, token_lens):
        enc, lens = self.encode(wave, wave_lens)
        ctc = self.ctc_norm(self.ctc_proj(self.ctc_drop(enc)))
        hyps, ctc_score = ctc_best_path(ctc, lens, self.blank)
        known = sequence_mask(token_lens, tokens.shape[1])
        tokens = ops.where(known, tokens, ops.full_like(tokens, self.blank))
        history = ops.cat((ops.full_like(tokens[:, :1], self.blank), tokens), axis=1)
        pred = self.predictor(history)
        joint = ops.tanh(self.joint_enc(enc).expand_dims(2) + self.joint_pred(pred).expand_dims(1))
        lattice = ops.log_softmax(self.joint_out(joint), axis=-1)
        score = lattice_score(lattice, tokens, lens, token_lens, self.blank)
        return lattice, ctc, score, ctc_score, hyps


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return StreamingTransducer()

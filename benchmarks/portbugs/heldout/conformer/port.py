"""The conformer encoder in MindSpore: the correct port."""

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def make_pad_mask(lengths, maxlen):
    """True where a frame is padding: (batch, maxlen)."""
    return ops.arange(maxlen).expand_dims(0) >= lengths.expand_dims(1)


def band_mask(size, left, right):
    """True where a query at i may look at a key at j: i - left <= j <= i + right."""
    offset = np.arange(size)[None, :] - np.arange(size)[:, None]
    return ms.Tensor((offset >= -left) & (offset <= right))


def running_norm(feats, valid, floor=0.05):
    # mean and variance of everything heard so far, padding does not count
    weight = valid.expand_dims(-1).astype(feats.dtype)
    count = ops.clamp(ops.cumsum(weight, axis=1), min=1.0)
    mean = ops.cumsum(feats * weight, axis=1) / count
    square = ops.cumsum(feats * feats * weight, axis=1) / count
    var = ops.clamp(square - mean * mean, min=floor)
    return (feats - mean) / ops.sqrt(var) * weight


def add_deltas(feats):
    """(b, t, f) -> (b, 2, t, f): the features and half the difference of their neighbours in time"""
    padded = ops.concat([feats[:, :1], feats, feats[:, -1:]], axis=1)
    delta = 0.5 * (padded[:, 2:] - padded[:, :-2])
    return ops.stack([feats, delta], axis=1)


def relative_table(d_model, max_len):
    """Sines and cosines for the relative places max_len-1 ... 0 ... -(max_len-1)."""
    place = np.arange(max_len - 1, -max_len, -1, dtype=np.float32)[:, None]
    rate = np.exp(np.arange(0, d_model, 2, dtype=np.float32) * -(math.log(10000.0) / d_model))
    table = np.zeros((1, 2 * max_len - 1, d_model), np.float32)
    table[0, :, 0::2] = np.sin(place * rate)
    table[0, :, 1::2] = np.cos(place * rate)
    return table


class FeedForward(nn.Cell):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.norm = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.w_1 = nn.Dense(d_model, d_ff)
        self.w_2 = nn.Dense(d_ff, d_model)

    def construct(self, x):
        return self.w_2(ops.silu(self.w_1(self.norm(x))))


class RelPositionAttention(nn.Cell):
    """Transformer-XL's attention: content and place are scored apart, each query with its own bias."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.h = n_head
        self.d_k = d_model // n_head
        self.norm = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.linear_qkv = nn.Dense(d_model, 3 * d_model)
        self.linear_pos = nn.Dense(d_model, d_model, has_bias=False)
        self.linear_out = nn.Dense(d_model, d_model)
        self.pos_bias_u = ms.Parameter(ms.Tensor(np.zeros((self.h, self.d_k), np.float32)))
        self.pos_bias_v = ms.Parameter(ms.Tensor(np.zeros((self.h, self.d_k), np.float32)))

    def rel_shift(self, x):
        b, h, t, p = x.shape
        x = ops.pad(x, (1, 0))
        x = x.reshape(b, h, p + 1, t)
        x = x[:, :, 1:].reshape(b, h, t, p)
        return x[..., : p // 2 + 1]

    def construct(self, x, pos_emb, allowed):
        n_batch, t, _ = x.shape
        qkv = self.linear_qkv(self.norm(x)).reshape(n_batch, t, 3, self.h, self.d_k)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1].swapaxes(1, 2), qkv[:, :, 2].swapaxes(1, 2)
        p = self.linear_pos(pos_emb).reshape(1, -1, self.h, self.d_k).swapaxes(1, 2)
        content = (q + self.pos_bias_u).swapaxes(1, 2)
        place = (q + self.pos_bias_v).swapaxes(1, 2)
        matrix_ac = ops.matmul(content, k.swapaxes(-2, -1))
        matrix_bd = self.rel_shift(ops.matmul(place, p.swapaxes(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        forbidden = ops.logical_not(allowed).expand_dims(1)
        scores = scores.masked_fill(forbidden, -1e4)
        attn = ops.softmax(scores, axis=-1).masked_fill(forbidden, 0.0)
        x = ops.matmul(attn, v).swapaxes(1, 2).reshape(n_batch, t, self.h * self.d_k)
        return self.linear_out(x)


class ConvModule(nn.Cell):
    """Gate, depthwise filter with more past than future, batch norm, swish, and a gate per channel and utterance."""

    def __init__(self, d_model, past=4, future=2):
        super().__init__()
        self.past, self.future = past, future
        self.norm = nn.LayerNorm((d_model,), epsilon=1e-5)
        self.pointwise_1 = nn.Dense(d_model, 2 * d_model)
        self.depthwise = ms.Parameter(ms.Tensor(np.zeros((d_model, past + future + 1), np.float32)))
        self.batch_norm = nn.BatchNorm1d(d_model, eps=1e-5)
        self.squeeze = nn.Dense(d_model, d_model)
        self.pointwise_2 = nn.Dense(d_model, d_model)

    def filter(self, x):
        """(b, t, c), each channel with its own taps"""
        t = x.shape[1]
        x = ops.pad(x, (0, 0, self.past, self.future))
        out = x[:, :t] * self.depthwise[:, 0]
        for tap in range(1, self.past + self.future + 1):
            out = out + x[:, tap : tap + t] * self.depthwise[:, tap]
        return out

    def channel_gate(self, x, keep):
        mean = (x * keep).sum(axis=1) / keep.sum(axis=1)
        return ops.sigmoid(self.squeeze(mean)).expand_dims(1)

    def construct(self, x, pad_mask):
        b, t, c = x.shape
        keep = ops.logical_not(pad_mask).expand_dims(-1).astype(ms.float32)
        a, gate = ops.split(self.pointwise_1(self.norm(x)), c, axis=-1)
        x = a * ops.sigmoid(gate)
        x = x * keep
        x = self.filter(x)
        x = self.batch_norm(x.reshape(b * t, c)).reshape(b, t, c)
        x = ops.silu(x)
        x = x * self.channel_gate(x, keep)
        return self.pointwise_2(x)


class ConformerBlock(nn.Cell):
    def __init__(self, d_model, n_head, d_ff):
        super().__init__()
        self.ff_scale = 0.5
        self.feed_forward_macaron = FeedForward(d_model, d_ff)
        self.self_attn = RelPositionAttention(d_model, n_head)
        self.conv_module = ConvModule(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm_final = nn.LayerNorm((d_model,), epsilon=1e-5)

    def construct(self, x, pos_emb, allowed, pad_mask):
        x = x + self.ff_scale * self.feed_forward_macaron(x)
        x = x + self.self_attn(x, pos_emb, allowed)
        x = x + self.conv_module(x, pad_mask)
        x = x + self.ff_scale * self.feed_forward(x)
        return self.norm_final(x)


class Conformer(nn.Cell):
    def __init__(self, n_mels=20, d_model=32, n_head=4, d_ff=64, n_blocks=2, channels=12, vocab=24, max_len=40):
        super().__init__()
        self.left_context, self.right_context = 7, 3
        self.xscale = math.sqrt(d_model)
        self.conv_1 = nn.Conv2d(2, channels, 3, stride=2, pad_mode="pad", has_bias=True)
        self.conv_2 = nn.Conv2d(channels, channels, 3, stride=2, pad_mode="pad", has_bias=True)
        self.embed_out = nn.Dense(channels * (((n_mels - 1) // 2 - 1) // 2), d_model)
        self.blocks = nn.CellList([ConformerBlock(d_model, n_head, d_ff) for _ in range(n_blocks)])
        self.layer_weights = ms.Parameter(ms.Tensor(np.zeros(n_blocks, np.float32)))
        self.ctc = nn.Dense(d_model, vocab)
        self.blank_penalty = 0.7
        self.pe = ms.Tensor(relative_table(d_model, max_len))

    def subsample(self, x, lengths):
        x = ops.relu(self.conv_1(x))
        x = ops.relu(self.conv_2(x))
        b, c, t, f = x.shape
        x = self.embed_out(x.transpose(0, 2, 1, 3).reshape(b, t, c * f))
        lengths = ((lengths - 1) // 2 - 1) // 2
        return x, lengths

    def positions(self, x):
        t = x.shape[1]
        center = self.pe.shape[1] // 2
        return x * self.xscale, self.pe[:, center - t + 1 : center + t]

    def construct(self, feats, lengths):
        valid = ops.logical_not(make_pad_mask(lengths, feats.shape[1]))
        feats = running_norm(feats, valid)
        x, lengths = self.subsample(add_deltas(feats), lengths)
        x, pos_emb = self.positions(x)

        t = x.shape[1]
        pad_mask = make_pad_mask(lengths, t)
        window = band_mask(t, self.left_context, self.right_context)
        allowed = ops.logical_and(ops.logical_not(pad_mask).expand_dims(1), window)

        hidden = []
        for block in self.blocks:
            x = block(x, pos_emb, allowed, pad_mask)
            hidden.append(x)
        mix = ops.softmax(self.layer_weights, axis=0)
        x = sum(mix[i] * state for i, state in enumerate(hidden))

        logits = self.ctc(x)
        logits = ops.concat([logits[..., :1] - self.blank_penalty, logits[..., 1:]], axis=-1)
        return ops.log_softmax(logits, axis=-1).masked_fill(pad_mask.expand_dims(-1), 0.0)


def build():
    return Conformer()

"""The long document net in MindSpore, batch first and with slots for global tokens: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

NEG = -10000.0
PAD_ID = 1
SEP_ID = 2


def position_ids(ids, padding_idx):
    """Places of the tokens, counted from padding_idx + 1; padding keeps padding_idx."""
    valid = (ids != padding_idx).astype(ms.int32)
    return ops.cumsum(valid, axis=1) * valid + padding_idx


def split_question(ids, sep_id):
    """1 for the question's tokens, in front of the first separator, and 1 for the document's, after it."""
    is_sep = (ids == sep_id).astype(ms.int32)
    seen = ops.cumsum(is_sep, axis=1)
    question = (seen == 0).astype(ms.int32)
    segment = (seen - is_sep > 0).astype(ms.int32)
    return question, segment


def t5_buckets(offsets, num_buckets, max_distance):
    """T5's bucket for each relative place (both directions)."""
    half = num_buckets // 2
    exact = half // 2
    distance = np.abs(offsets)
    ratio = np.log(np.maximum(distance, 1) / exact) / math.log(max_distance / exact)
    far = np.minimum(exact + (ratio * (half - exact)).astype(np.int32), half - 1)
    return (np.where(offsets > 0, half, 0) + np.where(distance < exact, distance, far)).astype(np.int32)


def overlapping_chunks(x, size, step):
    """(N, L, D) to (N, chunks, size, D)."""
    count = (x.shape[1] - size) // step + 1
    return ops.stack([x[:, i * step : i * step + size] for i in range(count)], axis=1)


def skew(x):
    """Diagonals as columns: (N, C, R, L) to (N, C, L, R + 1) with one row of padding."""
    n, c, rows, cols = x.shape
    return ops.pad(x, (0, 0, 0, 1)).reshape(n, c, cols, rows + 1)


def unskew(x):
    """Columns as diagonals: (N, C, w, L) to (N, C, w, w + L - 1)."""
    n, c, w, length = x.shape
    x = ops.pad(x, (0, w + 1)).reshape(n, c, -1)
    return x[..., :-w].reshape(n, c, w, w + length)[..., :-1]


class TokenInfo:
    """Masks that are the same for all layers, made once from -1 (padding), 0 (local) and 1 (global)."""

    def __init__(self, kind):
        self.kind = kind
        self.padding = kind < 0
        self.is_global = kind > 0
        rank = ops.cumsum(self.is_global.astype(ms.int32), axis=1)
        self.count = rank[:, -1]
        self.slots = int(self.count.max())
        numbers = ops.arange(self.slots)
        # (batch, slots): slots that no token uses
        self.empty = numbers[None] >= self.count[:, None]
        # (batch, slots, length): 1 where a token stands in a slot
        in_slot = ops.logical_and(rank[:, None] - 1 == numbers[None, :, None], self.is_global[:, None])
        self.select = in_slot.astype(ms.float32)


class Embeddings(nn.Cell):
    def __init__(self, vocab, width, places, eps):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width, padding_idx=PAD_ID)
        self.places = nn.Embedding(places, width, padding_idx=PAD_ID)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm((width,), epsilon=eps)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, ids, segment):
        x = self.tokens(ids) + self.segments(segment) + self.places(position_ids(ids, PAD_ID))
        return self.drop(self.norm(x))


class RelativeBand(nn.Cell):
    """Scores by relative place, the same for all layers."""

    def __init__(self, reach, heads, buckets=12, max_distance=12):
        super().__init__()
        self.reach = reach
        self.scores = nn.Embedding(buckets, heads)
        self.table = Tensor(t5_buckets(np.arange(-reach, reach + 1), buckets, max_distance))

    def construct(self, one_sided):
        band = self.scores(self.table)[self.reach - one_sided : self.reach + one_sided + 1]
        return band.swapaxes(0, 1)


class WindowAttention(nn.Cell):
    """Sliding window attention with global tokens; everything is batch first."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.w = window // 2
        self.scale = self.size**-0.5
        self.q = nn.Dense(width, width)
        self.k = nn.Dense(width, width)
        self.v = nn.Dense(width, width)
        self.q_global = nn.Dense(width, width)
        self.k_global = nn.Dense(width, width)
        self.v_global = nn.Dense(width, width)
        self.drop = nn.Dropout(p=0.1)
        corner = np.flip(np.tril(np.ones((self.w, self.w + 1), dtype=bool)), axis=0)
        self.head_corner = Tensor(corner.copy())
        self.tail_corner = Tensor(np.flip(corner, axis=(0, 1)).copy())

    def split(self, x):
        """(B, L, H * D) to (B, H, L, D)."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).swapaxes(1, 2)

    def band_scores(self, query, key):
        """(B, H, L, D) twice to (B, H, L, 2w + 1)."""
        w = self.w
        b, h, length, d = query.shape
        query = overlapping_chunks(query.reshape(b * h, length, d), 2 * w, w)
        key = overlapping_chunks(key.reshape(b * h, length, d), 2 * w, w)
        diagonal = skew(ops.matmul(query, key.swapaxes(-2, -1)))

        # columns w .. 2w: the token itself and the w behind it
        after = ops.cat([diagonal[:, :, :w, : w + 1], diagonal[:, -1:, w:, : w + 1]], axis=1)
        # columns 0 .. w - 1: the w in front of it, from the chunk before
        first = ops.pad(diagonal[:, :1, : w - 1, 1 - w :], (1, 0, 1, 0))
        before = ops.cat([first, diagonal[:, :, -(w + 1) : -1, w + 1 :]], axis=1)
        scores = ops.cat([before, after], axis=-1).reshape(b, h, length, 2 * w + 1)
        return self.cut_corners(scores)

    def cut_corners(self, scores):
        """No keys in front of the first token and behind the last."""
        w = self.w
        head, body, tail = scores[:, :, :w], scores[:, :, w:-w], scores[:, :, -w:]
        head = ops.cat([head[..., : w + 1].masked_fill(self.head_corner, -np.inf), head[..., w + 1 :]], axis=-1)
        tail = ops.cat([tail[..., :w], tail[..., w:].masked_fill(self.tail_corner, -np.inf)], axis=-1)
        return ops.cat([head, body, tail], axis=2)

    def band_values(self, probs, value):
        """(B, H, L, 2w + 1) and (B, H, L, D) to (B, H, L, D)."""
        w = self.w
        b, h, length, d = value.shape
        value = ops.pad(value.reshape(b * h, length, d), (0, 0, w, w), value=-1.0)
        value = overlapping_chunks(value, 3 * w, w)
        probs = unskew(probs.reshape(b * h, length // w, w, 2 * w + 1))
        return ops.matmul(probs, value).reshape(b, h, length, d)

    def from_window(self, x, info, band):
        query = self.split(self.q(x) * self.scale)
        key, value = self.split(self.k(x)), self.split(self.v(x))

        # padding and global tokens are taken out of the window
        hidden_key = (info.kind != 0).astype(x.dtype)[:, None, :, None] * NEG
        scores = self.band_scores(query, key) + self.band_scores(ops.ones_like(hidden_key), hidden_key)
        scores = scores + band[None, :, None]

        select = info.select[:, None]
        key_slots = ops.matmul(select, key)
        value_slots = ops.matmul(select, value)
        slot_scores = ops.matmul(query, key_slots.swapaxes(-2, -1))
        slot_scores = slot_scores.masked_fill(info.empty[:, None, None, :], NEG)

        probs = ops.softmax(ops.cat([slot_scores, scores], axis=-1), axis=-1)
        probs = probs.masked_fill(info.padding[:, None, :, None], 0.0)
        probs = self.drop(probs)
        return ops.matmul(probs[..., : info.slots], value_slots) + self.band_values(probs[..., info.slots :], value)

    def from_everywhere(self, x, info):
        """What the global tokens see: (B, H, slots, D)."""
        query = self.split(self.q_global(ops.matmul(info.select, x)) * self.scale)
        key, value = self.split(self.k_global(x)), self.split(self.v_global(x))
        scores = ops.matmul(query, key.swapaxes(-2, -1))
        scores = scores.masked_fill(info.padding[:, None, None, :], NEG)
        return ops.matmul(self.drop(ops.softmax(scores, axis=-1)), value)

    def construct(self, x, info, band):
        local = self.from_window(x, info, band).swapaxes(1, 2).reshape(x.shape)
        slots = self.from_everywhere(x, info).swapaxes(1, 2).reshape(x.shape[0], info.slots, x.shape[2])
        placed = ops.matmul(info.select.swapaxes(1, 2), slots)
        return ops.where(info.is_global[..., None], placed, local)


class EncoderBlock(nn.Cell):
    """Attention and perceptron, each with its norm behind the sum."""

    def __init__(self, width, heads, inner, window, eps):
        super().__init__()
        self.attn = WindowAttention(width, heads, window)
        self.attn_out = nn.Dense(width, width)
        self.attn_norm = nn.LayerNorm((width,), epsilon=eps)
        self.fc1 = nn.Dense(width, inner)
        self.fc2 = nn.Dense(inner, width)
        self.ffn_norm = nn.LayerNorm((width,), epsilon=eps)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, x, info, band):
        attended = self.drop(self.attn_out(self.attn(x, info, band)))
        x = self.attn_norm(x + attended)
        y = self.fc2(ops.gelu(self.fc1(x), approximate="none"))
        return self.ffn_norm(x + self.drop(y))


class LongEncoder(nn.Cell):
    """Embeddings and blocks; pads to whole windows and cuts the padding off again."""

    def __init__(self, vocab, width, heads, inner, windows, places, eps):
        super().__init__()
        self.windows = windows
        self.embed = Embeddings(vocab, width, places, eps)
        self.relative = RelativeBand(max(windows) // 2, heads)
        self.blocks = nn.CellList([EncoderBlock(width, heads, inner, window, eps) for window in windows])

    def construct(self, ids, mask, question, segment):
        length = ids.shape[1]
        extra = -length % max(self.windows)
        if extra:
            ids = ops.pad(ids, (0, extra), value=PAD_ID)
            mask, question, segment = (ops.pad(m, (0, extra)) for m in (mask, question, segment))
        info = TokenInfo(mask * (question + 1) - 1)
        x = self.embed(ids, segment)
        for block, window in zip(self.blocks, self.windows):
            x = block(x, info, self.relative(window // 2))
        return x[:, :length]


class AnswerSpan(nn.Cell):
    """Start scores, and end scores that know the expected start."""

    def __init__(self, width, eps):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.to_start = nn.Dense(width, 1)
        self.mix = nn.Dense(2 * width, width)
        self.norm = nn.LayerNorm((width,), epsilon=eps)
        self.to_end = nn.Dense(width, 1)

    def construct(self, x, mask, allowed):
        x = x * mask[..., None].astype(x.dtype)
        x = x + self.act(self.conv(x.swapaxes(1, 2))).swapaxes(1, 2)
        start = self.to_start(x)[..., 0]
        weights = ops.softmax(start.masked_fill(ops.logical_not(allowed), NEG), axis=-1)
        expected = ops.matmul(weights[:, None], x)
        both = ops.cat([x, ops.broadcast_to(expected, x.shape)], axis=-1)
        end = self.to_end(self.norm(ops.tanh(self.mix(both))))[..., 0]
        return start, end


class LongDocumentNet(nn.Cell):
    """Ids and mask in; start scores, end scores and class scores out."""

    def __init__(self, vocab=120, width=40, heads=4, inner=72, windows=(8, 16, 8), places=82, classes=5, eps=1e-5):
        super().__init__()
        self.backbone = LongEncoder(vocab, width, heads, inner, windows, places, eps)
        self.span = AnswerSpan(width, eps)
        self.pool = nn.Dense(width, width)
        self.classify = nn.Dense(width, classes)
        self.drop = nn.Dropout(p=0.1)

    def construct(self, ids, mask):
        ids, mask = ids.astype(ms.int32), mask.astype(ms.int32)
        question, segment = split_question(ids, SEP_ID)
        x = self.backbone(ids, mask, question, segment)
        start, end = self.span(x, mask, ops.logical_and(segment == 1, mask == 1))
        pooled = ops.tanh(self.pool(self.drop(x[:, 0])))
        return start, end, self.classify(self.drop(pooled))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return LongDocumentNet()

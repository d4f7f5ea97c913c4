"""The ranker in MindSpore: the correct port."""

from __future__ import annotations

import math
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops

NEG = -1e4


class Text(NamedTuple):
    tokens: ms.Tensor
    pooled: ms.Tensor
    mask: ms.Tensor


def masked_mean(x, mask, axis):
    mask = mask.expand_dims(-1).astype(x.dtype)
    return (x * mask).sum(axis=axis) / ops.clamp(mask.sum(axis=axis), min=1.0)


def masked_max(x, mask, axis):
    return ops.amax(x.masked_fill(ops.logical_not(mask.expand_dims(-1)), NEG), axis)


def split_heads(x, heads):
    return x.reshape(x.shape[:-1] + (heads, -1)).swapaxes(-3, -2)


def attend(q, k, v, mask, bias=None):
    """(..., h, n, d) with a mask of the keys (..., m)."""
    score = ops.matmul(q, k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5
    if bias is not None:
        score = score + bias
    score = score.masked_fill(ops.logical_not(mask).expand_dims(-2).expand_dims(-2), NEG)
    out = ops.matmul(ops.softmax(score, axis=-1), v)
    out = out.swapaxes(-3, -2)
    return out.reshape(out.shape[:-2] + (-1,))


def relative_bucket(length, num_buckets=12, max_distance=24):
    """T5's buckets: half for each direction, exact for the near ones, logarithmic for the far ones."""
    pos = np.arange(length)
    rel = pos[None, :] - pos[:, None]
    half = num_buckets // 2
    bucket = (rel > 0).astype(np.int32) * half
    n = np.abs(rel)
    exact = half // 2
    far = exact + (np.log(np.maximum(n, 1) / exact) / math.log(max_distance / exact) * (half - exact)).astype(np.int32)
    far = np.minimum(far, half - 1)
    return ms.Tensor(bucket + np.where(n < exact, n, far), ms.int32)


def bucketed(x, bounds):
    return (x.expand_dims(-1) > bounds).astype(ms.int32).sum(axis=-1)


def alibi_decay(age, half_life):
    return ops.pow(2.0, -age / half_life)


def normalize(x):
    norm = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
    return x / ops.clamp(norm, min=1e-12)


class TextLayer(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, 4 * dim)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x, mask, bias):
        h = self.norm1(x)
        q, k, v = [split_heads(t, self.heads) for t in ops.chunk(self.qkv(h), 3, axis=-1)]
        x = x + self.out(attend(q, k, v, mask, bias=bias))
        value, gate = ops.chunk(self.fc1(self.norm2(x)), 2, axis=-1)
        return x + self.fc2(value * ops.silu(gate))


class TextTower(nn.Cell):
    """Encodes tokens; any number of axes before the tokens' one."""

    def __init__(self, vocab, dim, late, heads=4, depth=2):
        super().__init__()
        self.dim = dim
        self.words = nn.Embedding(vocab, dim)
        self.kind = nn.Embedding(2, dim)
        self.relative = nn.Embedding(12, heads)
        self.layers = nn.CellList([TextLayer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.salience = nn.Dense(dim, 1)
        self.proj = nn.Dense(3 * dim, dim)
        self.late = nn.Dense(dim, late)

    def construct(self, ids, kind):
        lead, length = ids.shape[:-1], ids.shape[-1]
        flat = ids.reshape(-1, length)
        mask = flat != 0
        x = self.words(flat) * math.sqrt(self.dim)
        x = x + self.kind.embedding_table[kind]
        bias = self.relative(relative_bucket(length)).transpose(2, 0, 1)
        for layer in self.layers:
            x = layer(x, mask, bias)
        x = self.norm(x)
        weight = self.salience(x).squeeze(-1).masked_fill(ops.logical_not(mask), NEG)
        weight = ops.softmax(weight, axis=-1)
        mixed = ops.bmm(weight.expand_dims(1), x).squeeze(1)
        pooled = ops.concat((masked_mean(x, mask, 1), masked_max(x, mask, 1), mixed), axis=-1)
        tokens = normalize(self.late(x)) * mask.expand_dims(-1).astype(x.dtype)
        return Text(tokens.reshape(lead + (length, -1)), self.proj(pooled).reshape(lead + (-1,)),
                    mask.reshape(lead + (length,)))


def late_interaction(query, doc):
    """ColBERT's sum of maxima, averaged over the query's words, and the share of words with a good match."""
    sim = ops.matmul(query.tokens.expand_dims(1), doc.tokens.swapaxes(-1, -2))
    sim = sim.masked_fill(ops.logical_not(doc.mask).expand_dims(2), NEG)
    best = ops.amax(sim, -1)
    qmask = query.mask.expand_dims(1).astype(ms.float32)
    total = (best * qmask).sum(axis=-1) / qmask.sum(axis=-1)
    covered = (ops.sigmoid(8 * (best - 0.4)) * qmask).sum(axis=-1) / qmask.sum(axis=-1)
    soft = ops.logsumexp(6 * sim, -1) / 6 - best
    return ops.stack((total, covered, (soft * qmask).sum(axis=-1)), axis=-1)


class History(nn.Cell):
    """What the user has taken before, seen from each candidate."""

    def __init__(self, dim, heads=4, recent=5, half_life=24.0):
        super().__init__()
        self.heads, self.recent, self.half_life = heads, recent, half_life
        self.bounds = ms.Tensor([1.0, 3, 8, 24, 72, 168], ms.float32)
        self.age = nn.Embedding(7, dim)
        self.q = nn.Dense(dim, dim)
        self.kv = nn.Dense(dim, 2 * dim)
        self.unit1 = nn.Dense(4 * dim, dim)
        self.unit2 = nn.Dense(dim, 1)
        self.alpha = ms.Parameter(ops.zeros((dim,)), name="alpha")
        self.merge = nn.Dense(3 * dim, dim)

    def activation_unit(self, past, target, mask, age):
        # DIN: no softmax, the strength of the interest is kept
        b, c, d = target.shape
        t = past.shape[1]
        h = ops.broadcast_to(past.expand_dims(1), (b, c, t, d))
        g = ops.broadcast_to(target.expand_dims(2), (b, c, t, d))
        z = self.unit1(ops.concat((g, h, g - h, g * h), axis=-1))
        gate = ops.sigmoid((z - z.mean(axis=-1, keep_dims=True)) / (z.std(axis=-1, keepdims=True) + 1e-4))
        z = gate * z + (1 - gate) * self.alpha * z
        weight = self.unit2(z).squeeze(-1) * alibi_decay(age, self.half_life).expand_dims(1)
        weight = weight.masked_fill(ops.logical_not(mask).expand_dims(1), 0.0)
        return ops.bmm(weight, past)

    def construct(self, items, age, mask, target):
        past = items + self.age(bucketed(age, self.bounds))
        keep = mask.expand_dims(-1).astype(past.dtype)
        # the item before each one (newest first); the oldest has none
        before = (past * keep)[:, 1:]
        before = ops.concat((before, ops.zeros_like(past[:, :1])), axis=1)
        past = past + 0.3 * (past - before)
        past = past * keep
        k, v = ops.chunk(self.kv(past), 2, axis=-1)
        q = split_heads(self.q(target), self.heads)
        decay = -(age / self.half_life).expand_dims(1).expand_dims(1)
        cross = attend(q, split_heads(k, self.heads), split_heads(v, self.heads), mask, bias=0.5 * decay)
        unit = self.activation_unit(past, target, mask, age)
        recent = masked_mean(past[:, :self.recent], mask[:, :self.recent], 1)
        recent = ops.broadcast_to(recent.expand_dims(1), cross.shape)
        return self.merge(ops.concat((cross, unit, recent), axis=-1))


class Crosses(nn.Cell):
    """Low-rank cross layers (DCN v2) and a factorization machine over the fields."""

    def __init__(self, width, rank=12, depth=2):
        super().__init__()
        self.down = nn.CellList([nn.Dense(width, rank, has_bias=False) for _ in range(depth)])
        self.up = nn.CellList([nn.Dense(rank, width) for _ in range(depth)])

    def construct(self, fields):
        b, c, f, d = fields.shape
        x0 = fields.reshape(b, c, f * d)
        x = x0
        for down, up in zip(self.down, self.up):
            x = x0 * up(down(x)) + x
        pairs = 0.5 * (ops.square(fields.sum(axis=2)) - ops.square(fields).sum(axis=2))
        return ops.concat((x, pairs / math.sqrt(f)), axis=-1)


class Experts(nn.Cell):
    """Multi-gate mixture of experts; one output for each head."""

    def __init__(self, width, dim, experts=3, heads=3):
        super().__init__()
        self.experts, self.heads = experts, heads
        self.hidden = nn.Dense(width, experts * dim)
        self.gates = nn.Dense(width, heads * experts)
        self.weight = ms.Parameter(ops.zeros((heads, dim)), name="weight")
        self.bias = ms.Parameter(ops.zeros((heads,)), name="bias")

    def construct(self, x):
        lead = x.shape[:-1]
        h = ops.relu(self.hidden(x)).reshape(lead + (self.experts, -1))
        gate = ops.softmax(self.gates(x).reshape(lead + (self.heads, self.experts)), axis=-1)
        mixed = ops.matmul(gate, h)
        return (mixed * self.weight).sum(axis=-1) + self.bias


class Ranker(nn.Cell):
    def __init__(self, vocab=200, items=80, dim=32, late=16, dense=6, field=8):
        super().__init__()
        self.text = TextTower(vocab, dim, late)
        self.items = nn.Embedding(items, dim)
        self.history = History(dim)
        self.dense_norm = nn.BatchNorm1d(dense)
        self.dense = nn.Dense(dense, 2 * field)
        self.places = nn.Embedding(6, 3)
        self.to_field = nn.CellList([nn.Dense(dim, field) for _ in range(4)])
        self.crosses = Crosses(6 * field)
        self.experts = Experts(7 * field + 3 + 3, dim)
        self.place_bounds = ms.Tensor([1.0, 2, 4, 8, 16], ms.float32)
        self.blend = ms.Parameter(ops.zeros((3,)), name="blend")
        self.temperature = ms.Parameter(ops.ones((1,)), name="temperature")

    def dense_features(self, dense):
        x = ops.sign(dense) * ops.log(1 + ops.abs(dense))
        x = self.dense_norm(x.reshape(-1, x.shape[-1])).reshape(x.shape)
        relative = x - x.mean(axis=1, keep_dims=True)
        relative = relative / ops.sqrt(ops.square(relative).mean(axis=1, keep_dims=True) + 1e-3)
        return self.dense(x + 0.5 * relative)

    def blended(self, logits, shown):
        click, dwell, buy = logits[..., 0], logits[..., 1], logits[..., 2]
        click = -ops.softplus(-click / self.temperature)
        dwell = ops.softplus(dwell)
        buy = -ops.softplus(-buy) + click
        parts = ops.stack((click, ops.log(1 + dwell), buy), axis=-1)
        shown = shown.expand_dims(-1)
        centre = (parts * shown).sum(axis=1, keepdims=True) / shown.sum(axis=1, keepdims=True)
        parts = (parts - centre) * shown
        return (parts * ops.softmax(self.blend, axis=0)).sum(axis=-1), parts

    def construct(self, query, docs, ids, history, age, dense, place):
        shown = (ids != 0).astype(ms.float32)
        q = self.text(query, kind=0)
        d = self.text(docs, kind=1)
        target = self.items(ids) + d.pooled
        user = self.history(self.items(history), age, history != 0, target)
        match = late_interaction(q, d)
        asked = ops.broadcast_to(q.pooled.expand_dims(1), target.shape)
        wide = [asked, target, user, user * target]
        fields = [lin(x) for lin, x in zip(self.to_field, wide)]
        left, right = ops.chunk(self.dense_features(dense), 2, axis=-1)
        fields = ops.stack(fields + [left, right], axis=2)
        one = normalize(ops.stack((asked, user, user), axis=-2))
        other = normalize(ops.stack((target, target, asked), axis=-2))
        x = ops.concat((self.crosses(fields), match, (one * other).sum(axis=-1)), axis=-1)
        logits = self.experts(x) + self.places(bucketed(place, self.place_bounds))
        score, parts = self.blended(logits, shown)
        return ops.concat((score.expand_dims(-1), parts), axis=-1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Ranker()

"""Coreference over spans with a DeBERTa-like encoder, MindSpore version."""

import math

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np


def log_buckets(relative, buckets, farthest):
    """Near offsets keep their own bucket, far ones share logarithmic ones. In numpy: it depends on the length alone."""
    sign = np.sign(relative)
    mid = buckets // 2
    absolute = np.where((relative < mid) & (relative > -mid), mid - 1, np.abs(relative))
    log_place = np.ceil(np.log(absolute / mid) / math.log((farthest - 1) / mid) * (mid - 1)) + mid
    return np.where(absolute <= mid, relative, log_place * sign).astype(np.int32)


def masked_softmax(scores, mask, axis=-1):
    hidden = mask.logical_not()
    scores = scores.masked_fill(hidden, float(np.finfo(np.float32).min))
    probs = ops.softmax(scores, axis=axis)
    return probs.masked_fill(hidden, 0.0)


def batched_select(x, index):
    """x: (batch, n, d), index: (batch, m) or (m,) -> (batch, m, d)."""
    if index.ndim == 1:
        return x[:, index]
    index = index.expand_dims(-1).broadcast_to(index.shape + (x.shape[-1],))
    return x.gather_elements(1, index)


class DisentangledAttention(nn.Cell):
    def __init__(self, hidden_size, num_heads, att_span):
        super().__init__()
        self.num_heads = num_heads
        self.att_span = att_span
        self.query_proj = nn.Dense(hidden_size, hidden_size)
        self.key_proj = nn.Dense(hidden_size, hidden_size)
        self.value_proj = nn.Dense(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        batch, length, width = x.shape
        x = x.reshape(batch, length, self.num_heads, -1).transpose(0, 2, 1, 3)
        return x.reshape(batch * self.num_heads, length, -1)

    def disentangled_bias(self, query, key, relative_pos, rel_embeddings, scale_factor):
        batch = query.shape[0] // self.num_heads
        span = self.att_span
        rel_embeddings = rel_embeddings[: 2 * span].expand_dims(0)
        pos_query = self.transpose_for_scores(self.query_proj(rel_embeddings)).tile((batch, 1, 1))
        pos_key = self.transpose_for_scores(self.key_proj(rel_embeddings)).tile((batch, 1, 1))
        scale = math.sqrt(query.shape[-1] * scale_factor)
        shape = (query.shape[0],) + relative_pos.shape
        # content to position
        c2p_att = ops.bmm(query, pos_key.swapaxes(-1, -2))
        c2p_pos = ops.clamp(relative_pos + span, 0, span * 2 - 1)
        c2p_att = c2p_att.gather_elements(2, c2p_pos.expand_dims(0).broadcast_to(shape))
        score = c2p_att / scale
        # position to content
        p2c_pos = ops.clamp(-relative_pos + span, 0, span * 2 - 1)
        p2c_att = ops.bmm(key, pos_query.swapaxes(-1, -2))
        p2c_att = p2c_att.gather_elements(2, p2c_pos.expand_dims(0).broadcast_to(shape)).swapaxes(-1, -2)
        return score + p2c_att / scale

    def construct(self, hidden_states, attention_mask, relative_pos, rel_embeddings):
        batch, length, _ = hidden_states.shape
        query = self.transpose_for_scores(self.query_proj(hidden_states))
        key = self.transpose_for_scores(self.key_proj(hidden_states))
        value = self.transpose_for_scores(self.value_proj(hidden_states))
        scale_factor = 3
        scale = math.sqrt(query.shape[-1] * scale_factor)
        scores = ops.bmm(query, key.swapaxes(-1, -2)) / scale
        scores = scores + self.disentangled_bias(query, key, relative_pos, rel_embeddings, scale_factor)
        scores = scores.reshape(batch, self.num_heads, length, length)
        # each head's scores are taken relative to the row's mean over the words that exist
        weight = attention_mask.astype(scores.dtype)
        centre = (scores * weight).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True).clamp(min=1)
        probs = masked_softmax((scores - centre).clamp(-6, 6), attention_mask)
        context = ops.bmm(probs.reshape(-1, length, length), value)
        context = context.reshape(batch, self.num_heads, length, -1)
        return context.transpose(0, 2, 1, 3).reshape(batch, length, -1)


class EncoderLayer(nn.Cell):
    def __init__(self, hidden_size, num_heads, att_span):
        super().__init__()
        self.attention = DisentangledAttention(hidden_size, num_heads, att_span)
        self.dense = nn.Dense(hidden_size, hidden_size)
        self.attention_norm = nn.LayerNorm((hidden_size,), epsilon=1e-7)
        self.intermediate = nn.Dense(hidden_size, 2 * hidden_size)
        self.output = nn.Dense(2 * hidden_size, hidden_size)
        self.output_norm = nn.LayerNorm((hidden_size,), epsilon=1e-7)

    def construct(self, x, mask, relative_pos, rel_embeddings):
        pair_mask = ops.logical_and(mask[:, None, :, None], mask[:, None, None, :])
        weight = mask.astype(x.dtype).expand_dims(-1)
        attended = self.attention(x, pair_mask, relative_pos, rel_embeddings)
        x = self.attention_norm(x + self.dense(attended))
        y = ops.gelu(self.intermediate(x), approximate="tanh")
        # tokens that are shifted by one give a little context to the wide layer
        left = ops.concat([ops.zeros_like(y[:, :1]), y[:, :-1]], axis=1)
        y = y + 0.5 * left * weight
        return self.output_norm(x + self.output(y)) * weight


class Encoder(nn.Cell):
    def __init__(self, vocab, hidden_size, num_heads, layers, buckets, farthest):
        super().__init__()
        self.buckets = buckets
        self.farthest = farthest
        self.word_embeddings = nn.Embedding(vocab, hidden_size)
        self.speaker_embeddings = nn.Embedding(4, hidden_size)
        self.norm = nn.LayerNorm((hidden_size,), epsilon=1e-7)
        self.rel_embeddings = nn.Embedding(2 * buckets, hidden_size)
        self.rel_norm = nn.LayerNorm((hidden_size,), epsilon=1e-7)
        self.layer = nn.CellList([EncoderLayer(hidden_size, num_heads, buckets) for _ in range(layers)])
        self.mix = ms.Parameter(ops.zeros((layers + 1,), ms.float32), name="mix")

    def construct(self, ids, speakers, mask):
        batch, length = ids.shape
        # a speaker's words are numbered by how often the speaker has changed before them
        change = (speakers[:, 1:] != speakers[:, :-1]).astype(ms.int32)
        turns = ops.concat([ops.zeros((batch, 1), ms.int32), change], axis=1).cumsum(1)
        x = self.word_embeddings(ids) + self.speaker_embeddings(speakers)
        x = x + 0.1 * ops.sin(turns.astype(x.dtype) / 2.0).expand_dims(-1)
        x = self.norm(x) * mask.astype(x.dtype).expand_dims(-1)
        places = np.arange(length)
        relative_pos = log_buckets(places[:, None] - places[None, :], self.buckets, self.farthest)
        relative_pos = ms.Tensor(relative_pos)
        rel_embeddings = self.rel_norm(self.rel_embeddings.embedding_table)
        states = [x]
        for layer in self.layer:
            x = layer(x, mask, relative_pos, rel_embeddings)
            states.append(x)
        weights = ops.softmax(self.mix, axis=0).reshape(-1, 1, 1, 1)
        return (weights * ops.stack(states, axis=0)).sum(0), turns


class SpanExtractor(nn.Cell):
    """Start, end, width, and the words between weighed by a head finder."""

    def __init__(self, hidden_size, width_size, max_width):
        super().__init__()
        self.max_width = max_width
        self.width_embeddings = nn.Embedding(max_width, width_size)
        self.head = nn.Dense(hidden_size, 1)
        self.project = nn.Dense(3 * hidden_size + width_size, hidden_size)
        self.norm = nn.LayerNorm((hidden_size,), epsilon=1e-5)

    def construct(self, x, mask):
        batch, length, _ = x.shape
        starts = np.repeat(np.arange(length), self.max_width)
        widths = np.tile(np.arange(self.max_width), length)
        ends = starts + widths
        inside = ends < length
        starts, widths, ends = starts[inside], widths[inside], ends[inside]
        places = np.arange(length)[None, :]
        cover = ms.Tensor((places >= starts[:, None]) & (places <= ends[:, None]))
        starts, widths, ends = (ms.Tensor(a, ms.int32) for a in (starts, widths, ends))
        valid = ends.expand_dims(0) < mask.astype(ms.int32).sum(-1, keepdims=True)

        head = self.head(x).squeeze(-1).expand_dims(1)
        head = head.broadcast_to((batch,) + cover.shape)
        head_probs = masked_softmax(head, cover.expand_dims(0), axis=-1)
        attended = ops.bmm(head_probs, x)

        width = self.width_embeddings(widths).expand_dims(0)
        width = width.broadcast_to((batch,) + width.shape[1:])
        reps = ops.concat([batched_select(x, starts), batched_select(x, ends), attended, width], axis=-1)
        reps = self.norm(ops.tanh(self.project(reps)) + attended)
        return reps, valid, starts, ends


class CorefNet(nn.Cell):
    def __init__(self, vocab=90, hidden_size=48, num_heads=4, layers=2, buckets=6, farthest=32, max_width=4, keep=0.4):
        super().__init__()
        self.keep = keep
        self.encoder = Encoder(vocab, hidden_size, num_heads, layers, buckets, farthest)
        self.pooler = nn.Dense(2 * hidden_size, hidden_size)
        self.spans = SpanExtractor(hidden_size, 12, max_width)
        self.mention_hidden = nn.Dense(hidden_size, hidden_size)
        self.mention = nn.Dense(hidden_size, 1)
        self.left = nn.Dense(hidden_size, 32)
        self.right = nn.Dense(hidden_size, 32)
        self.biaffine = ms.Parameter(ops.zeros((33, 32), ms.float32), name="biaffine")
        self.distance_embeddings = nn.Embedding(7, 16)
        self.pair = nn.Dense(17, 1)
        self.gate = nn.Dense(2 * hidden_size, hidden_size)

    def pool(self, x, mask):
        weight = mask.astype(x.dtype).expand_dims(-1)
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-6)
        deviation = ((x - mean.expand_dims(1)) ** 2 * weight).sum(1) / (weight.sum(1) - 1).clamp(min=1.0)
        return ops.tanh(self.pooler(ops.concat([mean, ops.sqrt(deviation + 1e-5)], axis=-1)))

    def prune(self, scores, valid, length):
        """The best spans' indices, in the order of the text."""
        count = int(self.keep * length)
        scores = scores.masked_fill(valid.logical_not(), -1e4)
        _, index = ops.topk(scores, count, dim=1)
        index = index.astype(ms.float32).sort(axis=1)[0].astype(ms.int32)
        return index, scores.gather_elements(1, index)

    def pair_features(self, starts, ends, turns):
        gap = (starts.expand_dims(2) - ends.expand_dims(1)).clamp(min=0)
        bucket = ops.floor(ops.log2(gap.astype(ms.float32) + 1.0) * 1.5 + 0.01).astype(ms.int32).clamp(max=6)
        first = turns.gather_elements(1, starts)
        same = (first.expand_dims(2) == first.expand_dims(1)).astype(ms.float32)
        return ops.concat([self.distance_embeddings(bucket), same.expand_dims(-1)], axis=-1)

    def antecedents(self, reps, scores, features, allowed):
        left = ops.tanh(self.left(reps))
        right = ops.tanh(self.right(reps))
        left = ops.concat([left, ops.ones_like(left[..., :1])], axis=-1)
        pairs = ops.matmul(ops.matmul(left, self.biaffine), right.swapaxes(1, 2))
        pairs = pairs + self.pair(features).squeeze(-1)
        pairs = pairs + scores.expand_dims(2) + scores.expand_dims(1)
        pairs = pairs.masked_fill(allowed.logical_not(), -1e4)
        dummy = ops.zeros(pairs.shape[:2] + (1,), pairs.dtype)
        return ops.concat([dummy, pairs], axis=-1)

    def construct(self, ids, speakers, mask):
        mask = mask > 0
        x, turns = self.encoder(ids, speakers, mask)
        summary = self.pool(x, mask)
        x = (x + 0.5 * summary.expand_dims(1)) * mask.astype(x.dtype).expand_dims(-1)
        reps, valid, starts, ends = self.spans(x, mask)

        scores = self.mention(ops.leaky_relu(self.mention_hidden(reps), 0.1)).squeeze(-1)
        scores = scores - 0.3 * ops.log1p((ends - starts).astype(scores.dtype))
        index, top_scores = self.prune(scores, valid, x.shape[1])
        reps = batched_select(reps, index)
        starts, ends = starts[index], ends[index]

        count = index.shape[1]
        allowed = ms.Tensor(np.tril(np.ones((1, count, count), bool), -1)).broadcast_to((len(index), count, count))
        features = self.pair_features(starts, ends, turns)
        for _ in range(2):
            logits = self.antecedents(reps, top_scores, features, allowed)
            probs = ops.softmax(logits, axis=-1)
            # what the antecedents say about a span; the dummy stands for the span itself
            expected = probs[..., :1] * reps + ops.bmm(probs[..., 1:], reps)
            gate = ops.sigmoid(self.gate(ops.concat([reps, expected], axis=-1)))
            reps = gate * reps + (1 - gate) * expected
        logits = self.antecedents(reps, top_scores, features, allowed)
        return ops.softmax(logits, axis=-1), top_scores, reps, summary


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return CorefNet()
